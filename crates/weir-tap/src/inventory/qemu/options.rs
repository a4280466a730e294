//! [`Options`]: the argument of an option of QEMU, as `file.filename=/x,cache.direct=on` or as
//! JSON; both are parsed into the same list of keys and values.
//!
//! Syntax: qemu(1), `util/keyval.c` and `util/qemu-option.c` of QEMU: a comma inside a value is
//! doubled, the first item may be the value of an omitted key, `x` alone means `x=on` and `nox`
//! means `x=off`.

use std::collections::BTreeMap;

use serde_json::Value;

/// Maximum depth of nested JSON.
const DEPTH_MAX: usize = 32;

/// Keys with their values; nested keys are joined by dots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    values: BTreeMap<String, String>,
}

impl Options {
    /// Parses the options in `text`. `first` is the key that may be omitted.
    pub fn parse(text: &str, first: &str) -> Options {
        let mut options = Options::default();
        if text.starts_with('{') {
            // QEMU would have rejected invalid JSON; nothing is known then.
            let value = serde_json::from_str(text).unwrap_or(Value::Null);
            options.flatten("", &value, 0);
            return options;
        }
        for (position, word) in words(text).into_iter().enumerate() {
            match word.split_once('=') {
                Some((key, value)) => options.set(key, value),
                None if position == 0 && !first.is_empty() => options.set(first, &word),
                None => match word.strip_prefix("no") {
                    Some(key) if !key.is_empty() && !BEGIN_WITH_NO.contains(&word.as_str()) => {
                        options.set(key, "off");
                    }
                    _ => options.set(&word, "on"),
                },
            }
        }
        options
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    /// The value of a key, as an owned string.
    pub fn text(&self, key: &str) -> Option<String> {
        self.values.get(key).cloned()
    }

    /// The value of a key that is on or off.
    pub fn flag(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            "on" | "yes" | "true" | "y" => Some(true),
            "off" | "no" | "false" | "n" => Some(false),
            _ => None,
        }
    }

    /// The value of a key that is a number.
    pub fn number(&self, key: &str) -> Option<u64> {
        number(self.get(key)?)
    }

    /// The options whose keys begin with `prefix` and a dot, without that prefix.
    pub fn below(&self, prefix: &str) -> Options {
        let own = |(key, value): (&String, &String)| {
            let rest = key.strip_prefix(prefix)?.strip_prefix('.')?;
            Some((rest.to_owned(), value.clone()))
        };
        Options {
            values: self.values.iter().filter_map(own).collect(),
        }
    }

    /// True if there are no options.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Sets the value of a key.
    pub fn set(&mut self, key: &str, value: &str) {
        self.values.insert(key.to_owned(), value.to_owned());
    }

    fn flatten(&mut self, key: &str, value: &Value, depth: usize) {
        let below = |name: &str| match key.is_empty() {
            true => name.to_owned(),
            false => format!("{key}.{name}"),
        };
        match value {
            _ if depth > DEPTH_MAX => {}
            Value::Object(fields) => {
                for (name, value) in fields {
                    self.flatten(&below(name), value, depth + 1);
                }
            }
            Value::Array(items) => {
                for (position, value) in items.iter().enumerate() {
                    self.flatten(&below(&position.to_string()), value, depth + 1);
                }
            }
            Value::Bool(flag) => self.set(key, if *flag { "on" } else { "off" }),
            Value::Number(number) => self.set(key, &number.to_string()),
            Value::String(text) => self.set(key, text),
            Value::Null => {}
        }
    }
}

/// Keys that begin with `no` and are not negations.
const BEGIN_WITH_NO: [&str; 3] = ["node-name", "node", "nodes"];

/// The items between commas, in options of QEMU and of `weir tapdisk --disk`; a doubled comma is a
/// literal comma.
pub fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        if c == ',' && rest.peek() != Some(&',') {
            words.push(String::new());
            continue;
        }
        if c == ',' {
            rest.next();
        }
        words.last_mut().expect("there is a first word").push(c);
    }
    words.retain(|word| !word.is_empty());
    words
}

/// A number, decimal or with `0x`.
pub fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// A size as `512`, `2G`, `1.5T`, in units of `unit` if none is given.
pub fn size(text: &str, unit: u64) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match text[digits.len()..].trim_end_matches(['b', 'B']) {
        "" if digits.len() == text.len() => unit,
        "" => 1,
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        "t" | "T" => 1 << 40,
        "p" | "P" => 1 << 50,
        _ => return None,
    };
    let size = digits.parse::<f64>().ok()? * factor as f64;
    (size.is_finite() && (0.0..9e18).contains(&size)).then_some(size as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_syntaxes_are_equivalent() {
        let keys = "driver=raw,node-name=n0,file.driver=file,file.filename=/a,,b,cache.direct=on";
        let json = r#"{"driver":"raw","node-name":"n0","cache":{"direct":true},
            "file":{"driver":"file","filename":"/a,b"}}"#;
        let keys = Options::parse(keys, "driver");
        assert_eq!(keys, Options::parse(json, "driver"));
        assert_eq!(keys.get("file.filename"), Some("/a,b"));
        assert_eq!(keys.below("file").get("driver"), Some("file"));
        assert_eq!(keys.below("fil"), Options::default());
    }

    #[test]
    fn words_without_values_are_switches() {
        let options = Options::parse("socket,id=c0,path=/x,server,nowait", "backend");
        assert_eq!(options.get("backend"), Some("socket"));
        assert_eq!(
            (options.flag("server"), options.flag("wait")),
            (Some(true), Some(false))
        );
        assert!(Options::parse("{not json", "driver").is_empty());
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("256", 1 << 20), Some(256 << 20));
        assert_eq!(size("1.5G", 1 << 20), Some(3 << 29));
        assert_eq!(size("4096b", 1 << 20), Some(4096));
        assert_eq!(size("lots", 1), None);
        assert_eq!((number("0x1c"), number("7")), (Some(28), Some(7)));
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "[a-z,=.{}:\"\\[\\]0-9é-]{0,80}", unit: u64) {
            let options = Options::parse(&text, "first");
            options.below("file").number("size");
            size(&text, unit);
        }
    }
}
