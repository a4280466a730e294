//! [`HostNames`]: the names of VMs and disks on the command line, compared with those of this host.

use std::path::Path;
use std::sync::Arc;

use weir_model::suggest::nearest;
use weir_sink::text::shown;
use weir_tap::ebpf;
use weir_tap::inventory::Snapshot;

use crate::failure::Failure;
use crate::source::SourceOptions;

/// Maximum number of names listed in an error.
const LISTED_MAX: usize = 8;

/// The directories below `/dev` that contain further names of devices.
const FOLDERS: [&str; 2] = ["/dev", "/dev/mapper"];

/// The VMs and disks of this host.
pub struct HostNames {
    host: Arc<Snapshot>,
    declared: Vec<String>,
}

/// The disk or device that a name refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedDisk {
    /// Its path, as in rows.
    pub path: String,
    /// Whether it is a device of the host.
    pub is_device: bool,
}

impl HostNames {
    /// The names of this host, if it is the only source of events.
    ///
    /// # Errors
    /// When the host cannot be scanned.
    pub fn of(source: &SourceOptions) -> Result<Option<HostNames>, Failure> {
        if !source.is_host_only() {
            return Ok(None);
        }
        Ok(Some(HostNames {
            host: source.inventory()?.snapshot(),
            declared: source.declared().into_iter().map(|d| d.name).collect(),
        }))
    }

    /// Checks that there is such a VM.
    ///
    /// # Errors
    /// When there is none; `option` is the option that named it.
    pub fn vm(&self, option: &str, name: &str) -> Result<(), Failure> {
        let of_host = self.host.vms.iter().map(|vm| vm.name.as_str());
        let names = of_host.chain(self.declared.iter().map(String::as_str));
        let names: Vec<&str> = names.collect();
        match names.contains(&name) {
            true => Ok(()),
            false => Err(unknown(option, "VM", name, &names)),
        }
    }

    /// The disk that a name refers to: that of a VM, or a device of the host; with or without
    /// `/dev/`.
    ///
    /// # Errors
    /// When it refers to nothing; `option` is the option that named it.
    pub fn disk(&self, option: &str, vm: Option<&str>, name: &str) -> Result<NamedDisk, Failure> {
        let own = self.host.disks.iter().map(|laid| &laid.disk);
        let own = own.filter(|disk| vm.is_none_or(|vm| disk.vm.as_str() == vm));
        let own: Vec<&str> = own.map(|disk| disk.vdisk.as_str()).collect();
        let path = format!("/dev/{name}");
        if let Some(vdisk) = own.iter().find(|vdisk| **vdisk == name || **vdisk == path) {
            return Ok(NamedDisk {
                path: (*vdisk).to_owned(),
                is_device: false,
            });
        }
        if let Some(path) = device(name) {
            return Ok(NamedDisk {
                path,
                is_device: true,
            });
        }
        let devices = self.host.devices.iter().map(|d| d.device.as_str());
        let all: Vec<&str> = own.into_iter().chain(devices).collect();
        // A bare name is compared with names, a path with paths.
        let bare = |path: &'_ str| -> String { path.trim_start_matches("/dev/").to_owned() };
        let all: Vec<String> = match name.starts_with('/') {
            true => all.into_iter().map(str::to_owned).collect(),
            false => all.into_iter().map(bare).collect(),
        };
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        Err(unknown(option, "disk", name, &all))
    }
}

/// Rejects names given with `-w` and `-i` that this host does not have, and completes that of the
/// disk. A stacked device that is named is observed.
///
/// # Errors
/// When there is no such VM or disk, or the host cannot be scanned.
pub fn find(
    source: &mut SourceOptions,
    vm: Option<&str>,
    disk: &mut Option<String>,
) -> Result<(), Failure> {
    if vm.is_none() && disk.is_none() {
        return Ok(());
    }
    let Some(names) = HostNames::of(source)? else {
        return Ok(());
    };
    if let Some(vm) = vm {
        names.vm("-w", vm)?;
    }
    if let Some(named) = disk {
        let found = names.disk("-i", vm, named)?;
        if found.is_device {
            source.also = vec![found.path.clone()];
        }
        *named = found.path;
    }
    Ok(())
}

/// The kernel's path of a block device of this host: of `sda`, of `/dev/sda`, of a link to it, or
/// of another node with its device number.
pub fn device(name: &str) -> Option<String> {
    let mut paths = FOLDERS.iter().map(|folder| Path::new(folder).join(name));
    paths.find_map(|path| ebpf::kernel_name(&path).ok())
}

fn unknown(option: &str, what: &str, name: &str, known: &[&str]) -> Failure {
    let mut known: Vec<&str> = known.to_vec();
    known.sort_unstable();
    known.dedup();
    let help = match (nearest(name, known.iter().copied()), &known[..]) {
        (Some(near), _) => format!("did you mean `{}`?", shown(near)),
        (None, []) => format!("no {what} was found on this host"),
        (None, known) => {
            let listed: Vec<_> = known.iter().take(LISTED_MAX).map(|n| shown(n)).collect();
            let more = if known.len() > LISTED_MAX { ", .." } else { "" };
            format!("this host has {}{more}", listed.join(", "))
        }
    };
    let name = shown(name);
    Failure::words(format_args!("{option} {name}: no such {what}; {help}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(result: Result<impl std::fmt::Debug, Failure>) -> String {
        result.expect_err("the name is unknown").text()
    }

    #[test]
    fn an_unknown_name_is_an_error_that_leads_on() {
        let names = HostNames {
            host: Arc::default(),
            declared: vec!["web1".into(), "db".into()],
        };
        assert!(names.vm("-w", "web1").is_ok());
        let near = error(names.vm("-w", "web"));
        assert_eq!(near, "weir: -w web: no such VM; did you mean `web1`?");
        let far = error(names.vm("-w", "mailserver"));
        assert_eq!(
            far,
            "weir: -w mailserver: no such VM; this host has db, web1"
        );
        let none = error(names.disk("-i", None, "/dev/nosuch"));
        assert_eq!(
            none,
            "weir: -i /dev/nosuch: no such disk; no disk was found on this host"
        );
    }

    #[test]
    fn a_link_names_the_device_that_it_leads_to() {
        let names = std::fs::read_dir("/sys/class/block").into_iter().flatten();
        let names = names.flatten().map(|entry| entry.file_name());
        let mut paths = names.map(|name| format!("/dev/{}", name.to_string_lossy()));
        // A host, or a container, may have no device node.
        let Some((path, own)) = paths.find_map(|path| device(&path).map(|own| (path, own))) else {
            return;
        };
        let scratch = tempfile::tempdir().unwrap();
        let link = scratch.path().join("name");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let linked = device(&link.display().to_string());
        assert_eq!(linked, Some(own.clone()));
        assert_eq!(device(path.trim_start_matches("/dev/")), Some(own));
        assert_eq!(device("/dev/nosuch"), None);
    }
}
