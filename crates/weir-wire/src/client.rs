//! [`Client`]: submits queries to a monitor and watches their results.
//!
//! Results are Arrow record batches; `weir_sink::arrow` converts them to the rows of a sink.
//!
//! Calls block; a background thread drives the network, so the connection stays alive between
//! calls. After a lost connection the caller decides whether to reconnect.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use arrow_flight::decode::{DecodedPayload, FlightDataDecoder};
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{Action, Empty, FlightDescriptor, Ticket};
use arrow_schema::SchemaRef;
use tokio::runtime::{Builder, Runtime};
use tokio_stream::StreamExt;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::dial::causes;
use crate::event::{ResultUpdate, SilenceRequest, Submit};
use crate::server::STANDBY_HEADER;
use crate::{Dial, Refusal, WireError};

/// The longest accepted message with results, in bytes.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// The timeout of all calls but a watch. The monitor's own timeout is shorter.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(40);

/// The timeout for one of several addresses.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection to a monitor.
#[derive(Debug)]
pub struct Client {
    dial: Dial,
    runtime: Arc<Runtime>,
    flight: FlightServiceClient<Channel>,
}

/// A submitted query, or one that runs.
#[derive(Clone, Debug, PartialEq)]
pub struct SubmittedQuery {
    /// Its name, for watching and cancelling.
    pub name: String,
    /// Its columns, with the description of the results as metadata.
    pub schema: SchemaRef,
}

