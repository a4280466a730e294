//! [`DeviceSelection`]: the devices in a report (names on the command line, `-p`), and their groups
//! (`-g`).

/// An argument that selects devices. As in sysstat, their order matters: a device belongs to the
/// group before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceArgument {
    /// The name of a device, or `ALL`.
    Device(String),
    /// `-p`, and the devices after it, separated by commas.
    Partitions(Option<String>),
    /// `-g NAME`
    Group(String),
}

/// The devices to show.
#[derive(Clone, Debug)]
pub struct DeviceSelection {
    /// The named devices by group. The first have no group.
    groups: Vec<GroupSelection>,
    /// `-p`: their partitions too.
    partitions: Option<Partitions>,
    /// `ALL` among the devices: also those without any I/O.
    all: bool,
}

/// The devices that are named after a group.
#[derive(Clone, Debug)]
struct GroupSelection {
    name: Option<String>,
    devices: Vec<String>,
}

/// The devices whose partitions are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Partitions {
    /// `-p`: all devices with any I/O.
    Used,
    /// `-p ALL`: all devices.
    All,
    /// `-p sda`: these devices.
    Of(Vec<String>),
}

impl DeviceSelection {
    /// The selection of the arguments in the order of the command line.
    pub fn new(arguments: &[DeviceArgument]) -> DeviceSelection {
        let mut selection = DeviceSelection {
            groups: vec![GroupSelection {
                name: None,
                devices: Vec::new(),
            }],
            partitions: None,
            all: false,
        };
        let mut current = 0;
        for argument in arguments {
            match argument {
                DeviceArgument::Group(name) => current = selection.group(name),
                DeviceArgument::Device(name) if name == "ALL" => selection.all = true,
                DeviceArgument::Device(name) => selection.add(current, name),
                DeviceArgument::Partitions(None) => selection.partitions_of(Partitions::Used),
                DeviceArgument::Partitions(Some(list)) => {
                    for name in list.split(',').filter(|name| !name.is_empty()) {
                        if name == "ALL" {
                            selection.partitions_of(Partitions::All);
                            continue;
                        }
                        selection.add(current, name);
                        selection.partitions_of(Partitions::Of(vec![kernel_name(name)]));
                    }
                }
            }
        }
        selection
    }

    /// The position of a group, which is added unless it exists.
    fn group(&mut self, name: &str) -> usize {
        let mut groups = self.groups.iter();
        let known = groups.position(|group| group.name.as_deref() == Some(name));
        known.unwrap_or_else(|| {
            self.groups.push(GroupSelection {
                name: Some(name.to_owned()),
                devices: Vec::new(),
            });
            self.groups.len() - 1
        })
    }

    /// Adds a device to a group. A device that is named twice remains in its first group.
    fn add(&mut self, group: usize, name: &str) {
        let name = kernel_name(name);
        if !self.names(&name) {
            self.groups[group].devices.push(name);
        }
    }

    fn partitions_of(&mut self, more: Partitions) {
        self.partitions = Some(match (self.partitions.take(), more) {
            (Some(Partitions::Of(mut devices)), Partitions::Of(more)) => {
                devices.extend(more);
                Partitions::Of(devices)
            }
            (Some(Partitions::All), _) | (_, Partitions::All) => Partitions::All,
            (Some(Partitions::Used), _) | (_, Partitions::Used) => Partitions::Used,
            (None, of) => of,
        });
    }

    /// The names of devices on the command line.
    pub fn devices(&self) -> impl Iterator<Item = &str> {
        let devices = self.groups.iter().flat_map(|group| &group.devices);
        devices.map(String::as_str)
    }

    /// True if devices, `ALL` or `-p` are on the command line.
    pub fn has_devices(&self) -> bool {
        self.all || self.partitions.is_some() || self.devices().next().is_some()
    }

    /// True if partitions are shown.
    pub fn has_partitions(&self) -> bool {
        self.partitions.is_some()
    }

    /// True if the partitions of all devices are shown.
    pub fn has_all_partitions(&self) -> bool {
        matches!(self.partitions, Some(Partitions::Used | Partitions::All))
    }

    fn names(&self, name: &str) -> bool {
        self.devices().any(|device| device == name)
    }

    /// Replaces the name of a device in the selection.
    pub fn rename(&mut self, name: &str, new: &str) {
        let parents = match &mut self.partitions {
            Some(Partitions::Of(parents)) => parents.as_mut_slice(),
            _ => &mut [],
        };
        let devices = self.groups.iter_mut().flat_map(|group| &mut group.devices);
        for device in devices.chain(parents) {
            if device.as_str() == name {
                *device = new.to_owned();
            }
        }
    }

    /// True when a device is listed; `parent` is the device of a partition.
    pub fn lists(&self, name: &str, parent: Option<&str>) -> bool {
        let everything = self.all || self.devices().next().is_none();
        match (&self.partitions, parent) {
            _ if self.names(name) => true,
            (Some(Partitions::Used | Partitions::All), _) => true,
            (Some(Partitions::Of(parents)), Some(parent)) => parents.iter().any(|p| p == parent),
            (_, None) => everything,
            (None, Some(_)) => false,
        }
    }

    /// True when devices without any I/O are listed: they are named, or all are requested.
    pub fn unused_too(&self) -> bool {
        let named = self.devices().next().is_some();
        self.all || named || self.partitions == Some(Partitions::All)
    }

