//! [`HistogramChoice`]: the VM and the disk selected by `-w` and `-i`.

use serde::{Deserialize, Serialize};
use weir_sink::text::shown;
use weir_workload::Subject;

use super::disks::Listed;
use weir_runtime::failure::Failure;

/// The selection; the default is everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistogramChoice {
    /// This VM.
    pub vm: Option<String>,
    /// This disk, by its name in the VM or on the host, with or without `/dev/`.
    pub disk: Option<String>,
}

impl HistogramChoice {
    /// The selection of `-w` and `-i` on a host with these disks: names, or the numbers that `-l`
    /// shows.
    ///
    /// # Errors
    /// When a number is none of them, or the disk is not one of the VM's.
    pub fn new(
        vm: Option<&str>,
        disk: Option<&str>,
        listed: &[Listed],
    ) -> Result<HistogramChoice, Failure> {
        let number = |text: &str| text.parse::<u64>().ok();
        let named = |text: &str| listed.iter().any(|l| l.is_of(text));
        let vm = match vm {
            Some(text) if number(text).is_some() && !named(text) => {
                let world_group = number(text);
                let of = |l: &&Listed| l.vm.is_some() && Some(l.world_group) == world_group;
                let found = listed.iter().find(of).ok_or_else(|| {
                    Failure::words(format_args!(
                        "no VM has number {text}; `weir hist -l` lists them"
                    ))
                })?;
                found.vm.map(|vm| vm.as_str().to_owned())
            }
            vm => vm.map(str::to_owned),
        };
        let Some(handle) = disk.and_then(number) else {
            let disk = disk.map(str::to_owned);
            return Ok(HistogramChoice { vm, disk });
        };
        let found = listed.iter().find(|l| l.handle == handle).ok_or_else(|| {
            Failure::words(format_args!(
                "no disk has number {handle}; `weir hist -l` lists them"
            ))
        })?;
        let owner = found.vm.map(|vm| vm.as_str().to_owned());
        if let Some(vm) = vm.filter(|vm| owner.as_ref() != Some(vm)) {
            return Err(Failure::words(format_args!(
                "disk {handle} is {}, which is not a disk of VM {vm}; `weir hist -l` lists its \
                 disks",
                found.name()
            )));
        }
        Ok(HistogramChoice {
            vm: owner,
            disk: Some(found.disk().as_str().to_owned()),
        })
    }

    /// The selection of a name if there is no list: `VM:DISK`, or a disk.
    pub fn of_text(text: &str) -> HistogramChoice {
        let (vm, disk) = match text.split_once(':') {
            Some((vm, disk)) if !vm.is_empty() && !vm.contains('/') => (Some(vm), disk),
            _ => (None, text),
        };
        HistogramChoice {
            vm: vm.map(str::to_owned),
            disk: Some(disk.to_owned()).filter(|disk| !disk.is_empty()),
        }
    }

    /// Whether it selects `subject`.
    pub fn has(&self, subject: &Subject) -> bool {
        let vm = self.vm.as_deref();
        let vm = vm.is_none_or(|vm| subject.vm.is_some_and(|of| of.as_str() == vm));
        let disk = self.disk.as_deref().is_none_or(|disk| {
            let mut names = [subject.vdisk, subject.pdisk].into_iter().flatten();
            names.any(|name| is_named(name.as_str(), disk))
        });
        vm && disk
    }

    /// True when all that it selects is also selected by `other`.
    pub fn is_within(&self, other: &HistogramChoice) -> bool {
        let vm = other.vm.is_none() || other.vm == self.vm;
        let disk = match (&self.disk, &other.disk) {
            (_, None) => true,
            (Some(own), Some(others)) => is_named(own, others) || is_named(others, own),
            (None, Some(_)) => false,
        };
        vm && disk
    }

    /// As text: `disk vda of VM web`. The owner of a VM chooses its name, so control characters are
    /// escaped.
    pub fn words(&self) -> String {
        let text = |name: &Option<String>| name.as_deref().map(|n| shown(n).into_owned());
        match (text(&self.vm), text(&self.disk)) {
            (None, None) => "all disks".into(),
            (Some(vm), None) => format!("VM {vm}"),
            (None, Some(disk)) => format!("disk {disk}"),
            (Some(vm), Some(disk)) => format!("disk {disk} of VM {vm}"),
        }
    }

