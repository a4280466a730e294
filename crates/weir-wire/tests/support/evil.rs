//! A monitor that says what a test wants and what none should.
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

/// What it does.
#[derive(Clone, Debug)]
pub struct Script {
    /// What it says.
    pub says: Vec<FlightData>,
    /// Whether it says the last of that again and again.
    pub is_endless: bool,
    /// Whether it reads what the agent says.
    pub reads: bool,
    /// Whether it keeps the connection when all is said.
    pub holds: bool,
}

impl Script {
    /// Says this, then reads and holds the connection.
    pub fn says(says: Vec<FlightData>) -> Script {
        Script {
            says,
            is_endless: false,
            reads: true,
            holds: true,
        }
    }
}

/// The monitor. It ends when this is dropped.
pub struct Evil {
    pub address: SocketAddr,
    /// Messages that it has read.
    pub read: Arc<AtomicU64>,
    runtime: Option<Runtime>,
}

impl Evil {
    pub fn new(script: Script) -> Evil {
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
        Evil {
            address,
            read,
            runtime: Some(runtime),
        }
    }
}

impl Drop for Evil {
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

type Answers<T> = ReceiverStream<Result<T, Status>>;

fn no<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("not here"))
}

#[tonic::async_trait]
impl FlightService for Service {
    type HandshakeStream = Answers<HandshakeResponse>;
    type ListFlightsStream = Answers<FlightInfo>;
    type DoGetStream = Answers<FlightData>;
    type DoPutStream = Answers<PutResult>;
    type DoExchangeStream = Answers<FlightData>;
    type DoActionStream = Answers<arrow_flight::Result>;
    type ListActionsStream = Answers<ActionType>;

    async fn do_exchange(
        &self,
        call: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoExchangeStream>, Status> {
        let (down, sent) = mpsc::channel(4);
        let (script, read) = (self.script.clone(), self.read.clone());
        let mut words = call.into_inner();
        tokio::spawn(async move {
            // Kept open also where it is not read.
            let reading = async {
                while script.reads && words.message().await.is_ok_and(|word| word.is_some()) {
                    read.fetch_add(1, Ordering::Relaxed);
                }
                std::future::pending::<()>().await
            };
            let saying = async {
                for data in &script.says {
                    if down.send(Ok(data.clone())).await.is_err() {
                        return;
                    }
                }
                if script.is_endless {
                    let last = script.says.last().expect("it says something");
                    while down.send(Ok(last.clone())).await.is_ok() {}
                }
                if script.holds {
                    down.closed().await;
                }
            };
            tokio::select! {
                () = reading => {}
                () = saying => {}
            }
        });
        Ok(Response::new(ReceiverStream::new(sent)))
    }

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        no()
    }

    async fn list_flights(
        &self,
        _: Request<Criteria>,
    ) -> Result<Response<Self::ListFlightsStream>, Status> {
        no()
    }

    async fn get_flight_info(
        &self,
        _: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        no()
    }

    async fn poll_flight_info(
        &self,
        _: Request<FlightDescriptor>,
    ) -> Result<Response<PollInfo>, Status> {
        no()
    }

    async fn get_schema(
        &self,
        _: Request<FlightDescriptor>,
    ) -> Result<Response<SchemaResult>, Status> {
        no()
    }

    async fn do_get(&self, _: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        no()
    }

    async fn do_put(
        &self,
        _: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoPutStream>, Status> {
        no()
    }

    async fn do_action(
        &self,
        _: Request<Action>,
    ) -> Result<Response<Self::DoActionStream>, Status> {
        no()
    }

    async fn list_actions(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Self::ListActionsStream>, Status> {
        no()
    }
}
