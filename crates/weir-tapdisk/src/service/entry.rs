//! [`DiskEntry`]: a disk to be served, in the words of a command line or of a file.

use std::path::PathBuf;
use std::time::Duration;

use weir_model::suggest;
use weir_runtime::quantity;
use weir_tap::inventory::option_words;
use weir_tap::tapdisk::words::{BURST_MS_MAX, BURST_MS_MIN, DiskLimits};

use crate::disk::{DiskOptions, Identity, ImageFormat, SERIAL_BYTES};
use crate::engine::{CacheOption, EngineOption};
use crate::inject::Injections;

/// A disk to be served; a value of `None` selects the server's default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DiskEntry {
    /// A raw file or a block device.
    pub image: PathBuf,
    /// Whether an image that looks like one of another format is served all the same.
    pub format: ImageFormat,
    /// The very file or device that it must be.
    pub identity: Option<Identity>,
    /// Where it is served over vhost-user.
    pub socket: Option<PathBuf>,
    /// The VM whose disk it is.
    pub vm: Option<String>,
    /// The disk as the VM sees it.
    pub vdisk: Option<String>,
    /// The serial number that the guest sees.
    pub serial: Option<String>,
    /// Whether writes fail.
    pub read_only: bool,
    /// Most queues that a guest may use.
    pub queues: Option<u16>,
    /// Logical block size, bytes.
    pub block_size: Option<u32>,
    /// Who carries requests out.
    pub engine: EngineOption,
    /// Whether the host's page cache is used.
    pub cache: CacheOption,
    /// How long to look for requests before sleeping.
    pub poll: Option<Duration>,
    /// Its limits at first.
    pub limits: DiskLimits,
    /// Delays and errors, for tests and drills.
    pub injections: Injections,
    /// Whether others may write the image meanwhile.
    pub unlocked: bool,
}

/// A key of the description of a disk.
pub struct Key {
    /// As files have it; on the command line with dashes.
    pub name: &'static str,
    /// The form of its value in a file.
    pub form: Form,
    /// Takes it over.
    pub set: fn(&mut DiskEntry, &str) -> Result<(), String>,
}

/// The form of a value in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A text.
    Text,
    /// `true` or `false`.
    Flag,
    /// A whole number.
    Count,
    /// Texts, none or several.
    Texts,
}

/// All keys, in the order of the documentation.
pub static KEYS: &[Key] = &[
    key("image", Form::Text, |d, v| put(&mut d.image, path(v))),
    key("format", Form::Text, |d, v| put(&mut d.format, format(v))),
    key("socket", Form::Text, |d, v| some(&mut d.socket, path(v))),
    key("vm", Form::Text, |d, v| some(&mut d.vm, name(v))),
    key("vdisk", Form::Text, |d, v| some(&mut d.vdisk, name(v))),
    key("serial", Form::Text, |d, v| some(&mut d.serial, serial(v))),
    key("read_only", Form::Flag, |d, v| {
        put(&mut d.read_only, flag(v))
    }),
    key("queues", Form::Count, |d, v| some(&mut d.queues, queues(v))),
    key("block_size", Form::Count, |d, v| {
        some(&mut d.block_size, block_size(v))
    }),
    key("engine", Form::Text, |d, v| put(&mut d.engine, engine(v))),
    key("cache", Form::Text, |d, v| put(&mut d.cache, cache(v))),
    key("poll", Form::Text, |d, v| some(&mut d.poll, poll(v))),
    key("iops", Form::Count, |d, v| put(&mut d.limits.iops, iops(v))),
    key("bytes_per_second", Form::Text, |d, v| {
        put(&mut d.limits.bytes_per_second, bytes_per_second(v))
    }),
    key("burst", Form::Text, |d, v| {
        put(&mut d.limits.burst_ms, burst_ms(v))
    }),
    key("delay", Form::Texts, |d, v| {
        v.parse().map(|rule| d.injections.delays.push(rule))
    }),
    key("error", Form::Texts, |d, v| {
        v.parse().map(|rule| d.injections.errors.push(rule))
    }),
    key("no_lock", Form::Flag, |d, v| put(&mut d.unlocked, flag(v))),
];

const fn key(
    name: &'static str,
    form: Form,
    set: fn(&mut DiskEntry, &str) -> Result<(), String>,
) -> Key {
    Key { name, form, set }
}

