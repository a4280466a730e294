//! [`FlightApi`]: converts Flight's calls to [`ServerEvent`]s, and the monitor's replies to
//! Flight's.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arrow_flight::flight_service_server::FlightService;
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightEndpoint, FlightInfo,
    HandshakeRequest, HandshakeResponse, PollInfo, PutResult, SchemaResult, Ticket,
};
use arrow_schema::SchemaRef;
use serde_json::json;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request as Call, Response, Status, Streaming};

use super::Rules;
use super::connections::{ActiveRequest, Connection};
use super::counters::{Count, Counters};
use super::limits::{Limits, RateLimit};
use super::refusals::Refusals;
use super::requests::{self, ACTIONS, QueryReference};
use super::results::{Encoder, schema_bytes};
use super::session;
use crate::access::{Credentials, Grant};
use crate::event::{ClientReply, ResultUpdate};
use crate::frame::texts::{TEXTS_BYTES_MAX, TEXTS_MAX, TextBudgets};
use crate::{ClientRequest, FleetClock, Refusal, ReplySender, Role, ServerEvent};

/// The number of principals with a separate rate limit; those inactive for a second are removed.
const RATES_MAX: usize = 10_000;
/// The queue of a watch, in addition to what HTTP/2 has buffered.
const MESSAGES_WAITING_MAX: usize = 1;

type Sent<T> = ReceiverStream<Result<T, Status>>;
type ListStream<T> = tokio_stream::Iter<std::vec::IntoIter<Result<T, Status>>>;

/// State shared by all connections.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) limits: Limits,
    pub(super) clock: FleetClock,
    pub(super) counters: Arc<Counters>,
    pub(super) rules: watch::Receiver<Arc<Rules>>,
    /// The reason why all requests are rejected, while this monitor is a standby.
    pub(super) standby: watch::Receiver<Option<String>>,
    pub(super) refusals: Refusals,
    pub(super) events: mpsc::Sender<ServerEvent>,
    pub(super) texts: TextBudgets,
    /// The number of the next session.
    pub(super) sessions: AtomicU64,
    rates: Mutex<HashMap<String, (RateLimit, Instant)>>,
    watches: Mutex<HashMap<String, usize>>,
}

/// An authenticated caller.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) connection: Arc<Connection>,
    pub(super) credentials: Credentials,
    pub(super) grant: Grant,
}

impl Shared {
    pub(super) fn new(
        limits: Limits,
        clock: FleetClock,
        counters: Arc<Counters>,
        rules: watch::Receiver<Arc<Rules>>,
        standby: watch::Receiver<Option<String>>,
        events: mpsc::Sender<ServerEvent>,
    ) -> Arc<Shared> {
        Arc::new(Shared {
            limits,
            clock,
            counters,
            rules,
            standby,
            refusals: Refusals::new(events.clone()),
            events,
            texts: TextBudgets::new(TEXTS_MAX, TEXTS_BYTES_MAX),
            sessions: AtomicU64::new(1),
            rates: Mutex::default(),
            watches: Mutex::default(),
        })
    }

    /// Counts and reports a rejected request; after too many the connection is closed.
    pub(super) fn refused(&self, connection: &Connection, count: Count, why: &str) {
        self.counters.add(count, 1);
        self.refusals.report(connection.peer, why);
        if connection.refuse() {
            self.counters.add(Count::Guesses, 1);
            connection.disconnect();
        }
    }

    /// Applies the rate limit to a request of `principal`.
    pub(super) fn within_rate(&self, principal: &str) -> Result<(), Status> {
        let per_second = self.limits.requests_per_second;
        let now = Instant::now();
        let mut rates = self.rates.lock().expect("no panic while held");
        if rates.len() >= RATES_MAX && !rates.contains_key(principal) {
            rates.retain(|_, (_, last)| now.duration_since(*last) < Duration::from_secs(1));
        }
        let (rate_limit, last) = rates
            .entry(principal.to_owned())
            .or_insert_with(|| (RateLimit::new(per_second), now));
        *last = now;
        if rate_limit.try_take(1, now) {
            return Ok(());
        }
        self.counters.add(Count::TooOften, 1);
        Err(Status::resource_exhausted(format!(
            "`{principal}` sends more than {per_second} requests per second; try again later"
        )))
    }

    /// Completes when the credentials are no longer valid.
    pub(super) async fn revoked(&self, caller: &Caller, role: Role) -> Status {
        let mut rules = self.rules.clone();
        loop {
            if rules.changed().await.is_err() {
                return Status::unavailable("the monitor is shutting down");
            }
            let grant = rules.borrow().access.grant(&caller.credentials);
            let is_same = |g: &Grant| {
                g.host == caller.grant.host && g.principal.vm == caller.grant.principal.vm
            };
            if !grant.is_ok_and(|g| g.allows(role) && is_same(&g)) {
                return Status::unauthenticated("the credentials are no longer accepted");
            }
        }
    }
}

/// A watched query, counted for its watcher.
struct Watch {
    shared: Arc<Shared>,
    principal: String,
}

