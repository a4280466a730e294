//! [`TapdiskConfig`]: the keys of the file of a tapdisk.

use std::fmt;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use serde::de::{DeserializeSeed, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use weir_runtime::config::{Configuration, Fault, text};

use super::entry::{self, DiskEntry, Form, KEYS, Key};
use super::rights;
use crate::nbd::NbdAddress;

/// What a tapdisk serves.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TapdiskConfig {
    /// The socket at which requests are reported.
    pub tap: Option<PathBuf>,
    /// Where all disks are served over NBD.
    #[serde(deserialize_with = "nbd")]
    pub nbd: Option<NbdAddress>,
    /// Most NBD clients at a time.
    #[serde(deserialize_with = "nbd_clients")]
    pub nbd_clients: Option<u16>,
    /// How long an NBD client must have been idle before another one may replace it.
    #[serde(deserialize_with = "nbd_idle")]
    pub nbd_idle: Option<Duration>,
    /// The mode of sockets, as `chmod` takes it.
    #[serde(deserialize_with = "socket_mode")]
    pub socket_mode: Option<u32>,
    /// The number of the group of sockets.
    #[serde(deserialize_with = "socket_group")]
    pub socket_group: Option<u32>,
    /// The disks.
    #[serde(rename = "disk")]
    pub disks: Vec<DiskEntry>,
}

impl Configuration for TapdiskConfig {
    fn complete(&mut self, _: &mut Vec<Fault>) {}
}

fn nbd<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<NbdAddress>, D::Error> {
    text(deserializer, str::parse).map(Some)
}

fn nbd_clients<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u16>, D::Error> {
    let count = i64::deserialize(deserializer)?.to_string();
    entry::nbd_clients(&count)
        .map(Some)
        .map_err(D::Error::custom)
}

fn nbd_idle<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    text(deserializer, entry::nbd_idle).map(Some)
}

fn socket_mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    text(deserializer, rights::mode).map(Some)
}

fn socket_group<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    text(deserializer, rights::group).map(Some)
}

impl<'de> Deserialize<'de> for DiskEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<DiskEntry, D::Error> {
        deserializer.deserialize_map(Disk)
    }
}

struct Disk;

impl<'de> Visitor<'de> for Disk {
    type Value = DiskEntry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table [[disk]]")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<DiskEntry, A::Error> {
        let mut entry = DiskEntry::default();
        while let Some(Known(key)) = map.next_key()? {
            let entry = &mut entry;
            map.next_value_seed(Value { key, entry })?;
        }
        match entry.image.as_os_str().is_empty() {
            true => Err(A::Error::missing_field("image")),
            false => Ok(entry),
        }
    }
}

/// One of [`KEYS`], by its name.
struct Known(&'static Key);

impl<'de> Deserialize<'de> for Known {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Known, D::Error> {
        static NAMES: LazyLock<Vec<&str>> = LazyLock::new(|| KEYS.iter().map(|k| k.name).collect());
        let name = String::deserialize(deserializer)?;
        let known = KEYS.iter().find(|key| key.name == name);
        known
            .map(Known)
            .ok_or_else(|| D::Error::unknown_field(&name, &NAMES))
    }
}

/// The value of a key, which is set in the entry.
struct Value<'a> {
    key: &'static Key,
    entry: &'a mut DiskEntry,
}

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let texts = match self.key.form {
            Form::Text => vec![String::deserialize(deserializer)?],
            Form::Texts => Vec::deserialize(deserializer)?,
            Form::Flag => vec![bool::deserialize(deserializer)?.to_string()],
            Form::Count => vec![i64::deserialize(deserializer)?.to_string()],
        };
        let mut set = |text: &String| (self.key.set)(self.entry, text);
        texts
            .iter()
            .try_for_each(|text| set(text).map_err(D::Error::custom))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_runtime::config::parse;

    fn tapdisk(text: &str) -> Result<TapdiskConfig, Vec<String>> {
        parse("t.toml", text)
    }

    #[test]
    fn a_file_describes_disks() {
        let config = tapdisk(
            "nbd = \"unix:/n\"\nnbd_clients = 3\nsocket_mode = \"660\"\n[[disk]]\nimage = \"/a\"\n\
             socket = \"/s\"\nread_only = true\nqueues = 4\npoll = \"20us\"\n\
             delay = [\"5ms,op=r\", \"1ms\"]\n",
        );
        let config = config.unwrap();
        let disk = &config.disks[0];
        assert_eq!((disk.read_only, disk.queues), (true, Some(4)));
        assert_eq!(disk.injections.delays.len(), 2);
        assert_eq!(
            (config.socket_mode, config.nbd_clients),
            (Some(0o660), Some(3))
        );
        assert_eq!(tapdisk(""), Ok(TapdiskConfig::default()));
    }

    #[test]
    fn a_mistake_names_its_line_its_key_and_the_remedy() {
        let disk = |key: &str| format!("tap = \"/t\"\n[[disk]]\nimage = \"/a\"\n{key}\n");
        for (text, why) in [
            ("nbd = \"10.0.0.1:1\"".to_owned(), "1: `nbd`: "),
            (
                "\nnbd_clients = 0".to_owned(),
                "2: `nbd_clients`: expected a whole number from 1 to 256",
            ),
            (
                disk("sokcet = \"/s\""),
                "4: unknown key `disk.sokcet`; did you mean `socket`?",
            ),
            (
                disk("queues = 0"),
                "4: `disk.queues`: expected a whole number from 1 to 256",
            ),
            (
                disk("engine = \"warp\""),
                "4: `disk.engine`: expected auto, uring or sync",
            ),
            (disk("delay = [\"soon\"]"), "4: `disk.delay`: "),
            (
                disk("read_only = 1"),
                "4: `disk.read_only`: expected true or false, found integer `1`",
            ),
            (
                format!("{}[[disk]]\nvm = \"web\"", disk("")),
                "5: `disk.image` is missing; add image = .. to this table",
            ),
        ] {
            let faults = tapdisk(&text).unwrap_err();
            let begin = format!("weir: t.toml:{why}");
            assert!(faults[0].starts_with(&begin), "{why}\n{faults:?}");
        }
    }
}
