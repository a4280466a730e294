//! One connection to the monitor: hello, welcome, clock synchronisation, then messages in both
//! directions until it breaks.

use std::collections::VecDeque;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use arrow_flight::FlightData;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tonic::{Status, Streaming};

use super::sending::Sending;
use super::{
    EVENTS_BYTES_MAX, EVENTS_MAX, LeaderTerm, QueuedEvent, Shared, State, UplinkEvent,
    UplinkOptions,
};
use crate::clock::{Exchange, ExchangeOutcome};
use crate::dial::Dial;
use crate::error::WireError;
use crate::exchange;
use crate::message::{
    ChannelId, Feature, FromMonitor, Hello, MonitorMessage, Pong, Version, Welcome,
};

/// How long to wait for the monitor's reason after it has stopped reading.
const REASON_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a connection is gone, or was not established.
#[derive(Debug)]
pub(super) struct Disconnection {
    /// The reason.
    pub why: String,
    /// The monitor is a standby.
    pub is_standby: bool,
}

/// Connects within `timeout_open` and runs until the connection is gone; returns the reason.
pub(super) async fn run(
    options: &UplinkOptions,
    dial: &Dial,
    timeout_open: Duration,
    shared: &Shared,
    orders: &SyncSender<QueuedEvent>,
) -> Disconnection {
    match Connection::open(options, dial, timeout_open, shared, orders).await {
        Ok(mut connection) => {
            let why = connection.exchange_messages().await;
            connection.discard_events();
            Disconnection::from(why)
        }
        Err(disconnection) => disconnection,
    }
}

impl From<String> for Disconnection {
    fn from(why: String) -> Disconnection {
        let is_standby = false;
        Disconnection { why, is_standby }
    }
}

/// A connection after the welcome.
struct Connection<'a> {
    options: &'a UplinkOptions,
    dial: &'a Dial,
    shared: &'a Shared,
    orders: &'a SyncSender<QueuedEvent>,
    up: mpsc::Sender<FlightData>,
    down: Streaming<FlightData>,
    sending: Sending,
    /// Events held back until the clock offset is known, the welcome first.
    pending: VecDeque<UplinkEvent>,
    monitors: u64,
    received_at: Instant,
}

impl State {
    /// Handles the welcome: the number of the next message, and the event for the caller.
    fn welcomed(
        &mut self,
        shared: &Shared,
        welcome: Welcome,
        version: Version,
    ) -> Result<(u64, UplinkEvent), String> {
        let before = self.shown.leader;
        let leader = LeaderTerm {
            monitor: welcome.monitor,
            term: welcome.term,
        };
        // A monitor without terms is of an earlier release, which has no standbys.
        if leader.monitor == before.monitor && leader.term != 0 && leader.term < before.term {
            return Err(format!(
                "it leads in term {}, and another monitor has led in term {} since",
                leader.term, before.term
            ));
        }
        self.shown.leader = leader;
        if self.shown.monitor.is_some_and(|m| m != welcome.monitor) {
            self.shown.rows_void += self.outbox.clear(welcome.acked);
            self.monitors += 1;
            shared.clock.reset();
        }
        // Set even if the rest fails: the monitor is identified by its number.
        self.shown.monitor = Some(welcome.monitor);
        let resume = self.outbox.resume(welcome.acked).ok_or_else(|| {
            format!(
                "the monitor acknowledges message {}, which was never sent",
                welcome.acked
            )
        })?;
        self.shown.connected = true;
        self.shown.version = Some(version);
        self.shown.welcomes += 1;
        let channels = match self.monitors_reported == self.monitors {
            true => welcome.channels.into_iter().map(ChannelId).collect(),
            false => Vec::new(),
        };
        let order = UplinkEvent::Welcome {
            channels,
            heartbeat: welcome.heartbeat_interval_ns,
        };
        Ok((resume, order))
    }
}