impl Watch {
    fn begin(shared: &Arc<Shared>, principal: &str) -> Result<Watch, Status> {
        let most = shared.limits.watches_per_principal_max;
        let mut watches = shared.watches.lock().expect("no panic while held");
        let there = watches.get(principal).copied().unwrap_or(0);
        if there >= most {
            shared.counters.add(Count::TooManyWatches, 1);
            return Err(Status::resource_exhausted(format!(
                "`{principal}` watches {there} queries, the limit is {most}; stop watching \
                 another one"
            )));
        }
        watches.insert(principal.to_owned(), there + 1);
        shared.counters.add(Count::Watches, 1);
        Ok(Watch {
            shared: shared.clone(),
            principal: principal.to_owned(),
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut watches = self.shared.watches.lock().expect("no panic while held");
        if let Some(there) = watches.get_mut(&self.principal) {
            *there -= 1;
            if *there == 0 {
                watches.remove(&self.principal);
            }
        }
    }
}

/// Flight's calls.
#[derive(Debug)]
pub(super) struct FlightApi(pub(super) Arc<Shared>);

impl FlightApi {
    /// The caller, if it has the role.
    fn caller<T>(&self, call: &Call<T>, role: Role) -> Result<Caller, Status> {
        let caller: &Caller = call.extensions().get().expect("set by the authentication");
        if !caller.grant.allows(role) {
            let role = match role {
                Role::Read => "read queries",
                Role::Place => "place or cancel queries and alerts",
                Role::Act => "place alerts that act",
                Role::Agent => "join as an agent",
            };
            let why = format!(
                "`{}` is not permitted to {role}",
                caller.grant.principal.name
            );
            self.0.refused(&caller.connection, Count::Forbidden, &why);
            return Err(Status::permission_denied(why));
        }
        caller.connection.mark_granted();
        Ok(caller.clone())
    }

    /// Sends a request to the monitor and waits for the reply.
    async fn request(
        &self,
        caller: &Caller,
        request: ClientRequest,
    ) -> Result<ClientReply, Status> {
        let ending = || Status::unavailable("the monitor is shutting down");
        let (reply, answer) = oneshot::channel::<Result<ClientReply, Refusal>>();
        let event = ServerEvent::Request {
            who: caller.grant.principal.clone(),
            request,
            reply: ReplySender(reply),
        };
        self.0.events.send(event).await.map_err(|_| ending())?;
        let answer = answer.await.map_err(|_| ending())?;
        answer.map_err(requests::status)
    }

    /// Counts a request that is malformed.
    fn read<T>(&self, read: Result<T, Status>) -> Result<T, Status> {
        read.inspect_err(|_| self.0.counters.add(Count::Malformed, 1))
    }

    /// The name and columns of a query: a running one, or one that is submitted now.
    async fn query(&self, call: &Call<FlightDescriptor>) -> Result<(String, SchemaRef), Status> {
        let (caller, request) = match self.read(requests::query_reference(call.get_ref()))? {
            QueryReference::New(submit) => (
                self.caller(call, Role::Place)?,
                ClientRequest::Submit(submit),
            ),
            QueryReference::Named(query) => (
                self.caller(call, Role::Read)?,
                ClientRequest::Watch { query },
            ),
        };
        match self.request(&caller, request).await? {
            ClientReply::Query { name, schema, .. } => Ok((name, schema)),
            ClientReply::Json(_) => Err(Status::internal("the monitor returned no columns")),
        }
    }
}

/// The flight of a query: its name, on this connection.
fn flight_info(name: &str) -> FlightInfo {
    FlightInfo::new()
        .with_descriptor(FlightDescriptor::new_path(vec![name.to_owned()]))
        .with_endpoint(FlightEndpoint::new().with_ticket(Ticket::new(name.to_owned())))
        .with_ordered(true)
}

fn broken(error: arrow_schema::ArrowError) -> Status {
    Status::internal(format!("the rows cannot be encoded: {error}"))
}

/// Sends updates until the query ends, the client stops reading, or the watcher is disconnected.
async fn show(
    shared: Arc<Shared>,
    caller: Caller,
    schema: SchemaRef,
    mut results: mpsc::Receiver<ResultUpdate>,
    out: mpsc::Sender<Result<FlightData, Status>>,
) {
    let mut encoder = Encoder::new(schema);
    let first = encoder.schema();
    let sending = async {
        if out.send(Ok(first)).await.is_err() {
            return;
        }
        while let Some(shown) = results.recv().await {
            let messages = match encoder.shown(&shown) {
                Ok(messages) => messages,
                Err(error) => {
                    // A client that no longer reads gets no reason.
                    let _ = out.send(Err(broken(error))).await;
                    return;
                }
            };
            for message in messages {
                if out.send(Ok(message)).await.is_err() {
                    return;
                }
            }
        }
    };
    tokio::select! {
        () = sending => {}
        () = out.closed() => {}
        status = shared.revoked(&caller, Role::Read) => {
            // A watcher that does not read is disconnected without the reason.
            let _ = out.try_send(Err(status));
        }
    }
}

#[tonic::async_trait]
impl FlightService for FlightApi {
    type HandshakeStream = ListStream<HandshakeResponse>;
    type ListFlightsStream = ListStream<FlightInfo>;
    type DoGetStream = Sent<FlightData>;
    type DoPutStream = ListStream<PutResult>;
    type DoExchangeStream = Sent<FlightData>;
    type DoActionStream = ListStream<arrow_flight::Result>;
    type ListActionsStream = ListStream<ActionType>;

    async fn handshake(
        &self,
        _: Call<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        Err(Status::unimplemented(
            "Handshake is not supported; authenticate each call with header `authorization: \
             Bearer TOKEN`, or with a certificate",
        ))
    }

    async fn list_flights(
        &self,
        call: Call<Criteria>,
    ) -> Result<Response<Self::ListFlightsStream>, Status> {
        let caller = self.caller(&call, Role::Read)?;
        let ClientReply::Json(serde_json::Value::Array(queries)) =
            self.request(&caller, ClientRequest::Queries).await?
        else {
            return Err(Status::internal("the monitor returned no list"));
        };
        let flights: Vec<_> = queries
            .iter()
            .filter_map(|query| {
                let name = query.get("name")?.as_str()?;
                Some(Ok(flight_info(name).with_app_metadata(query.to_string())))
            })
            .collect();
        Ok(Response::new(tokio_stream::iter(flights)))
    }

    async fn get_flight_info(
        &self,
        call: Call<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        let (name, schema) = self.query(&call).await?;
        let mut flight = flight_info(&name).with_app_metadata(json!({ "query": name }).to_string());
        flight.schema = schema_bytes(&schema).map_err(broken)?;
        Ok(Response::new(flight))
    }

    async fn poll_flight_info(
        &self,
        _: Call<FlightDescriptor>,
    ) -> Result<Response<PollInfo>, Status> {
        Err(Status::unimplemented(
            "queries are not polled: submit with GetFlightInfo and read the results with DoGet",
        ))
    }

    async fn get_schema(
        &self,
        call: Call<FlightDescriptor>,
    ) -> Result<Response<SchemaResult>, Status> {
        let (_, schema) = self.query(&call).await?;
        let schema = schema_bytes(&schema).map_err(broken)?;
        Ok(Response::new(SchemaResult { schema }))
    }

    async fn do_get(&self, call: Call<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        let caller = self.caller(&call, Role::Read)?;
        let request = self.read(requests::watched(call.get_ref()))?;
        let watch = Watch::begin(&self.0, &caller.grant.principal.name)?;
        let (schema, results) = match self.request(&caller, request).await? {
            ClientReply::Query {
                schema,
                results: Some(results),
                ..
            } => (schema, results),
            _ => return Err(Status::internal("the monitor returned no results")),
        };
        let (out, sent) = mpsc::channel(MESSAGES_WAITING_MAX);
        let (shared, busy) = (self.0.clone(), ActiveRequest::new(&caller.connection));
        tokio::spawn(async move {
            show(shared, caller, schema, results, out).await;
            drop((watch, busy));
        });
        Ok(Response::new(ReceiverStream::new(sent)))
    }

    async fn do_put(
        &self,
        _: Call<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoPutStream>, Status> {
        Err(Status::unimplemented(
            "DoPut is not supported; rows come from agents (`weir agent`), through DoExchange",
        ))
    }

    async fn do_exchange(
        &self,
        call: Call<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoExchangeStream>, Status> {
        let caller: Caller = call
            .extensions()
            .get()
            .cloned()
            .expect("set by the authentication");
        if !caller.grant.allows(Role::Agent) {
            self.caller(&call, Role::Agent)?;
        }
        let (down, sent) = mpsc::channel(super::limits::ORDERS_WAITING_MAX);
        let (shared, busy) = (self.0.clone(), ActiveRequest::new(&caller.connection));
        tokio::spawn(async move {
            session::serve(shared, caller, call.into_inner(), down).await;
            drop(busy);
        });
        Ok(Response::new(ReceiverStream::new(sent)))
    }

    async fn do_action(
        &self,
        call: Call<Action>,
    ) -> Result<Response<Self::DoActionStream>, Status> {
        let request = self.read(requests::action(call.get_ref()))?;
        let caller = self.caller(&call, requests::role(&request))?;
        let body = match self.request(&caller, request).await? {
            ClientReply::Json(value) => value,
            ClientReply::Query { name, .. } => json!({ "query": name }),
        };
        let result = arrow_flight::Result::new(body.to_string());
        Ok(Response::new(tokio_stream::iter(vec![Ok(result)])))
    }

    async fn list_actions(
        &self,
        call: Call<Empty>,
    ) -> Result<Response<Self::ListActionsStream>, Status> {
        self.caller(&call, Role::Read)?;
        let actions: Vec<_> = ACTIONS
            .iter()
            .map(|(name, description)| {
                Ok(ActionType {
                    r#type: (*name).to_owned(),
                    description: (*description).to_owned(),
                })
            })
            .collect();
        Ok(Response::new(tokio_stream::iter(actions)))
    }
}
