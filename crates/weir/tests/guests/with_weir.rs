//! A guest in QEMU that runs weir itself, from its second virtio disk.

use std::ops::{Deref, DerefMut};

use anyhow::Result;
use weir_testing::{Guest, GuestDisk, Kit, Scratch, Tools};

/// The guest, with weir at [`WEIR`].
pub struct WeirGuest {
    guest: Guest,
    _tools: Tools,
    /// Dropped last: it contains the files of the other fields.
    pub folder: Scratch,
}

/// The program in the guest.
pub const WEIR: &str = "/tools/bin/weir";

impl WeirGuest {
    /// Boots VM `name` with these options of QEMU, of which the first ones are a virtio disk, and
    /// with the files of `folder`.
    pub fn boot(
        kit: &Kit,
        test: &str,
        name: &str,
        folder: Scratch,
        args: &[String],
    ) -> Result<WeirGuest> {
        let tools = folder.path().join("tools");
        let tools = Tools::make(&tools, &[env!("CARGO_BIN_EXE_weir")])?;
        let disk = GuestDisk::new("tools", &folder.file("tools")).buffered();
        let args = [args, &disk.args()].concat();
        let mut guest = Guest::boot(kit, test, name, &args)?;
        guest.run(&Tools::mount("/dev/vdb"))?;
        // weir starts itself a second time, so the system must find its libraries.
        guest.run("mkdir -p /tmp /lib64 && ln -s /tools/lib/ld-linux-x86-64.so.2 /lib64/")?;
        guest.run("export LD_LIBRARY_PATH=/tools/lib")?;
        Ok(WeirGuest {
            guest,
            _tools: tools,
            folder,
        })
    }
}

impl Deref for WeirGuest {
    type Target = Guest;

    fn deref(&self) -> &Guest {
        &self.guest
    }
}

impl DerefMut for WeirGuest {
    fn deref_mut(&mut self) -> &mut Guest {
        &mut self.guest
    }
}
