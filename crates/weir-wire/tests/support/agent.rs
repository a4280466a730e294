//! An agent in a few lines, which says what a test wants, also what none should.
#![allow(dead_code)] // Each test file uses its own part of this.

use arrow_flight::FlightData;
use arrow_flight::flight_service_client::FlightServiceClient;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming};
use weir_wire::message::{AgentSays, Up};
use weir_wire::{Dial, Hello};

use super::PATIENCE;

/// An exchange with a server.
pub struct Agent {
    runtime: Runtime,
    pub up: mpsc::Sender<FlightData>,
    down: Streaming<FlightData>,
    number: u64,
}

impl Agent {
    /// Dials and begins with `first`; the answer to it is not waited for.
    pub fn dial(dial: &Dial, first: FlightData) -> Result<Agent, Status> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (up, words) = mpsc::channel(16);
        up.try_send(first).unwrap();
        let mut call = Request::new(ReceiverStream::new(words));
        if let Some(token) = &dial.token {
            let header = format!("Bearer {token}").parse().unwrap();
            call.metadata_mut().insert("authorization", header);
        }
        let down = runtime.block_on(async {
            let channel = dial.connect().await.expect("somebody listens");
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

    /// As host `host`, welcomed.
    pub fn join(dial: &Dial, host: &str) -> Result<Agent, Status> {
        let mut agent = Agent::dial(dial, hello(host))?;
        agent.hear()?;
        agent.says(AgentSays::Resume(1));
        Ok(agent)
    }

    /// What the monitor says next; the end of the exchange is an error.
    pub fn hear(&mut self) -> Result<FlightData, Status> {
        let down = &mut self.down;
        let heard = self
            .runtime
            .block_on(async { tokio::time::timeout(PATIENCE, down.message()).await });
        let heard = heard.expect("the monitor answers in time")?;
        heard.ok_or_else(|| Status::cancelled("the monitor ended the exchange"))
    }

    /// Why the exchange ends.
    pub fn ended(&mut self) -> Status {
        loop {
            if let Err(status) = self.hear() {
                return status;
            }
        }
    }

    /// Says something without a number.
    pub fn says(&self, says: AgentSays) {
        self.send(Up::data(says));
    }

    /// Says a numbered word.
    pub fn says_numbered(&mut self, says: AgentSays) {
        self.number += 1;
        self.send(numbered(self.number, says));
    }

    pub fn send(&self, data: FlightData) {
        // The monitor may have ended the exchange, which is then what the test looks at.
        let _ = self.up.blocking_send(data);
    }
}

/// The first word of an agent.
pub fn hello(host: &str) -> FlightData {
    let hello = Hello {
        host: host.to_owned(),
        instance: 7,
        version: "weir 0.1.0".to_owned(),
        ..Hello::default()
    };
    Up::hello(&hello).unwrap()
}

/// A word with its number.
pub fn numbered(number: u64, says: AgentSays) -> FlightData {
    use prost::Message;
    let up = Up {
        number,
        says: Some(says),
    };
    FlightData {
        app_metadata: up.encode_to_vec().into(),
        ..FlightData::default()
    }
}