impl DiskEntry {
    /// A disk of `--disk image=FILE,socket=PATH,read-only`. A comma in a value is doubled.
    ///
    /// # Errors
    /// A text for the user with all errors.
    pub fn of_words(text: &str) -> Result<DiskEntry, String> {
        let mut entry = DiskEntry::default();
        let mut wrong: Vec<String> = Vec::new();
        for word in option_words(text) {
            // A word that means yes may stand alone.
            let (name, value) = word.split_once('=').unwrap_or((&word, "on"));
            let known = KEYS.iter().find(|key| shown(key.name) == name);
            match known.map(|key| (key.set)(&mut entry, value)) {
                Some(Ok(())) => {}
                Some(Err(why)) => wrong.push(format!("{name}: {why}")),
                None => wrong.push(unknown(name)),
            }
        }
        if entry.image.as_os_str().is_empty() {
            wrong.push("image is missing; add image=FILE".to_owned());
        }
        match wrong.is_empty() {
            true => Ok(entry),
            false => Err(wrong.join("; ")),
        }
    }

    /// How the disk is to be opened.
    pub fn options(&self) -> DiskOptions {
        DiskOptions {
            format: self.format,
            read_only: self.read_only,
            block_size: self.block_size,
            serial: self.serial.clone(),
            vm: self.vm.clone(),
            vdisk: self.vdisk.clone(),
            engine: self.engine,
            cache: self.cache,
            identity: self.identity,
            lock: !self.unlocked,
            limits: self.limits,
            injections: self.injections.clone(),
            ..DiskOptions::new(&self.image)
        }
    }
}

/// A key as the command line has it.
fn shown(name: &str) -> String {
    name.replace('_', "-")
}

fn unknown(name: &str) -> String {
    let names: Vec<String> = KEYS.iter().map(|key| shown(key.name)).collect();
    match suggest::nearest(name, names.iter().map(String::as_str)) {
        Some(near) => format!("unknown option `{name}`; did you mean `{near}`?"),
        None => format!(
            "unknown option `{name}`; the options are {}",
            names.join(", ")
        ),
    }
}

fn put<T>(into: &mut T, value: Result<T, String>) -> Result<(), String> {
    *into = value?;
    Ok(())
}

fn some<T>(into: &mut Option<T>, value: Result<T, String>) -> Result<(), String> {
    *into = Some(value?);
    Ok(())
}

/// A path that is not empty.
///
/// # Errors
/// A text for the user. So do those below.
pub fn path(text: &str) -> Result<PathBuf, String> {
    match text {
        "" => Err("expected a path, found an empty text".to_owned()),
        text => Ok(PathBuf::from(text)),
    }
}

/// The format of an image: `raw`.
///
/// # Errors
/// A text for the user. So do those below.
pub fn format(text: &str) -> Result<ImageFormat, String> {
    match text {
        "raw" => Ok(ImageFormat::Raw),
        _ => Err("expected raw; convert other formats with `qemu-img convert -O raw`".to_owned()),
    }
}

/// A name of a VM or a disk, as it is to appear in rows.
pub fn name(text: &str) -> Result<String, String> {
    let fits = (1..=253).contains(&text.len()) && !text.contains(|c: char| c.is_control());
    match fits {
        true => Ok(text.to_owned()),
        false => Err("expected 1 to 253 bytes without control characters".to_owned()),
    }
}

/// A serial number that a guest can receive.
pub fn serial(text: &str) -> Result<String, String> {
    let fits =
        (1..=SERIAL_BYTES).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
    match fits {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "expected 1 to {SERIAL_BYTES} printable ASCII characters without spaces"
        )),
    }
}

/// The most queues of a disk.
pub fn queues(text: &str) -> Result<u16, String> {
    let number = text.parse().ok().filter(|n| (1..=QUEUES_MAX).contains(n));
    number.ok_or_else(|| format!("expected a whole number from 1 to {QUEUES_MAX}"))
}

/// What is the most that a disk may have: each queue in use has a thread.
const QUEUES_MAX: u16 = 256;

/// A logical block size in bytes.
pub fn block_size(text: &str) -> Result<u32, String> {
    match text {
        "512" => Ok(512),
        "1024" => Ok(1024),
        "2048" => Ok(2048),
        "4096" => Ok(4096),
        _ => Err("expected 512, 1024, 2048 or 4096".to_owned()),
    }
}

