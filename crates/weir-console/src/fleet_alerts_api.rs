//! The alerts of a fleet and their silences, as the monitor has them. Its rules of access apply.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;

use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::{ApiError, permit};
use crate::server::ConsoleState;

type ServiceState = State<Arc<ConsoleState>>;

/// The routes that require the cookie or the token.
pub fn router() -> Router<Arc<ConsoleState>> {
    Router::new()
        .route("/api/v1/fleet/alerts", get(alerts))
        .route("/api/v1/fleet/alerts/remove", post(remove))
        .route("/api/v1/fleet/silences", get(silences).post(silence))
        .route("/api/v1/fleet/silences/end", post(unsilence))
}

/// An alert to remove.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AlertBody {
    name: String,
}

/// A silence to add.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SilenceBody {
    /// The alert; all with these labels if absent.
    alert: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    /// Its length, as `--for` reads it.
    r#for: Option<String>,
    comment: Option<String>,
}

/// A silence to end.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SilenceEndBody {
    id: String,
}

type Body<T> = Result<Json<T>, JsonRejection>;

async fn alerts(State(service): ServiceState) -> Result<Json<Value>, ApiError> {
    listed(&service, "list").await
}

async fn silences(State(service): ServiceState) -> Result<Json<Value>, ApiError> {
    listed(&service, "silences").await
}

async fn remove(
    State(service): ServiceState,
    body: Body<AlertBody>,
) -> Result<StatusCode, ApiError> {
    let body = given(body)?;
    run(&service, "remove", ["--".into(), body.name.into()]).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn silence(
    State(service): ServiceState,
    body: Body<SilenceBody>,
) -> Result<Response, ApiError> {
    let body = given(body)?;
    let id = run(&service, "silence", body.options()).await?;
    let id = id.trim_end();
    Ok((StatusCode::CREATED, Json(json!({ "id": id }))).into_response())
}

async fn unsilence(
    State(service): ServiceState,
    body: Body<SilenceEndBody>,
) -> Result<StatusCode, ApiError> {
    let body = given(body)?;
    run(&service, "unsilence", ["--".into(), body.id.into()]).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn given<T>(body: Body<T>) -> Result<T, ApiError> {
    let Json(body) = body.map_err(|e| ApiError::new(e.status(), e.body_text()))?;
    Ok(body)
}

/// `weir alert COMMAND` with the options of the monitor.
fn arguments(service: &ConsoleState, command: &str) -> Result<Vec<OsString>, ApiError> {
    if service.program.monitor.is_none() {
        let message = "not a fleet; start weir console with --monitor ADDRESS";
        return Err(ApiError::new(StatusCode::BAD_REQUEST, message));
    }
    Ok(service.program.of_fleet("alert", command))
}

async fn listed(service: &ConsoleState, command: &str) -> Result<Json<Value>, ApiError> {
    let mut arguments = arguments(service, command)?;
    arguments.push("--json".into());
    let _permit = permit(service)?;
    Ok(Json(service.program.json(arguments).await?))
}

/// Runs a command; returns what it printed.
async fn run(
    service: &ConsoleState,
    command: &str,
    more: impl IntoIterator<Item = OsString>,
) -> Result<String, ApiError> {
    let mut arguments = arguments(service, command)?;
    arguments.extend(more);
    let _permit = permit(service)?;
    Ok(service.program.run(arguments).await?)
}

impl SilenceBody {
    /// The options of `weir alert silence`. Values are part of their option, so that none is an
    /// option.
    fn options(&self) -> Vec<OsString> {
        let text = |name: &str, value: &Option<String>| {
            value.as_ref().map(|value| format!("--{name}={value}"))
        };
        let labels = self.labels.iter();
        let labels = labels.map(|(name, value)| Some(format!("--label={name}={value}")));
        let options = [
            text("alert", &self.alert),
            text("for", &self.r#for),
            text("comment", &self.comment),
        ];
        let options = options.into_iter().chain(labels).flatten();
        options.map(OsString::from).collect()
    }
}
