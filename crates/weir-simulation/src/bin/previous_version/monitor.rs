//! The monitor: it lets an agent run a fragment, closes the connection once, and counts the rows
//! that arrive until the agent ends.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo,
    HandshakeRequest, HandshakeResponse, PollInfo, PutResult, SchemaResult, Ticket,
};
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, mpsc};
use tokio::time::timeout;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

use crate::proto::from_agent::Body;
use crate::proto::from_monitor::Body as Order;
use crate::proto::{FromAgent, FromMonitor, Pong, StartChannel, Welcome};
use crate::{WAIT_MAX, data, now, version};

/// The channel of the fragment.
const CHANNEL: u64 = 1;
/// After this number of messages the first connection is closed, and the last ones are not
/// acknowledged.
const CLOSED_AFTER: u64 = 20;
const UNACKED: u64 = 5;

/// What was received, over all connections.
#[derive(Default)]
struct Received {
    version: (u32, u32),
    connections: u64,
    /// The number of the last message.
    number: u64,
    /// The rows of numbered messages, each number once.
    rows: u64,
    repeated: u64,
    watermark: i64,
    unknown: u64,
}

type Out = mpsc::Sender<Result<FlightData, Status>>;

struct Monitor {
    fragment: Vec<u8>,
    received: Arc<Mutex<Received>>,
    ended: mpsc::Sender<()>,
}

/// Serves agents until one has ended. The first line of the output is the address.
pub async fn run(fragment: Vec<u8>) -> Result<String, String> {
    let listener = TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.map_err(|e| e.to_string())?;
    println!("{}", listener.local_addr().map_err(|e| e.to_string())?);
    let received = Arc::<Mutex<Received>>::default();
    let (ended, mut has_ended) = mpsc::channel(1);
    let monitor = Monitor {
        fragment,
        received: received.clone(),
        ended,
    };
    let server = tonic::transport::Server::builder()
        .add_service(FlightServiceServer::new(monitor))
        .serve_with_incoming(TcpListenerStream::new(listener));
    tokio::select! {
        served = server => return Err(format!("{served:?}")),
        end = timeout(WAIT_MAX, has_ended.recv()) => end.map_err(|_| "no agent ends")?,
    };
    let received = received.lock().await;
    Ok(format!(
        "{{\"agent\": \"{}.{}\", \"connections\": {}, \"rows\": {}, \"repeated\": {}, \
         \"unknown\": {}}}",
        received.version.0,
        received.version.1,
        received.connections,
        received.rows,
        received.repeated,
        received.unknown
    ))
}

/// One connection of an agent.
async fn serve(
    mut messages: Streaming<FlightData>,
    out: Out,
    fragment: Vec<u8>,
    received: Arc<Mutex<Received>>,
    ended: mpsc::Sender<()>,
) -> Result<(), Status> {
    let mut orders = VecDeque::new();
    let mut is_first = false;
    loop {
        for order in orders.drain(..) {
            let message = FromMonitor { body: Some(order) };
            let sent = out.send(Ok(data(&message))).await;
            sent.map_err(|_| Status::cancelled("the agent is gone"))?;
        }
        let next = messages.message().await?;
        let bytes = next
            .ok_or_else(|| Status::cancelled("the agent ended the connection"))?
            .app_metadata;
        let message = FromAgent::decode(bytes.clone());
        let message = message.map_err(|e| Status::invalid_argument(e.to_string()))?;
        let mut received = received.lock().await;
        let is_hello = matches!(message.body, Some(Body::Hello(_)));
        // The hello states the newer version itself.
        received.unknown += u64::from(message.encoded_len() != bytes.len() && !is_hello);
        if message.number > 0 {
            if message.number <= received.number {
                received.repeated += 1;
                continue;
            }
            if message.number != received.number + 1 {
                return Err(Status::invalid_argument("a message is missing"));
            }
            received.number = message.number;
            orders.push_back(Order::Ack(message.number.saturating_sub(UNACKED)));
        }
        match message.body {
            Some(Body::Hello(hello)) => {
                received.version = (hello.version_major, hello.version_minor);
                received.connections += 1;
                is_first = received.connections == 1;
                let (version_major, version_minor) = version();
                orders.push_back(Order::Welcome(Welcome {
                    version_major,
                    version_minor,
                    monitor: 1,
                    acked: received.number.saturating_sub(UNACKED),
                    channels: vec![CHANNEL],
                    heartbeat_interval_ns: 20_000_000,
                }));
                orders.push_back(Order::Start(StartChannel {
                    channel: CHANNEL,
                    fragment: fragment.clone(),
                }));
            }
            Some(Body::Ping(ping)) => orders.push_back(Order::Pong(Pong {
                origin_ns: ping.origin_ns,
                receive_ns: now(),
                transmit_ns: now(),
            })),
            Some(Body::Rows(rows)) => received.rows += u64::from(rows.rows),
            Some(Body::Watermark(at_ns)) => {
                if at_ns <= received.watermark {
                    return Err(Status::invalid_argument("a watermark goes back"));
                }
                received.watermark = at_ns;
                if at_ns == i64::MAX {
                    let ack = FromMonitor {
                        body: Some(Order::Ack(received.number)),
                    };
                    let _ = out.send(Ok(data(&ack))).await;
                    let _ = ended.send(()).await;
                }
            }
            Some(Body::Failed(failed)) => return Err(Status::internal(failed.why)),
            _ => {}
        }
        if is_first && received.number >= CLOSED_AFTER {
            return Err(Status::unavailable("the connection is closed once"));
        }
    }
}

type Replies<T> = ReceiverStream<Result<T, Status>>;

fn unimplemented<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("agents only"))
}

#[tonic::async_trait]
impl FlightService for Monitor {
    type HandshakeStream = Replies<HandshakeResponse>;
    type ListFlightsStream = Replies<FlightInfo>;
    type DoGetStream = Replies<FlightData>;
    type DoPutStream = Replies<PutResult>;
    type DoActionStream = Replies<arrow_flight::Result>;
    type ListActionsStream = Replies<ActionType>;
    type DoExchangeStream = Replies<FlightData>;

    async fn do_exchange(
        &self,
        request: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoExchangeStream>, Status> {
        let (out, replies) = mpsc::channel(64);
        let (fragment, received) = (self.fragment.clone(), self.received.clone());
        let ended = self.ended.clone();
        tokio::spawn(async move {
            let messages = request.into_inner();
            if let Err(status) = serve(messages, out.clone(), fragment, received, ended).await {
                let _ = out.send(Err(status)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(replies)))
    }

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        unimplemented()
    }

    async fn list_flights(
        &self,
        _: Request<Criteria>,
    ) -> Result<Response<Self::ListFlightsStream>, Status> {
        unimplemented()
    }

    async fn get_flight_info(
        &self,
        _: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        unimplemented()
    }

    async fn poll_flight_info(
        &self,
        _: Request<FlightDescriptor>,
    ) -> Result<Response<PollInfo>, Status> {
        unimplemented()
    }

    async fn get_schema(
        &self,
        _: Request<FlightDescriptor>,
    ) -> Result<Response<SchemaResult>, Status> {
        unimplemented()
    }

    async fn do_get(&self, _: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        unimplemented()
    }

    async fn do_put(
        &self,
        _: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoPutStream>, Status> {
        unimplemented()
    }

    async fn do_action(
        &self,
        _: Request<Action>,
    ) -> Result<Response<Self::DoActionStream>, Status> {
        unimplemented()
    }

    async fn list_actions(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Self::ListActionsStream>, Status> {
        unimplemented()
    }
}