/// Who carries requests out.
pub fn engine(text: &str) -> Result<EngineOption, String> {
    match text {
        "auto" => Ok(EngineOption::Auto),
        "uring" => Ok(EngineOption::Uring),
        "sync" => Ok(EngineOption::Sync),
        _ => Err("expected auto, uring or sync".to_owned()),
    }
}

/// Whether the host's page cache is used.
pub fn cache(text: &str) -> Result<CacheOption, String> {
    match text {
        "auto" => Ok(CacheOption::Auto),
        "direct" => Ok(CacheOption::Direct),
        "page" => Ok(CacheOption::PageCache),
        _ => Err("expected auto, direct or page".to_owned()),
    }
}

/// How long to poll: a time, or `0` for not at all.
pub fn poll(text: &str) -> Result<Duration, String> {
    let span = match text.trim() {
        "0" => Ok(Duration::ZERO),
        text => quantity::span(text),
    };
    match span? {
        long if long > POLL_MAX => {
            Err("expected at most 10ms: a polling thread uses a whole processor".to_owned())
        }
        span => Ok(span),
    }
}

const POLL_MAX: Duration = Duration::from_millis(10);

/// A limit of requests per second.
pub fn iops(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|iops| *iops > 0);
    number.ok_or_else(|| "expected a number of requests per second, at least 1".to_owned())
}

/// A limit of bytes per second, such as `20MiB`.
pub fn bytes_per_second(text: &str) -> Result<u64, String> {
    quantity::size(text).map(|bytes| bytes as u64)
}

/// How long limits may be exceeded after a pause, in milliseconds.
pub fn burst_ms(text: &str) -> Result<u64, String> {
    let span = quantity::span(text)?;
    let milliseconds = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    match (BURST_MS_MIN..=BURST_MS_MAX).contains(&milliseconds) {
        true => Ok(milliseconds),
        false => Err("expected a time from 1ms to 60s".to_owned()),
    }
}

/// The most clients over NBD.
pub fn nbd_clients(text: &str) -> Result<u16, String> {
    let number = text
        .parse()
        .ok()
        .filter(|n| (1..=NBD_CLIENTS_MAX).contains(n));
    number.ok_or_else(|| format!("expected a whole number from 1 to {NBD_CLIENTS_MAX}"))
}

/// Each client has a thread, and up to 32 MiB of data under way.
const NBD_CLIENTS_MAX: u16 = 256;

/// How long an NBD client must have been idle to lose its place: a time, or `0` for not at all.
pub fn nbd_idle(text: &str) -> Result<Duration, String> {
    match text.trim() {
        "0" => Ok(Duration::ZERO),
        text => quantity::span(text),
    }
}

fn flag(text: &str) -> Result<bool, String> {
    match text {
        "on" | "true" => Ok(true),
        "off" | "false" => Ok(false),
        _ => Err("expected on or off".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_describe_a_disk() {
        let entry = DiskEntry::of_words(
            "image=/srv/a,,b.raw,socket=/run/a.sock,vm=web,vdisk=/dev/vda,serial=vol0,queues=4,read-only",
        );
        let entry = entry.unwrap();
        assert_eq!(entry.image, PathBuf::from("/srv/a,b.raw"));
        assert_eq!(entry.socket, Some("/run/a.sock".into()));
        assert_eq!(
            (entry.vm.as_deref(), entry.vdisk.as_deref()),
            (Some("web"), Some("/dev/vda"))
        );
        assert_eq!((entry.queues, entry.read_only), (Some(4), true));
        let options = entry.options();
        assert_eq!(options.serial.as_deref(), Some("vol0"));
        assert!(options.read_only && options.lock);
    }

    #[test]
    fn all_errors_are_reported_together() {
        let wrong = DiskEntry::of_words("sokcet=/s,queues=0,block-size=513,poll=1 h").unwrap_err();
        for part in [
            "unknown option `sokcet`; did you mean `socket`?",
            "queues: expected a whole number from 1 to 256",
            "block-size: expected 512, 1024, 2048 or 4096",
            "poll: expected at most 10ms",
            "image is missing; add image=FILE",
        ] {
            assert!(wrong.contains(part), "{part}: {wrong}");
        }
    }
}
