//! `/api/v1/..`: what the host and the fleet have: streams, functions, recordings, queries, hosts,
//! alerts.

use std::ffi::OsString;
use std::sync::Arc;

use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::{ApiError, ResultBody, is_query, permit, source_of};
use crate::fleet_alerts_api;
use crate::lease_api::{end_lease, leases, limit};
use crate::process_cost::ProcessCost;
use crate::program::{QueryProcess, ResultSource};
use crate::server::ConsoleState;

/// The time for which the live host is characterised.
const CHARACTERISE_TIME: &str = "--for=10s";

/// The maximum size of the name of a standing query, in bytes.
const NAME_BYTES_MAX: usize = 100;

type ServiceState = State<Arc<ConsoleState>>;
type Reply = Result<Json<Value>, ApiError>;

/// The routes that require the cookie or the token.
pub fn router() -> Router<Arc<ConsoleState>> {
    Router::new()
        .route("/api/v1/alerts", get(alerts))
        .route("/api/v1/characterise", get(characterise))
        .route("/api/v1/fleet", get(fleet))
        .route("/api/v1/functions", get(functions))
        .route("/api/v1/info", get(info))
        .route("/api/v1/leases", get(leases).post(limit))
        .route("/api/v1/leases/end", post(end_lease))
        .route("/api/v1/queries", get(queries).post(keep_query))
        .route("/api/v1/queries/end", post(end_query))
        .route("/api/v1/recent", get(recent))
        .route("/api/v1/recordings", get(recordings))
        .route("/api/v1/streams", get(streams))
        .merge(fleet_alerts_api::router())
}

async fn streams(State(service): ServiceState) -> Reply {
    let _permit = permit(&service)?;
    Ok(Json(service.program.json(["streams", "--json"]).await?))
}

async fn functions(State(service): ServiceState) -> Reply {
    let _permit = permit(&service)?;
    Ok(Json(service.program.json(["functions", "--json"]).await?))
}

async fn recordings(State(service): ServiceState) -> Reply {
    let found = service.sources.recordings().map_err(|error| {
        let folder = service.sources.folder.clone().unwrap_or_default();
        let message = format!("{}: {error}", folder.display());
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    })?;
    Ok(Json(json!(found)))
}

