//! [`Refusals`]: reports rejected peers to the monitor's log at a limited rate.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::{Peer, ServerEvent};

/// The largest number of reports per second; a port scan must not fill a log.
const PER_SECOND_MAX: u32 = 10;

/// Reports rejections.
#[derive(Debug)]
pub(super) struct Refusals {
    events: mpsc::Sender<ServerEvent>,
    second: Mutex<Second>,
}

#[derive(Debug)]
struct Second {
    began: Instant,
    reported: u32,
    /// Rejections since the last report.
    suppressed: u64,
}

impl Refusals {
    pub(super) fn new(events: mpsc::Sender<ServerEvent>) -> Refusals {
        let second = Second {
            began: Instant::now(),
            reported: 0,
            suppressed: 0,
        };
        Refusals {
            events,
            second: Mutex::new(second),
        }
    }

    /// Reports that `peer` was rejected because of `why`. Above the rate, or while the event queue
    /// is full, it is only counted, and the next report includes the count.
    pub(super) fn report(&self, peer: Peer, why: impl Into<String>) {
        let mut second = self.second.lock().expect("no holder of the lock panics");
        if second.began.elapsed() >= Duration::from_secs(1) {
            second.began = Instant::now();
            second.reported = 0;
        }
        let event = ServerEvent::Refused {
            peer,
            why: why.into(),
            suppressed: second.suppressed,
        };
        if second.reported < PER_SECOND_MAX && self.events.try_send(event).is_ok() {
            second.reported += 1;
            second.suppressed = 0;
        } else {
            second.suppressed += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_not_reported_one_by_one() {
        let (send, mut events) = mpsc::channel(1_000);
        let refusals = Refusals::new(send);
        let peer = Peer::Local { uid: 1, pid: 2 };
        // More than the limit of the several seconds that a slow machine may need.
        for _ in 0..1_000 {
            refusals.report(peer, "no token");
        }
        refusals.second.lock().unwrap().began -= Duration::from_secs(1);
        refusals.report(peer, "no token");
        let (mut reported, mut suppressed_all) = (0, 0);
        while let Ok(ServerEvent::Refused { suppressed, .. }) = events.try_recv() {
            reported += 1;
            suppressed_all += suppressed;
        }
        assert!(reported < 1_000, "{reported}");
        assert_eq!(reported + suppressed_all, 1_001);
    }
}