impl<'a> Connection<'a> {
    async fn open(
        options: &'a UplinkOptions,
        dial: &'a Dial,
        timeout_open: Duration,
        shared: &'a Shared,
        orders: &'a SyncSender<QueuedEvent>,
    ) -> Result<Connection<'a>, Disconnection> {
        let leader = shared.lock().shown.leader;
        let hello = Hello {
            monitor: leader.monitor,
            term: leader.term,
            ..options.hello.clone()
        };
        let opened = timeout(timeout_open, exchange::open(dial, &hello)).await;
        let (up, down, welcome, version) = match opened {
            Ok(opened) => opened.map_err(|error| Disconnection {
                is_standby: matches!(error, WireError::Standby { .. }),
                why: error.to_string(),
            })?,
            Err(_) => return Err(silence(dial, timeout_open, "did not answer").into()),
        };
        let mut state = shared.lock();
        let welcomed = state.welcomed(shared, welcome, version);
        let (resume, order) =
            welcomed.map_err(|why| format!("rejected the monitor at {}: {why}", dial.address))?;
        shared.clock.set_same_host(dial.address.is_local());
        let has_capabilities = version.has(Feature::Capabilities);
        Ok(Connection {
            options,
            dial,
            shared,
            orders,
            up,
            down,
            sending: Sending::new(resume, has_capabilities, options.now.clone()),
            pending: VecDeque::from([order]),
            monitors: state.monitors,
            received_at: Instant::now(),
        })
    }

    /// Sends and receives until the connection breaks; returns the reason.
    async fn exchange_messages(&mut self) -> String {
        if let Err(why) = self.deliver() {
            return why;
        }
        loop {
            let has_next = self.has_next();
            let received = tokio::select! {
                received = self.down.message() => received,
                permit = self.up.reserve(), if has_next => {
                    if let Ok(permit) = permit {
                        let data = self.sending.next(&mut self.shared.lock());
                        if let Some(data) = data {
                            permit.send(data);
                        }
                        continue;
                    }
                    match timeout(REASON_TIMEOUT, self.down.message()).await {
                        Ok(received) => received,
                        Err(_) => Ok(None),
                    }
                }
                () = self.shared.send_ready.notified(), if !has_next => continue,
                () = sleep_until(self.sending.ping_at()), if !has_next => continue,
                () = sleep_until(self.received_at + self.options.silence_max) => {
                    return silence(self.dial, self.options.silence_max, "sent nothing");
                }
            };
            if let Err(why) = self.received(received) {
                return why;
            }
        }
    }

    /// Whether there is something to send. If it is on disk, the disk task is started.
    fn has_next(&self) -> bool {
        let mut state = self.shared.lock();
        let has_next = self.sending.has_next(&mut state);
        if state.outbox.has_disk_task() {
            self.shared.disk_ready.notify_one();
        }
        has_next
    }

    fn received(&mut self, received: Result<Option<FlightData>, Status>) -> Result<(), String> {
        let address = &self.dial.address;
        let received =
            received.map_err(|status| exchange::status_error(self.dial, &status).to_string())?;
        let data =
            received.ok_or_else(|| format!("the monitor at {address} ended the connection"))?;
        let received = FromMonitor::read(&data)
            .map_err(|e| format!("the monitor at {address} violates the protocol: {e}"))?;
        self.received_at = Instant::now();
        if received.has_unknown {
            self.shared.lock().shown.unknown += 1;
        }
        match received.message.body {
            Some(MonitorMessage::Pong(pong)) => self.take_pong(pong),
            Some(MonitorMessage::Ack(number)) => {
                let mut state = self.shared.lock();
                if !state.outbox.ack(number) {
                    return Err(format!(
                        "the monitor at {address} violates the protocol: it acknowledges message {number}, \
                         which was never sent"
                    ));
                }
                state.shown.has_acks = true;
                drop(state);
                // It may wait for room.
                self.shared.listener.unpark();
                Ok(())
            }
            Some(MonitorMessage::Welcome(_)) => Err(format!(
                "the monitor at {address} violates the protocol: a second welcome"
            )),
            Some(message) => self.queue(message),
            // A message of a later version is ignored.
            None => Ok(()),
        }
    }

    fn take_pong(&mut self, pong: Pong) -> Result<(), String> {
        let back = (self.options.now)();
        if !self.sending.take_ping(pong.origin_ns) {
            return Ok(());
        }
        let taken = self.shared.clock.update(Exchange {
            left: pong.origin_ns,
            came: pong.receive_ns,
            answered: pong.transmit_ns,
            back,
        });
        if let ExchangeOutcome::Stepped(error_ns) = taken {
            let at = self.shared.clock.to_monitor(back);
            let mut state = self.shared.lock();
            state.put_note(at, "clock_set", None, error_ns);
        }
        self.deliver()
    }

    /// Queues an event for the caller.
    fn queue(&mut self, message: MonitorMessage) -> Result<(), String> {
        let order = UplinkEvent::Message(message);
        let mut state = self.shared.lock();
        state.events_bytes += order.bytes();
        let is_full = state.events_bytes > EVENTS_BYTES_MAX || self.pending.len() >= EVENTS_MAX;
        drop(state);
        self.pending.push_back(order);
        match is_full {
            true => Err(not_read()),
            false => self.deliver(),
        }
    }

    /// Delivers the queued events to the caller once timestamps can be converted.
    fn deliver(&mut self) -> Result<(), String> {
        if !self.shared.clock.is_synchronised() {
            return Ok(());
        }
        while let Some(order) = self.pending.pop_front() {
            let monitors = self.monitors;
            let bytes = order.bytes();
            let is_welcome = matches!(order, UplinkEvent::Welcome { .. });
            let mut state = self.shared.lock();
            if self
                .orders
                .try_send(QueuedEvent { order, monitors })
                .is_err()
            {
                state.events_bytes -= bytes;
                return Err(not_read());
            }
            self.shared.listener.unpark();
            if is_welcome {
                state.monitors_reported = monitors;
            }
        }
        Ok(())
    }

    /// Discards the undelivered events; the next welcome replaces them.
    fn discard_events(&mut self) {
        let bytes: usize = self.pending.iter().map(UplinkEvent::bytes).sum();
        self.shared.lock().events_bytes -= bytes;
    }
}

fn silence(dial: &Dial, time: Duration, what: &str) -> String {
    let (address, seconds) = (&dial.address, time.as_secs_f64());
    format!("the monitor at {address} {what} for {seconds} s")
}

fn not_read() -> String {
    format!(
        "more than {EVENTS_MAX} messages of the monitor were not read, or too many bytes of them"
    )
}
