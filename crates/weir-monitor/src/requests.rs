//! Requests of clients and their answers.

use serde_json::{Value as Json, json};
use tracing::warn;
use weir_model::inventory::Row;
use weir_model::{Declaration, Host, Nanos, Value};
use weir_query::plan::has_vm;
use weir_wire::{ClientReply, ClientRequest, Principal, Refusal, ServerEvent, Submit};

use super::Monitor;
use super::question::Prepared;
use super::registry::{Entry, QueryState, Registry};

/// Logs a rejected peer.
pub fn log_rejected(event: &ServerEvent) {
    if let ServerEvent::Refused {
        peer,
        why,
        suppressed,
    } = event
    {
        // Earlier rejections were not logged, to limit the size of the log.
        let suppressed = (*suppressed > 0).then_some(suppressed);
        warn!(%peer, reason = %why, suppressed, "peer rejected");
    }
}

impl Registry {
    /// Answers a client's request, and logs rejected peers.
    pub fn answer(&mut self, event: ServerEvent, monitor: &mut Monitor, now: Nanos) {
        let (who, request, reply) = match event {
            ServerEvent::Request {
                who,
                request,
                reply,
            } => (who, request, reply),
            other => return log_rejected(&other),
        };
        let answer = match request {
            request if request.is_of_alerts() => {
                Err(Refusal::Failed("this monitor runs no alerts".to_owned()))
            }
            ClientRequest::Submit(submit) => self.submit(submit, &who, monitor, now),
            ClientRequest::Watch { query } => self.watch(&query, &who, monitor),
            ClientRequest::Queries => Ok(ClientReply::Json(self.listed(&who, monitor))),
            ClientRequest::Hosts if who.vm.is_some() => Err(Refusal::Failed(format!(
                "`{}` may read the rows of VM `{}` only, not those of hosts",
                who.name,
                who.vm.as_deref().unwrap_or_default()
            ))),
            ClientRequest::Hosts => Ok(ClientReply::Json(host_rows(&monitor.hosts(now)))),
            ClientRequest::Views | ClientRequest::ChangeViews { .. } if who.vm.is_some() => {
                Err(Refusal::Failed(format!(
                    "`{}` may read the rows of VM `{}` only, not stored views",
                    who.name,
                    who.vm.as_deref().unwrap_or_default()
                )))
            }
            ClientRequest::Streams => Ok(ClientReply::Json(json!(own_streams(&who, monitor)))),
            ClientRequest::Views => Ok(ClientReply::Json(json!(self.views().views()))),
            ClientRequest::ChangeViews { text } => self.views().change(&text).map(|changes| {
                let changes: Vec<String> = changes.iter().map(ToString::to_string).collect();
                ClientReply::Json(json!(changes))
            }),
            ClientRequest::Explain(submit) => explain(&self.expanded(submit, &who), &who, monitor),
            ClientRequest::Cancel { query } => self
                .cancel(&query, &who, monitor)
                .map(|()| ClientReply::Json(json!({ "cancelled": query }))),
            _ => unreachable!("those of alerts were refused"),
        };
        // The client may have disconnected.
        let _ = reply.0.send(answer);
    }

    fn submit(
        &mut self,
        submit: Submit,
        who: &Principal,
        monitor: &mut Monitor,
        now: Nanos,
    ) -> Result<ClientReply, Refusal> {
        let name = self.place(submit, who, monitor, now)?;
        let query = self.find(&name, who)?;
        let running = monitor.query_mut(query).expect("it was just placed");
        Ok(ClientReply::Query {
            name,
            schema: running.publisher.schema().clone(),
            results: None,
        })
    }

