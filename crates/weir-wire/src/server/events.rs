//! [`EventQueue`]: the queue of network events for the monitor's thread.

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

use crate::ServerEvent;

/// The queue of network events.
#[derive(Debug)]
pub struct EventQueue {
    receiver: mpsc::Receiver<ServerEvent>,
    /// Only used to wait with a timeout.
    runtime: Runtime,
}

/// The result of waiting.
#[derive(Debug)]
pub enum NextEvent {
    /// An event.
    Event(ServerEvent),
    /// No event within the wait time.
    Timeout,
    /// The server has stopped.
    Ended,
}

impl EventQueue {
    /// A queue and its sender, with capacity for `capacity` events. The server creates its own;
    /// this is for tests and simulations without a network.
    pub fn channel(capacity: usize) -> (mpsc::Sender<ServerEvent>, EventQueue) {
        let (send, receiver) = mpsc::channel(capacity.max(1));
        let runtime = Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime without the network needs no system resources");
        (send, EventQueue { receiver, runtime })
    }

    /// The next event; waits for at most `wait_max`.
    ///
    /// # Panics
    /// Inside an asynchronous task.
    pub fn next(&mut self, wait_max: Duration) -> NextEvent {
        match self.receiver.try_recv() {
            Ok(event) => return NextEvent::Event(event),
            Err(mpsc::error::TryRecvError::Disconnected) => return NextEvent::Ended,
            Err(mpsc::error::TryRecvError::Empty) if wait_max.is_zero() => {
                return NextEvent::Timeout;
            }
            Err(mpsc::error::TryRecvError::Empty) => {}
        }
        let receiver = &mut self.receiver;
        let waited = self
            .runtime
            .block_on(async { tokio::time::timeout(wait_max, receiver.recv()).await });
        match waited {
            Ok(Some(event)) => NextEvent::Event(event),
            Ok(None) => NextEvent::Ended,
            Err(_) => NextEvent::Timeout,
        }
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