impl Client {
    /// Connects, with several addresses to the first one that leads.
    ///
    /// # Errors
    /// If a file that `dial` names is invalid, or no monitor answers. An invalid token is reported
    /// by the first call.
    pub fn connect(dial: Dial) -> Result<Client, WireError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("weir-client")
            .enable_all()
            .build()
            .map_err(WireError::Thread)?;
        let (dial, flight) = runtime.block_on(leader(&dial))?;
        Ok(Client {
            dial,
            runtime: Arc::new(runtime),
            flight,
        })
    }

    /// Whether there are several addresses.
    pub fn has_standbys(&self) -> bool {
        !self.dial.others.is_empty()
    }

    /// Connects again if there are several addresses: another monitor may lead now. With one
    /// address the next call connects.
    ///
    /// # Errors
    /// If none of them answers and leads.
    pub fn reconnect(&mut self) -> Result<(), WireError> {
        if !self.dial.others.is_empty() {
            (self.dial, self.flight) = self.runtime.block_on(leader(&self.dial))?;
        }
        Ok(())
    }

    /// Submits a query.
    ///
    /// # Errors
    /// If the monitor rejects it ([`WireError::Refused`] has its diagnostics), or the network
    /// fails.
    pub fn submit(&mut self, submit: &Submit) -> Result<SubmittedQuery, WireError> {
        let words = serde_json::to_vec(submit).expect("a query is always JSON");
        self.flight_info(FlightDescriptor::new_cmd(words))
    }

    /// The columns of a running query.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub fn describe(&mut self, query: &str) -> Result<SubmittedQuery, WireError> {
        self.flight_info(FlightDescriptor::new_path(vec![query.to_owned()]))
    }

    fn flight_info(&mut self, descriptor: FlightDescriptor) -> Result<SubmittedQuery, WireError> {
        let call = self.dial.call(descriptor)?;
        let answer = self.answer(|mut f| async move { f.get_flight_info(call).await })?;
        let flight = answer.into_inner();
        let ticket = flight.endpoint.first().and_then(|e| e.ticket.as_ref());
        let name = ticket.map(|t| String::from_utf8_lossy(&t.ticket).into_owned());
        let name = name.ok_or_else(|| self.odd("it names no query"))?;
        let schema = flight.try_decode_schema();
        let schema = schema.map_err(|e| self.odd(&format!("its columns are not readable: {e}")))?;
        Ok(SubmittedQuery {
            name,
            schema: Arc::new(schema),
        })
    }

    /// Watches a query: first the current content of its relation, then the changes.
    ///
    /// # Errors
    /// If there is no such query, the limit of clients is reached, or the network fails.
    pub fn watch(&mut self, query: &str) -> Result<Watch, WireError> {
        let call = self.dial.call(Ticket::new(query.to_owned()))?;
        let stream = self.answer(|mut f| async move { f.do_get(call).await })?;
        let stream = stream
            .into_inner()
            .map(|message| message.map_err(|status| FlightError::Tonic(Box::new(status))));
        Ok(Watch {
            dial: self.dial.clone(),
            runtime: self.runtime.clone(),
            messages: FlightDataDecoder::new(stream),
            schema: None,
        })
    }

    /// The queries, as the monitor's JSON: a list of objects with `name` and more.
    ///
    /// # Errors
    /// If the request is rejected or the network fails.
    pub fn queries(&mut self) -> Result<serde_json::Value, WireError> {
        self.act("queries", "")
    }

    /// The agents, as the monitor's JSON.
    ///
    /// # Errors
    /// If the request is rejected or the network fails.
    pub fn hosts(&mut self) -> Result<serde_json::Value, WireError> {
        self.act("hosts", "")
    }

    /// The stored views, as the monitor's JSON: a list of objects with `name` and `text`.
    ///
    /// # Errors
    /// If the request is rejected, the monitor is older and has none, or the network fails.
    pub fn views(&mut self) -> Result<serde_json::Value, WireError> {
        self.act("views", "")
    }

    /// The streams that agents have beside the built-in ones, as the monitor's JSON: a list of
    /// declarations.
    ///
    /// # Errors
    /// As [`Client::views`].
    pub fn streams(&mut self) -> Result<serde_json::Value, WireError> {
        self.act("streams", "")
    }

    /// Changes the stored views by CREATE VIEW and DROP VIEW statements; the answer is a list of
    /// what was done.
    ///
    /// # Errors
    /// As [`Client::views`].
    pub fn change_views(&mut self, text: &str) -> Result<serde_json::Value, WireError> {
        self.act("change_views", text)
    }

    /// The alerts that run at the monitor, as its JSON: a list of objects with `name`, `text`,
    /// `placed_by` and `instances`.
    ///
    /// # Errors
    /// As [`Client::views`].
    pub fn alerts(&mut self) -> Result<serde_json::Value, WireError> {
        self.act("alerts", "")
    }

    /// Runs alerts at the monitor, CREATE ALERT statements; the answer is a list of their names.
    ///
    /// # Errors
    /// As [`Client::views`].
    pub fn place_alerts(&mut self, text: &str) -> Result<serde_json::Value, WireError> {
        self.act("place_alerts", text)
    }

    /// Ends an alert that was placed.
    ///
    /// # Errors
    /// As [`Client::views`].
    pub fn remove_alert(&mut self, name: &str) -> Result<serde_json::Value, WireError> {
        self.act("remove_alert", name)
    }

    /// The silences, as the monitor's JSON.
    ///
    /// # Errors
    /// As [`Client::views`].
    pub fn silences(&mut self) -> Result<serde_json::Value, WireError> {
        self.act("silences", "")
    }

    /// Adds a silence; the answer has its `id`.
    ///
    /// # Errors
    /// As [`Client::views`].
    pub fn silence(&mut self, silence: &SilenceRequest) -> Result<serde_json::Value, WireError> {
        let words = serde_json::to_string(silence).expect("a silence is always JSON");
        self.act("silence", &words)
    }

    /// Ends a silence.
    ///
    /// # Errors
    /// As [`Client::views`].
    pub fn unsilence(&mut self, id: &str) -> Result<serde_json::Value, WireError> {
        self.act("unsilence", id)
    }

    /// Where each part of a query would run, and what it costs, as the monitor's JSON.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub fn explain(&mut self, submit: &Submit) -> Result<serde_json::Value, WireError> {
        let words = serde_json::to_string(submit).expect("a query is always JSON");
        self.act("explain", &words)
    }

    /// Ends a query.
    ///
    /// # Errors
    /// If there is no such query, the request is rejected, or the network fails.
    pub fn cancel(&mut self, query: &str) -> Result<serde_json::Value, WireError> {
        self.act("cancel", query)
    }

    fn act(&mut self, action: &str, body: &str) -> Result<serde_json::Value, WireError> {
        let call = self.dial.call(Action::new(action, body.to_owned()))?;
        let result = self.answer(|mut f| async move {
            let mut results = f.do_action(call).await?.into_inner();
            results.message().await
        })?;
        let result = result.ok_or_else(|| self.odd("the answer is empty"))?;
        serde_json::from_slice(&result.body).map_err(|e| self.odd(&e.to_string()))
    }

    fn answer<T, F>(
        &self,
        ask: impl FnOnce(FlightServiceClient<Channel>) -> F,
    ) -> Result<T, WireError>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let asked = ask(self.flight.clone());
        let answer = self
            .runtime
            .block_on(async { tokio::time::timeout(ANSWER_TIMEOUT, asked).await });
        match answer {
            Ok(answer) => answer.map_err(|status| refused(&self.dial, &status)),
            Err(_) => Err(WireError::Broken {
                address: self.dial.address.to_string(),
                why: format!("no answer for {} s", ANSWER_TIMEOUT.as_secs()),
            }),
        }
    }

    fn odd(&self, why: &str) -> WireError {
        WireError::Malformed(crate::Malformed(format!(
            "reply of the monitor at {}: {why}",
            self.dial.address
        )))
    }
}

