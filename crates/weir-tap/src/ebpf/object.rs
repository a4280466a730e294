//! An object of kernel programs: opened from its compiled bytes, its tables mapped, and what the
//! kernel reports if it refuses them.

use std::io;
use std::os::fd::AsFd;
use std::sync::Mutex;

use libbpf_rs::{
    ErrorKind, MapCore, MapMut, MapType, Object, ObjectBuilder, OpenObject, PrintLevel,
};

use super::obstacle::Obstacle;
use crate::TapError;
use crate::shared::Shared;

/// Messages of libbpf, for the error message.
static LIBBPF_MESSAGES: Mutex<String> = Mutex::new(String::new());

/// Maximum number of bytes of messages that are kept.
const LIBBPF_MESSAGES_MAX: usize = 1 << 16;

/// Opens the object compiled as `bytes`.
///
/// # Errors
/// If the bytes are not an object.
pub fn open(bytes: &[u8]) -> Result<OpenObject, TapError> {
    keep_messages();
    let mut builder = ObjectBuilder::default();
    let named = builder
        .name("weir")
        .map_err(|e| refused("the object", &e))?;
    named
        .open_memory(bytes)
        .map_err(|e| refused("the object", &e))
}

/// Keeps the messages of libbpf from now on, which it prints otherwise.
pub fn keep_messages() {
    LIBBPF_MESSAGES.lock().expect("no panic while held").clear();
    libbpf_rs::set_print(Some((PrintLevel::Warn, |_, text| {
        let mut messages = LIBBPF_MESSAGES.lock().expect("no panic while held");
        if messages.len() + text.len() <= LIBBPF_MESSAGES_MAX {
            messages.push_str(&text);
        }
    })));
}

/// Maps the `values` values of `bytes` bytes each of a loaded object's table.
///
/// # Errors
/// If there is not enough memory.
pub fn map(object: &Object, name: &str, bytes: usize, values: usize) -> Result<Shared, TapError> {
    let mut tables = object.maps();
    let table = tables.find(|m| is_table(&m.name().to_string_lossy(), name));
    let table = table.expect("the object has the tables of its source");
    Shared::map(table.as_fd(), bytes, values).map_err(|e| no_memory(name, &e))
}

/// Removes all entries of the object's hash tables.
///
/// # Errors
/// If the kernel refuses.
pub fn clear_tables(object: &mut Object) -> Result<(), TapError> {
    let is_hash = |m: &MapMut<'_>| matches!(m.map_type(), MapType::Hash | MapType::LruHash);
    for table in object.maps_mut().filter(is_hash) {
        let keys: Vec<Vec<u8>> = table.keys().collect();
        for key in keys {
            match table.delete(&key) {
                // A program that was still running has removed it.
                Err(error) if error.kind() == ErrorKind::NotFound => (),
                removed => removed.map_err(|e| refused("a table", &e))?,
            }
        }
    }
    Ok(())
}

/// True if the object's table `full` is the one called `name`. The names of tables of variables
/// begin with the object's name.
fn is_table(full: &str, name: &str) -> bool {
    full == name || name.starts_with('.') && full.ends_with(name)
}

/// How libbpf begins what the verifier wrote about a program.
const VERIFIER_LOG: &str = "BEGIN PROG LOAD LOG";

/// The error when the kernel refuses `what`, with the last messages of libbpf.
pub fn refused(what: &str, error: &libbpf_rs::Error) -> TapError {
    let messages = LIBBPF_MESSAGES.lock().expect("no panic while held");
    let lines = messages.lines().rev().take(8).collect::<Vec<_>>();
    let lines: Vec<&str> = lines.into_iter().rev().collect();
    let detail = if lines.is_empty() {
        String::new()
    } else {
        format!(" ({})", lines.join("; "))
    };
    let what = format!("the kernel refuses {what}: {error}{detail}");
    if error.kind() == libbpf_rs::ErrorKind::PermissionDenied {
        let Obstacle { cause, remedy } = Obstacle::of_refusal(messages.contains(VERIFIER_LOG));
        return TapError::NotPermitted {
            cause,
            remedy,
            detail: what,
        };
    }
    let remedy = match Obstacle::of_lockdown() {
        Some(Obstacle { cause, remedy }) => format!("{cause}: {remedy}"),
        None => "`weir doctor` lists what is missing".into(),
    };
    TapError::Unavailable { what, remedy }
}

fn no_memory(table: &str, error: &io::Error) -> TapError {
    TapError::Unavailable {
        what: format!("cannot map table {table}: {error}"),
        remedy: "allow more memory, or ask for smaller rings".into(),
    }
}
