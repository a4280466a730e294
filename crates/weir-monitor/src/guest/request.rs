//! [`ReportedRequest`]: a request of a guest or of a virtual disk, a row of the first fragment.

use weir_model::guest::GuestRequest;
use weir_model::{Level, Nanos, Symbol, Value};
use weir_workload::guest::{OffsetBounds, Sighting, SightingKey};

use super::disks::{DiskInGuest, ServedDisk};
use super::{number, symbol};

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct ReportedRequest {
    host: Option<Symbol>,
    level: Symbol,
    vm: Option<Symbol>,
    vdisk: Option<Symbol>,
    pdisk: Option<Symbol>,
    op: Symbol,
    sector: Option<i64>,
    sectors: i64,
    /// When it had finished.
    pub ts: Nanos,
    wait_ns: Option<Nanos>,
    service_ns: Option<Nanos>,
    latency_ns: Option<Nanos>,
    req_id: i64,
    pid: Option<i64>,
    comm: Option<Symbol>,
    error: Option<i64>,
}

impl ReportedRequest {
    /// The request of a row; `None` if its duration is unknown, so that it cannot be tied.
    pub fn of(row: &[Value]) -> Option<ReportedRequest> {
        let [
            host,
            level,
            vm,
            vdisk,
            pdisk,
            op,
            sector,
            sectors,
            ts,
            wait,
            service,
            latency,
            req_id,
            pid,
            comm,
            error,
        ] = row
        else {
            unreachable!("the fragment has these columns");
        };
        Some(ReportedRequest {
            host: symbol(host),
            level: symbol(level)?,
            vm: symbol(vm),
            vdisk: symbol(vdisk),
            pdisk: symbol(pdisk),
            op: symbol(op)?,
            sector: number(sector),
            sectors: number(sectors)?,
            ts: number(ts)?,
            wait_ns: number(wait),
            service_ns: number(service),
            latency_ns: number(latency),
            req_id: number(req_id)?,
            pid: number(pid),
            comm: symbol(comm),
            error: number(error),
        })
    }

    /// Whether an agent in a guest reported it.
    pub fn is_of_guest(&self) -> bool {
        self.level == Level::Guest.symbol()
    }

    /// The disk of a guest.
    pub fn guest_disk(&self) -> DiskInGuest {
        DiskInGuest {
            host: self.host,
            vm: self.vm,
            device: self.pdisk,
        }
    }

    /// The virtual disk, if it is known.
    pub fn virtual_disk(&self) -> Option<ServedDisk> {
        Some(ServedDisk {
            host: self.host?,
            vm: self.vm?,
            vdisk: self.vdisk?,
        })
    }

    /// The request as one side sees it. A guest issues it after it was inserted; a virtual disk
    /// receives it when its latency begins.
    pub fn sighting(&self) -> Sighting {
        let duration = match self.is_of_guest() {
            true => self.service_ns.or(self.latency_ns),
            false => self.latency_ns,
        };
        // Without data, the kernel and the virtual disk differ in what they report.
        let is_flush = self.op.as_str() == "f";
        Sighting {
            key: SightingKey {
                op: self.op.as_str().chars().next().unwrap_or(' '),
                sector: self.sector.filter(|_| !is_flush).unwrap_or(0),
                sectors: if is_flush { 0 } else { self.sectors },
            },
            begin: self.ts.saturating_sub(duration.unwrap_or(0)),
            end: self.ts,
        }
    }

    /// The row of a request of a guest that is tied to one of its virtual disk.
    pub fn tied(&self, vdisk: &ReportedRequest, offset: OffsetBounds) -> GuestRequest {
        let middle = offset.middle();
        let (own, other) = (self.sighting(), vdisk.sighting());
        // The true values are not negative.
        let queue = other
            .begin
            .saturating_sub(own.begin.saturating_add(middle))
            .max(0);
        let away = own.end.saturating_sub(own.begin);
        let served = other.end.saturating_sub(other.begin);
        let queue = queue.min(away.saturating_sub(served).max(0));
        GuestRequest {
            ts: self.ts.saturating_add(middle),
            vm: vdisk.vm,
            host: vdisk.host,
            vdisk: vdisk.vdisk,
            guest_queue_ns: Some(queue),
            vdisk_wait_ns: vdisk.wait_ns,
            vdisk_service_ns: vdisk.service_ns,
            guest_return_ns: Some(away.saturating_sub(served).saturating_sub(queue)),
            clock: Some((middle, offset.error())),
            received: Some(other.begin),
            req_id: Some(vdisk.req_id),
            ..self.row()
        }
    }

    /// The row of a request of a guest to which none is tied, with the cause.
    pub fn alone(&self, disk: Option<&ServedDisk>, cause: &'static str) -> GuestRequest {
        GuestRequest {
            vm: disk.map(|disk| disk.vm).or(self.vm),
            host: disk.map(|disk| disk.host),
            vdisk: disk.map(|disk| disk.vdisk),
            unmatched: Some(Symbol::new(cause)),
            ..self.row()
        }
    }

    fn row(&self) -> GuestRequest {
        GuestRequest {
            ts: self.ts,
            op: self.op,
            sector: self.sector,
            sectors: self.sectors,
            vm: None,
            host: None,
            vdisk: None,
            guest: self.host,
            guest_disk: self.pdisk,
            pid: self.pid,
            comm: self.comm,
            error: self.error,
            latency_ns: self.latency_ns,
            guest_wait_ns: self.wait_ns,
            guest_queue_ns: None,
            vdisk_wait_ns: None,
            vdisk_service_ns: None,
            guest_return_ns: None,
            clock: None,
            received: None,
            req_id: None,
            guest_req_id: self.req_id,
            unmatched: None,
        }
    }
}
