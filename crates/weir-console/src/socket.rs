//! The WebSocket of a tab: standing queries, multiplexed.
//!
//! Control messages are texts in JSON, results are binary frames ([`crate::frame`]).
//!
//! | from the client | meaning |
//! | --- | --- |
//! | `{"type":"subscribe","id":1,"q":"select .."}` | run a query, or join it; `source` names another source |
//! | `{"type":"ack","id":1,"sequence":7}` | frame 7 was processed |
//! | `{"type":"unsubscribe","id":1}` | end the subscription |
//!
//! | from the server | meaning |
//! | --- | --- |
//! | `{"type":"end","id":1,"reason":"end","message":".."}` | the query has ended: by the end of its input (`end`), because it is incorrect (`query`), or for another reason (`failed`) |
//! | `{"type":"error","message":".."}` | a message of the client is invalid; the socket is closed |
//!
//! **Credit.** At most [`CREDIT`] frames of a subscription are unacknowledged. When the client
//! acknowledges one, the next frame has the newest state; what was skipped is counted in it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{Message, WebSocket};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use crate::program::ProgramError;
use crate::sources::Sources;
use crate::standing::{Cursor, QueryEnd, StandingQueries};

/// The maximum number of unacknowledged frames of a subscription.
pub const CREDIT: u64 = 2;

/// The maximum number of subscriptions of a socket.
pub const SUBSCRIPTIONS_MAX: usize = 32;

/// The maximum size of a message of the client, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 128 << 10;

/// The minimum interval between two frames of a subscription.
const FRAME_INTERVAL: Duration = Duration::from_millis(100);

/// The maximum time to send a frame.
const SEND_TIME_MAX: Duration = Duration::from_secs(20);

/// The interval of pings. A client that sends nothing for two of them is disconnected.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// A message of the client.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
enum ClientMessage {
    Subscribe {
        id: u32,
        q: String,
        #[serde(default)]
        source: Option<String>,
    },
    Unsubscribe {
        id: u32,
    },
    Ack {
        id: u32,
        sequence: u64,
    },
}

struct Subscription {
    cursor: Cursor,
    acknowledged: u64,
    next_at: Instant,
}

/// The subscriptions of a tab.
struct Tab {
    queries: Arc<StandingQueries>,
    sources: Arc<Sources>,
    subscriptions: BTreeMap<u32, Subscription>,
    changed: Arc<Notify>,
    out: SplitSink<WebSocket, Message>,
    received_at: Instant,
}

/// Why a socket is closed.
struct Closed;

/// Serves a tab until it disconnects.
pub async fn serve(socket: WebSocket, queries: Arc<StandingQueries>, sources: Arc<Sources>) {
    let (out, input) = socket.split();
    let mut tab = Tab {
        queries,
        sources,
        subscriptions: BTreeMap::new(),
        changed: Arc::new(Notify::new()),
        out,
        received_at: Instant::now(),
    };
    // Either way the client is gone.
    let _ = tab.run(input).await;
    let subscriptions = std::mem::take(&mut tab.subscriptions);
    for subscription in subscriptions.into_values() {
        subscription.cursor.leave(&tab.changed);
    }
}

impl Tab {
    async fn run(&mut self, mut input: SplitStream<WebSocket>) -> Result<(), Closed> {
        let mut ping_at = Instant::now() + PING_INTERVAL;
        loop {
            let due = self.send_due().await?;
            let changed = self.changed.clone();
            tokio::select! {
                message = input.next() => match message {
                    Some(Ok(message)) => {
                        self.received_at = Instant::now();
                        self.receive(message).await?;
                    }
                    _ => return Err(Closed),
                },
                () = changed.notified() => {}
                () = sleep_until(due.unwrap_or(ping_at).min(ping_at)) => {}
            }
            if Instant::now() >= ping_at {
                if self.received_at.elapsed() > 2 * PING_INTERVAL {
                    return Err(Closed);
                }
                self.send(Message::Ping(Vec::new().into())).await?;
                ping_at = Instant::now() + PING_INTERVAL;
            }
        }
    }

