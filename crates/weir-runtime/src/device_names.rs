//! Names of this host's block devices in queries: a device can be named by any of its paths.
//!
//! The live source names devices as the kernel does, `/dev/dm-0`. A query may use another path,
//! `/dev/mapper/root` or a link in `/dev/disk`; it is resolved before the plan is placed, so that
//! the kernel's selection and the engine's test the same.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use weir_model::suggest::nearest;
use weir_model::{Declaration, Symbol};
use weir_query::Plan;
use weir_query::plan::renamed;
use weir_tap::ebpf;

use crate::output;
use crate::source::SourceOptions;

/// Directories that contain other names of devices.
const FOLDERS: [&str; 6] = [
    "/dev/mapper",
    "/dev/disk/by-id",
    "/dev/disk/by-label",
    "/dev/disk/by-partlabel",
    "/dev/disk/by-path",
    "/dev/disk/by-uuid",
];

/// `plan` with the kernel's names of the devices that it names. A name in `/dev` that belongs to no
/// device is reported on standard error: the device may be added later. Other hosts' names, as in a
/// recording, stay as they are.
pub fn resolved(plan: &Arc<Plan>, args: &SourceOptions) -> Arc<Plan> {
    let (plan, unknown) = resolve(plan, args);
    for name in unknown {
        output::notice(format_args!("weir: {}", report(&name)));
    }
    plan
}

/// As [`resolved`]; also returns the names in `/dev` that belong to no device.
pub fn resolve(plan: &Arc<Plan>, args: &SourceOptions) -> (Arc<Plan>, BTreeSet<String>) {
    let unknown = RefCell::new(BTreeSet::new());
    if !args.is_host_only() {
        return (plan.clone(), unknown.into_inner());
    }
    let names_devices = |source: &Declaration, column: usize| {
        let name = source.schema[column].name.as_str();
        let same =
            |(of, column): &(&str, &str)| of.eq_ignore_ascii_case(&source.name) && *column == name;
        ebpf::DEVICE_COLUMNS.iter().any(same)
    };
    let rename = |text: Symbol| match kernel_name(text.as_str()) {
        Some(name) => Symbol::new(&name),
        None => {
            // An image is named by its path, and is not a device.
            if Path::new("/dev").join(text.as_str()).starts_with("/dev") {
                unknown.borrow_mut().insert(text.as_str().to_owned());
            }
            text
        }
    };
    let plan = renamed(plan, &names_devices, &rename);
    (plan, unknown.into_inner())
}

/// The kernel's name of a device of this host; `name` if there is no such device.
pub fn on_host(name: &str) -> String {
    kernel_name(name).unwrap_or_else(|| name.to_owned())
}

fn kernel_name(name: &str) -> Option<String> {
    ebpf::kernel_name(&Path::new("/dev").join(name)).ok()
}

/// The report for a name that belongs to no device.
fn report(name: &str) -> String {
    let names = names();
    let near = match name.starts_with('/') {
        true => nearest(name, names.iter().map(String::as_str)),
        false => nearest(name, names.iter().filter_map(|n| n.strip_prefix("/dev/"))),
    };
    let near = near.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
    format!("this host has no block device `{name}`{near}")
}

/// All paths of this host's block devices.
fn names() -> Vec<String> {
    let list = |folder: &str| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let names = entries.map(|e| e.file_name().to_string_lossy().into_owned());
        names.collect::<Vec<String>>()
    };
    let kernel = list("/sys/class/block").into_iter();
    let mut names: Vec<String> = kernel
        .map(|name| format!("/dev/{}", name.replace('!', "/")))
        .collect();
    for folder in FOLDERS {
        names.extend(list(folder).iter().map(|name| format!("{folder}/{name}")));
    }
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use weir_model::Catalog;
    use weir_query::{CheckOptions, compile};
    use weir_testing::skipped;

    use super::*;

    fn plan(test: &str) -> Arc<Plan> {
        let text = format!("select op from IO where pdisk {test}");
        let checked = compile(&text, &Catalog::builtin(), &CheckOptions::live());
        checked.expect("the query is sound").plan
    }

    fn from(source: &str) -> SourceOptions {
        SourceOptions::of(source, &[], false, &[]).unwrap()
    }

    #[test]
    fn a_link_means_the_device_and_other_names_stay() {
        let is_node = |name: &String| Path::new(name).exists();
        let Some(device) = names().into_iter().find(is_node) else {
            return skipped("a_link_means_the_device_and_other_names_stay", "no devices");
        };
        let name = on_host(&device);
        let scratch = tempfile::tempdir().unwrap();
        let link = scratch.path().join("device");
        std::os::unix::fs::symlink(&device, &link).unwrap();
        let asked = plan(&format!(
            "in ('{}', '/dev/nosuchdisk', '/tmp/nosuch.raw')",
            link.display()
        ));
        let (live, unknown) = resolve(&asked, &from("live"));
        let (recorded, nothing) = resolve(&asked, &from("x.parquet"));
        let meant = format!("in ('{name}', '/dev/nosuchdisk', '/tmp/nosuch.raw')");
        assert_eq!(live, plan(&meant));
        assert_eq!(unknown, ["/dev/nosuchdisk".to_owned()].into());
        assert_eq!((recorded, nothing), (asked, BTreeSet::new()));
        let short = device.strip_prefix("/dev/").unwrap();
        assert_eq!(on_host(short), name);
    }

    #[test]
    fn a_name_of_no_device_is_reported_with_the_nearest_one() {
        let Some(name) = names().into_iter().find(|name| name.len() > 7) else {
            return skipped(
                "a_name_of_no_device_is_reported_with_the_nearest_one",
                "no devices",
            );
        };
        let report = report(&format!("{name}x"));
        assert!(report.contains("no block device"), "{report}");
        assert!(report.contains("did you mean `/dev/"), "{report}");
    }
}
