//! Limits of a disk by the libvirt that owns its VM: `virsh blkdeviotune --live`.
//!
//! libvirt stores what it has set, and sets it again; it is therefore the only writer. Its names
//! are those of `virsh`'s output: `total_iops_sec`, `read_bytes_sec`, ..

use crate::ActError;
use crate::command::run;
use crate::knob::KnobSetting;

/// The limits that are always written.
const NAMES: [&str; 6] = [
    "total_bytes_sec",
    "read_bytes_sec",
    "write_bytes_sec",
    "total_iops_sec",
    "read_iops_sec",
    "write_iops_sec",
];

/// The present limits of a disk.
///
/// # Errors
/// When `virsh` fails.
pub fn read(uri: &str, domain: &str, target: &str) -> Result<KnobSetting, ActError> {
    let args = arguments(uri, domain, target, &[]);
    Ok(parsed(&run("virsh", &args)?))
}

/// Writes limits; those that `setting` does not have become 0.
///
/// # Errors
/// When `virsh` fails.
pub fn write(uri: &str, domain: &str, target: &str, setting: &KnobSetting) -> Result<(), ActError> {
    run("virsh", &arguments(uri, domain, target, &options(setting)))?;
    Ok(())
}

/// The command for users.
pub fn command(uri: &str, domain: &str, target: &str, setting: &KnobSetting) -> String {
    let args = arguments(uri, domain, target, &options(setting));
    format!("virsh {}", args.join(" "))
}

fn arguments(uri: &str, domain: &str, target: &str, options: &[String]) -> Vec<String> {
    let fixed = ["-c", uri, "blkdeviotune", domain, target, "--live"];
    let fixed = fixed.iter().map(|arg| (*arg).to_owned());
    fixed.chain(options.iter().cloned()).collect()
}

fn options(setting: &KnobSetting) -> Vec<String> {
    let further = setting.0.keys().map(String::as_str);
    let further = further.filter(|name| !NAMES.contains(name) && setting.get(name) > 0);
    let pair = |name: &str| {
        let option = format!("--{}", name.replace('_', "-"));
        [option, setting.get(name).to_string()]
    };
    NAMES.into_iter().chain(further).flat_map(pair).collect()
}

/// The numbers of `virsh blkdeviotune`.
fn parsed(text: &str) -> KnobSetting {
    let pair = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.trim().to_owned(), value.trim().parse().ok()?))
    };
    KnobSetting(text.lines().filter_map(pair).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_virsh_is_read() {
        // virsh 9.0: blkdeviotune test vda
        let text = "total_bytes_sec: 0\nread_bytes_sec : 0\ntotal_iops_sec : 500\n\
                    group_name     : \nsize_iops_sec  : 0\n\n";
        let setting = parsed(text);
        assert_eq!(setting.to_string(), "total_iops_sec=500");
        assert_eq!(setting.0.len(), 4);
    }

    #[test]
    fn every_limit_is_written() {
        let setting = KnobSetting::default()
            .with("total_iops_sec", 500)
            .with("total_iops_sec_max", 900)
            .with("size_iops_sec", 0);
        assert_eq!(
            command("qemu:///system", "web", "vda", &setting),
            "virsh -c qemu:///system blkdeviotune web vda --live --total-bytes-sec 0 \
             --read-bytes-sec 0 --write-bytes-sec 0 --total-iops-sec 500 --read-iops-sec 0 \
             --write-iops-sec 0 --total-iops-sec-max 900"
        );
    }
}
