//! Opens receivers by their entries in a configuration or on the command line.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use weir_runtime::failure::Failure;

use super::alertmanager_api::{self, AlertmanagerClient};
use super::webhook::Webhook;
use super::{EventSpool, HttpClient};
use crate::notifier::{NamedReceiver, spool_name};
use crate::routes::ReceiverEntry;

/// Minimum length of a secret, in bytes.
const SECRET_BYTES_MIN: usize = 16;

/// The receivers of these entries; events that wait for a webhook are stored in `directory`.
///
/// # Errors
/// An invalid URL or secret, or a file that cannot be used, with the name of the entry.
pub fn open(
    entries: &[ReceiverEntry],
    directory: Option<&Path>,
) -> Result<Vec<NamedReceiver>, Failure> {
    entries
        .iter()
        .map(|entry| receiver(entry, directory))
        .collect()
}

fn receiver(entry: &ReceiverEntry, directory: Option<&Path>) -> Result<NamedReceiver, Failure> {
    let name = &entry.name;
    let client = |url: &str| {
        let client = HttpClient::new(url, entry.ca.as_deref());
        client.map_err(|why| Failure::words(format_args!("{name}: {why}")))
    };
    if let Some(url) = &entry.alertmanager {
        let url = match url.trim_end_matches('/') {
            url if url.ends_with(alertmanager_api::PATH) => url.to_owned(),
            url => format!("{url}{}", alertmanager_api::PATH),
        };
        let receiver = AlertmanagerClient::new(client(&url)?);
        return Ok((name.clone(), Box::new(receiver)));
    }
    let url = entry.webhook.as_deref().unwrap_or_default();
    let secret = entry.secret.as_deref().map(secret).transpose()?;
    let spool = match directory {
        Some(directory) => {
            let path = directory.join(spool_name(url));
            let spool = EventSpool::open(&path);
            spool.map_err(|e| Failure::world(format_args!("{}: {e}", path.display())))?
        }
        None => EventSpool::new(),
    };
    let receiver = Webhook::new(client(url)?, secret.as_deref(), spool);
    Ok((name.clone(), Box::new(receiver)))
}

/// The secret in a file, without the line break at its end.
fn secret(path: &Path) -> Result<Vec<u8>, Failure> {
    let name = path.display();
    let failed = |e: std::io::Error| Failure::world(format_args!("secret {name}: {e}"));
    let mode = fs::metadata(path).map_err(failed)?.mode();
    if mode & 0o077 != 0 {
        return Err(Failure::words(format_args!(
            "secret {name}: other users can read it; `chmod 600 {name}`"
        )));
    }
    let mut secret = fs::read(path).map_err(failed)?;
    while secret.last().is_some_and(|byte| b"\r\n".contains(byte)) {
        secret.pop();
    }
    match secret.len() >= SECRET_BYTES_MIN {
        true => Ok(secret),
        false => Err(Failure::words(format_args!(
            "secret {name}: shorter than {SECRET_BYTES_MIN} bytes; `openssl rand -hex 32` makes one"
        ))),
    }
}
