//! One connection to the monitor: hello, welcome, clock, and then words both ways until it breaks.

use std::collections::VecDeque;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use arrow_flight::FlightData;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tonic::{Status, Streaming};

use super::sending::Sending;
use super::{ORDERS_BYTES_MAX, ORDERS_MAX, Order, Shared, State, Told, UplinkOptions};
use crate::clock::{Exchange, Taken};
use crate::exchange;
use crate::message::{Down, MonitorSays, Pong};
use crate::word::{MonitorWord, Welcome};

/// How long the monitor may take to say why it reads no more.
const REASON_PATIENCE: Duration = Duration::from_secs(1);

/// Connects, and comes back with the reason when the connection is gone.
pub(super) async fn run(
    options: &UplinkOptions,
    shared: &Shared,
    orders: &SyncSender<Told>,
) -> String {
    match Connection::open(options, shared, orders).await {
        Ok(mut connection) => {
            let why = connection.speak().await;
            connection.forget_orders();
            why
        }
        Err(why) => why,
    }
}

/// A connection on which we were welcomed.
struct Connection<'a> {
    options: &'a UplinkOptions,
    shared: &'a Shared,
    orders: &'a SyncSender<Told>,
    up: mpsc::Sender<FlightData>,
    down: Streaming<FlightData>,
    sending: Sending,
    /// Orders that wait until the clock's offset is known, the welcome first.
    untold: VecDeque<Order>,
    monitors: u64,
    heard_at: Instant,
}

impl State {
    /// The monitor has welcomed us: the number of the word to go on with, and what the caller hears.
    fn welcomed(&mut self, shared: &Shared, welcome: Welcome) -> Result<(u64, Order), String> {
        if self.shown.monitor.is_some_and(|m| m != welcome.monitor) {
            self.shown.rows_void += self.outbox.clear(welcome.taken);
            self.monitors += 1;
            shared.clock.forget();
        }
        // Also if what follows fails: it is known by its number.
        self.shown.monitor = Some(welcome.monitor);
        let resume = self.outbox.resume(welcome.taken).ok_or_else(|| {
            format!(
                "the monitor says that it has taken word {}, which was never said",
                welcome.taken
            )
        })?;
        self.shown.connected = true;
        self.shown.welcomes += 1;
        let channels = match self.monitors_told == self.monitors {
            true => welcome.channels,
            false => Vec::new(),
        };
        let order = Order::Welcome {
            channels,
            heartbeat: welcome.heartbeat,
        };
        Ok((resume, order))
    }
}

