//! [`Setup`]: everything that one tapdisk serves, checked as a whole before anything is opened.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use weir_runtime::failure::Failure;

use super::DiskEntry;
use crate::SocketAccess;
use crate::nbd::NbdAddress;

/// What a tapdisk serves.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// The disks.
    pub disks: Vec<DiskEntry>,
    /// How all of them are served over NBD.
    pub nbd: Option<NbdEntry>,
    /// Where requests are reported. `None`: they are served on a port alone, whose number names the
    /// socket.
    pub tap: Option<PathBuf>,
    /// Who may connect.
    pub access: SocketAccess,
}

/// How disks are served over NBD; what is `None` is left to the server.
#[derive(Clone, Debug, PartialEq)]
pub struct NbdEntry {
    /// Where.
    pub address: NbdAddress,
    /// Clients at a time.
    pub clients_max: Option<u16>,
    /// How long a client must have been idle to lose its place to another one.
    pub idle: Option<Duration>,
}

/// Most disks of one tapdisk.
const DISKS_MAX: usize = 256;

impl Setup {
    /// These disks, all paths of sockets made absolute. Without a path for the tap it is that of
    /// the first socket with `.tap` appended.
    ///
    /// # Errors
    /// Everything about them that does not fit together.
    pub fn new(
        disks: Vec<DiskEntry>,
        nbd: Option<NbdEntry>,
        tap: Option<PathBuf>,
        access: SocketAccess,
    ) -> Result<Setup, Failure> {
        let mut wrong = Vec::new();
        if disks.is_empty() {
            wrong.push(
                "no disk is specified; use --image FILE --socket PATH, --disk or --config".into(),
            );
        }
        if disks.len() > DISKS_MAX {
            wrong.push(format!(
                "a tapdisk serves at most {DISKS_MAX} disks; start another one"
            ));
        }
        let disks: Vec<DiskEntry> = disks.into_iter().map(placed).collect();
        let nbd = nbd.map(|nbd| NbdEntry {
            address: match nbd.address {
                NbdAddress::Unix(path) => NbdAddress::Unix(absolute(&path)),
                port => port,
            },
            ..nbd
        });
        if nbd.is_none() {
            let unreachable = disks.iter().filter(|disk| disk.socket.is_none());
            wrong.extend(unreachable.map(|disk| {
                let image = disk.image.display();
                format!("{image}: the disk has no socket; add one, or serve all disks with --nbd")
            }));
        }
        let nbd_path = nbd.as_ref().and_then(|nbd| match &nbd.address {
            NbdAddress::Unix(path) => Some(path.clone()),
            NbdAddress::Loopback(_) => None,
        });
        let first = disks
            .iter()
            .find_map(|disk| disk.socket.clone())
            .or(nbd_path.clone());
        let tap = tap
            .map(|path| absolute(&path))
            .or(first.as_deref().map(tap_of));
        let sockets = disks.iter().filter_map(|disk| disk.socket.as_deref());
        let sockets = sockets.chain(nbd_path.as_deref()).chain(tap.as_deref());
        wrong.extend(twice(sockets).map(|path| format!("{}: used by two sockets", path.display())));
        let named = disks
            .iter()
            .filter_map(|disk| Some((disk.vm.clone()?, disk.vdisk.clone()?)));
        wrong.extend(twice(named).map(|(vm, vdisk)| {
            format!(
                "two disks have the name {vdisk} of \
        VM {vm}"
            )
        }));
        match wrong.is_empty() {
            true => Ok(Setup {
                disks,
                nbd,
                tap,
                access,
            }),
            false => Err(Failure::words(wrong.join("\nweir: "))),
        }
    }
}

/// Where requests are reported that come by a disk's socket.
pub fn tap_of(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".tap");
    PathBuf::from(path)
}

fn placed(disk: DiskEntry) -> DiskEntry {
    DiskEntry {
        socket: disk.socket.as_deref().map(absolute),
        ..disk
    }
}

/// The kernel shows others a socket by the path that it was bound to, so that should not depend on
/// where we are.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// What occurs more than once.
fn twice<T: std::hash::Hash + Eq + Clone>(all: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
    let mut seen: HashMap<T, usize> = HashMap::new();
    all.filter(move |one| {
        let times = seen.entry(one.clone()).or_default();
        *times += 1;
        *times == 2
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(words: &str) -> DiskEntry {
        DiskEntry::of_words(words).unwrap()
    }

    fn setup(disks: &[&str], nbd: Option<&str>) -> Result<Setup, String> {
        let disks = disks.iter().map(|words| disk(words)).collect();
        let nbd = nbd.map(|text| NbdEntry {
            address: text.parse().unwrap(),
            clients_max: None,
            idle: None,
        });
        Setup::new(disks, nbd, None, SocketAccess::default()).map_err(|failure| failure.text())
    }

    #[test]
    fn requests_are_reported_beside_the_first_socket() {
        let one = setup(&["image=/a,socket=/run/a.sock"], None).unwrap();
        assert_eq!(one.tap, Some("/run/a.sock.tap".into()));
        let nbd = setup(&["image=/a"], Some("unix:/run/n")).unwrap();
        assert_eq!(nbd.tap, Some("/run/n.tap".into()));
        // The kernel chose the port.
        let port = setup(&["image=/a"], Some("127.0.0.1:0")).unwrap();
        assert_eq!(port.tap, None);
    }

    #[test]
    fn all_conflicts_are_reported_together() {
        assert!(
            setup(&[], None)
                .unwrap_err()
                .contains("no disk is specified")
        );
        let wrong = setup(
            &[
                "image=/a,socket=/s,vm=v,vdisk=/dev/vda",
                "image=/b,socket=/s,vm=v,vdisk=/dev/vda",
                "image=/c",
            ],
            None,
        );
        let wrong = wrong.unwrap_err();
        for part in [
            "/c: the disk has no socket",
            "/s: used by two sockets",
            "two disks have the name /dev/vda of VM v",
        ] {
            assert!(wrong.contains(part), "{part}: {wrong}");
        }
    }
}
