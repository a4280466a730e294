//! Configuration files: TOML, which serde reads into the structure of the service.
//!
//! A mistake is reported with the file, the line, the key and the remedy. Times and sizes are
//! texts, as on the command line (`"50 ms"`, `"16 MiB"`).

mod changes;
mod setting;

use std::io::Read;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_path_to_error::{Path as KeyPath, Segment};
use toml::de::{DeTable, DeValue, Deserializer};
use weir_model::suggest;

use crate::failure::Failure;

pub use changes::Changes;
pub use setting::{Size, Time, count, text};

/// Maximum size of a configuration file, bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The structure into which a configuration file is deserialized. Its fields are the keys of the
/// file.
pub trait Configuration: Default + DeserializeOwned {
    /// Keys of earlier versions, each with the present name.
    const RENAMED: &'static [(&'static str, &'static str)] = &[];

    /// Derives values from other keys, and checks what the types of the fields do not.
    fn complete(&mut self, faults: &mut Vec<Fault>);
}

/// An invalid value of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The path of the key: `limits.queries`, `query.0.text`.
    pub key: String,
    /// The error and the remedy.
    pub why: String,
}

/// A configuration and the file that it was read from.
#[derive(Clone, Debug)]
pub struct Loaded<T> {
    /// The configuration, defaults included.
    pub config: T,
    /// The file, if there is one.
    pub path: Option<PathBuf>,
}

/// Reads the file `named`, otherwise the file `usual` if it exists, otherwise returns the defaults.
///
/// # Errors
/// When the file cannot be read, or is wrong.
pub fn load<T: Configuration>(named: Option<&Path>, usual: &str) -> Result<Loaded<T>, Failure> {
    let usual = Path::new(usual);
    let path = named.or_else(|| usual.exists().then_some(usual));
    let text = path.map_or(Ok(String::new()), read)?;
    let name = path.map_or(String::new(), |path| path.display().to_string());
    match parse(&name, &text) {
        Ok(config) => Ok(Loaded {
            config,
            path: path.map(Path::to_owned),
        }),
        Err(faults) => Err(Failure::Words(faults.join("\n"))),
    }
}

/// The configuration in `text`, the contents of file `name`.
///
/// # Errors
/// The errors, one line each.
pub fn parse<T: Configuration>(name: &str, text: &str) -> Result<T, Vec<String>> {
    let line = |at: usize, why: &str| {
        let before = text.as_bytes().iter().take(at);
        let line = 1 + before.filter(|byte| **byte == b'\n').count();
        format!("weir: {name}:{line}: {why}")
    };
    let tree = DeTable::parse(text).map_err(|error| vec![at(&error, error.message(), line)])?;
    let root = DeValue::Table(tree.get_ref().clone());
    let mut config: T = serde_path_to_error::deserialize(Deserializer::from(tree))
        .map_err(|error| vec![at(error.inner(), &explained(&error, T::RENAMED), line)])?;
    let mut faults = Vec::new();
    empty_texts(&root, &mut String::new(), &mut faults);
    config.complete(&mut faults);
    let mut found: Vec<(usize, String)> = faults
        .iter()
        .map(|fault| {
            let why = format!("`{}`: {}", without_indexes(&fault.key), fault.why);
            (position(&root, &fault.key), why)
        })
        .collect();
    found.sort();
    match found.is_empty() {
        true => Ok(config),
        false => Err(found.iter().map(|(at, why)| line(*at, why)).collect()),
    }
}

fn at(error: &toml::de::Error, why: &str, line: impl Fn(usize, &str) -> String) -> String {
    line(error.span().map_or(0, |span| span.start), why)
}