/// The interval of the retained requests, in milliseconds since 1970.
async fn recent(State(service): ServiceState) -> Reply {
    let shared = service.queries.shared_source().clone();
    let interval = tokio::task::spawn_blocking(move || shared.interval()).await;
    let interval = interval.ok().flatten();
    let ms = |ns: i64| ns / 1_000_000;
    Ok(Json(json!({
        "since_ms": interval.map(|both| ms(both.0)),
        "until_ms": interval.map(|both| ms(both.1)),
    })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SourceParameters {
    source: Option<String>,
}

/// The recording that a source is.
fn recording(service: &ConsoleState, source: &ResultSource) -> Result<OsString, ApiError> {
    match source {
        ResultSource::Recording(path) => Ok(path.into()),
        ResultSource::Own if !service.program.live && service.program.from.len() == 2 => {
            Ok(service.program.from[1].clone())
        }
        _ => {
            let message = "the source is not a single recording";
            Err(ApiError::new(StatusCode::BAD_REQUEST, message))
        }
    }
}

async fn info(
    State(service): ServiceState,
    parameters: Result<Query<SourceParameters>, QueryRejection>,
) -> Reply {
    let Query(parameters) = given(parameters)?;
    service.check_all_vms()?;
    let source = source_of(&service, parameters.source.as_deref())?;
    let file = recording(&service, &source)?;
    let _permit = permit(&service)?;
    let arguments = ["info".into(), "--json".into(), "--".into(), file];
    Ok(Json(service.program.json::<OsString>(arguments).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DiskParameters {
    source: Option<String>,
    vm: Option<String>,
    disk: String,
}

/// The report of `weir characterise` of one disk.
async fn characterise(
    State(service): ServiceState,
    parameters: Result<Query<DiskParameters>, QueryRejection>,
) -> Reply {
    let Query(parameters) = given(parameters)?;
    let source = source_of(&service, parameters.source.as_deref())?;
    let _permit = permit(&service)?;
    let mut arguments: Vec<OsString> = vec!["characterise".into(), "--json".into()];
    match recording(&service, &source) {
        Ok(file) => arguments.extend(["--from".into(), file]),
        Err(_) => {
            arguments.extend(service.program.query_options.iter().cloned());
            arguments.push(CHARACTERISE_TIME.into());
        }
    }
    let vm = service.only_vm.clone().or(parameters.vm);
    arguments.extend(vm.map(|vm| format!("--only-vm={vm}").into()));
    arguments.push(format!("--only-disk={}", parameters.disk).into());
    Ok(Json(service.program.json(arguments).await?))
}

/// The queries of this console, and those of the fleet.
async fn queries(State(service): ServiceState) -> Reply {
    let shared = service.queries.shared_source().pid();
    let cost = shared.and_then(ProcessCost::of);
    let own = ProcessCost::of(std::process::id());
    let fleet = match service.program.monitor.is_none() {
        true => Value::Null,
        false => fleet_json(&service, "queries").await?,
    };
    Ok(Json(json!({
        "queries": service.queries.list(),
        "fleet": fleet,
        "console": cost_json(Some(std::process::id()), own),
        "shared": cost_json(shared, cost),
    })))
}

fn cost_json(pid: Option<u32>, cost: Option<ProcessCost>) -> Value {
    match (pid, cost) {
        (Some(pid), Some(cost)) => {
            json!({ "pid": pid, "cpu_ms": cost.cpu_ms, "memory_bytes": cost.memory_bytes })
        }
        _ => Value::Null,
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StandingBody {
    q: String,
    name: Option<String>,
}

/// Starts a query that runs without subscribers.
async fn keep_query(
    State(service): ServiceState,
    body: Result<Json<StandingBody>, JsonRejection>,
) -> Result<Response, ApiError> {
    let Json(body) = body.map_err(|e| ApiError::new(e.status(), e.body_text()))?;
    let bad = |message: String| ApiError::new(StatusCode::BAD_REQUEST, message);
    is_query(&body.q).map_err(bad)?;
    let name = body.name.filter(|name| !name.is_empty());
    if name
        .as_ref()
        .is_some_and(|name| name.len() > NAME_BYTES_MAX)
    {
        return Err(bad(format!("a name has at most {NAME_BYTES_MAX} bytes")));
    }
    let _permit = permit(&service)?;
    let result = service.program.check(&ResultSource::Own, &body.q).await?;
    if result["ok"] != true {
        let first = result["diagnostics"][0]["message"].as_str();
        return Err(bad(first.unwrap_or("the query is incorrect").to_owned()));
    }
    let made = match service.program.monitor.is_none() {
        true => json!(service.queries.keep(name, &body.q)?),
        false => standing_in_fleet(&service, name.as_deref(), &body.q).await?,
    };
    Ok((StatusCode::CREATED, Json(made)).into_response())
}

/// Submits a standing query to the monitor, whose rules of access apply.
async fn standing_in_fleet(
    service: &ConsoleState,
    name: Option<&str>,
    text: &str,
) -> Result<Value, ApiError> {
    let name = name.map(|name| format!("--name={name}"));
    let arguments = ["--standing", "--format=arrow", "--for=1ms"];
    let arguments: Vec<&str> = arguments.into_iter().chain(name.as_deref()).collect();
    let command = service.program.query(&ResultSource::Own, &arguments, text);
    let body = ResultBody::begin(QueryProcess::start(command)?, None).await?;
    // The result is empty; the end of the process is what matters.
    let read = axum::body::to_bytes(body.into_body(), usize::MAX).await;
    read.map_err(|error| ApiError::new(StatusCode::BAD_GATEWAY, error.to_string()))?;
    Ok(json!({ "q": text, "is_standing": true }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EndBody {
    /// The number of a query of the console.
    id: Option<u64>,
    /// The name of a query of the fleet.
    fleet: Option<String>,
}

async fn end_query(
    State(service): ServiceState,
    body: Result<Json<EndBody>, JsonRejection>,
) -> Result<StatusCode, ApiError> {
    let Json(body) = body.map_err(|e| ApiError::new(e.status(), e.body_text()))?;
    match (body.id, body.fleet) {
        (Some(id), None) => match service.queries.end_by_id(id) {
            true => Ok(StatusCode::NO_CONTENT),
            false => Err(ApiError::new(
                StatusCode::NOT_FOUND,
                format!("no query {id}; it may have ended"),
            )),
        },
        (None, Some(name)) if service.program.monitor.is_some() => {
            let _permit = permit(&service)?;
            let mut arguments = service.program.fleet("cancel");
            arguments.extend(["--".into(), name.into()]);
            service.program.run(arguments).await?;
            Ok(StatusCode::NO_CONTENT)
        }
        _ => {
            let message = "either `id`, or with a monitor `fleet`, is required";
            Err(ApiError::new(StatusCode::BAD_REQUEST, message))
        }
    }
}

async fn fleet(State(service): ServiceState) -> Reply {
    if service.program.monitor.is_none() {
        let message = "not a fleet; start weir console with --monitor ADDRESS";
        return Err(ApiError::new(StatusCode::BAD_REQUEST, message));
    }
    Ok(Json(fleet_json(&service, "hosts").await?))
}

/// The output of `weir fleet COMMAND --json`.
async fn fleet_json(service: &ConsoleState, command: &str) -> Result<Value, ApiError> {
    let _permit = permit(service)?;
    let mut arguments = service.program.fleet(command);
    arguments.push("--json".into());
    Ok(service.program.json(arguments).await?)
}

/// The events of alerts on this host, one JSON object per line.
async fn alerts(State(service): ServiceState) -> Result<Response, ApiError> {
    service.check_all_vms()?;
    let permit = permit(&service)?;
    let program = &service.program;
    if !program.is_shared() {
        let message = "alerts are those of a live host; weir alert test runs rules on a recording";
        return Err(ApiError::new(StatusCode::BAD_REQUEST, message));
    }
    let process = QueryProcess::start(program.alerts())?;
    let body = ResultBody::begin(process, Some(permit)).await?;
    let headers = [(CONTENT_TYPE, "application/x-ndjson")];
    Ok((headers, body.into_body()).into_response())
}

/// The parameters of a request.
fn given<T>(parameters: Result<Query<T>, QueryRejection>) -> Result<Query<T>, ApiError> {
    parameters.map_err(|e| ApiError::new(StatusCode::BAD_REQUEST, e.body_text()))
}