    /// Sends the frames that are due; returns when the next one is.
    async fn send_due(&mut self) -> Result<Option<Instant>, Closed> {
        let now = Instant::now();
        let mut next_at: Option<Instant> = None;
        let (mut frames, mut ends) = (Vec::new(), Vec::new());
        for (id, subscription) in &mut self.subscriptions {
            let unacknowledged = subscription.cursor.sequence() - subscription.acknowledged;
            if subscription.cursor.is_behind() {
                if unacknowledged >= CREDIT {
                    continue;
                }
                if subscription.next_at > now {
                    let at = subscription.next_at;
                    next_at = Some(next_at.map_or(at, |next| next.min(at)));
                    continue;
                }
                subscription.next_at = now + FRAME_INTERVAL;
                frames.extend(subscription.cursor.frame(*id));
            }
            if let Some(end) = subscription.cursor.end() {
                ends.push((*id, end));
            }
        }
        for frame in frames {
            self.send(Message::Binary(frame.into())).await?;
        }
        for (id, end) in ends {
            self.end(id, &end).await?;
        }
        Ok(next_at)
    }

    async fn receive(&mut self, message: Message) -> Result<(), Closed> {
        let text = match message {
            Message::Text(text) => text,
            Message::Binary(_) => return self.reject("binary messages have no meaning").await,
            Message::Close(_) => return Err(Closed),
            Message::Ping(_) | Message::Pong(_) => return Ok(()),
        };
        match serde_json::from_str(&text) {
            Ok(ClientMessage::Subscribe { id, q, source }) => {
                self.subscribe(id, &q, source.as_deref()).await
            }
            Ok(ClientMessage::Unsubscribe { id }) => {
                if let Some(subscription) = self.subscriptions.remove(&id) {
                    subscription.cursor.leave(&self.changed);
                }
                Ok(())
            }
            Ok(ClientMessage::Ack { id, sequence }) => {
                // A frame may have been sent before the client ended the subscription.
                if let Some(subscription) = self.subscriptions.get_mut(&id) {
                    let sent = subscription.cursor.sequence();
                    subscription.acknowledged = sequence.min(sent).max(subscription.acknowledged);
                }
                Ok(())
            }
            Err(error) => self.reject(&error.to_string()).await,
        }
    }

    async fn subscribe(&mut self, id: u32, text: &str, source: Option<&str>) -> Result<(), Closed> {
        if self.subscriptions.contains_key(&id) {
            return self.reject(&format!("subscription {id} exists")).await;
        }
        let refused = |message: String| QueryEnd {
            reason: "failed",
            message,
        };
        if self.subscriptions.len() == SUBSCRIPTIONS_MAX {
            let message = format!("a tab has at most {SUBSCRIPTIONS_MAX} subscriptions");
            return self.end(id, &refused(message)).await;
        }
        if let Err(message) = crate::api::is_query(text) {
            return self.end(id, &refused(message)).await;
        }
        let source = match self.sources.resolve(source) {
            Ok(source) => source,
            Err(message) => return self.end(id, &refused(message)).await,
        };
        match self.queries.subscribe(&source, text, &self.changed) {
            Ok(cursor) => {
                let subscription = Subscription {
                    cursor,
                    acknowledged: 0,
                    next_at: Instant::now(),
                };
                self.subscriptions.insert(id, subscription);
                Ok(())
            }
            Err(ProgramError::Failed(message) | ProgramError::Refused(message)) => {
                self.end(id, &refused(message)).await
            }
        }
    }

    async fn end(&mut self, id: u32, end: &QueryEnd) -> Result<(), Closed> {
        if let Some(subscription) = self.subscriptions.remove(&id) {
            subscription.cursor.leave(&self.changed);
        }
        let QueryEnd { reason, message } = end;
        self.send_json(&json!({ "type": "end", "id": id, "reason": reason, "message": message }))
            .await
    }

    /// Reports an invalid message and closes the socket.
    async fn reject(&mut self, message: &str) -> Result<(), Closed> {
        self.send_json(&json!({ "type": "error", "message": message }))
            .await?;
        self.send(Message::Close(None)).await?;
        Err(Closed)
    }

    async fn send_json(&mut self, message: &Value) -> Result<(), Closed> {
        self.send(Message::Text(message.to_string().into())).await
    }

    async fn send(&mut self, message: Message) -> Result<(), Closed> {
        match timeout(SEND_TIME_MAX, self.out.send(message)).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(Closed),
        }
    }
}