    /// The listed devices by group, each group in the order of the command line. Devices that are
    /// not named belong to the last group.
    pub fn grouped<T>(
        &self,
        listed: Vec<T>,
        name: impl Fn(&T) -> &str,
    ) -> Vec<(Option<&str>, Vec<T>)> {
        let mut groups: Vec<(Option<&str>, Vec<T>)> = Vec::new();
        groups.extend(self.groups.iter().map(|g| (g.name.as_deref(), Vec::new())));
        let last = groups.len() - 1;
        for device in listed {
            let mut named = self.groups.iter();
            let named = named.position(|g| g.devices.iter().any(|d| d == name(&device)));
            groups[named.unwrap_or(last)].1.push(device);
        }
        let in_order = self.has_all_partitions();
        for (group, (title, devices)) in self.groups.iter().zip(&mut groups) {
            if title.is_some() || in_order {
                let place = |d: &T| group.devices.iter().position(|other| other == name(d));
                devices.sort_by_key(|device| place(device).unwrap_or(usize::MAX));
            }
        }
        groups
    }
}

fn kernel_name(name: &str) -> String {
    name.strip_prefix("/dev/").unwrap_or(name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str) -> DeviceArgument {
        DeviceArgument::Device(name.to_owned())
    }

    fn partitions(list: &str) -> DeviceArgument {
        DeviceArgument::Partitions((!list.is_empty()).then(|| list.to_owned()))
    }

    fn group(name: &str) -> DeviceArgument {
        DeviceArgument::Group(name.to_owned())
    }

    const NAMES: [(&str, Option<&str>); 4] = [
        ("sda", None),
        ("sda1", Some("sda")),
        ("sdb", None),
        ("sdb1", Some("sdb")),
    ];

    #[test]
    fn partitions_are_listed_on_request() {
        let lists = |arguments: &[DeviceArgument]| {
            let selection = DeviceSelection::new(arguments);
            let listed = NAMES.iter().filter(|(n, p)| selection.lists(n, *p));
            listed.map(|(n, _)| *n).collect::<Vec<&str>>()
        };
        let everything = ["sda", "sda1", "sdb", "sdb1"];
        assert_eq!(lists(&[]), ["sda", "sdb"]);
        assert_eq!(lists(&[device("/dev/sdb")]), ["sdb"]);
        assert_eq!(lists(&[device("ALL")]), ["sda", "sdb"]);
        assert_eq!(lists(&[device("sdb1")]), ["sdb1"]);
        assert_eq!(
            lists(&[device("sdb1"), device("ALL")]),
            ["sda", "sdb", "sdb1"]
        );
        assert_eq!(lists(&[partitions("")]), everything);
        assert_eq!(lists(&[device("sdb"), partitions("")]), everything);
        assert_eq!(lists(&[partitions("sda")]), ["sda", "sda1"]);
        assert_eq!(lists(&[partitions("sda"), partitions("sdb")]), everything);
        assert_eq!(
            lists(&[device("sdb"), partitions("sda")]),
            ["sda", "sda1", "sdb"]
        );
    }

    #[test]
    fn a_renamed_device_is_listed_with_its_partitions() {
        let arguments = [partitions("mapper/vg-root"), device("sdb")];
        let mut selection = DeviceSelection::new(&arguments);
        selection.rename("mapper/vg-root", "dm-0");
        assert_eq!(selection.devices().collect::<Vec<_>>(), ["dm-0", "sdb"]);
        assert!(selection.lists("dm-0", None) && selection.lists("dm-1", Some("dm-0")));
        assert!(selection.lists("sdb", None) && !selection.lists("mapper/vg-root", None));
    }

    #[test]
    fn a_device_belongs_to_the_group_before_it() {
        let grouped = |arguments: &[DeviceArgument]| {
            let selection = DeviceSelection::new(arguments);
            let listed = NAMES.iter().filter(|(n, p)| selection.lists(n, *p));
            let groups = selection.grouped(listed.collect(), |(name, _)| name);
            let text = |(name, devices): &(Option<&str>, Vec<&(&str, _)>)| {
                let devices: Vec<&str> = devices.iter().map(|(name, _)| *name).collect();
                format!("{}:{}", name.unwrap_or_default(), devices.join(","))
            };
            groups.iter().map(text).collect::<Vec<String>>().join(" ")
        };
        assert_eq!(grouped(&[]), ":sda,sdb");
        assert_eq!(grouped(&[group("a")]), ": a:sda,sdb");
        let two = [group("a"), device("sdb"), group("b"), device("sda")];
        assert_eq!(grouped(&two), ": a:sdb b:sda");
        let order = [device("sdb"), group("a"), device("sda1"), device("sda")];
        assert_eq!(grouped(&order), ":sdb a:sda1,sda");
        let rest = [group("a"), device("sdb"), group("b"), device("ALL")];
        assert_eq!(grouped(&rest), ": a:sdb b:sda");
        let twice = [
            group("a"),
            device("sda"),
            group("b"),
            device("sda"),
            group("a"),
            device("sdb"),
        ];
        assert_eq!(grouped(&twice), ": a:sda,sdb b:");
        let parts = [group("sda"), partitions("sda"), group("b"), device("sdb")];
        assert_eq!(grouped(&parts), ": sda:sda b:sdb,sda1");
    }
}
