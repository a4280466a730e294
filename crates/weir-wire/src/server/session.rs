//! An agent's session: hello, welcome, then messages in both directions until one side ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arrow_flight::FlightData;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tonic::{Status, Streaming};

use super::counters::Count;
use super::limits::{ORDERS_WAITING_MAX, RateLimit};
use super::requests;
use super::service::{Caller, Shared};
use crate::message::{FromAgent, FromMonitor};
use crate::{
    AgentMessage, Hello, Incoming, Intake, Joined, MonitorMessage, Role, ServerEvent, SessionId,
    Welcome,
};

type Out = mpsc::Sender<Result<FlightData, Status>>;

/// Serves one agent on one connection.
pub(super) async fn serve(
    shared: Arc<Shared>,
    caller: Caller,
    mut messages: Streaming<FlightData>,
    out: Out,
) {
    let mut joined_session = None;
    let ended = tokio::select! {
        ended = join(&shared, &caller, &mut messages, &out, &mut joined_session) => ended,
        () = out.closed() => Err(Status::cancelled("the connection broke")),
    };
    let (session, welcome, orders) = match ended {
        Ok(joined) => joined,
        Err(status) => {
            if let Some(session) = joined_session {
                // The monitor may have welcomed it already and must be informed that it has left.
                let why = status.message().to_owned();
                let _ = shared.events.send(ServerEvent::Left { session, why }).await;
            }
            // A disconnected agent gets no reason.
            let _ = out.send(Err(status)).await;
            return;
        }
    };
    let intake = Intake::new(&welcome.1, shared.texts.of(&welcome.0));
    let status = tokio::select! {
        status = receive(&shared, session, intake, &mut messages, &out) => status,
        status = send_orders(&shared, orders, &out) => status,
        status = shared.revoked(&caller, Role::Agent) => status,
        () = out.closed() => Status::cancelled("the connection broke"),
    };
    let why = status.message().to_owned();
    // The agent is informed first, if it still reads.
    let _ = out.try_send(Err(status));
    drop(messages);
    let left = ServerEvent::Left { session, why };
    // Without a receiver the server is stopping.
    let _ = shared.events.send(left).await;
}

type Joining = (SessionId, (String, Welcome), mpsc::Receiver<MonitorMessage>);

/// Receives the agent's hello and the monitor's welcome; `joined_session` is set once the event of
/// the new session is queued for the monitor.
async fn join(
    shared: &Shared,
    caller: &Caller,
    messages: &mut Streaming<FlightData>,
    out: &Out,
    joined_session: &mut Option<SessionId>,
) -> Result<Joining, Status> {
    let hello = hello(shared, caller, messages).await?;
    let host = hello.host.clone();
    let session = SessionId(shared.sessions.fetch_add(1, Ordering::Relaxed));
    let (welcome, welcomed) = oneshot::channel();
    let (orders, orders_waiting) = mpsc::channel(ORDERS_WAITING_MAX);
    let joined = ServerEvent::Joined(Joined {
        session,
        peer: caller.connection.peer,
        hello,
        welcome,
        orders,
    });
    let ending = || Status::unavailable("the monitor is shutting down");
    shared.events.send(joined).await.map_err(|_| ending())?;
    *joined_session = Some(session);
    let welcome = welcomed
        .await
        .map_err(|_| ending())?
        .map_err(requests::status)?;
    shared.counters.add(Count::Sessions, 1);
    // The queue is empty: this is the first message.
    let _ = out.send(Ok(FromMonitor::welcome(welcome.clone()))).await;
    Ok((session, (host, welcome), orders_waiting))
}

