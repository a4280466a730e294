//! [`ReplayPlan`]: the requests of a recording, placed on a device and in time. It is pure.
//!
//! An open loop issues each request at its recorded time, whatever the device does. A closed loop
//! issues it when as many requests have ended as had ended in the recording, after the recorded
//! pause: the queue depth is that of the recording, and the rate follows the device.

use serde::Serialize;
use weir_model::{Nanos, Op, SECTOR_BYTES};

use super::rows::SeenRequest;

/// Where and when requests are issued.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplayTarget {
    /// The size of the device in sectors.
    pub sectors: u64,
    /// The length of its logical blocks in sectors.
    pub block_sectors: u64,
    /// Whether addresses are scaled if the device is smaller than the recorded disk.
    pub scale: bool,
    /// Whether writes and flushes are left out.
    pub reads_only: bool,
    /// When requests are issued.
    pub pacing: Pacing,
    /// The factor by which time passes faster than in the recording.
    pub speed: f64,
}

/// When requests are issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pacing {
    /// At the recorded times.
    Open,
    /// When as many have ended as in the recording.
    Closed,
}

/// A request that is to be issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedRequest {
    /// Open loop: its time since the start.
    pub due_ns: Nanos,
    /// The operation.
    pub op: Op,
    /// Its first sector on the device.
    pub sector: u64,
    /// Its length.
    pub sectors: u64,
    /// Closed loop: the number of requests that end before it.
    pub ended_before: u64,
    /// Closed loop: the pause since the last of those ends and of the issues before it.
    pub pause_ns: Nanos,
}

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayPlan {
    /// The requests in the order of their issue.
    pub requests: Vec<PlannedRequest>,
    /// The same as they were recorded, without those that are left out.
    pub recorded: Vec<SeenRequest>,
    /// How time passes.
    pub pacing: Pacing,
    /// What is left out.
    pub left_out: LeftOut,
    /// The recorded end of the last request of the disk, in sectors.
    pub recorded_sectors: u64,
    /// Whether addresses are scaled.
    pub is_scaled: bool,
}

/// Requests of the recording that are not replayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Writes and flushes, of a replay that only reads.
    pub writes_and_flushes: u64,
    /// Discards and writes of zeroes.
    pub discards_and_zeroes: u64,
}

/// The largest request, in sectors: the kernel splits larger ones.
pub const SECTORS_MAX: u64 = (16 << 20) / SECTOR_BYTES as u64;

/// The part of the address space that stays together when addresses are scaled: runs of sequential
/// requests break only at its limits.
const CHUNK_SECTORS: u64 = (4 << 20) / SECTOR_BYTES as u64;

/// The smallest number of chunks of a device.
const CHUNKS_MIN: u64 = 16;

impl ReplayPlan {
    /// Places the requests, which are in the order of their insertion.
    ///
    /// # Errors
    /// A message for the user: they do not fit the device.
    pub fn new(recorded: &[SeenRequest], target: &ReplayTarget) -> Result<ReplayPlan, String> {
        let mut left_out = LeftOut::default();
        let mut kept: Vec<SeenRequest> = Vec::with_capacity(recorded.len());
        for request in recorded {
            match request.op {
                Op::Discard | Op::WriteZeroes => left_out.discards_and_zeroes += 1,
                Op::Write | Op::Flush if target.reads_only => left_out.writes_and_flushes += 1,
                _ => kept.push(*request),
            }
        }
        let recorded_sectors = kept.iter().map(|r| r.sector.saturating_add(r.sectors));
        let recorded_sectors = recorded_sectors.max().unwrap_or(0);
        let is_scaled = recorded_sectors > target.sectors;
        check(&kept, recorded_sectors, target)?;
        let place = |request: &SeenRequest| match is_scaled {
            true => scaled(request, recorded_sectors, target),
            false => request.sector,
        };
        let first_ns = kept.first().map_or(0, |request| request.insert_ns);
        let faster = |ns: Nanos| (ns as f64 / target.speed).round() as Nanos;
        let mut requests: Vec<PlannedRequest> = kept
            .iter()
            .map(|request| PlannedRequest {
                due_ns: faster(request.insert_ns - first_ns),
                op: request.op,
                sector: place(request),
                sectors: request.sectors,
                ended_before: 0,
                pause_ns: 0,
            })
            .collect();
        if target.pacing == Pacing::Closed {
            close(&mut requests, &kept, faster)?;
        }
        Ok(ReplayPlan {
            requests,
            recorded: kept,
            pacing: target.pacing,
            left_out,
            recorded_sectors,
            is_scaled,
        })
    }

    /// The time of the last request, in an open loop.
    pub fn span_ns(&self) -> Nanos {
        self.requests.last().map_or(0, |request| request.due_ns)
    }

