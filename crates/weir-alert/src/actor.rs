//! [`Actor`]: the connection to the process that carries out the actions of alerts
//! ([`weir_act::service`]), from the one that evaluates them and has dropped its privileges.
//!
//! When this process ends for whatever reason, the other one receives the end of its input, undoes
//! what lasts, and ends.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value as Json;
use weir_act::service::ActMessage;

use crate::event::{AlertEvent, AlertKey};
use crate::instances::RuleRun;
use crate::machine::AlertState;

/// How long the end of a run waits until everything is undone.
const CLOSE_WITHIN: Duration = Duration::from_secs(20);

/// See the module's documentation.
pub struct Actor {
    child: Child,
    input: Option<ChildStdin>,
    steps: Receiver<Json>,
    /// The actions whose witness is not judged yet: since when, by alert and instance.
    judging: BTreeMap<(String, AlertKey), i64>,
}

impl Actor {
    /// Starts the process; before privileges are dropped.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(program: &[OsString]) -> io::Result<Actor> {
        let (first, args) = program.split_first().expect("a program has a name");
        let mut command = Command::new(first);
        let command = command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let output = child.stdout.take().expect("it is a pipe");
        let (send, steps) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { return };
                let step = serde_json::from_str(&line).unwrap_or(Json::Null);
                if send.send(step).is_err() {
                    return;
                }
            }
        });
        Ok(Actor {
            input: child.stdin.take(),
            child,
            steps,
            judging: BTreeMap::new(),
        })
    }

    /// Requests what an event needs.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn event(&mut self, event: &AlertEvent) -> io::Result<()> {
        let key = (event.alert.clone(), event.key());
        match (&event.action, event.to) {
            (Some(request), _) => {
                self.judging.insert(key, event.at);
                self.send(&ActMessage::Act(request.clone()))
            }
            (None, AlertState::Clear) => {
                self.judging.remove(&key);
                let instance = event.instance();
                self.send(&ActMessage::Clear { instance })
            }
            _ => Ok(()),
        }
    }

    /// Judges the witnesses at a watermark.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn advance(&mut self, at: i64, rules: &[RuleRun]) -> io::Result<()> {
        let mut messages = Vec::new();
        self.judging.retain(|(alert, key), since| {
            let run = rules.iter().find(|run| run.rule().name == *alert);
            let Some((run, (_, within))) =
                run.and_then(|run| Some((run, run.rule().act.as_ref()?.witness?)))
            else {
                return false;
            };
            let instance = run.instance(key);
            let after = at.saturating_sub(*since);
            match run.witness(key) {
                Some(true) => {
                    let effect = format!("the witness held after {}", seconds(after));
                    messages.push(ActMessage::Improved { instance, effect });
                    false
                }
                _ if after >= within => {
                    let effect = format!("the witness did not hold within {}", seconds(within));
                    messages.push(ActMessage::DidNotHelp { instance, effect });
                    false
                }
                _ => true,
            }
        });
        messages.iter().try_for_each(|message| self.send(message))
    }

    /// The steps since the last call, as [`weir_act::service`] prints them.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn steps(&self) -> io::Result<Vec<Json>> {
        let mut steps = Vec::new();
        loop {
            match self.steps.try_recv() {
                Ok(step) => steps.push(step),
                Err(TryRecvError::Empty) => return Ok(steps),
                Err(TryRecvError::Disconnected) if !steps.is_empty() => return Ok(steps),
                Err(TryRecvError::Disconnected) => {
                    return Err(io::Error::other("the process has ended"));
                }
            }
        }
    }

    /// Ends the process, which undoes what lasts; returns its last steps. False if it did not end
    /// in time.
    pub fn close(&mut self) -> (Vec<Json>, bool) {
        drop(self.input.take());
        let end = Instant::now() + CLOSE_WITHIN;
        let mut steps = Vec::new();
        while Instant::now() < end {
            let left = end.saturating_duration_since(Instant::now());
            match self.steps.recv_timeout(left) {
                Ok(step) => steps.push(step),
                // Its output was closed.
                Err(_) => break,
            }
        }
        let has_ended = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status.success(),
                Ok(None) if Instant::now() < end => thread::sleep(Duration::from_millis(5)),
                _ => break false,
            }
        };
        (steps, has_ended)
    }

    fn send(&mut self, message: &ActMessage) -> io::Result<()> {
        let line = serde_json::to_string(message)? + "\n";
        match &mut self.input {
            Some(input) => input.write_all(line.as_bytes()),
            None => Ok(()),
        }
    }
}

fn seconds(ns: i64) -> String {
    format!("{:.1} s", ns as f64 / 1e9)
}