async fn hello(
    shared: &Shared,
    caller: &Caller,
    messages: &mut Streaming<FlightData>,
) -> Result<Hello, Status> {
    let wait_max = Duration::from_millis(shared.limits.first_request_ms);
    let malformed = |why: String| {
        shared.refused(&caller.connection, Count::SessionMalformed, &why);
        Status::invalid_argument(why)
    };
    let first = match timeout(wait_max, messages.message()).await {
        Ok(Ok(Some(first))) => first,
        Ok(Ok(None)) => {
            return Err(malformed(
                "the first message of an agent must be hello".to_owned(),
            ));
        }
        Ok(Err(status)) => return Err(status),
        Err(_) => {
            shared.counters.add(Count::SessionSilent, 1);
            return Err(Status::deadline_exceeded("no hello within the time limit"));
        }
    };
    let hello = FromAgent::read_hello(&first).map_err(|e| malformed(e.to_string()))?;
    if let Some(host) = caller.grant.host.as_ref().filter(|h| **h != hello.host) {
        let why = format!(
            "`{}` is permitted to join as host `{host}` only, not as `{}`",
            caller.grant.principal.name, hello.host
        );
        shared.refused(&caller.connection, Count::Forbidden, &why);
        return Err(Status::permission_denied(why));
    }
    caller.connection.mark_granted();
    let mut bytes = caller.connection.bytes.lock().expect("no panic while held");
    bytes.set(shared.limits.agent_bytes_per_second);
    Ok(hello)
}

/// Receives messages until the agent disconnects or violates the protocol.
async fn receive(
    shared: &Shared,
    session: SessionId,
    mut intake: Intake,
    messages: &mut Streaming<FlightData>,
    out: &Out,
) -> Status {
    let silence = Duration::from_millis(shared.limits.agent_silence_ms);
    let mut rate_limit = RateLimit::new(shared.limits.agent_messages_per_second);
    loop {
        let message = match timeout(silence, messages.message()).await {
            Ok(Ok(Some(message))) => message,
            Ok(Ok(None)) => return Status::cancelled("the agent ended the connection"),
            Ok(Err(status)) => return status,
            Err(_) => {
                shared.counters.add(Count::SessionSilent, 1);
                return Status::deadline_exceeded(format!(
                    "no message from the agent for {} ms",
                    shared.limits.agent_silence_ms
                ));
            }
        };
        shared.counters.add(Count::Messages, 1);
        let wait = rate_limit.take(1, Instant::now());
        if !wait.is_zero() {
            shared.counters.add(Count::MessagesSlowed, 1);
            tokio::time::sleep(wait).await;
        }
        let unknown = intake.unknown();
        let incoming = intake.receive(&message, shared.clock.now());
        shared
            .counters
            .add(Count::MessagesUnknown, intake.unknown() - unknown);
        let incoming = match incoming {
            Ok(Incoming::Message(number, message)) => message_event(session, number, message),
            Ok(Incoming::Pong(answer)) => {
                // An agent that does not read replies will send another ping.
                let _ = out.try_send(Ok(*answer));
                continue;
            }
            Ok(Incoming::Missing { messages, .. }) => {
                shared.counters.add(Count::MessagesMissing, messages);
                continue;
            }
            Ok(Incoming::Ignored) => continue,
            Err(malformed) => {
                shared.counters.add(Count::SessionMalformed, 1);
                return Status::invalid_argument(malformed.to_string());
            }
        };
        if shared.events.send(incoming).await.is_err() {
            return Status::unavailable("the monitor is shutting down");
        }
    }
}

fn message_event(session: SessionId, number: Option<u64>, message: AgentMessage) -> ServerEvent {
    ServerEvent::Message {
        session,
        number,
        message,
    }
}

/// Sends the monitor's messages to the agent until there are no more or it does not read.
async fn send_orders(
    shared: &Shared,
    mut orders: mpsc::Receiver<MonitorMessage>,
    out: &Out,
) -> Status {
    let wait_max = Duration::from_millis(shared.limits.request_ms);
    while let Some(message) = orders.recv().await {
        match timeout(wait_max, out.send(Ok(FromMonitor::data(message)))).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Status::cancelled("the connection broke"),
            Err(_) => {
                shared.counters.add(Count::SessionNotRead, 1);
                return Status::deadline_exceeded("the agent does not read its messages");
            }
        }
    }
    Status::unavailable("the monitor disconnected the agent")
}
