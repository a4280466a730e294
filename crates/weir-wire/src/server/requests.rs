//! Decodes the descriptors, tickets and actions of Flight clients as [`ClientRequest`]s.

use arrow_flight::flight_descriptor::DescriptorType;
use arrow_flight::{Action, FlightDescriptor, Ticket};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

use super::limits::{NAME_BYTES_MAX, QUERY_BYTES_MAX};
use crate::event::{SilenceRequest, Submit};
use crate::{ClientRequest, Refusal, Role};

/// The header of a standby's status; its value has no meaning.
pub(crate) const STANDBY_HEADER: &str = "weir-standby";

/// The status of a standby for all requests.
pub(super) fn standby_status(why: &str) -> Status {
    let mut headers = MetadataMap::new();
    headers.insert(STANDBY_HEADER, MetadataValue::from_static("1"));
    Status::with_metadata(Code::Unavailable, why, headers)
}

/// Every action, in the order of `ListActions`.
pub(super) const ACTIONS: &[(&str, &str)] = &[
    (
        "submit",
        "submit a query; body: CQL or {\"query\", \"name\", \"standing\", \"place\", \"script\"}",
    ),
    ("queries", "list the queries"),
    ("hosts", "list the agents' hosts"),
    ("views", "list the stored views"),
    (
        "streams",
        "list the streams that agents have beside the built-in ones",
    ),
    (
        "change_views",
        "change the stored views; body: CREATE VIEW and DROP VIEW statements",
    ),
    ("alerts", "list the alerts that run at the monitor"),
    (
        "place_alerts",
        "run alerts at the monitor; body: CREATE ALERT statements",
    ),
    (
        "remove_alert",
        "end an alert that was placed; body: its name",
    ),
    ("silences", "list the silences of alerts"),
    (
        "silence",
        "withhold the messages of alerts; body: {\"alert\", \"labels\", \"for_ns\", \"comment\"}",
    ),
    ("unsilence", "end a silence; body: its id"),
    (
        "explain",
        "show where a query would run; body as for submit",
    ),
    ("cancel", "end a query; body: its name"),
];

/// The longest error text in a gRPC status, in bytes: it is sent as an HTTP header,
/// percent-encoded, and clients accept 8 KiB of headers.
const STATUS_BYTES_MAX: usize = 6 << 10;

/// A query to submit, from CQL or JSON.
pub(super) fn submit(bytes: &[u8]) -> Result<Submit, Status> {
    if bytes.len() > QUERY_BYTES_MAX {
        return Err(Status::invalid_argument(format!(
            "the query has {} bytes; the maximum is {QUERY_BYTES_MAX}",
            bytes.len()
        )));
    }
    let text = text(bytes, "the query")?;
    let submit = match text.trim_start().starts_with('{') {
        true => serde_json::from_str(text).map_err(|e| {
            Status::invalid_argument(format!(
                "invalid JSON of the query: {e}; expected {{\"query\": CQL, \"name\": NAME, \
                 \"standing\": true|false, \"place\": PLACE}}"
            ))
        })?,
        false => Submit {
            query: text.to_owned(),
            ..Submit::default()
        },
    };
    if submit.query.trim().is_empty() {
        return Err(Status::invalid_argument("the query is empty"));
    }
    if let Some(given) = &submit.name {
        name("a query", given.as_bytes())?;
    }
    Ok(submit)
}

/// The query that a descriptor names or contains.
#[derive(Debug, PartialEq)]
pub(super) enum QueryReference {
    /// By name.
    Named(String),
    /// By its text.
    New(Submit),
}

pub(super) fn query_reference(descriptor: &FlightDescriptor) -> Result<QueryReference, Status> {
    match DescriptorType::try_from(descriptor.r#type) {
        Ok(DescriptorType::Cmd) => submit(&descriptor.cmd).map(QueryReference::New),
        Ok(DescriptorType::Path) => match descriptor.path.as_slice() {
            [one] => name("a query", one.as_bytes()).map(QueryReference::Named),
            _ => Err(Status::invalid_argument(
                "a path here is the name of a query",
            )),
        },
        _ => Err(Status::invalid_argument(
            "a descriptor is a command (a query in CQL) or a path (the name of a query)",
        )),
    }
}

/// The query that a ticket is for.
pub(super) fn watched(ticket: &Ticket) -> Result<ClientRequest, Status> {
    let query = name("a query", &ticket.ticket)?;
    Ok(ClientRequest::Watch { query })
}

/// The request of an action.
pub(super) fn action(action: &Action) -> Result<ClientRequest, Status> {
    match action.r#type.as_str() {
        "submit" => submit(&action.body).map(ClientRequest::Submit),
        "queries" => Ok(ClientRequest::Queries),
        "hosts" => Ok(ClientRequest::Hosts),
        "views" => Ok(ClientRequest::Views),
        "streams" => Ok(ClientRequest::Streams),
        "change_views" => Ok(ClientRequest::ChangeViews {
            text: submit(&action.body)?.query,
        }),
        "alerts" => Ok(ClientRequest::Alerts),
        "place_alerts" => Ok(ClientRequest::PlaceAlerts {
            text: submit(&action.body)?.query,
        }),
        "remove_alert" => Ok(ClientRequest::RemoveAlert {
            alert: name("an alert", &action.body)?,
        }),
        "silences" => Ok(ClientRequest::Silences),
        "silence" => silence(&action.body).map(ClientRequest::Silence),
        "unsilence" => Ok(ClientRequest::Unsilence {
            silence: name("a silence", &action.body)?,
        }),
        "explain" => submit(&action.body).map(ClientRequest::Explain),
        "cancel" => Ok(ClientRequest::Cancel {
            query: name("a query", &action.body)?,
        }),
        other => {
            let known: Vec<&str> = ACTIONS.iter().map(|a| a.0).collect();
            Err(Status::invalid_argument(format!(
                "unknown action `{}`; the actions are {}",
                other.chars().take(64).collect::<String>(),
                known.join(", ")
            )))
        }
    }
}

