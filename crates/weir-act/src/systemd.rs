//! Limits of a group that systemd owns: `systemctl set-property --runtime`.
//!
//! systemd is the only writer of the groups of its units: it writes what it has stored whenever a
//! unit changes (`systemd.resource-control(5)`). What is set with `--runtime` does not survive a
//! restart of the host. An empty value of a property does not clear the limit in the group
//! (systemd issue 27302), so that the end of a limit is written as `infinity`.

use crate::ActError;
use crate::command::run;
use crate::knob::KnobSetting;

/// The properties of limits, and the names of their values here.
const PROPERTIES: [(&str, &str); 4] = [
    ("riops", "IOReadIOPSMax"),
    ("wiops", "IOWriteIOPSMax"),
    ("rbps", "IOReadBandwidthMax"),
    ("wbps", "IOWriteBandwidthMax"),
];

/// Writes the limits of a device, or the weight, of a unit.
///
/// # Errors
/// When `systemctl` fails.
pub fn write(unit: &str, device: &str, setting: &KnobSetting) -> Result<(), ActError> {
    run("systemctl", &arguments(unit, device, setting))?;
    Ok(())
}

/// The command for users.
pub fn command(unit: &str, device: &str, setting: &KnobSetting) -> String {
    let quoted = |arg: &String| match arg.contains(' ') {
        true => format!("'{arg}'"),
        false => arg.clone(),
    };
    let args: Vec<String> = arguments(unit, device, setting)
        .iter()
        .map(quoted)
        .collect();
    format!("systemctl {}", args.join(" "))
}

fn arguments(unit: &str, device: &str, setting: &KnobSetting) -> Vec<String> {
    let fixed = ["set-property", "--runtime", "--", unit].map(str::to_owned);
    let limit = |(name, property): &(&str, &str)| match setting.get(name) {
        0 => format!("{property}={device} infinity"),
        limit => format!("{property}={device} {limit}"),
    };
    let properties = match setting.0.get("weight") {
        Some(weight) => vec![format!("IOWeight={weight}")],
        None => PROPERTIES.iter().map(limit).collect(),
    };
    fixed.into_iter().chain(properties).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_and_their_end_are_properties() {
        let setting = KnobSetting::default().with("riops", 200).with("wiops", 200);
        assert_eq!(
            command("machine-web.scope", "/dev/sda", &setting),
            "systemctl set-property --runtime -- machine-web.scope 'IOReadIOPSMax=/dev/sda 200' \
             'IOWriteIOPSMax=/dev/sda 200' 'IOReadBandwidthMax=/dev/sda infinity' \
             'IOWriteBandwidthMax=/dev/sda infinity'"
        );
        let weight = KnobSetting::default().with("weight", 50);
        assert_eq!(
            command("a.service", "/dev/sda", &weight),
            "systemctl set-property --runtime -- a.service IOWeight=50"
        );
    }
}
