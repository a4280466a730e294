//! [`EventQueue`]: the queue of network events for the monitor's thread.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::ServerEvent;

/// The queue of network events.
#[derive(Debug)]
pub struct EventQueue {
    receiver: mpsc::Receiver<ServerEvent>,
}

/// Wakes the thread that waits for an event.
struct Waiter(Thread);

impl Wake for Waiter {
    fn wake(self: Arc<Waiter>) {
        self.0.unpark();
    }
}

/// The result of waiting.
#[derive(Debug)]
pub enum NextEvent {
    /// An event.
    Event(ServerEvent),
    /// No event within the wait time, or before another thread unparked this one.
    Timeout,
    /// The server has stopped.
    Ended,
}

impl EventQueue {
    /// A queue and its sender, with capacity for `capacity` events. The server creates its own;
    /// this is for tests and simulations without a network.
    pub fn channel(capacity: usize) -> (mpsc::Sender<ServerEvent>, EventQueue) {
        let (send, receiver) = mpsc::channel(capacity.max(1));
        (send, EventQueue { receiver })
    }

    /// The next event; waits for at most `wait_max`, or until another thread unparks this one.
    pub fn next(&mut self, wait_max: Duration) -> NextEvent {
        match self.receiver.try_recv() {
            Ok(event) => return NextEvent::Event(event),
            Err(mpsc::error::TryRecvError::Disconnected) => return NextEvent::Ended,
            Err(mpsc::error::TryRecvError::Empty) if wait_max.is_zero() => {
                return NextEvent::Timeout;
            }
            Err(mpsc::error::TryRecvError::Empty) => {}
        }
        // A runtime with a clock costs more than most events.
        let waker = Waker::from(Arc::new(Waiter(thread::current())));
        let mut context = Context::from_waker(&waker);
        for is_first in [true, false] {
            match self.receiver.poll_recv(&mut context) {
                Poll::Ready(Some(event)) => return NextEvent::Event(event),
                Poll::Ready(None) => return NextEvent::Ended,
                Poll::Pending if is_first => thread::park_timeout(wait_max),
                Poll::Pending => {}
            }
        }
        NextEvent::Timeout
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SessionId;

    #[test]
    fn events_are_received_in_order_then_timeout_then_end() {
        let (send, mut events) = EventQueue::channel(2);
        for number in [1, 2] {
            let left = ServerEvent::Left {
                session: SessionId(number),
                why: String::new(),
            };
            send.try_send(left).unwrap();
        }
        for number in [1, 2] {
            match events.next(Duration::ZERO) {
                NextEvent::Event(ServerEvent::Left { session, .. }) => {
                    assert_eq!(session.0, number)
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(matches!(
            events.next(Duration::from_millis(1)),
            NextEvent::Timeout
        ));
        drop(send);
        assert!(matches!(
            events.next(Duration::from_secs(60)),
            NextEvent::Ended
        ));
    }
}
