//! Who may reach disks: the rights and the group of their sockets.

use std::fs;

/// The rights of a socket, as `chmod` takes them in numbers.
///
/// # Errors
/// A text for the user when it is none.
pub fn mode(text: &str) -> Result<u32, String> {
    let digits = text.strip_prefix("0o").unwrap_or(text);
    match u32::from_str_radix(digits, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("expected three digits from 0 to 7, such as 660".to_owned()),
    }
}

/// The number of a group of /etc/group, by its name or itself.
///
/// # Errors
/// A text for the user when there is none.
pub fn group(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    // NAME:PASSWORD:NUMBER:MEMBERS, group(5)
    let number = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let ours = fields.next() == Some(text);
        ours.then(|| fields.nth(1)?.parse().ok())?
    });
    number.ok_or_else(|| format!("no group `{text}` in /etc/group; use its number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_octal_and_groups_have_names() {
        assert_eq!((mode("660"), mode("0600")), (Ok(0o660), Ok(0o600)));
        for text in ["888", "rw", "", "07777"] {
            assert!(mode(text).is_err(), "{text}");
        }
        assert_eq!((group("root"), group("4711")), (Ok(0), Ok(4711)));
        assert!(group("no such group").is_err());
    }
}
