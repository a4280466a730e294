//! Requests of clients about the alerts that run at a monitor: they are listed, placed and removed,
//! and silenced.

use serde_json::{Value as Json, json};
use weir_model::{Catalog, Nanos};
use weir_monitor::Monitor;
use weir_query::CheckOptions;
use weir_query::alert::{AlertRule, compile_alerts};
use weir_runtime::question::QueryText;
use weir_sink::time;
use weir_wire::{
    ClientReply, ClientRequest, Principal, Refusal, Role, ServerEvent, SilenceRequest,
};

use crate::fleet::{FleetAlerts, check_acting};
use crate::machine::AlertState;
use crate::placed::{OWN_MAX, PLACED_MAX, PlacedAlert};
use crate::silence::{Silence, SilenceFile};

/// The longest silence: a year.
const SILENCE_NS_MAX: Nanos = 366 * 24 * 3_600 * 1_000_000_000;

impl FleetAlerts {
    /// Answers a request about alerts; returns an event that is none.
    pub fn answer(
        &mut self,
        event: ServerEvent,
        monitor: &mut Monitor,
        now: Nanos,
    ) -> Option<ServerEvent> {
        let ServerEvent::Request {
            who,
            request,
            reply,
        } = event
        else {
            return Some(event);
        };
        if !request.is_of_alerts() {
            return Some(ServerEvent::Request {
                who,
                request,
                reply,
            });
        }
        let answer = match &who.vm {
            Some(vm) => Err(Refusal::Failed(format!(
                "`{}` may read the rows of VM `{vm}` only, and alerts are of the whole fleet",
                who.name
            ))),
            None => self.answered(&request, &who, monitor, now),
        };
        // The client may have disconnected.
        let _ = reply.0.send(answer.map(ClientReply::Json));
        None
    }

    fn answered(
        &mut self,
        request: &ClientRequest,
        who: &Principal,
        monitor: &mut Monitor,
        now: Nanos,
    ) -> Result<Json, Refusal> {
        match request {
            ClientRequest::Alerts => self.listed(),
            ClientRequest::PlaceAlerts { text } => self.place(text, who, monitor, now),
            ClientRequest::RemoveAlert { alert } => self.remove(alert, monitor, now),
            ClientRequest::Silences => self.silences(now),
            ClientRequest::Silence(silence) => self.silence(silence, now),
            ClientRequest::Unsilence { silence } => self.unsilence(silence, now),
            _ => unreachable!("it is about alerts"),
        }
    }

    fn listed(&self) -> Result<Json, Refusal> {
        let states = self.states();
        let alert = |(rule, instances): &(AlertRule, Vec<_>)| {
            let placed = self.placed().find(&rule.name);
            let placed = placed.filter(|_| !self.is_of_file(&rule.name));
            let instance = |(instance, state): &(String, AlertState)| json!({"instance": instance, "state": state});
            json!({
                "name": rule.name,
                "text": rule.text,
                "acts": rule.act.is_some(),
                "placed_by": placed.map(|alert| &alert.placed_by),
                "placed_at": placed.map(|alert| time::timestamp(alert.placed_at)),
                "instances": instances.iter().map(instance).collect::<Vec<Json>>(),
            })
        };
        Ok(states.iter().map(alert).collect())
    }

