//! [`DeviceSelection`]: the devices in a report (`-p`, and the names on the command line).

/// The devices to show.
#[derive(Clone, Debug, Default)]
pub struct DeviceSelection {
    /// Only these, if any.
    pub devices: Vec<String>,
    /// `-p`: their partitions too.
    pub partitions: Option<Partitions>,
    /// `ALL` among the devices: also those without any I/O.
    pub all: bool,
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
    /// The selection of `-p [WORD]` and the devices on the command line.
    pub fn new(partitions: Option<Option<&str>>, devices: &[String]) -> DeviceSelection {
        let kernel = |name: &str| name.strip_prefix("/dev/").unwrap_or(name).to_owned();
        let partitions = partitions.map(|word| match word {
            None => Partitions::Used,
            Some("ALL") => Partitions::All,
            Some(list) => Partitions::Of(list.split(',').map(kernel).collect()),
        });
        let all = devices.iter().any(|name| name == "ALL");
        let mut devices: Vec<String> = match all {
            true => Vec::new(),
            false => devices.iter().map(|name| kernel(name)).collect(),
        };
        if let Some(Partitions::Of(parents)) = &partitions {
            devices.extend(parents.iter().cloned());
        }
        DeviceSelection {
            devices,
            partitions,
            all,
        }
    }

    /// Replaces the name of a device in the selection.
    pub fn rename(&mut self, name: &str, new: &str) {
        let parents = match &mut self.partitions {
            Some(Partitions::Of(parents)) => parents.as_mut_slice(),
            _ => &mut [],
        };
        for device in self.devices.iter_mut().chain(parents) {
            if device.as_str() == name {
                *device = new.to_owned();
            }
        }
    }

    /// True when a device is listed; `parent` is the device of a partition.
    pub fn lists(&self, name: &str, parent: Option<&str>) -> bool {
        let named = |name: &str| self.devices.iter().any(|device| device == name);
        match (&self.partitions, parent) {
            (Some(Partitions::Of(parents)), Some(parent)) => {
                named(name) || parents.iter().any(|p| p == parent)
            }
            (Some(Partitions::Used | Partitions::All), _) if self.devices.is_empty() => true,
            (_, None) => self.devices.is_empty() || named(name),
            (_, Some(_)) => named(name),
        }
    }

    /// True when devices without any I/O are listed.
    pub fn unused_too(&self) -> bool {
        self.all || self.partitions == Some(Partitions::All)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_listed_on_request() {
        let lists = |partitions: Option<Option<&str>>, devices: &[&str]| {
            let devices: Vec<String> = devices.iter().map(|d| d.to_string()).collect();
            let selection = DeviceSelection::new(partitions, &devices);
            let names = [
                ("sda", None),
                ("sda1", Some("sda")),
                ("sdb", None),
                ("sdb1", Some("sdb")),
            ];
            let listed = names.iter().filter(|(n, p)| selection.lists(n, *p));
            listed.map(|(n, _)| *n).collect::<Vec<&str>>()
        };
        assert_eq!(lists(None, &[]), ["sda", "sdb"]);
        assert_eq!(lists(None, &["/dev/sdb"]), ["sdb"]);
        assert_eq!(lists(None, &["ALL"]), ["sda", "sdb"]);
        assert_eq!(lists(None, &["sdb1"]), ["sdb1"]);
        assert_eq!(lists(Some(None), &[]), ["sda", "sda1", "sdb", "sdb1"]);
        assert_eq!(lists(Some(Some("sda")), &[]), ["sda", "sda1"]);
        assert_eq!(lists(Some(Some("sda")), &["sdb"]), ["sda", "sda1", "sdb"]);
    }

    #[test]
    fn a_renamed_device_is_listed_with_its_partitions() {
        let devices = ["mapper/vg-root".to_owned(), "sdb".to_owned()];
        let mut selection = DeviceSelection::new(Some(Some("mapper/vg-root")), &devices);
        selection.rename("mapper/vg-root", "dm-0");
        assert_eq!(selection.devices, ["dm-0", "sdb", "dm-0"]);
        assert!(selection.lists("dm-0", None) && selection.lists("dm-1", Some("dm-0")));
        assert!(selection.lists("sdb", None) && !selection.lists("mapper/vg-root", None));
    }
}
