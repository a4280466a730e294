//! Limits of a disk by the tapdisk that serves it: the token buckets of [`DiskLimits`], for reads
//! and writes together.

use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::json;
use weir_tap::inventory::TapdiskKey;
use weir_tap::tapdisk::mark::disk_key;
use weir_tap::tapdisk::words::{Answer, Ask, DiskLimits, DiskWord, StatusWord};
use weir_tap::tapdisk::{ClientError, TapdiskClient};

use crate::knob::KnobSetting;
use crate::{ActError, file};

/// The names of the limits.
const IOPS: &str = "iops";
const BYTES: &str = "bps";

/// A disk of a tapdisk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TapdiskDisk {
    /// The control socket.
    pub socket: PathBuf,
    /// The process.
    pub pid: u32,
    /// When it was started, in nanoseconds since the Unix epoch: a process that was started again
    /// has the limits of its options.
    pub since_ns: i64,
    /// The number of the disk.
    pub disk: u16,
    /// Its image, for users.
    pub image: String,
}

impl TapdiskDisk {
    /// The disk with this key and image, at the control socket of its tapdisk.
    ///
    /// # Errors
    /// When the tapdisk does not answer, or has no such disk, or several.
    pub fn find(socket: &Path, key: TapdiskKey, image: &str) -> Result<TapdiskDisk, ActError> {
        let status = status(socket)?;
        let is_it = |disk: &DiskWord| {
            disk.pdisk.as_deref() == Some(image)
                && disk_key(disk.vm.as_deref(), disk.vdisk.as_deref()) == key.disk
        };
        let disks = status.disks.iter().map(|disk| &disk.disk);
        let disks: Vec<&DiskWord> = disks.filter(|disk| is_it(disk)).collect();
        match disks[..] {
            [disk] if status.pid == key.pid => Ok(TapdiskDisk {
                socket: socket.to_owned(),
                pid: status.pid,
                since_ns: status.since_ns,
                disk: disk.number,
                image: image.to_owned(),
            }),
            _ => Err(ActError::Refused(format!(
                "the tapdisk at {} serves {} disks of {image} as process {}, not one as process {}",
                socket.display(),
                disks.len(),
                status.pid,
                key.pid
            ))),
        }
    }

    /// The present limits.
    ///
    /// # Errors
    /// When the tapdisk does not answer or is another one.
    pub fn read(&self) -> Result<KnobSetting, ActError> {
        let limits = self.limits()?;
        let setting = KnobSetting::default().with(IOPS, limits.iops);
        Ok(setting.with(BYTES, limits.bytes_per_second))
    }

    /// Writes limits; those that `setting` does not have become 0. The burst stays.
    ///
    /// # Errors
    /// As of [`TapdiskDisk::read`], or it refuses them.
    pub fn write(&self, setting: &KnobSetting) -> Result<(), ActError> {
        let request = self.request(setting, self.limits()?);
        match ask(&self.socket, request)? {
            Answer::Limited => Ok(()),
            other => Err(unexpected(&self.socket, &other)),
        }
    }

    /// The request, as its protocol has it.
    pub fn command(&self, setting: &KnobSetting) -> String {
        let request = self.request(setting, self.limits().unwrap_or_default());
        json!({ "request": request }).to_string()
    }

    fn request(&self, setting: &KnobSetting, before: DiskLimits) -> Ask {
        Ask::Limit {
            disk: self.disk,
            limits: DiskLimits {
                iops: setting.get(IOPS),
                bytes_per_second: setting.get(BYTES),
                ..before
            },
        }
    }

    fn limits(&self) -> Result<DiskLimits, ActError> {
        let status = status(&self.socket)?;
        let mut disks = status.disks.iter();
        let disk = disks.find(|disk| disk.disk.number == self.disk);
        match disk {
            Some(disk) if (status.pid, status.since_ns) == (self.pid, self.since_ns) => {
                Ok(disk.figures.limits)
            }
            _ => {
                let why = format!("process {} no longer serves {}", self.pid, self.image);
                Err(file(&self.socket)(Error::new(ErrorKind::NotFound, why)))
            }
        }
    }
}

fn status(socket: &Path) -> Result<StatusWord, ActError> {
    match ask(socket, Ask::Status)? {
        Answer::Status(status) => Ok(status),
        other => Err(unexpected(socket, &other)),
    }
}

fn ask(socket: &Path, request: Ask) -> Result<Answer, ActError> {
    let answer = TapdiskClient::connect(socket).and_then(|mut client| client.ask(request));
    answer.map_err(|error| match error {
        ClientError::System(error) => file(socket)(error),
        ended @ (ClientError::Bye(_) | ClientError::Gone) => {
            file(socket)(Error::new(ErrorKind::ConnectionRefused, ended.to_string()))
        }
        ClientError::Refused(why) | ClientError::Garbled(why) => {
            ActError::Refused(format!("the tapdisk at {}: {why}", socket.display()))
        }
    })
}

fn unexpected(socket: &Path, answer: &Answer) -> ActError {
    let socket = socket.display();
    ActError::Refused(format!("the tapdisk at {socket} answered {answer:?}"))
}