    /// The longest time without an issue, in an open loop.
    pub fn gap_ns_max(&self) -> Nanos {
        let pairs = self.requests.windows(2);
        let gaps = pairs.map(|pair| pair[1].due_ns - pair[0].due_ns);
        gaps.max().unwrap_or(0)
    }

    /// The length of the longest request, in sectors.
    pub fn sectors_max(&self) -> u64 {
        let lengths = self.requests.iter().map(|request| request.sectors);
        lengths.max().unwrap_or(0)
    }

    /// Whether it has writes.
    pub fn has_writes(&self) -> bool {
        self.requests.iter().any(|request| request.op == Op::Write)
    }
}

/// Whether the requests can be issued on the device.
fn check(kept: &[SeenRequest], recorded_sectors: u64, target: &ReplayTarget) -> Result<(), String> {
    if kept.is_empty() {
        return Err("the recording has no requests that can be replayed".to_owned());
    }
    if recorded_sectors > target.sectors && !target.scale {
        return Err(format!(
            "the requests reach up to sector {recorded_sectors}, and the device has {}; use a \
             larger device, or --scale",
            target.sectors
        ));
    }
    let block = target.block_sectors;
    let is_odd =
        |r: &&SeenRequest| !r.sector.is_multiple_of(block) || !r.sectors.is_multiple_of(block);
    if let Some(request) = kept.iter().find(is_odd) {
        return Err(format!(
            "the recording has a request of {} sectors at sector {}, which the device cannot \
             execute: its blocks are {} bytes",
            request.sectors,
            request.sector,
            block * SECTOR_BYTES as u64
        ));
    }
    let most = SECTORS_MAX.min(target.sectors);
    if let Some(request) = kept.iter().find(|request| request.sectors > most) {
        return Err(format!(
            "the recording has a request of {} sectors; the most that can be replayed is {most}",
            request.sectors
        ));
    }
    Ok(())
}

/// The sector for a request of a larger disk: its chunk moves, and its position in the chunk stays.
fn scaled(request: &SeenRequest, recorded_sectors: u64, target: &ReplayTarget) -> u64 {
    let block = target.block_sectors;
    let chunk = CHUNK_SECTORS.min(target.sectors / CHUNKS_MIN / block * block);
    let chunk = chunk.max(block);
    let (of_recorded, of_device) = (
        recorded_sectors.div_ceil(chunk),
        (target.sectors / chunk).max(1),
    );
    let moved = u128::from(request.sector / chunk) * u128::from(of_device);
    let moved = u64::try_from(moved / u128::from(of_recorded)).expect("it is smaller than before");
    let sector = moved * chunk + request.sector % chunk;
    let last = (target.sectors - request.sectors) / block * block;
    sector.min(last)
}