impl<'a> Connection<'a> {
    async fn open(
        options: &'a UplinkOptions,
        shared: &'a Shared,
        orders: &'a SyncSender<Told>,
    ) -> Result<Connection<'a>, String> {
        let (up, down, welcome) = match timeout(
            options.silence_max,
            exchange::begin(&options.dial, &options.hello),
        )
        .await
        {
            Ok(ways) => ways.map_err(|error| error.to_string())?,
            Err(_) => return Err(silent(options, "did not answer")),
        };
        let mut state = shared.lock();
        let (resume, order) = state.welcomed(shared, welcome)?;
        Ok(Connection {
            options,
            shared,
            orders,
            up,
            down,
            sending: Sending::new(resume, options.now.clone()),
            untold: VecDeque::from([order]),
            monitors: state.monitors,
            heard_at: Instant::now(),
        })
    }

    /// Speaks and hears until the connection breaks; says why.
    async fn speak(&mut self) -> String {
        if let Err(why) = self.tell() {
            return why;
        }
        loop {
            let has_next = self.has_next();
            let heard = tokio::select! {
                heard = self.down.message() => heard,
                permit = self.up.reserve(), if has_next => {
                    if let Ok(permit) = permit {
                        let data = self.sending.next(&mut self.shared.lock());
                        if let Some(data) = data {
                            permit.send(data);
                        }
                        continue;
                    }
                    match timeout(REASON_PATIENCE, self.down.message()).await {
                        Ok(heard) => heard,
                        Err(_) => Ok(None),
                    }
                }
                () = self.shared.stirred.notified(), if !has_next => continue,
                () = sleep_until(self.sending.ping_at()), if !has_next => continue,
                () = sleep_until(self.heard_at + self.options.silence_max) => {
                    return silent(self.options, "said nothing");
                }
            };
            if let Err(why) = self.hear(heard) {
                return why;
            }
        }
    }

    /// True if something is to be sent. If only the disk has it, the disk is asked.
    fn has_next(&self) -> bool {
        let mut state = self.shared.lock();
        let has_next = self.sending.has_next(&mut state);
        if state.outbox.has_errand() {
            self.shared.disk_stirred.notify_one();
        }
        has_next
    }

    fn hear(&mut self, heard: Result<Option<FlightData>, Status>) -> Result<(), String> {
        let address = &self.options.dial.address;
        let heard =
            heard.map_err(|status| exchange::ended(&self.options.dial, &status).to_string())?;
        let data = heard.ok_or_else(|| format!("the monitor at {address} ended the connection"))?;
        let down = Down::read(&data)
            .map_err(|e| format!("the monitor at {address} breaks the protocol: {e}"))?;
        self.heard_at = Instant::now();
        match down.says {
            Some(MonitorSays::Pong(pong)) => self.take_pong(pong),
            Some(MonitorSays::Taken(number)) => match self.shared.lock().outbox.forget(number) {
                true => Ok(()),
                false => Err(format!(
                    "the monitor at {address} breaks the protocol: it takes word {number}, which \
                     was never said"
                )),
            },
            Some(says) => match MonitorWord::try_from(says) {
                Ok(word) => self.told(word),
                Err(e) => Err(format!("the monitor at {address} breaks the protocol: {e}")),
            },
            // A word of a later release.
            None => Ok(()),
        }
    }

    fn take_pong(&mut self, pong: Pong) -> Result<(), String> {
        let back = (self.options.now)();
        if !self.sending.is_awaited(pong.left_ns) {
            return Ok(());
        }
        let taken = self.shared.clock.take(Exchange {
            left: pong.left_ns,
            came: pong.came_ns,
            answered: pong.answered_ns,
            back,
        });
        if let Taken::Stepped(error_ns) = taken {
            let at = self.shared.clock.to_monitor(back);
            let mut state = self.shared.lock();
            state.put_note(at, "clock_set", None, error_ns);
        }
        self.tell()
    }

    /// The caller is to hear this.
    fn told(&mut self, word: MonitorWord) -> Result<(), String> {
        let order = Order::Word(word);
        let mut state = self.shared.lock();
        state.orders_bytes += order.bytes();
        let is_full = state.orders_bytes > ORDERS_BYTES_MAX || self.untold.len() >= ORDERS_MAX;
        drop(state);
        self.untold.push_back(order);
        match is_full {
            true => Err(unread()),
            false => self.tell(),
        }
    }

    /// Tells the caller what waits, once times can be converted.
    fn tell(&mut self) -> Result<(), String> {
        if !self.shared.clock.is_synchronised() {
            return Ok(());
        }
        while let Some(order) = self.untold.pop_front() {
            let monitors = self.monitors;
            let bytes = order.bytes();
            let is_welcome = matches!(order, Order::Welcome { .. });
            let mut state = self.shared.lock();
            if self.orders.try_send(Told { order, monitors }).is_err() {
                state.orders_bytes -= bytes;
                return Err(unread());
            }
            if is_welcome {
                state.monitors_told = monitors;
            }
        }
        Ok(())
    }

    /// What the caller has not heard it will not hear; the next welcome says it anew.
    fn forget_orders(&mut self) {
        let bytes: usize = self.untold.iter().map(Order::bytes).sum();
        self.shared.lock().orders_bytes -= bytes;
    }
}

fn silent(options: &UplinkOptions, what: &str) -> String {
    format!(
        "the monitor at {} {what} for {} s",
        options.dial.address,
        options.silence_max.as_secs_f64()
    )
}

fn unread() -> String {
    format!("more than {ORDERS_MAX} orders of the monitor were not read, or too many bytes of them")
}
