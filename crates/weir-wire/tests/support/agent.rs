//! A minimal agent that sends whatever a test wants, including invalid messages.
#![allow(dead_code)] // Each test file uses its own part of this.

use arrow_flight::FlightData;
use arrow_flight::flight_service_client::FlightServiceClient;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming};
use weir_wire::message::{AgentBody, FromAgent};
use weir_wire::{Dial, Hello};

use super::WAIT_MAX;

/// An exchange with a server.
pub struct Agent {
    runtime: Runtime,
    pub up: mpsc::Sender<FlightData>,
    down: Streaming<FlightData>,
    number: u64,
}

impl Agent {
    /// Connects and sends `first`, without waiting for a reply.
    pub fn dial(dial: &Dial, first: FlightData) -> Result<Agent, Status> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (up, messages) = mpsc::channel(16);
        up.try_send(first).unwrap();
        let mut call = Request::new(ReceiverStream::new(messages));
        if let Some(token) = &dial.token {
            let header = format!("Bearer {token}").parse().unwrap();
            call.metadata_mut().insert("authorization", header);
        }
        let down = runtime.block_on(async {
            let channel = dial.connect().await.expect("a server listens");
            let mut flight = FlightServiceClient::new(channel);
            flight.do_exchange(call).await
        })?;
        Ok(Agent {
            runtime,
            up,
            down: down.into_inner(),
            number: 0,
        })
    }

    /// Joins as host `host` and reads the welcome.
    pub fn join(dial: &Dial, host: &str) -> Result<Agent, Status> {
        let mut agent = Agent::dial(dial, hello(host))?;
        agent.receive()?;
        agent.send(AgentBody::Resume(1));
        Ok(agent)
    }

    /// The next message of the monitor; the end of the exchange is an error.
    pub fn receive(&mut self) -> Result<FlightData, Status> {
        let down = &mut self.down;
        let received = self
            .runtime
            .block_on(async { tokio::time::timeout(WAIT_MAX, down.message()).await });
        let received = received.expect("the monitor answers in time")?;
        received.ok_or_else(|| Status::cancelled("the monitor ended the exchange"))
    }

    /// Why the exchange ends.
    pub fn ended(&mut self) -> Status {
        loop {
            if let Err(status) = self.receive() {
                return status;
            }
        }
    }

    /// Sends a message without a number.
    pub fn send(&self, body: AgentBody) {
        self.send_data(FromAgent::data(body));
    }

    /// Sends a numbered message.
    pub fn send_numbered(&mut self, body: AgentBody) {
        self.number += 1;
        self.send_data(numbered(self.number, body));
    }

    pub fn send_data(&self, data: FlightData) {
        // The monitor may have ended the exchange; the test checks that.
        let _ = self.up.blocking_send(data);
    }
}

/// The first message of an agent.
pub fn hello(host: &str) -> FlightData {
    let hello = Hello {
        host: host.to_owned(),
        instance: 7,
        program: "weir 0.1.0".to_owned(),
        ..Hello::default()
    };
    FromAgent::hello(hello).unwrap()
}

/// A message with its number.
pub fn numbered(number: u64, body: AgentBody) -> FlightData {
    use prost::Message;
    let up = FromAgent {
        number,
        body: Some(body),
    };
    FlightData {
        app_metadata: up.encode_to_vec().into(),
        ..FlightData::default()
    }
}
