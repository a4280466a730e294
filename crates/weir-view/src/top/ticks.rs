//! [`Ticks`]: passes ticks from the queries to the screen. No query waits for a slow terminal.

use std::sync::{Arc, Mutex};

use tokio::sync::mpsc::Receiver;
use weir_sink::{SubscriberLimits, Subscribers, Update};

use super::gather::Tick;
use super::state::State;

/// The ticks that wait for the screen. If there are more, it skips to the current one.
const LIMITS: SubscriberLimits = SubscriberLimits {
    readers_max: 1,
    updates_max: 16,
    bytes_max: usize::MAX,
};

/// The ticks of all queries.
pub struct Ticks(Mutex<Pending>);

struct Pending {
    /// They receive a tick, and the number of ticks that they have skipped before it.
    subscribers: Subscribers<(Arc<Tick>, u64)>,
    /// The last tick, if a reader has skipped it.
    skipped: Option<Arc<Tick>>,
}

impl Ticks {
    /// No ticks, and their reader.
    pub fn new() -> (Arc<Ticks>, TickReader) {
        let mut subscribers = Subscribers::new(LIMITS);
        let reader = subscribers.subscribe(|| None).expect("it is the first");
        let pending = Pending {
            subscribers,
            skipped: None,
        };
        (Arc::new(Ticks(Mutex::new(pending))), TickReader(reader))
    }

    /// Publishes a tick.
    pub fn publish(&self, tick: Tick) {
        let tick = Arc::new(tick);
        let update = |skipped| Update {
            body: (tick.clone(), skipped),
            bytes: 0,
            rows: 1,
        };
        let mut pending = self.0.lock().expect("no panic while locked");
        let delivered = pending.subscribers.publish(&update(0), update);
        pending.skipped = (!delivered).then_some(tick);
    }

    /// Disconnects the reader after the last tick.
    pub fn close(&self) {
        let mut pending = self.0.lock().expect("no panic while locked");
        let last = pending.skipped.take();
        let last = |skipped: u64| Some((last.clone()?, skipped.saturating_sub(1)));
        pending.subscribers.end(last);
    }
}

/// The reader of the ticks.
pub struct TickReader(Receiver<(Arc<Tick>, u64)>);

impl TickReader {
    /// Adds the ticks that wait to `state`; returns false if there are none.
    pub fn read(&mut self, state: &mut State) -> bool {
        let mut any = false;
        while let Ok((tick, skipped)) = self.0.try_recv() {
            state.ticks_skipped = state.ticks_skipped.max(skipped);
            state.add_tick(Arc::unwrap_or_clone(tick));
            any = true;
        }
        any
    }

    /// True after the last tick was read.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed() && self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_slow_screen_skips_to_the_current_tick_and_counts_the_others() {
        let (ticks, mut reader) = Ticks::new();
        let mut state = State::new("test".into(), Duration::from_secs(1));
        let publish = |at| {
            let tick = Tick {
                at,
                ..Tick::default()
            };
            ticks.publish(tick);
        };
        let mut read = || (reader.read(&mut state), state.tick.at, state.ticks_skipped);
        (1..=20).for_each(publish);
        assert_eq!(read(), (true, 16, 0), "the backlog");
        assert_eq!(read(), (false, 16, 0));
        publish(21);
        assert_eq!(read(), (true, 21, 4));
        // The last tick is displayed, however slow the screen is.
        (22..=50).for_each(publish);
        ticks.close();
        assert_eq!(read(), (true, 50, 4 + 12));
        assert!(reader.is_closed());
    }
}
