//! [`Silence`]: withholds the messages of alerts for some time. It stops neither their states nor
//! actions and their undoing.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json, json};
use weir_model::Nanos;
use weir_runtime::lock::Lock;
use weir_runtime::private;
use weir_sink::time;
use weir_wire::SilenceRequest;

use crate::event::{AlertEvent, fingerprint};

/// The directory of the file, below that of the states.
const DIRECTORY: &str = "silences";

/// The file.
const NAME: &str = "silences.json";

/// Maximum number of silences.
pub const SILENCES_MAX: usize = 1_000;

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silence {
    /// Its name.
    pub id: String,
    /// The alert; `None` is all.
    pub alert: Option<String>,
    /// Values of labels, all of which an instance must have.
    pub labels: Vec<(String, String)>,
    /// When it begins, in nanoseconds since the Unix epoch.
    pub begins: Nanos,
    /// When it ends.
    pub ends: Nanos,
    /// Why it was set.
    pub comment: String,
}

/// The silences of a directory.
#[derive(Debug)]
pub struct SilenceFile {
    path: PathBuf,
    silences: Vec<Silence>,
    /// The state of the file when it was read.
    read: Option<(SystemTime, u64)>,
}

impl Silence {
    /// A silence that begins at `now`.
    pub fn new(request: &SilenceRequest, now: Nanos) -> Silence {
        let text = format!("{now} {:?} {:?}", request.alert, request.labels);
        Silence {
            id: fingerprint(&text).chars().take(12).collect(),
            alert: request.alert.clone(),
            labels: request.labels.clone(),
            begins: now,
            ends: now.saturating_add(request.for_ns),
            comment: request.comment.clone(),
        }
    }

    /// For clients: an object.
    pub fn json(&self) -> Json {
        let labels = self.labels.iter();
        let labels: Map<String, Json> = labels
            .map(|(name, value)| (name.clone(), json!(value)))
            .collect();
        json!({
            "id": self.id,
            "alert": self.alert,
            "labels": labels,
            "begins": time::timestamp(self.begins),
            "ends": time::timestamp(self.ends),
            "comment": self.comment,
        })
    }

    /// Whether it withholds the messages of an event at `now`.
    pub fn hides(&self, event: &AlertEvent, now: Nanos) -> bool {
        let is_alert = |alert: &String| alert.eq_ignore_ascii_case(&event.alert);
        (self.begins..self.ends).contains(&now)
            && self.alert.as_ref().is_none_or(is_alert)
            && has_labels(event, &self.labels)
    }
}

/// Whether an event has these values of labels.
pub fn has_labels<'l>(
    event: &AlertEvent,
    labels: impl IntoIterator<Item = &'l (String, String)>,
) -> bool {
    let mut labels = labels.into_iter();
    labels.all(|(name, value)| event.label(name) == Some(value.as_str()))
}

impl SilenceFile {
    /// The file below the directory of states, with what it has.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn open(states: &Path) -> io::Result<SilenceFile> {
        let directory = states.join(DIRECTORY);
        private::directory(&directory)?;
        let mut file = SilenceFile {
            path: directory.join(NAME),
            silences: Vec::new(),
            read: None,
        };
        file.refresh()?;
        Ok(file)
    }

    /// Reads it again if it has changed.
    ///
    /// # Errors
    /// When it cannot be read; the silences are as before.
    pub fn refresh(&mut self) -> io::Result<()> {
        let state = match fs::metadata(&self.path) {
            Ok(metadata) => Some((metadata.modified()?, metadata.len())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if state == self.read && state.is_some() {
            return Ok(());
        }
        self.silences = match state {
            Some(_) => serde_json::from_slice(&fs::read(&self.path)?)?,
            None => Vec::new(),
        };
        self.read = state;
        Ok(())
    }

    /// The silences that have not ended at `now`.
    pub fn present(&self, now: Nanos) -> impl Iterator<Item = &Silence> {
        self.silences
            .iter()
            .filter(move |silence| now < silence.ends)
    }

    /// The silence that withholds the messages of an event at `now`.
    pub fn hiding(&self, event: &AlertEvent, now: Nanos) -> Option<&Silence> {
        self.silences
            .iter()
            .find(|silence| silence.hides(event, now))
    }

    /// Adds a silence; those that have ended at `now` are removed. It is on disk on return.
    ///
    /// # Errors
    /// When the file cannot be written, another process changes it, or there are too many.
    pub fn add(&mut self, silence: Silence, now: Nanos) -> io::Result<()> {
        self.change(now, |silences| {
            if silences.len() >= SILENCES_MAX {
                let why = format!("there are {SILENCES_MAX} silences already");
                return Err(io::Error::other(why));
            }
            silences.push(silence);
            Ok(())
        })
    }

    /// Removes a silence; false if there is none with this name.
    ///
    /// # Errors
    /// As [`SilenceFile::add`].
    pub fn remove(&mut self, id: &str, now: Nanos) -> io::Result<bool> {
        let mut found = false;
        self.change(now, |silences| {
            silences.retain(|silence| {
                found |= silence.id == id;
                silence.id != id
            });
            Ok(())
        })?;
        Ok(found)
    }

    fn change(
        &mut self,
        now: Nanos,
        with: impl FnOnce(&mut Vec<Silence>) -> io::Result<()>,
    ) -> io::Result<()> {
        let directory = self.path.parent().expect("it is in a directory");
        let lock = Lock::take(directory)?;
        let busy = || io::Error::other("another process changes the silences; try again");
        let _lock = lock.ok_or_else(busy)?;
        self.read = None;
        self.refresh()?;
        self.silences.retain(|silence| now < silence.ends);
        with(&mut self.silences)?;
        private::replace(&self.path, &serde_json::to_vec(&self.silences)?)?;
        self.read = None;
        self.refresh()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silence(id: &str, ends: Nanos) -> Silence {
        Silence {
            id: id.to_owned(),
            alert: None,
            labels: Vec::new(),
            begins: 0,
            ends,
            comment: "maintenance".to_owned(),
        }
    }

    #[test]
    fn a_silence_ends_and_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = SilenceFile::open(folder.path()).unwrap();
        file.add(silence("a", 10), 0).unwrap();
        file.add(silence("b", 20), 0).unwrap();
        let mut other = SilenceFile::open(folder.path()).unwrap();
        assert_eq!(other.present(5).count(), 2);
        assert_eq!(
            other.present(10).map(|s| s.id.as_str()).collect::<Vec<_>>(),
            ["b"]
        );
        assert!(other.remove("b", 0).unwrap());
        assert!(!other.remove("b", 0).unwrap());
        file.refresh().unwrap();
        assert_eq!(file.present(0).count(), 1);
    }
}
