//! [`Events`]: where the monitor's one thread receives what happens on the network.

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

use crate::Event;

/// What happens on the network, one after the other.
#[derive(Debug)]
pub struct Events {
    receiver: mpsc::Receiver<Event>,
    /// Only to wait with a bound.
    runtime: Runtime,
}

/// What came of waiting.
#[derive(Debug)]
pub enum Next {
    /// This happened.
    Event(Event),
    /// Nothing, for as long as was waited.
    Nothing,
    /// Nothing will happen any more: the server has stopped.
    Ended,
}

impl Events {
    /// A receiver and its sender, with room for `capacity` events. The server makes its own; this
    /// is for whoever says without a network what happens.
    pub fn channel(capacity: usize) -> (mpsc::Sender<Event>, Events) {
        let (send, receiver) = mpsc::channel(capacity.max(1));
        let runtime = Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime without the network needs nothing of the system");
        (send, Events { receiver, runtime })
    }

    /// The next event; waits for at most `patience`.
    ///
    /// # Panics
    /// Inside an asynchronous task.
    pub fn next(&mut self, patience: Duration) -> Next {
        match self.receiver.try_recv() {
            Ok(event) => return Next::Event(event),
            Err(mpsc::error::TryRecvError::Disconnected) => return Next::Ended,
            Err(mpsc::error::TryRecvError::Empty) if patience.is_zero() => return Next::Nothing,
            Err(mpsc::error::TryRecvError::Empty) => {}
        }
        let receiver = &mut self.receiver;
        let waited = self
            .runtime
            .block_on(async { tokio::time::timeout(patience, receiver.recv()).await });
        match waited {
            Ok(Some(event)) => Next::Event(event),
            Ok(None) => Next::Ended,
            Err(_) => Next::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SessionId;

    #[test]
    fn events_come_in_order_then_nothing_then_the_end() {
        let (send, mut events) = Events::channel(2);
        for number in [1, 2] {
            let left = Event::Left {
                session: SessionId(number),
                why: String::new(),
            };
            send.try_send(left).unwrap();
        }
        for number in [1, 2] {
            match events.next(Duration::ZERO) {
                Next::Event(Event::Left { session, .. }) => assert_eq!(session.0, number),
                other => panic!("{other:?}"),
            }
        }
        assert!(matches!(
            events.next(Duration::from_millis(1)),
            Next::Nothing
        ));
        drop(send);
        assert!(matches!(events.next(Duration::from_secs(60)), Next::Ended));
    }
}