    /// True when a disk can be selected by both.
    pub fn overlaps(&self, other: &HistogramChoice) -> bool {
        type Name = Option<String>;
        let apart = |a: &Name, b: &Name, same: fn(&str, &str) -> bool| match (a, b) {
            (Some(a), Some(b)) => !same(a, b),
            _ => false,
        };
        let same_disk = |a: &str, b: &str| is_named(a, b) || is_named(b, a);
        !apart(&self.vm, &other.vm, |a, b| a == b) && !apart(&self.disk, &other.disk, same_disk)
    }
}

/// Whether `text` names the device with this path.
pub fn is_named(path: &str, text: &str) -> bool {
    path == text || path.strip_prefix("/dev/") == Some(text)
}

#[cfg(test)]
mod tests {
    use weir_model::Symbol;

    use super::*;

    fn listed(handle: u64, world_group: u64, vm: &str, vdisk: &str, pdisk: &str) -> Listed {
        let symbol = |text: &str| (!text.is_empty()).then(|| Symbol::new(text));
        Listed {
            handle,
            world_group,
            vm: symbol(vm),
            vdisk: symbol(vdisk),
            pdisk: symbol(pdisk),
            image: None,
            bytes: None,
        }
    }

    fn host() -> Vec<Listed> {
        vec![
            listed(1, 700, "db", "/dev/vda", "/dev/sda"),
            listed(2, 700, "db", "/dev/vdb", "/dev/sda"),
            listed(3, 800, "web", "/dev/vda", "/dev/sda"),
            listed(4, 0, "", "", "/dev/sda"),
        ]
    }

    fn choice(vm: Option<&str>, disk: Option<&str>) -> HistogramChoice {
        HistogramChoice::new(vm, disk, &host()).unwrap()
    }

    #[test]
    fn numbers_are_those_of_the_list() {
        let of = |vm: Option<&str>, disk: Option<&str>| HistogramChoice {
            vm: vm.map(str::to_owned),
            disk: disk.map(str::to_owned),
        };
        assert_eq!(choice(Some("700"), None), of(Some("db"), None));
        assert_eq!(choice(None, Some("3")), of(Some("web"), Some("/dev/vda")));
        assert_eq!(choice(None, Some("4")), of(None, Some("/dev/sda")));
        assert_eq!(choice(Some("later"), None), of(Some("later"), None));
        for (vm, disk) in [
            (Some("9"), None),
            (None, Some("9")),
            (Some("web"), Some("2")),
        ] {
            assert!(
                HistogramChoice::new(vm, disk, &host()).is_err(),
                "{vm:?} {disk:?}"
            );
        }
    }

    #[test]
    fn a_disk_has_its_names_on_both_sides() {
        let subject = Subject {
            vm: Some(Symbol::new("web")),
            vdisk: Some(Symbol::new("/dev/vda")),
            pdisk: Some(Symbol::new("/dev/sda")),
            ..Subject::default()
        };
        for disk in ["vda", "/dev/vda", "sda", "/dev/sda"] {
            assert!(choice(None, Some(disk)).has(&subject), "{disk}");
            assert!(HistogramChoice::of_text(&format!("web:{disk}")).has(&subject));
            assert!(!HistogramChoice::of_text(&format!("db:{disk}")).has(&subject));
        }
        assert!(!choice(None, Some("da")).has(&subject));
        assert!(!choice(Some("db"), None).has(&subject));
    }

    #[test]
    fn selections_overlap_unless_an_attribute_differs() {
        let of = HistogramChoice::of_text;
        assert!(of("web:vda").overlaps(&of("web:/dev/vda")));
        assert!(of("web:vda").overlaps(&of("vda")));
        assert!(HistogramChoice::default().overlaps(&of("db:vdb")));
        assert!(!of("web:vda").overlaps(&of("web:vdb")));
        assert!(!of("web:vda").overlaps(&of("db:vda")));
    }
}
