//! [`Selection`]: which devices a report lists (`-p`, and the names on the command line).

/// Which devices are shown.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Only these, if any.
    pub devices: Vec<String>,
    /// `-p`: their partitions too.
    pub partitions: Option<Partitions>,
}

/// Whose partitions are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Partitions {
    /// `-p`: of all devices that were ever used.
    Used,
    /// `-p ALL`: of all devices.
    All,
    /// `-p sda`: of these.
    Of(Vec<String>),
}

impl Selection {
    /// What the words `-p [WORD]` and the devices on the command line mean.
    pub fn new(partitions: Option<Option<&str>>, devices: &[String]) -> Selection {
        let kernel = |name: &str| name.strip_prefix("/dev/").unwrap_or(name).to_owned();
        let partitions = partitions.map(|word| match word {
            None => Partitions::Used,
            Some("ALL") => Partitions::All,
            Some(list) => Partitions::Of(list.split(',').map(kernel).collect()),
        });
        let mut devices: Vec<String> = devices.iter().map(|name| kernel(name)).collect();
        if let Some(Partitions::Of(parents)) = &partitions {
            devices.extend(parents.iter().cloned());
        }
        Selection {
            devices,
            partitions,
        }
    }

    /// True when a device is listed; of a partition, `parent` is its device.
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

    /// True when devices are listed to which nothing was ever asked.
    pub fn unused_too(&self) -> bool {
        self.partitions == Some(Partitions::All)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_listed_when_asked_for() {
        let lists = |partitions: Option<Option<&str>>, devices: &[&str]| {
            let devices: Vec<String> = devices.iter().map(|d| d.to_string()).collect();
            let selection = Selection::new(partitions, &devices);
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
        assert_eq!(lists(None, &["sdb1"]), ["sdb1"]);
        assert_eq!(lists(Some(None), &[]), ["sda", "sda1", "sdb", "sdb1"]);
        assert_eq!(lists(Some(Some("sda")), &[]), ["sda", "sda1"]);
        assert_eq!(lists(Some(Some("sda")), &["sdb"]), ["sda", "sda1", "sdb"]);
    }
}
