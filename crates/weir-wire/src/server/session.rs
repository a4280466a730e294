//! An agent's session: hello, welcome, and then words both ways until one side goes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arrow_flight::FlightData;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tonic::{Status, Streaming};
use weir_model::Nanos;

use super::counters::Count;
use super::limits::{Allowance, ORDERS_WAITING_MAX};
use super::requests;
use super::service::{Asker, Shared};
use crate::message::{Down, Up};
use crate::{
    AgentWord, Event, Heard, Hello, Intake, Joined, MonitorWord, Role, SessionId, Welcome,
};

type Out = mpsc::Sender<Result<FlightData, Status>>;

/// Serves one agent on one connection.
pub(super) async fn serve(
    shared: Arc<Shared>,
    asker: Asker,
    mut words: Streaming<FlightData>,
    out: Out,
) {
    let mut told = None;
    let ended = tokio::select! {
        ended = join(&shared, &asker, &mut words, &out, &mut told) => ended,
        () = out.closed() => Err(Status::cancelled("the connection broke")),
    };
    let (session, welcome, orders) = match ended {
        Ok(joined) => joined,
        Err(status) => {
            if let Some(session) = told {
                // The monitor may have welcomed it already, and would hold its place for ever.
                let why = status.message().to_owned();
                let _ = shared.events.send(Event::Left { session, why }).await;
            }
            // An agent that has gone needs no reason.
            let _ = out.send(Err(status)).await;
            return;
        }
    };
    let intake = Intake::new(&welcome.1, shared.texts.of(&welcome.0));
    let status = tokio::select! {
        status = hear(&shared, session, intake, &mut words, &out) => status,
        status = order(&shared, orders, &out) => status,
        status = shared.revoked(&asker, Role::Agent) => status,
        () = out.closed() => Status::cancelled("the connection broke"),
    };
    let why = status.message().to_owned();
    // The agent is told first; whether it hears it is its own affair.
    let _ = out.try_send(Err(status));
    drop(words);
    let left = Event::Left { session, why };
    // Without a receiver the server is ending.
    let _ = shared.events.send(left).await;
}

type Joining = (SessionId, (String, Welcome), mpsc::Receiver<MonitorWord>);

/// Hears the agent's hello and gets it welcomed; `told` is the session once the monitor knows of it.
async fn join(
    shared: &Shared,
    asker: &Asker,
    words: &mut Streaming<FlightData>,
    out: &Out,
    told: &mut Option<SessionId>,
) -> Result<Joining, Status> {
    let hello = hello(shared, asker, words).await?;
    let host = hello.host.clone();
    let session = SessionId(shared.sessions.fetch_add(1, Ordering::Relaxed));
    let (welcome, welcomed) = oneshot::channel();
    let (orders, orders_waiting) = mpsc::channel(ORDERS_WAITING_MAX);
    let joined = Event::Joined(Joined {
        session,
        peer: asker.connection.peer,
        hello,
        welcome,
        orders,
    });
    let ending = || Status::unavailable("the monitor is ending");
    shared.events.send(joined).await.map_err(|_| ending())?;
    *told = Some(session);
    let welcome = welcomed
        .await
        .map_err(|_| ending())?
        .map_err(requests::status)?;
    shared.counters.add(Count::Sessions, 1);
    // There is room: it is the first that is sent.
    let _ = out.send(Ok(Down::from(&welcome).data())).await;
    Ok((session, (host, welcome), orders_waiting))
}

async fn hello(
    shared: &Shared,
    asker: &Asker,
    words: &mut Streaming<FlightData>,
) -> Result<Hello, Status> {
    let patience = Duration::from_millis(shared.limits.first_request_ms);
    let malformed = |why: String| {
        shared.refused(&asker.connection, Count::SessionMalformed, &why);
        Status::invalid_argument(why)
    };
    let first = match timeout(patience, words.message()).await {
        Ok(Ok(Some(first))) => first,
        Ok(Ok(None)) => return Err(malformed("an agent begins with hello".to_owned())),
        Ok(Err(status)) => return Err(status),
        Err(_) => {
            shared.counters.add(Count::SessionSilent, 1);
            return Err(Status::deadline_exceeded("no hello came in time"));
        }
    };
    let hello = Up::read_hello(&first).map_err(|e| malformed(e.to_string()))?;
    if let Some(host) = asker.grant.host.as_ref().filter(|h| **h != hello.host) {
        let why = format!(
            "`{}` may join as host `{host}` only, not as `{}`",
            asker.grant.principal.name, hello.host
        );
        shared.refused(&asker.connection, Count::Forbidden, &why);
        return Err(Status::permission_denied(why));
    }
    asker.connection.prove();
    let mut bytes = asker.connection.bytes.lock().expect("nobody panics here");
    bytes.set(shared.limits.agent_bytes_per_second);
    Ok(hello)
}

/// Takes what the agent says, until it says no more or what it may not.
async fn hear(
    shared: &Shared,
    session: SessionId,
    mut intake: Intake,
    words: &mut Streaming<FlightData>,
    out: &Out,
) -> Status {
    let silence = Duration::from_millis(shared.limits.agent_silence_ms);
    let mut allowance = Allowance::new(shared.limits.agent_words_per_second);
    loop {
        let message = match timeout(silence, words.message()).await {
            Ok(Ok(Some(message))) => message,
            Ok(Ok(None)) => return Status::cancelled("the agent ended the connection"),
            Ok(Err(status)) => return status,
            Err(_) => {
                shared.counters.add(Count::SessionSilent, 1);
                return Status::deadline_exceeded(format!(
                    "the agent said nothing for {} ms",
                    shared.limits.agent_silence_ms
                ));
            }
        };
        shared.counters.add(Count::Words, 1);
        let wait = allowance.take(1, Instant::now());
        if !wait.is_zero() {
            shared.counters.add(Count::WordsSlowed, 1);
            tokio::time::sleep(wait).await;
        }
        let said = match intake.hear(&message, now()) {
            Ok(Heard::Word(number, word)) => said(session, number, word),
            Ok(Heard::Answer(answer)) => {
                // An agent that does not read its answers asks again.
                let _ = out.try_send(Ok(*answer));
                continue;
            }
            Ok(Heard::Missing { words, .. }) => {
                shared.counters.add(Count::WordsMissing, words);
                continue;
            }
            Ok(Heard::Nothing) => continue,
            Err(malformed) => {
                shared.counters.add(Count::SessionMalformed, 1);
                return Status::invalid_argument(malformed.to_string());
            }
        };
        if shared.events.send(said).await.is_err() {
            return Status::unavailable("the monitor is ending");
        }
    }
}

fn said(session: SessionId, number: Option<u64>, word: AgentWord) -> Event {
    Event::Said {
        session,
        number,
        word,
    }
}

/// Passes on what the agent is to do, until there is no more or it does not read.
async fn order(shared: &Shared, mut orders: mpsc::Receiver<MonitorWord>, out: &Out) -> Status {
    let patience = Duration::from_millis(shared.limits.request_ms);
    while let Some(word) = orders.recv().await {
        match timeout(patience, out.send(Ok(Down::from(&word).data()))).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Status::cancelled("the connection broke"),
            Err(_) => {
                shared.counters.add(Count::SessionNotRead, 1);
                return Status::deadline_exceeded("the agent does not read what it is told");
            }
        }
    }
    Status::unavailable("the monitor let the agent go")
}

/// This host's clock, which is the fleet's.
fn now() -> Nanos {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as Nanos)
}
