//! A monitor that sends whatever a test wants, including invalid messages.
#![allow(dead_code)] // Each test file uses its own part of this.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo,
    HandshakeRequest, HandshakeResponse, PollInfo, PutResult, SchemaResult, Ticket,
};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

/// What the monitor does.
#[derive(Clone, Debug)]
pub struct Script {
    /// The messages that it sends.
    pub messages: Vec<FlightData>,
    /// Whether it repeats the last message forever.
    pub is_endless: bool,
    /// Whether it reads what the agent sends.
    pub reads: bool,
    /// Whether it keeps the connection open after the last message.
    pub holds: bool,
}

impl Script {
    /// Sends `messages`, then reads and keeps the connection open.
    pub fn sends(messages: Vec<FlightData>) -> Script {
        Script {
            messages,
            is_endless: false,
            reads: true,
            holds: true,
        }
    }
}

/// The monitor. It stops when this is dropped.
pub struct ScriptedMonitor {
    pub address: SocketAddr,
    /// Messages that it has read.
    pub read: Arc<AtomicU64>,
    runtime: Option<Runtime>,
}

impl ScriptedMonitor {
    pub fn new(script: Script) -> ScriptedMonitor {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime
            .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
            .unwrap();
        let address = listener.local_addr().unwrap();
        let read = Arc::new(AtomicU64::new(0));
        let service = Service {
            script,
            read: read.clone(),
        };
        let service = FlightServiceServer::new(service).max_decoding_message_size(64 << 20);
        let server = tonic::transport::Server::builder().add_service(service);
        runtime.spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        ScriptedMonitor {
            address,
            read,
            runtime: Some(runtime),
        }
    }
}

impl Drop for ScriptedMonitor {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(1));
        }
    }
}

struct Service {
    script: Script,
    read: Arc<AtomicU64>,
}

type Replies<T> = ReceiverStream<Result<T, Status>>;

fn unimplemented<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("not here"))
}

#[tonic::async_trait]
impl FlightService for Service {
    type HandshakeStream = Replies<HandshakeResponse>;
    type ListFlightsStream = Replies<FlightInfo>;
    type DoGetStream = Replies<FlightData>;
    type DoPutStream = Replies<PutResult>;
    type DoExchangeStream = Replies<FlightData>;
    type DoActionStream = Replies<arrow_flight::Result>;
    type ListActionsStream = Replies<ActionType>;

    async fn do_exchange(
        &self,
        call: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoExchangeStream>, Status> {
        let (down, sent) = mpsc::channel(4);
        let (script, read) = (self.script.clone(), self.read.clone());
        let mut up = call.into_inner();
        tokio::spawn(async move {
            // Kept open even if it is not read.
            let reading = async {
                while script.reads && up.message().await.is_ok_and(|message| message.is_some()) {
                    read.fetch_add(1, Ordering::Relaxed);
                }
                std::future::pending::<()>().await
            };
            let sending = async {
                for data in &script.messages {
                    if down.send(Ok(data.clone())).await.is_err() {
                        return;
                    }
                }
                if script.is_endless {
                    let last = script.messages.last().expect("a script has a message");
                    while down.send(Ok(last.clone())).await.is_ok() {}
                }
                if script.holds {
                    down.closed().await;
                }
            };
            tokio::select! {
                () = reading => {}
                () = sending => {}
            }
        });
        Ok(Response::new(ReceiverStream::new(sent)))
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