/// The text of an error, with the path of its key and the remedy.
fn explained(
    error: &serde_path_to_error::Error<toml::de::Error>,
    renamed: &[(&str, &str)],
) -> String {
    let key = keys(error.path());
    let message = error.inner().message();
    // serde lists the valid fields after the last `expected`, each between backticks.
    if message.starts_with("unknown field") {
        if let Some((_, present)) = renamed.iter().find(|(earlier, _)| *earlier == key) {
            return format!("unknown key `{key}`; its name is now `{present}`");
        }
        let known = message
            .rsplit_once("expected ")
            .map_or("", |(_, list)| list);
        let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
        let unknown = key.rsplit('.').next().unwrap_or_default();
        return match suggest::nearest(unknown, known.iter().copied()) {
            Some(near) => format!("unknown key `{key}`; did you mean `{near}`?"),
            None => format!("unknown key `{key}`; known here: {}", known.join(", ")),
        };
    }
    if let Some(field) = message.strip_prefix("missing field ") {
        let field = field.trim_matches('`');
        let prefix = if key.is_empty() { "" } else { "." };
        return format!("`{key}{prefix}{field}` is missing; add {field} = .. to this table");
    }
    let invalid = ["invalid type: ", "invalid value: "];
    let invalid = invalid
        .iter()
        .find_map(|prefix| message.strip_prefix(prefix));
    match invalid.and_then(|types| types.rsplit_once(", expected ")) {
        Some((found, expected)) => {
            let found = found.trim_end_matches(" as i128");
            format!(
                "`{key}`: expected {}, found {}",
                value_of(expected),
                value_of(found)
            )
        }
        None => format!("`{key}`: {message}"),
    }
}

/// A type of value as TOML calls it, for serde's name of it.
fn value_of(serde: &str) -> &str {
    match serde {
        "a string" => "a text in quotes",
        "path string" => "a path in quotes",
        "a boolean" => "true or false",
        "a sequence" | "sequence" => "a list",
        "a map" | "map" => "a table",
        "i64" | "u64" | "usize" | "u32" | "u16" => "a whole number",
        "f64" => "a number",
        other => other,
    }
}

/// The keys of a path, without the indexes of lists: the line identifies the item.
fn keys(path: &KeyPath) -> String {
    let keys = path.iter().filter_map(|segment| match segment {
        Segment::Map { key } => Some(key.as_str()),
        _ => None,
    });
    keys.collect::<Vec<&str>>().join(".")
}

fn without_indexes(key: &str) -> String {
    let keys = key.split('.').filter(|key| key.parse::<usize>().is_err());
    keys.collect::<Vec<&str>>().join(".")
}

/// Where the value of `key` begins, or that of the innermost table around it in the file.
fn position(root: &DeValue, key: &str) -> usize {
    let (mut value, mut at) = (root, 0);
    for key in key.split('.') {
        let below = match key.parse::<usize>() {
            Ok(index) => value.get(index),
            Err(_) => value.get(key),
        };
        let Some(below) = below else { break };
        (value, at) = (below.get_ref(), below.span().start);
    }
    at
}

/// Reports empty texts. An empty text is valid for no key: it would be a path to the current
/// directory, or an empty name.
fn empty_texts(value: &DeValue, key: &mut String, faults: &mut Vec<Fault>) {
    let mut below = |name: &str, value: &DeValue| {
        let length = key.len();
        if length > 0 {
            key.push('.');
        }
        key.push_str(name);
        empty_texts(value, key, faults);
        key.truncate(length);
    };
    match value {
        DeValue::Table(table) => {
            for (name, value) in table {
                below(name.get_ref(), value.get_ref());
            }
        }
        DeValue::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                below(&index.to_string(), item.get_ref());
            }
        }
        DeValue::String(text) if text.trim().is_empty() => faults.push(Fault {
            key: key.clone(),
            why: "expected a text, found an empty one".to_owned(),
        }),
        _ => {}
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    let world = |e: std::io::Error| Failure::world(format_args!("{}: {e}", path.display()));
    let file = std::fs::File::open(path).map_err(world)?;
    let mut bytes = Vec::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    if read.map_err(world)? as u64 > FILE_BYTES_MAX {
        return Err(Failure::words(format_args!(
            "{}: is larger than {} MiB and cannot be a configuration file",
            path.display(),
            FILE_BYTES_MAX >> 20
        )));
    }
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Failure::words(format_args!("{}: not UTF-8 at byte {at}", path.display()))
    })
}

/// A configuration as a tree of values.
fn serialized(config: &impl Serialize) -> Value {
    serde_json::to_value(config).expect("a configuration has texts and finite numbers")
}

/// Serialises a path as displayed: a path from the command line need not be UTF-8.
///
/// # Errors
/// Those of the serializer.
pub fn path_shown<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

/// As [`path_shown`], for an optional path.
///
/// # Errors
/// Those of the serializer.
pub fn optional_path_shown<S: Serializer>(
    path: &Option<PathBuf>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let shown = path.as_ref().map(|path| path.display().to_string());
    shown.serialize(serializer)
}
