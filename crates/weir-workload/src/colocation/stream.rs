//! [`DiskStream`]: the recorded requests of one disk, and [`StreamCollector`], which sorts rows
//! into them.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Serialize;
use weir_model::{Nanos, Op};

use crate::devices::whole_disk;
use crate::profile::HostedDisk;

/// The number of requests that are kept, about 200 MB; later ones are counted.
pub const REQUESTS_MAX: usize = 4_000_000;

/// The number of disks; requests of others are counted.
pub const DISKS_MAX: usize = 256;

/// A request whose latency is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedRequest {
    /// When it was inserted into the queue of the device.
    pub arrival_ns: Nanos,
    /// From there to its completion.
    pub latency_ns: Nanos,
    /// From there to its issue to the device, if that is known.
    pub wait_ns: Option<Nanos>,
    /// The operation.
    pub op: Op,
    /// First sector, on the virtual disk where that is known; `None` for a flush.
    pub sector: Option<i64>,
    /// Length in sectors.
    pub sectors: i64,
}

impl RecordedRequest {
    /// When it completed.
    pub fn completion_ns(&self) -> Nanos {
        self.arrival_ns.saturating_add(self.latency_ns)
    }
}

/// A device of a host, which serves disks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct HostedDevice {
    /// The host; `None` if the source does not name it.
    pub host: Option<String>,
    /// The whole disk, as in `/dev/sda`; the disk of the VM where the device is unknown.
    pub device: String,
}

/// The requests of a disk in the order of their arrival.
#[derive(Clone, Debug)]
pub struct DiskStream {
    /// The disk.
    pub disk: HostedDisk,
    /// Its device.
    pub device: HostedDevice,
    /// Its requests.
    pub requests: Vec<RecordedRequest>,
}

/// Collects the requests of all disks.
#[derive(Clone, Debug, Default)]
pub struct StreamCollector {
    streams: Vec<DiskStream>,
    ids: BTreeMap<HostedDisk, usize>,
    requests: usize,
    requests_omitted: u64,
    requests_untimed: u64,
}

/// All disks.
#[derive(Clone, Debug, Default)]
pub struct DiskStreams {
    /// The disks, in the order of their names.
    pub streams: Vec<DiskStream>,
    /// Requests beyond [`REQUESTS_MAX`], or of disks beyond [`DISKS_MAX`].
    pub requests_omitted: u64,
    /// Requests without a known latency.
    pub requests_untimed: u64,
}

impl std::fmt::Display for HostedDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.device)?;
        match &self.host {
            Some(host) => write!(f, " of {host}"),
            None => Ok(()),
        }
    }
}

impl HostedDevice {
    fn of(disk: &HostedDisk) -> HostedDevice {
        let (host, name) = (disk.host, &disk.name);
        let device = name.pdisk.map(whole_disk);
        let names = [name.vm, name.vdisk].into_iter().flatten();
        HostedDevice {
            host: host.map(str::to_owned),
            device: match device {
                Some(device) => device.to_owned(),
                None => names.collect::<Vec<_>>().join(" "),
            },
        }
    }
}

impl DiskStream {
    /// The requests that arrived in `window`.
    pub fn within(&self, window: &Range<Nanos>) -> Range<usize> {
        let before = |at: Nanos| self.requests.partition_point(|r| r.arrival_ns < at);
        before(window.start)..before(window.end)
    }
}

impl StreamCollector {
    /// Adds a completed request, in any order. Without a latency it is only counted.
    pub fn add(&mut self, disk: HostedDisk, request: Option<RecordedRequest>) {
        let Some(request) = request else {
            self.requests_untimed += 1;
            return;
        };
        let id = match self.ids.get(&disk) {
            Some(id) => *id,
            None if self.streams.len() == DISKS_MAX => {
                self.requests_omitted += 1;
                return;
            }
            None => self.insert(disk),
        };
        if self.requests == REQUESTS_MAX {
            self.requests_omitted += 1;
            return;
        }
        self.requests += 1;
        self.streams[id].requests.push(request);
    }

    fn insert(&mut self, disk: HostedDisk) -> usize {
        let id = self.streams.len();
        self.streams.push(DiskStream {
            device: HostedDevice::of(&disk),
            disk: disk.clone(),
            requests: Vec::new(),
        });
        self.ids.insert(disk, id);
        id
    }

    /// All disks with requests. The collector is empty afterwards.
    pub fn finish(&mut self) -> DiskStreams {
        let mut collected = std::mem::take(self);
        collected.streams.retain(|s| !s.requests.is_empty());
        collected.streams.sort_by(|a, b| a.disk.cmp(&b.disk));
        for stream in &mut collected.streams {
            stream.requests.sort_by_key(|r| r.arrival_ns);
        }
        DiskStreams {
            streams: collected.streams,
            requests_omitted: collected.requests_omitted,
            requests_untimed: collected.requests_untimed,
        }
    }
}