/// Computes the order of ends and issues for a closed loop.
fn close(
    requests: &mut [PlannedRequest],
    kept: &[SeenRequest],
    faster: impl Fn(Nanos) -> Nanos,
) -> Result<(), String> {
    let ends: Option<Vec<Nanos>> = kept.iter().map(|request| request.end_ns).collect();
    let Some(mut ends) = ends else {
        return Err(
            "a closed loop needs the ends of requests, which the recording does not have; use \
             --loop open"
                .to_owned(),
        );
    };
    ends.sort_unstable();
    let (mut ended, mut before) = (0, None);
    for (request, recorded) in requests.iter_mut().zip(kept) {
        while ends
            .get(ended)
            .is_some_and(|end| *end <= recorded.insert_ns)
        {
            ended += 1;
        }
        // A request that ends at the instant of its own insertion does not wait for itself.
        let latest_end = ended.checked_sub(1).map(|last| ends[last]);
        let latest = latest_end.into_iter().chain(before).max();
        request.ended_before = ended as u64;
        request.pause_ns = latest.map_or(0, |latest| faster(recorded.insert_ns - latest));
        before = Some(recorded.insert_ns);
    }
    // What ends before a request must have been issued before it.
    for (issued, request) in requests.iter_mut().enumerate() {
        request.ended_before = request.ended_before.min(issued as u64);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: ReplayTarget = ReplayTarget {
        sectors: 1 << 20,
        block_sectors: 1,
        scale: false,
        reads_only: false,
        pacing: Pacing::Open,
        speed: 1.0,
    };

    fn request(insert_ns: Nanos, end_ns: Nanos, op: Op, sector: u64, sectors: u64) -> SeenRequest {
        SeenRequest {
            insert_ns,
            end_ns: Some(end_ns),
            op,
            sector,
            sectors,
        }
    }

    #[test]
    fn an_open_loop_keeps_the_recorded_gaps_at_any_speed() {
        let recorded = [
            request(1_000, 5_000, Op::Read, 8, 8),
            request(3_000, 4_000, Op::Write, 16, 8),
            request(9_000, 9_500, Op::Flush, 0, 0),
            request(9_100, 9_500, Op::Discard, 0, 8),
        ];
        let of = |target| ReplayPlan::new(&recorded, &target).unwrap();
        let due = |plan: &ReplayPlan| -> Vec<Nanos> {
            plan.requests.iter().map(|request| request.due_ns).collect()
        };
        let plan = of(TARGET);
        assert_eq!(due(&plan), [0, 2_000, 8_000]);
        assert_eq!((plan.gap_ns_max(), plan.sectors_max()), (6_000, 8));
        assert_eq!(plan.left_out.discards_and_zeroes, 1);
        let fast = of(ReplayTarget {
            speed: 4.0,
            ..TARGET
        });
        assert_eq!(due(&fast), [0, 500, 2_000]);
        let reads = of(ReplayTarget {
            reads_only: true,
            ..TARGET
        });
        assert_eq!(reads.requests.len(), 1);
        assert_eq!(reads.left_out.writes_and_flushes, 2);
        assert!(!reads.has_writes() && plan.has_writes());
    }

    #[test]
    fn a_closed_loop_waits_for_as_many_ends_and_for_the_pause() {
        let recorded = [
            request(0, 100, Op::Read, 0, 8),
            request(10, 60, Op::Read, 8, 8),
            request(70, 200, Op::Read, 16, 8),
            request(150, 210, Op::Read, 24, 8),
        ];
        let target = ReplayTarget {
            pacing: Pacing::Closed,
            ..TARGET
        };
        let plan = ReplayPlan::new(&recorded, &target).unwrap();
        let waits = plan.requests.iter();
        let waits: Vec<_> = waits.map(|r| (r.ended_before, r.pause_ns)).collect();
        assert_eq!(waits, [(0, 0), (0, 10), (1, 10), (2, 50)]);
        let mut open = recorded;
        open[1].end_ns = None;
        let error = ReplayPlan::new(&open, &target).unwrap_err();
        assert!(error.contains("--loop open"), "{error}");
    }

    #[test]
    fn requests_that_do_not_fit_are_errors_that_name_the_remedy() {
        let error = |request, target: ReplayTarget| {
            let plan = ReplayPlan::new(&[request], &target);
            plan.unwrap_err()
        };
        let far = request(0, 1, Op::Read, 1 << 20, 8);
        assert!(error(far, TARGET).contains("--scale"));
        let blocks = ReplayTarget {
            block_sectors: 8,
            ..TARGET
        };
        let odd = request(0, 1, Op::Read, 8, 1);
        assert!(error(odd, blocks).contains("blocks are 4096 bytes"));
        let long = request(0, 1, Op::Read, 0, SECTORS_MAX + 1);
        assert!(error(long, TARGET).contains("the most"));
        let discard = request(0, 1, Op::Discard, 0, 8);
        assert!(error(discard, TARGET).contains("no requests"));
    }

    /// Of random requests: all are on the device, in the same order of addresses, and a run of
    /// sequential requests stays one but at limits of chunks.
    #[test]
    fn scaled_addresses_stay_in_order_and_runs_stay_together() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..200 {
            let target = ReplayTarget {
                sectors: random.u64(64..1 << 20) / 8 * 8,
                block_sectors: 8,
                scale: true,
                ..TARGET
            };
            let recorded: Vec<SeenRequest> = (0..200)
                .map(|at| request(at, at, Op::Read, random.u64(0..1 << 30) / 8 * 8, 8))
                .collect();
            let plan = ReplayPlan::new(&recorded, &target).unwrap();
            assert!(plan.is_scaled);
            let mut placed: Vec<(u64, u64)> = Vec::new();
            for (planned, recorded) in plan.requests.iter().zip(&recorded) {
                assert!(planned.sector + planned.sectors <= target.sectors);
                assert_eq!(planned.sector % 8, 0);
                placed.push((recorded.sector, planned.sector));
            }
            placed.sort_unstable();
            let chunk = CHUNK_SECTORS
                .min(target.sectors / CHUNKS_MIN / 8 * 8)
                .max(8);
            let chunks: Vec<u64> = placed.iter().map(|(_, sector)| sector / chunk).collect();
            assert!(chunks.is_sorted(), "{target:?}");
        }
        let run: Vec<SeenRequest> = (0..1000)
            .map(|at| request(at, at, Op::Read, (1 << 29) + 8 * at as u64, 8))
            .collect();
        let target = ReplayTarget {
            scale: true,
            ..TARGET
        };
        let plan = ReplayPlan::new(&run, &target).unwrap();
        let pairs = plan.requests.windows(2);
        let breaks = pairs.filter(|pair| pair[0].sector + 8 != pair[1].sector);
        assert!(breaks.count() <= 1);
    }
}
