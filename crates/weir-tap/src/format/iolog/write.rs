//! Writes fio I/O logs of version 3: the requests of a recording, in order of issue, for
//! `fio --read_iolog`.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use weir_model::{
    Batch, Event, EventKind, IoEvent, NANOS_PER_MICRO, Nanos, Op, SECTOR_BYTES, Symbol,
};

use super::super::remarks::Remarks;
use super::super::write::{Header, TraceWriter};
use super::VERSION_3;
use crate::{EventCount, TapError};

/// Maximum length of a file name that fio reads (`%256s`).
const NAME_BYTES_MAX: usize = 256;

struct Iolog {
    path: PathBuf,
    file: BufWriter<File>,
    /// The file names of the disks so far.
    files: HashMap<[Option<Symbol>; 3], String>,
    first_ts: Option<Nanos>,
    last_us: i64,
    remarks: Remarks,
}

/// Creates or overwrites a log at `path`.
///
/// # Errors
/// If the file cannot be written.
pub fn create(path: &Path, _header: &Header) -> Result<Box<dyn TraceWriter>, TapError> {
    let failed = |error| TapError::File {
        path: path.into(),
        error,
    };
    let mut file = BufWriter::new(File::create(path).map_err(failed)?);
    writeln!(file, "{VERSION_3}").map_err(failed)?;
    Ok(Box::new(Iolog {
        path: path.into(),
        file,
        files: HashMap::new(),
        first_ts: None,
        last_us: 0,
        remarks: Remarks::default(),
    }))
}

impl Iolog {
    fn write_event(&mut self, event: &Event) -> std::io::Result<()> {
        let first_ts = *self.first_ts.get_or_insert(event.ts);
        let us = event.ts.saturating_sub(first_ts) / NANOS_PER_MICRO;
        self.last_us = us;
        let action = match event.op {
            Op::Read => "read",
            Op::Write => "write",
            Op::Discard => "trim",
            Op::Flush => "sync",
            Op::WriteZeroes => {
                self.remarks.note(
                    "write zeroes written as writes, because fio's logs have no write zeroes",
                );
                "write"
            }
        };
        let disk = [event.vm, event.vdisk, event.pdisk];
        if !self.files.contains_key(&disk) {
            let name = file_name(event);
            if !self.files.values().any(|other| *other == name) {
                writeln!(self.file, "{us} {name} add\n{us} {name} open")?;
            }
            self.files.insert(disk, name);
        }
        let offset = event.sector.unwrap_or(0).saturating_mul(SECTOR_BYTES);
        let bytes = event.sectors.saturating_mul(SECTOR_BYTES);
        writeln!(
            self.file,
            "{us} {} {action} {offset} {bytes}",
            self.files[&disk]
        )
    }

    fn failed(&self, error: std::io::Error) -> TapError {
        TapError::File {
            path: self.path.clone(),
            error,
        }
    }
}

/// The device or file, else the virtual disk, as a single word that fio can read.
fn file_name(event: &Event) -> String {
    let name = match (event.pdisk, event.vm, event.vdisk) {
        (Some(pdisk), _, _) => pdisk.to_string(),
        (None, Some(vm), Some(vdisk)) => format!("{vm}_{vdisk}"),
        (None, None, Some(vdisk)) => vdisk.to_string(),
        (None, vm, None) => vm.map_or("disk".into(), |vm| vm.to_string()),
    };
    let word: String = name
        .chars()
        .map(|c| if c.is_whitespace() { '_' } else { c })
        .collect();
    let end = (0..=NAME_BYTES_MAX.min(word.len()))
        .rev()
        .find(|&i| word.is_char_boundary(i));
    match &word[..end.unwrap_or(0)] {
        "" => "disk".into(),
        word => word.into(),
    }
}

impl TraceWriter for Iolog {
    fn write(&mut self, batch: &Batch) -> Result<(), TapError> {
        for row in IoEvent::of_batch(batch) {
            if row.event.kind == EventKind::Request {
                self.write_event(&row.event)
                    .map_err(|error| self.failed(error))?;
            }
        }
        Ok(())
    }

    fn count(&mut self, _counts: Vec<EventCount>) {}

    fn finish(mut self: Box<Self>) -> Result<Vec<String>, TapError> {
        let mut names: Vec<&String> = self.files.values().collect();
        names.sort();
        names.dedup();
        let last_us = self.last_us;
        let closed = names
            .iter()
            .try_for_each(|name| writeln!(self.file, "{last_us} {name} close"));
        closed
            .and_then(|()| self.file.flush())
            .map_err(|error| TapError::File {
                path: self.path.clone(),
                error,
            })?;
        Ok(self.remarks.lines())
    }
}