    fn place(
        &mut self,
        text: &str,
        who: &Principal,
        monitor: &mut Monitor,
        now: Nanos,
    ) -> Result<Json, Refusal> {
        let question = QueryText::new(text);
        let file = compile_alerts(text, &Catalog::builtin(), &CheckOptions::live());
        let file = file.map_err(|d| Refusal::Invalid(question.failure(&d).text()))?;
        let mut alerts = self.placed().alerts().to_vec();
        for rule in &file.rules {
            if self.is_of_file(&rule.name) {
                return Err(Refusal::AlreadyExists(format!(
                    "the alert `{}` is in the file of the monitor; use another name",
                    rule.name
                )));
            }
            check_acting(rule).map_err(Refusal::Invalid)?;
            if rule.act.is_some() && !who.allows(Role::Act) {
                return Err(Refusal::Failed(format!(
                    "`{}` has ACT, for which `{}` needs role act",
                    rule.name, who.name
                )));
            }
            let alert = PlacedAlert {
                name: rule.name.clone(),
                text: rule.text.clone(),
                placed_by: who.name.clone(),
                placed_at: now,
            };
            // It is compiled alone after a restart.
            alert
                .rule()
                .map_err(|why| Refusal::Invalid(format!("alert `{}` alone: {why}", rule.name)))?;
            alerts.retain(|other| !other.name.eq_ignore_ascii_case(&alert.name));
            alerts.push(alert);
        }
        let own = alerts.iter().filter(|alert| alert.placed_by == who.name);
        if own.count() > OWN_MAX {
            return Err(Refusal::LimitReached(format!(
                "`{}` has placed {OWN_MAX} alerts, the maximum of a client",
                who.name
            )));
        }
        if alerts.len() > PLACED_MAX {
            return Err(Refusal::LimitReached(format!(
                "{PLACED_MAX} alerts were placed, the maximum"
            )));
        }
        self.run_placed(alerts, monitor, now)?;
        Ok(file.rules.iter().map(|rule| json!(rule.name)).collect())
    }

    fn remove(&mut self, name: &str, monitor: &mut Monitor, now: Nanos) -> Result<Json, Refusal> {
        if self.is_of_file(name) {
            return Err(Refusal::Failed(format!(
                "the alert `{name}` is in the file of the monitor; remove it there and reload"
            )));
        }
        let mut alerts = self.placed().alerts().to_vec();
        let before = alerts.len();
        alerts.retain(|alert| !alert.name.eq_ignore_ascii_case(name));
        if alerts.len() == before {
            return Err(Refusal::NotFound(format!("there is no alert `{name}`")));
        }
        self.run_placed(alerts, monitor, now)?;
        Ok(json!({"removed": name}))
    }

    /// Runs other placed alerts, and stores them.
    fn run_placed(
        &mut self,
        alerts: Vec<PlacedAlert>,
        monitor: &mut Monitor,
        now: Nanos,
    ) -> Result<(), Refusal> {
        let before = self.placed().alerts().to_vec();
        let stored = self.placed_mut().replace(alerts);
        stored.map_err(|e| Refusal::Failed(format!("the alerts are not stored: {e}")))?;
        let Err(failure) = self.run_rules(monitor, now) else {
            return Ok(());
        };
        let stored = self.placed_mut().replace(before);
        let text = match stored {
            Ok(()) => failure.text(),
            Err(error) => format!("{}; the stored alerts differ: {error}", failure.text()),
        };
        Err(Refusal::Failed(text))
    }

    fn silences(&self, now: Nanos) -> Result<Json, Refusal> {
        let file = SilenceFile::open(self.directory()).map_err(failed)?;
        Ok(file.present(now).map(Silence::json).collect())
    }

    fn silence(&self, request: &SilenceRequest, now: Nanos) -> Result<Json, Refusal> {
        if request.for_ns > SILENCE_NS_MAX {
            return Err(Refusal::Invalid(
                "a silence lasts at most a year".to_owned(),
            ));
        }
        let silence = Silence::new(request, now);
        let id = silence.id.clone();
        let mut file = SilenceFile::open(self.directory()).map_err(failed)?;
        file.add(silence, now).map_err(failed)?;
        Ok(json!({"id": id}))
    }

    fn unsilence(&self, id: &str, now: Nanos) -> Result<Json, Refusal> {
        let mut file = SilenceFile::open(self.directory()).map_err(failed)?;
        match file.remove(id, now).map_err(failed)? {
            true => Ok(json!({"ended": id})),
            false => Err(Refusal::NotFound(format!("there is no silence `{id}`"))),
        }
    }
}

fn failed(error: std::io::Error) -> Refusal {
    Refusal::Failed(error.to_string())
}