    fn watch(
        &self,
        name: &str,
        who: &Principal,
        monitor: &mut Monitor,
    ) -> Result<ClientReply, Refusal> {
        let query = self.find(name, who)?;
        let running = monitor.query_mut(query);
        let running = running.ok_or_else(|| {
            // It failed; the next iteration of the loop removes it.
            Refusal::Failed(format!("`{name}` has just ended"))
        })?;
        let Some(results) = running.publisher.watch() else {
            return Err(Refusal::LimitReached(format!(
                "`{name}` has {} clients, the maximum (limits.clients)",
                self.clients_max()
            )));
        };
        Ok(ClientReply::Query {
            name: name.to_owned(),
            schema: running.publisher.schema().clone(),
            results: Some(results),
        })
    }

    fn listed(&self, who: &Principal, monitor: &mut Monitor) -> Json {
        self.entries()
            .filter(|(_, entry)| entry.is_visible(who))
            .map(|(name, entry)| listed(name, entry, monitor))
            .collect()
    }
}

/// The streams that agents have beside the built-in ones: of a user who may read the rows of one VM
/// those that have its rows.
fn own_streams(who: &Principal, monitor: &Monitor) -> Vec<Declaration> {
    let is_readable = |stream: &Declaration| who.vm.is_none() || has_vm(stream);
    monitor
        .own_streams()
        .into_iter()
        .filter(is_readable)
        .collect()
}

fn explain(submit: &Submit, who: &Principal, monitor: &Monitor) -> Result<ClientReply, Refusal> {
    let prepared = Prepared::of(submit, who.vm.as_deref(), None, monitor, &[])?;
    Ok(ClientReply::Json(prepared.explained()))
}

/// A query as an entry of a list.
fn listed(name: &str, entry: &Entry, monitor: &mut Monitor) -> Json {
    let mut shown = json!({
        "name": name,
        "owner": entry.owner(),
        "since": entry.since,
        "standing": entry.submit.standing,
        "configured": entry.owner.is_none(),
        "query": entry.submit.query,
    });
    if let Some(place) = &entry.submit.place {
        shown["place"] = json!(place);
    }
    if let Some(vm) = &entry.vm {
        shown["vm"] = json!(vm);
    }
    if let Some(script) = &entry.submit.script {
        shown["script"] = json!({ "query": script.query, "tick_ns": script.tick_ns });
    }
    let (query, strategy) = match &entry.state {
        QueryState::Runs { query, strategy } => (*query, *strategy),
        QueryState::Failed(why) => {
            shown["failed"] = json!(why);
            return shown;
        }
    };
    shown["strategy"] = json!(strategy.name());
    let Some(running) = monitor.query_mut(query) else {
        return shown;
    };
    let publisher = &running.publisher;
    shown["clients"] = json!(publisher.clients());
    shown["rows_out"] = json!(publisher.rows_emitted());
    let file = |file: &super::FileSink| json!({ "file": file.path(), "failed": file.failed() });
    shown["sinks"] = publisher.files().iter().map(file).collect();
    if let Some(all) = publisher.completeness() {
        let Json::Object(complete) = all.json() else {
            unreachable!("it is an object");
        };
        shown["responded"] = json!(format!("{}/{}", all.hosts_responded, all.hosts));
        let shown = shown.as_object_mut().expect("it is one");
        shown.extend(complete);
    }
    shown
}

/// Hosts as entries of a list: rows of relation `hosts`.
fn host_rows(hosts: &[Host]) -> Json {
    let columns = Host::columns();
    let cell = |value: Value| match value {
        Value::Null => Json::Null,
        Value::Bool(value) => json!(value),
        Value::Int(value) => json!(value),
        Value::Float(value) => json!(value),
        Value::Text(text) => json!(text.as_str()),
        Value::Tally(_) | Value::Bytes(_) => unreachable!("a host has no such column"),
    };
    let row = |host: &Host| {
        let own = columns.iter();
        let own = own.map(|(field, value)| (field.name.clone(), cell(value(host))));
        let name = ("host".to_owned(), json!(host.host.as_str()));
        own.chain([name]).collect::<Json>()
    };
    hosts.iter().map(row).collect()
}
