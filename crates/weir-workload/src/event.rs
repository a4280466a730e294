//! The events of a disk, as input of distributions and analyses.

use std::hash::{Hash, Hasher};

use weir_model::{Nanos, Op, Symbol};

/// The owner of the I/O, as precise as the source allows. Unknown parts are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// The virtual machine.
    pub vm: Option<Symbol>,
    /// The disk as the VM sees it: `/dev/vda`.
    pub vdisk: Option<Symbol>,
    /// The device or file on the host.
    pub pdisk: Option<Symbol>,
    /// The process (thread group), where histograms are kept by process.
    pub pid: Option<i64>,
    /// The cgroup's path, where histograms are kept by cgroup.
    pub cgroup: Option<Symbol>,
}

impl Hash for Subject {
    /// Two texts at once: tables of subjects are looked up for each event.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(two_ids(self.vm, self.vdisk));
        state.write_u64(two_ids(self.pdisk, self.cgroup));
        if let Some(pid) = self.pid {
            state.write_i64(pid);
        }
    }
}

/// The ids of two texts as one number, which differs for different texts.
pub(crate) fn two_ids(first: Option<Symbol>, second: Option<Symbol>) -> u64 {
    let id = |text: Option<Symbol>| text.map_or(u64::from(u32::MAX), |text| text.id().into());
    id(first) << 32 | id(second)
}

/// An event of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RequestEvent {
    /// It was issued to the device.
    Issued(IssuedRequest),
    /// It completed.
    Finished(Response),
    /// It has ended, but its completion was not received; [`Unseen`](crate::Unseen) finds such
    /// requests.
    Lost {
        /// The time of detection.
        ts: Nanos,
        /// The id of its request.
        id: i64,
    },
}

/// A request at its issue: `Q` of stream `IOstream`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IssuedRequest {
    /// When it was issued.
    pub ts: Nanos,
    /// Pairs it with its response.
    pub id: i64,
    /// The operation.
    pub op: Op,
    /// First sector, on the virtual disk where that is known, else on the host's device; `None` for
    /// a flush.
    pub sector: Option<i64>,
    /// Length in sectors.
    pub sectors: i64,
}

/// The end of a request: a row of stream `IO`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Response {
    /// When it finished.
    pub ts: Nanos,
    /// The id of its request.
    pub id: i64,
    /// The operation.
    pub op: Op,
    /// Insert to issue, ns.
    pub wait_ns: Option<Nanos>,
    /// Issue to complete, ns.
    pub service_ns: Option<Nanos>,
    /// Insert to complete, ns: the latency that the VM observes.
    pub latency_ns: Option<Nanos>,
    /// It ended with an error.
    pub failed: bool,
}

impl Response {
    /// The latency: from insert if known, else from issue.
    pub fn total_ns(&self) -> Option<Nanos> {
        self.latency_ns.or(self.service_ns)
    }
}

impl RequestEvent {
    /// The timestamp.
    pub fn ts(&self) -> Nanos {
        match self {
            RequestEvent::Issued(request) => request.ts,
            RequestEvent::Finished(response) => response.ts,
            RequestEvent::Lost { ts, .. } => *ts,
        }
    }
}
