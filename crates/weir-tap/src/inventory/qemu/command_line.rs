//! [`CommandLine`]: the parsed arguments of a QEMU.

use std::collections::HashMap;

use super::options::{Options, size};

/// Options without an argument (qemu(1), `qemu-options.hx`, of QEMU 2 to 10); every other option
/// has one.
const SWITCHES: [&str; 38] = [
    "S",
    "alt-grab",
    "async-teardown",
    "ctrl-grab",
    "daemonize",
    "enable-kvm",
    "enable-sync-profile",
    "full-screen",
    "h",
    "help",
    "mem-prealloc",
    "no-acpi",
    "no-fd-bootchk",
    "no-frame",
    "no-hpet",
    "no-kvm",
    "no-kvm-irqchip",
    "no-kvm-pit",
    "no-kvm-pit-reinjection",
    "no-quit",
    "no-reboot",
    "no-shutdown",
    "no-user-config",
    "nodefaults",
    "nodefconfig",
    "nographic",
    "old-param",
    "one-insn-per-tb",
    "only-migratable",
    "portrait",
    "preconfig",
    "rtc-td-hack",
    "s",
    "semihosting",
    "singlestep",
    "snapshot",
    "usb",
    "version",
];

/// The arguments of a QEMU that concern the VM and its disks.
#[derive(Clone, Debug, Default)]
pub struct CommandLine {
    /// `-name`
    pub name: Option<String>,
    /// `-uuid`
    pub uuid: Option<String>,
    /// `-machine`, its type.
    pub machine: Option<String>,
    /// `-smp`
    pub vcpus: Option<i64>,
    /// `-m`
    pub memory_bytes: Option<i64>,
    /// `-drive`, `-hda`, `-cdrom` and the image without an option.
    pub drives: Vec<Options>,
    /// `-blockdev`, by node name.
    pub nodes: HashMap<String, Options>,
    /// `-device`
    pub devices: Vec<Options>,
    /// `-chardev`, by id.
    pub chardevs: HashMap<String, Options>,
    /// Paths of the QMP sockets on which it listens.
    pub monitors: Vec<String>,
    /// Writes go to temporary files instead of the images.
    pub snapshot: bool,
    /// `-mon`, which may name a chardev that is defined later.
    mons: Vec<Options>,
}

impl CommandLine {
    /// Parses arguments, the program first.
    pub fn parse(arguments: &[String]) -> CommandLine {
        let mut line = CommandLine::default();
        let mut words = arguments.iter().skip(1);
        while let Some(word) = words.next() {
            let Some(option) = word.strip_prefix('-').filter(|o| !o.is_empty()) else {
                line.image(word, "0");
                continue;
            };
            let option = option.strip_prefix('-').unwrap_or(option);
            if SWITCHES.contains(&option) {
                line.snapshot |= option == "snapshot";
                continue;
            }
            match words.next() {
                Some(value) => line.take(option, value),
                None => break,
            }
        }
        for mon in std::mem::take(&mut line.mons) {
            let chardev = mon.get("chardev").and_then(|id| line.chardevs.get(id));
            let control = mon.get("mode") == Some("control");
            let listens = |chardev: &&Options| control && chardev.flag("server") == Some(true);
            line.monitors
                .extend(chardev.filter(listens).and_then(socket));
        }
        line
    }

    fn take(&mut self, option: &str, value: &str) {
        match option {
            "name" => self.name = Options::parse(value, "guest").text("guest"),
            "uuid" => self.uuid = Some(value.to_owned()),
            "M" | "machine" => self.machine = Options::parse(value, "type").text("type"),
            "smp" => self.vcpus = vcpus(&Options::parse(value, "cpus")),
            "m" => {
                let size = Options::parse(value, "size")
                    .get("size")
                    .and_then(|s| size(s, 1 << 20));
                self.memory_bytes = size.and_then(|bytes| i64::try_from(bytes).ok());
            }
            "drive" => self.drives.push(Options::parse(value, "file")),
            "hda" => self.image(value, "0"),
            "hdb" => self.image(value, "1"),
            "hdc" => self.image(value, "2"),
            "hdd" => self.image(value, "3"),
            "cdrom" => {
                self.image(value, "2");
                let drive = self.drives.last_mut().expect("it was just put there");
                drive.set("media", "cdrom");
            }
            "blockdev" => {
                let node = Options::parse(value, "driver");
                let name = node.text("node-name");
                self.nodes.extend(name.map(|name| (name, node)));
            }
            "device" => self.devices.push(Options::parse(value, "driver")),
            "chardev" => {
                let chardev = Options::parse(value, "backend");
                let id = chardev.text("id");
                self.chardevs.extend(id.map(|id| (id, chardev)));
            }
            "qmp" | "qmp-pretty" => self.monitors.extend(unix_path(value)),
            "mon" => self.mons.push(Options::parse(value, "chardev")),
            _ => {}
        }
    }