type FlightClient = FlightServiceClient<Channel>;

/// Connects to the first address that leads; its [`Dial`] has the others behind it.
async fn leader(dial: &Dial) -> Result<(Dial, FlightClient), WireError> {
    let mut last = None;
    for (each, is_only) in dial.each() {
        match try_leader(&each, is_only).await {
            Ok(flight) => return Ok((each, flight)),
            Err(
                error @ (WireError::Unreachable { .. }
                | WireError::Broken { .. }
                | WireError::Standby { .. }),
            ) => last = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(last.expect("there is an address"))
}

/// Connects to the address; unless it is the only one, a standby is an error.
async fn try_leader(dial: &Dial, is_only: bool) -> Result<FlightClient, WireError> {
    if is_only {
        return Ok(flight(dial.connect().await?));
    }
    let broken = |why: &str| WireError::Broken {
        address: dial.address.to_string(),
        why: why.to_owned(),
    };
    let probe = async {
        let mut flight = flight(dial.connect().await?);
        let answer = flight.list_actions(dial.call(Empty {})?).await;
        match answer.map_err(|status| refused(dial, &status)) {
            // The first request reports that access is denied.
            Ok(_) | Err(WireError::Denied { .. } | WireError::Refused(_)) => Ok(flight),
            Err(error) => Err(error),
        }
    };
    match tokio::time::timeout(PROBE_TIMEOUT, probe).await {
        Ok(found) => found,
        Err(_) => Err(broken(&format!(
            "no answer for {} s",
            PROBE_TIMEOUT.as_secs()
        ))),
    }
}

fn flight(channel: Channel) -> FlightClient {
    FlightServiceClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX)
}

/// The error for a status of the monitor.
pub(crate) fn refused(dial: &Dial, status: &Status) -> WireError {
    let address = dial.address.to_string();
    let why = status.message().to_owned();
    if status.metadata().contains_key(STANDBY_HEADER) {
        return WireError::Standby { address, why };
    }
    match status.code() {
        Code::InvalidArgument => WireError::Refused(Refusal::Invalid(why)),
        Code::NotFound => WireError::Refused(Refusal::NotFound(why)),
        Code::ResourceExhausted => WireError::Refused(Refusal::LimitReached(why)),
        Code::AlreadyExists => WireError::Refused(Refusal::AlreadyExists(why)),
        Code::FailedPrecondition => WireError::Refused(Refusal::Failed(why)),
        Code::Unauthenticated | Code::PermissionDenied | Code::Unimplemented => {
            WireError::Denied { address, why }
        }
        _ => match status.source() {
            Some(source) => dial.unreachable(source),
            None => WireError::Broken {
                address,
                why: causes(status),
            },
        },
    }
}

/// A watched query; watching ends when this is dropped.
#[derive(Debug)]
pub struct Watch {
    dial: Dial,
    runtime: Arc<Runtime>,
    messages: FlightDataDecoder,
    schema: Option<SchemaRef>,
}

/// The result of waiting for results.
#[derive(Debug)]
pub enum WatchEvent {
    /// Rows and their completeness.
    Update(ResultUpdate),
    /// No update within the wait time.
    Timeout,
    /// The query has ended; the note of its last update has the reason.
    Ended,
}

impl Watch {
    /// The next event; waits for at most `wait_max`.
    ///
    /// # Errors
    /// If the connection breaks, or an update is invalid.
    pub fn next(&mut self, wait_max: Duration) -> Result<WatchEvent, WireError> {
        let odd = |why: String| WireError::Malformed(crate::Malformed(why));
        let messages = &mut self.messages;
        loop {
            let next = self
                .runtime
                .block_on(async { tokio::time::timeout(wait_max, messages.next()).await });
            let message = match next {
                Err(_) => return Ok(WatchEvent::Timeout),
                Ok(None) => return Ok(WatchEvent::Ended),
                Ok(Some(Err(FlightError::Tonic(status)))) => {
                    return Err(refused(&self.dial, &status));
                }
                Ok(Some(Err(error))) => return Err(odd(error.to_string())),
                Ok(Some(Ok(message))) => message,
            };
            match message.payload {
                DecodedPayload::Schema(schema) => self.schema = Some(schema),
                DecodedPayload::None => {}
                DecodedPayload::RecordBatch(batch) => {
                    let note = message.inner.app_metadata;
                    let note = serde_json::from_slice(&note)
                        .map_err(|e| odd(format!("the note of the rows is not JSON: {e}")))?;
                    return Ok(WatchEvent::Update(ResultUpdate { batch, note }));
                }
            }
        }
    }

    /// The columns, once they have been received.
    pub fn schema(&self) -> Option<&SchemaRef> {
        self.schema.as_ref()
    }
}
