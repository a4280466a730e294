//! A server under attack that must keep serving a well-behaved agent and client.
#![allow(dead_code)] // Each test file uses its own part of this.

use std::net::{SocketAddr, TcpStream};

use weir_wire::event::Submit;
use weir_wire::message::AgentBody;
use weir_wire::{Client, Dial, ServerOptions, WatchEvent};

use super::agent::Agent;
use super::{Monitor, WAIT_MAX, until};

/// A server with an agent that joined before the attack and stays connected.
pub struct AttackedServer {
    pub monitor: Monitor,
    agent: Agent,
    pub dial: Dial,
    watermark: i64,
}

impl AttackedServer {
    pub fn new(change: impl FnOnce(&mut ServerOptions)) -> AttackedServer {
        let monitor = Monitor::local(change);
        let dial = monitor.dial();
        AttackedServer::with(monitor, dial)
    }

    pub fn with(monitor: Monitor, dial: Dial) -> AttackedServer {
        let agent = Agent::join(&dial, "good").unwrap();
        AttackedServer {
            monitor,
            agent,
            dial,
            watermark: 1_000_000,
        }
    }

    pub fn address(&self) -> SocketAddr {
        let address = self.monitor.server.address().to_string();
        address.parse().unwrap()
    }

    pub fn tcp(&self) -> TcpStream {
        let tcp = TcpStream::connect(self.address()).unwrap();
        tcp.set_read_timeout(Some(WAIT_MAX)).unwrap();
        tcp
    }

    /// The agent's message arrives and a new client gets an answer.
    pub fn serves(&mut self) {
        self.watermark += 1;
        self.agent
            .send_numbered(AgentBody::Watermark(self.watermark));
        let message = format!("Watermark({})", self.watermark);
        until("the message of the agent arrives", || {
            self.monitor.has_received(&message)
        });
        let mut client = Client::connect(self.dial.clone()).unwrap();
        let submit = Submit {
            query: "select * from IO".to_owned(),
            ..Submit::default()
        };
        client.submit(&submit).unwrap();
        let mut watch = client.watch("q").unwrap();
        assert!(matches!(
            watch.next(WAIT_MAX).unwrap(),
            WatchEvent::Update(_)
        ));
    }

    /// After the agent has disconnected too, no connection and no task is left.
    pub fn nothing_remains(mut self) {
        self.serves();
        drop(self.agent);
        let server = &self.monitor.server;
        until("no connection is left", || server.connections() == 0);
        until("no task is left", || server.tasks() == 0);
    }
}
