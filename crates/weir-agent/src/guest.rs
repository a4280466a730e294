//! The VM in which an agent runs.

use weir_model::Symbol;
use weir_runtime::failure::Failure;

/// The name of the VM for the UUID that the firmware reports.
pub const AUTO: &str = "auto";

/// The UUID of the machine by its firmware (DMI, system information, type 1), that of `-uuid` in
/// QEMU and of `<uuid>` in libvirt. Only root may read it.
const DMI_UUID: &str = "/sys/class/dmi/id/product_uuid";

/// The VM that a user named: a name or UUID, or [`AUTO`].
///
/// # Errors
/// If the firmware reports no UUID, or there is no room for the name.
pub fn vm(named: &str) -> Result<Symbol, Failure> {
    let text = match named {
        AUTO => {
            let read = std::fs::read_to_string(DMI_UUID);
            let text = read.map_err(|error| refusal(&error.to_string()));
            text.and_then(|text| uuid(&text)).map_err(Failure::world)?
        }
        named => named.to_owned(),
    };
    Symbol::try_new(&text).map_err(Failure::world)
}

/// The UUID that the firmware reports.
fn uuid(text: &str) -> Result<String, String> {
    let text = text.trim().to_ascii_lowercase();
    let digits: Vec<char> = text.chars().filter(|c| *c != '-').collect();
    if digits.len() != 32 || !digits.iter().all(char::is_ascii_hexdigit) {
        return Err(refusal(&format!("`{text}` is not a UUID")));
    }
    // QEMU without -uuid, and firmware that was never configured.
    if digits.iter().all(|c| *c == digits[0]) {
        return Err(refusal("the machine has no UUID"));
    }
    Ok(text)
}

fn refusal(why: &str) -> String {
    format!("{DMI_UUID}: {why}; name the VM as its host does, with --guest=VM")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_firmware_may_report_no_uuid() {
        let known = "9f0b1c52-0d3e-4c7a-8f5d-0123456789ab";
        assert_eq!(uuid(&known.to_ascii_uppercase()).unwrap(), known);
        assert_eq!(uuid(&format!("{known}\n")).unwrap(), known);
        for none in ["", "unknown", "00000000-0000-0000-0000-000000000000"] {
            let why = uuid(none).unwrap_err();
            assert!(why.contains("--guest=VM"), "{why}");
        }
    }
}
