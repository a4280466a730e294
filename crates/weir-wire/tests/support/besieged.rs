//! A server that is attacked while a good agent and a good client must be served.
#![allow(dead_code)] // Each test file uses its own part of this.

use std::net::{SocketAddr, TcpStream};

use weir_wire::event::Submit;
use weir_wire::message::AgentSays;
use weir_wire::{Client, Dial, Seen, ServerOptions};

use super::agent::Agent;
use super::{Monitor, PATIENCE, until};

/// A server with an agent that was there before and stays.
pub struct Besieged {
    pub monitor: Monitor,
    agent: Agent,
    pub dial: Dial,
    reached: i64,
}

impl Besieged {
    pub fn new(change: impl FnOnce(&mut ServerOptions)) -> Besieged {
        let monitor = Monitor::local(change);
        let dial = monitor.dial();
        Besieged::with(monitor, dial)
    }

    pub fn with(monitor: Monitor, dial: Dial) -> Besieged {
        let agent = Agent::join(&dial, "good").unwrap();
        Besieged {
            monitor,
            agent,
            dial,
            reached: 1_000_000,
        }
    }

    pub fn address(&self) -> SocketAddr {
        let address = self.monitor.server.address().to_string();
        address.parse().unwrap()
    }

    pub fn tcp(&self) -> TcpStream {
        let tcp = TcpStream::connect(self.address()).unwrap();
        tcp.set_read_timeout(Some(PATIENCE)).unwrap();
        tcp
    }

    /// The agent is heard and a client that comes now is answered.
    pub fn serves(&mut self) {
        self.reached += 1;
        self.agent.says_numbered(AgentSays::Reached(self.reached));
        let said = format!("Reached({})", self.reached);
        until("the agent is heard", || self.monitor.has_heard(&said));
        let mut client = Client::connect(self.dial.clone()).unwrap();
        let submit = Submit {
            query: "select * from IO".to_owned(),
            ..Submit::default()
        };
        client.submit(&submit).unwrap();
        let mut watch = client.watch("q").unwrap();
        assert!(matches!(watch.next(PATIENCE).unwrap(), Seen::Shown(_)));
    }

    /// When the agent has gone too, nothing remains.
    pub fn nothing_remains(mut self) {
        self.serves();
        drop(self.agent);
        let server = &self.monitor.server;
        until("no connection is left", || server.connections() == 0);
        until("no task is left", || server.tasks() == 0);
    }
}