    /// `-hda` and similar: a disk at an index of the default bus.
    fn image(&mut self, file: &str, index: &str) {
        let mut drive = Options::default();
        drive.set("file", file);
        drive.set("index", index);
        self.drives.push(drive);
    }
}

/// The path of a chardev that is a unix socket with a name in the file system.
pub fn socket(chardev: &Options) -> Option<String> {
    let by_name = chardev.flag("abstract") != Some(true);
    let is_socket = chardev.get("backend") == Some("socket");
    (is_socket && by_name).then(|| chardev.text("path"))?
}

/// The path in `unix:/run/x.sock,server=on`; without `server` QEMU connects to another listener.
fn unix_path(value: &str) -> Option<String> {
    let options = Options::parse(value.strip_prefix("unix:")?, "path");
    (options.flag("server") == Some(true)).then(|| options.text("path"))?
}

/// `-smp 4` or `-smp sockets=2,cores=2`.
fn vcpus(options: &Options) -> Option<i64> {
    let count = options.number("cpus").or_else(|| {
        let parts = ["sockets", "dies", "clusters", "cores", "threads"];
        let given: Vec<u64> = parts
            .iter()
            .filter_map(|part| options.number(part))
            .collect();
        let product = |all: u64, part: &u64| all.checked_mul(*part);
        (!given.is_empty()).then(|| given.iter().try_fold(1, product))?
    });
    i64::try_from(count?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> CommandLine {
        let words: Vec<String> = line.split_whitespace().map(String::from).collect();
        CommandLine::parse(&words)
    }

    #[test]
    fn what_a_vm_is_called_and_how_large_it_is() {
        let line = parse(
            "qemu-system-x86_64 -name guest=web,debug-threads=on -uuid u-1 -smp 2,maxcpus=4 -m size=1G -M q35",
        );
        assert_eq!(line.name.as_deref(), Some("web"));
        assert_eq!(line.uuid.as_deref(), Some("u-1"));
        assert_eq!((line.vcpus, line.memory_bytes), (Some(2), Some(1 << 30)));
        assert_eq!(line.machine.as_deref(), Some("q35"));
        assert_eq!(parse("kvm -smp sockets=2,cores=3 -m 512").vcpus, Some(6));
        assert_eq!(parse("kvm -m 512").memory_bytes, Some(512 << 20));
    }

    #[test]
    fn monitors_are_found_in_each_option() {
        let line = parse(
            "kvm -mon chardev=m,mode=control -mon chardev=h,mode=readline \
            -mon chardev=c,mode=control -chardev socket,id=c,path=/c.sock -qmp unix:/d.sock \
            -chardev socket,id=m,path=/m.sock,server=on -chardev socket,id=h,path=/h.sock \
            -qmp unix:/q.sock,server,nowait -qmp tcp:localhost:4444 -qmp stdio",
        );
        assert_eq!(line.monitors, ["/q.sock", "/m.sock"]);
    }

    #[test]
    fn a_word_without_an_option_is_an_image() {
        let line = parse("kvm -nographic -S disk.img -cdrom x.iso -display none");
        assert_eq!(line.drives.len(), 2);
        assert_eq!(line.drives[0].get("file"), Some("disk.img"));
        assert_eq!(line.drives[1].get("media"), Some("cdrom"));
        assert!(parse("kvm -drive").drives.is_empty());
        assert!(CommandLine::parse(&[]).drives.is_empty());
    }
}