/// The role that a request requires.
pub(super) fn role(request: &ClientRequest) -> Role {
    match request {
        ClientRequest::Submit(_)
        | ClientRequest::Cancel { .. }
        | ClientRequest::ChangeViews { .. }
        | ClientRequest::PlaceAlerts { .. }
        | ClientRequest::RemoveAlert { .. }
        | ClientRequest::Silence(_)
        | ClientRequest::Unsilence { .. } => Role::Place,
        ClientRequest::Watch { .. }
        | ClientRequest::Queries
        | ClientRequest::Hosts
        | ClientRequest::Views
        | ClientRequest::Streams
        | ClientRequest::Alerts
        | ClientRequest::Silences
        | ClientRequest::Explain(_) => Role::Read,
    }
}

/// A rejection as a gRPC status.
pub(super) fn status(refusal: Refusal) -> Status {
    match refusal {
        Refusal::Invalid(text) => Status::invalid_argument(shortened(text)),
        Refusal::NotFound(text) => Status::not_found(shortened(text)),
        Refusal::LimitReached(text) => Status::resource_exhausted(shortened(text)),
        Refusal::AlreadyExists(text) => Status::already_exists(shortened(text)),
        Refusal::Failed(text) => Status::failed_precondition(shortened(text)),
    }
}

fn shortened(text: String) -> String {
    // Percent-encoding takes three bytes for each byte that is not plain ASCII.
    let cost = |c: char| match c.is_ascii_graphic() && c != '%' || c == ' ' {
        true => 1,
        false => 3 * c.len_utf8(),
    };
    let mut bytes = 0;
    match text.char_indices().find(|(_, c)| {
        bytes += cost(*c);
        bytes > STATUS_BYTES_MAX
    }) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

fn text<'a>(bytes: &'a [u8], what: &str) -> Result<&'a str, Status> {
    std::str::from_utf8(bytes)
        .map_err(|e| Status::invalid_argument(format!("{what} is not UTF-8: {e}")))
}

/// A silence to add, from JSON.
fn silence(bytes: &[u8]) -> Result<SilenceRequest, Status> {
    if bytes.len() > QUERY_BYTES_MAX {
        let why = format!(
            "the silence has {} bytes; the maximum is {QUERY_BYTES_MAX}",
            bytes.len()
        );
        return Err(Status::invalid_argument(why));
    }
    let silence: SilenceRequest = serde_json::from_slice(bytes)
        .map_err(|e| Status::invalid_argument(format!("invalid JSON of the silence: {e}")))?;
    match silence.for_ns > 0 {
        true => Ok(silence),
        false => Err(Status::invalid_argument("a silence has a length above 0")),
    }
}

/// The name of `what`, such as a query.
fn name(what: &str, bytes: &[u8]) -> Result<String, Status> {
    if bytes.is_empty() {
        let why = format!("the name of {what} is missing");
        return Err(Status::invalid_argument(why));
    }
    if bytes.len() > NAME_BYTES_MAX {
        return Err(Status::invalid_argument(format!(
            "the name of {what} has at most {NAME_BYTES_MAX} bytes, this one has {}",
            bytes.len()
        )));
    }
    let name = text(bytes, &format!("the name of {what}"))?;
    match name.chars().any(char::is_control) {
        true => Err(Status::invalid_argument(format!(
            "the name of {what} contains control characters"
        ))),
        false => Ok(name.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_cql_or_json() {
        let cql = query_reference(&FlightDescriptor::new_cmd("select * from IO")).unwrap();
        let json = br#" {"query": "select * from IO"}"#;
        assert_eq!(cql, QueryReference::New(submit(json).unwrap()));
        let named = submit(br#"{"query": "q", "name": "n", "standing": true}"#).unwrap();
        assert_eq!((named.name.as_deref(), named.standing), (Some("n"), true));
    }

    #[test]
    fn an_invalid_request_is_rejected_with_the_reason() {
        let long = "x".repeat(QUERY_BYTES_MAX + 1);
        for (bytes, why) in [
            (&b""[..], "the query is empty"),
            (b"\xff", "not UTF-8"),
            (b"{", "invalid JSON of the query"),
            (br#"{"query": "q", "nmae": "n"}"#, "unknown field `nmae`"),
            (br#"{"query": "q", "name": "a\nb"}"#, "control characters"),
            (
                br#"{"query": "q", "name": ""}"#,
                "name of a query is missing",
            ),
            (long.as_bytes(), "the maximum is 65536"),
        ] {
            let status = submit(bytes).unwrap_err();
            assert!(status.message().contains(why), "{}", status.message());
        }
        let other = action(&Action::new("drop", "")).unwrap_err();
        assert!(other.message().contains("unknown action `drop`"));
    }

    #[test]
    fn a_long_diagnostic_fits_a_header() {
        assert_eq!(shortened("é".repeat(2000)).chars().count(), 1024 + 3);
        assert_eq!(shortened("fine".into()), "fine");
    }
}
