//! [`TapdiskConfig`]: what the file of a tapdisk may say.

use std::path::PathBuf;
use std::time::Duration;

use weir_tapdisk::nbd::Address;

use super::table::{Document, Table};
use crate::tapdisk::{self, DiskEntry, Form, KEYS, group, mode};

/// What a tapdisk serves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TapdiskConfig {
    /// Where requests are reported (`tap`).
    pub tap: Option<PathBuf>,
    /// Where all disks are served over NBD (`nbd`).
    pub nbd: Option<Address>,
    /// NBD clients at a time (`nbd_clients`).
    pub nbd_clients: Option<u16>,
    /// How long an NBD client must have been idle to lose its place to another one (`nbd_idle`).
    pub nbd_idle: Option<Duration>,
    /// The rights of sockets, as `chmod` takes them (`socket_mode`).
    pub socket_mode: Option<u32>,
    /// The group of sockets, by its number (`socket_group`).
    pub socket_group: Option<u32>,
    /// The disks (`[[disk]]`).
    pub disks: Vec<DiskEntry>,
}

/// Most queues and the like that are whole numbers in the file.
const COUNT_MAX: u32 = 1 << 20;

impl TapdiskConfig {
    /// What a document says.
    pub(super) fn of(document: &mut Document) -> TapdiskConfig {
        document.read(|top| TapdiskConfig {
            tap: top.path("tap"),
            nbd: top.text("nbd", str::parse),
            nbd_clients: nbd_clients(top),
            nbd_idle: top.text("nbd_idle", tapdisk::nbd_idle),
            socket_mode: top.text("socket_mode", mode),
            socket_group: top.text("socket_group", group),
            disks: top.tables("disk", disk),
        })
    }
}

fn nbd_clients(top: &mut Table) -> Option<u16> {
    let count = top.count("nbd_clients", 0..=COUNT_MAX)?;
    match tapdisk::nbd_clients(&count.to_string()) {
        Ok(clients) => Some(clients),
        Err(why) => {
            top.fault(&format!("`nbd_clients`: {why}"));
            None
        }
    }
}

fn disk(table: &mut Table) -> Option<DiskEntry> {
    let mut entry = DiskEntry::default();
    for key in KEYS {
        let mut set = |text: &str| (key.set)(&mut entry, text);
        match key.form {
            Form::Text => {
                table.text(key.name, &mut set);
            }
            Form::Texts => {
                table.texts(key.name, |text| set(text));
            }
            Form::Flag => {
                let flag = table.flag(key.name);
                let word = flag.map(|flag| if flag { "on" } else { "off" });
                word.map(set).transpose().expect("both words are known");
            }
            Form::Count => {
                let count = table.count(key.name, 0..=COUNT_MAX);
                if let Some(Err(why)) = count.map(|count| set(&count.to_string())) {
                    table.fault(&format!("`disk.{}`: {why}", key.name));
                }
            }
        }
    }
    match entry.image.as_os_str().is_empty() {
        true => table.missing("image", "\"/srv/web.raw\""),
        false => Some(entry),
    }
}
