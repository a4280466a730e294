//! [`Actor`]: the process that carries out the actions of alerts ([`weir_act::service`]), started
//! by the one that evaluates them, before that drops its privileges.

use std::ffi::OsString;
use std::io;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value as Json;
use weir_act::link::ActLink;
use weir_act::service::ActMessage;

use crate::event::AlertEvent;
use crate::instances::RuleRun;
use crate::machine::AlertState;
use crate::witness::{WitnessResult, Witnesses};

/// How long the end of a run waits until everything is undone.
const CLOSE_WITHIN: Duration = Duration::from_secs(20);

/// See the module's documentation.
pub struct Actor {
    child: Child,
    link: ActLink,
    witnesses: Witnesses,
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
        let input = child.stdin.take().expect("it is a pipe");
        let output = child.stdout.take().expect("it is a pipe");
        Ok(Actor {
            child,
            link: ActLink::of_child(input, output),
            witnesses: Witnesses::default(),
        })
    }

    /// Requests what an event needs.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn event(&mut self, event: &AlertEvent) -> io::Result<()> {
        match (&event.action, event.to) {
            (Some(request), _) => {
                self.witnesses.add(&event.alert, event.key(), event.at);
                self.link.send(&ActMessage::Act(request.clone()))
            }
            (None, AlertState::Clear) => {
                self.witnesses.remove(&event.alert, event.key());
                let instance = event.instance();
                self.link.send(&ActMessage::Clear { instance })
            }
            _ => Ok(()),
        }
    }

    /// Judges the witnesses at a watermark.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn advance(&mut self, at: i64, rules: &[RuleRun]) -> io::Result<()> {
        let verdicts = self.witnesses.judge(at, rules).into_iter();
        let messages = verdicts.map(|verdict| {
            let WitnessResult {
                instance, effect, ..
            } = verdict;
            match verdict.has_helped {
                true => ActMessage::Improved { instance, effect },
                false => ActMessage::DidNotHelp { instance, effect },
            }
        });
        let messages: Vec<ActMessage> = messages.collect();
        let mut messages = messages.iter();
        messages.try_for_each(|message| self.link.send(message))
    }

    /// The steps since the last call, as [`weir_act::service`] prints them.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn steps(&self) -> io::Result<Vec<Json>> {
        self.link.steps()
    }

    /// Ends the process, which undoes what lasts; returns its last steps. False if it did not end
    /// in time.
    pub fn close(&mut self) -> (Vec<Json>, bool) {
        let end = Instant::now() + CLOSE_WITHIN;
        let (steps, _) = self.link.close(CLOSE_WITHIN);
        let has_ended = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status.success(),
                Ok(None) if Instant::now() < end => thread::sleep(Duration::from_millis(5)),
                _ => break false,
            }
        };
        (steps, has_ended)
    }
}
