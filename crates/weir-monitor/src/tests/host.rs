//! An agent for tests: the agent's core, and a replacement for the uplink without a network.

use weir_model::{Batch, Nanos, Shape};
use weir_query::engine::EngineOptions;
use weir_query::plan::wire;
use weir_wire::{AgentMessage, ChannelId, EarlierProcess, MonitorMessage};

use super::fleet::{Fleet, Link, catalog};
use weir_agent::AgentCore;

/// A host with an agent that reads stream `S`.
pub struct Host {
    pub name: String,
    pub instance: u64,
    pub link: Option<Link>,
    /// The tallies of earlier processes.
    pub earlier: Vec<EarlierProcess>,
    core: AgentCore,
    /// The messages that it has sent; the first one is number 1.
    sent: Vec<AgentMessage>,
    delivered: usize,
    safe: u64,
    /// The channels of relations that it was ordered to start.
    relations: Vec<ChannelId>,
    /// The next rows are dropped, as if the outbox was full.
    loses_rows: bool,
}

impl Host {
    pub fn new(name: &str, instance: u64) -> Host {
        Host {
            name: name.into(),
            instance,
            link: None,
            earlier: Vec::new(),
            core: AgentCore::new(EngineOptions::default()),
            sent: Vec::new(),
            delivered: 0,
            safe: 0,
            relations: Vec::new(),
            loses_rows: false,
        }
    }

    /// Connects.
    pub fn join(&mut self, fleet: &mut Fleet) {
        let link = fleet.join_after(&self.name, self.instance, self.earlier.clone());
        let Ok(welcome) = &link.welcome else {
            return;
        };
        assert!(
            welcome.acked >= self.safe,
            "what is safe is not wanted again"
        );
        assert!(welcome.acked <= self.sent.len() as u64);
        self.delivered = welcome.acked as usize;
        let channels: Vec<_> = self.core.tallies().map(|t| t.channel).collect();
        for channel in channels {
            if !welcome.channels.contains(&channel) {
                self.core.stop(ChannelId(channel));
            }
        }
        self.link = Some(link);
    }

    /// Closes the connection.
    pub fn leave(&mut self, fleet: &mut Fleet) {
        if let Some(link) = self.link.take() {
            fleet.leave(&link);
        }
    }

    /// Adds rows of another source, to be processed after the pending orders.
    pub fn push(&mut self, source: &str, batch: Batch) {
        self.core.push(source, batch);
    }

    /// Applies its orders, and sends the results of its fragments for `batch`, up to `at`.
    pub fn live(&mut self, batch: Option<Batch>, at: Nanos) {
        for word in self.link.as_mut().map(Link::received).unwrap_or_default() {
            match word {
                MonitorMessage::Start(start) => {
                    let plan = wire::decode(&start.fragment, &catalog()).expect("a sound fragment");
                    let channel = ChannelId(start.channel);
                    self.core.start(channel, &plan);
                    if plan.shape == Shape::Relation {
                        self.relations.push(channel);
                    }
                }
                MonitorMessage::Stop(channel) => self.core.stop(ChannelId(channel)),
                MonitorMessage::Ack(number) => self.safe = number,
                _ => {}
            }
        }
        if let Some(batch) = batch {
            self.core.push("S", batch);
        }
        self.core.reached(at);
        let (sent, loses_rows) = (&mut self.sent, &mut self.loses_rows);
        self.core.step(&mut |word| match word {
            AgentMessage::Rows { channel, batch } if *loses_rows => {
                *loses_rows = false;
                let requests = batch.len() as u64;
                sent.push(AgentMessage::lost(channel, requests, "spool_full"));
            }
            word => sent.push(word),
        });
    }

    /// Drops the next rows.
    pub fn lose_next_rows(&mut self) {
        self.loses_rows = true;
    }

    /// Reports that its fragments of relations have failed.
    pub fn fail_relations(&mut self) {
        for channel in std::mem::take(&mut self.relations) {
            self.core.stop(channel);
            self.sent.push(AgentMessage::failed(channel, "test".into()));
        }
    }

    /// Sends the content of its relations again.
    pub fn resend(&mut self) {
        let channels: Vec<u64> = self.core.tallies().map(|t| t.channel).collect();
        for channel in channels {
            self.core.resend(ChannelId(channel));
        }
    }

    /// Ends at `at`: sends its remaining state.
    pub fn end(&mut self, at: Nanos) {
        let sent = &mut self.sent;
        self.core.end(at, &mut |word| sent.push(word));
        sent.push(AgentMessage::Watermark(Nanos::MAX));
    }

    /// Delivers this number of waiting messages.
    pub fn deliver(&mut self, words: usize, fleet: &mut Fleet) {
        let Some(link) = &self.link else {
            return;
        };
        let upto = (self.delivered + words).min(self.sent.len());
        for at in self.delivered..upto {
            fleet.send_as(link.session, at as u64 + 1, self.sent[at].clone());
        }
        self.delivered = upto;
    }

    /// The outcome of its rows, as the next process reads it from the file.
    pub fn tallies(&self) -> EarlierProcess {
        EarlierProcess {
            instance: self.instance,
            tallies: self.core.tallies().collect(),
        }
    }
}
