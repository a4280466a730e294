//! `/api/v1/..`: queries, checks and plans over HTTP. What describes the host or the fleet is in
//! [`crate::state_api`].

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE, SET_COOKIE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::sync::OwnedSemaphorePermit;
use weir_query::library::{TextKind, kind};

use crate::program::{self, ProgramError, QueryProcess, ResultSource};
use crate::server::{ConsoleState, SOCKETS_MAX};
use crate::shared_source::SourceRequest;
use crate::{socket, state_api};

/// The description of the API (OpenAPI 3.1).
pub const OPENAPI: &str = include_str!("openapi.json");

/// The maximum size of a query in bytes. The kernel accepts arguments of up to 128 KiB.
pub const QUERY_BYTES_MAX: usize = 64 << 10;

/// The maximum size of the body of a request.
const BODY_BYTES_MAX: usize = 128 << 10;

/// The maximum size of a part of a result.
const PART_BYTES_MAX: usize = 64 << 10;

/// An error as JSON: `{"error":{"message":..,"diagnostics":[..]}}`.
#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    message: String,
    diagnostics: Option<Value>,
}

impl ApiError {
    /// An error with a message.
    pub fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError {
            status,
            message: message.into(),
            diagnostics: None,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut error = json!({ "message": self.message });
        if let Some(diagnostics) = self.diagnostics {
            error["diagnostics"] = diagnostics;
        }
        (self.status, Json(json!({ "error": error }))).into_response()
    }
}

impl From<ProgramError> for ApiError {
    fn from(error: ProgramError) -> ApiError {
        match error {
            ProgramError::Refused(message) => ApiError::new(StatusCode::BAD_REQUEST, message),
            ProgramError::Failed(message) => {
                ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
            }
        }
    }
}

/// The routes that require the cookie or the token.
pub fn router() -> Router<Arc<ConsoleState>> {
    Router::new()
        .route("/api/v1/check", post(check))
        .route("/api/v1/explain", post(explain))
        .route("/api/v1/openapi.json", get(openapi))
        .route("/api/v1/push", get(push))
        .route("/api/v1/query", get(query))
        .route("/api/v1/status", get(status))
        .merge(state_api::router())
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
}

/// The route that trades the secret of the link for the cookie.
pub fn open_router() -> Router<Arc<ConsoleState>> {
    Router::new()
        .route("/api/v1/session", post(session))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Link {
    secret: String,
}

async fn session(
    State(service): State<Arc<ConsoleState>>,
    link: Result<Json<Link>, JsonRejection>,
) -> Result<Response, ApiError> {
    let Json(link) = link.map_err(|e| ApiError::new(e.status(), e.body_text()))?;
    let traded = service.access.trade(&link.secret);
    let traded = traded
        .map_err(|e| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("random: {e}")))?;
    let Some(cookie) = traded else {
        let message = "the link was used already; weir console has printed a new one";
        return Err(ApiError::new(StatusCode::FORBIDDEN, message));
    };
    service.announce();
    let cookie = HeaderValue::from_str(&cookie).expect("it is ASCII");
    Ok((StatusCode::NO_CONTENT, [(SET_COOKIE, cookie)]).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct QueryBody {
    q: String,
    source: Option<String>,
}

type JsonQuery = Result<Json<QueryBody>, JsonRejection>;

/// The query of a body and its source.
fn text_of(service: &ConsoleState, body: JsonQuery) -> Result<(String, ResultSource), ApiError> {
    let Json(body) = body.map_err(|e| ApiError::new(e.status(), e.body_text()))?;
    bounded(&body.q)?;
    Ok((body.q, source_of(service, body.source.as_deref())?))
}

/// The source that a client names.
///
/// # Errors
/// When there is no such source.
pub fn source_of(service: &ConsoleState, name: Option<&str>) -> Result<ResultSource, ApiError> {
    let source = service.sources.resolve(name);
    source.map_err(|message| ApiError::new(StatusCode::BAD_REQUEST, message))
}

fn bounded(text: &str) -> Result<(), ApiError> {
    match text.len() <= QUERY_BYTES_MAX && !text.contains('\0') {
        true => Ok(()),
        false => Err(ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("a query has at most {QUERY_BYTES_MAX} bytes, and no NUL"),
        )),
    }
}

/// Whether a text is a query within the limits. Statements that change views are not.
///
/// # Errors
/// What it is instead.
pub fn is_query(text: &str) -> Result<(), String> {
    bounded(text).map_err(|error| error.message)?;
    match kind(text) {
        TextKind::Query => Ok(()),
        TextKind::CatalogQuery(_) => {
            Err("DESCRIBE and SHOW are statements of weir sql; see /api/v1/streams".to_owned())
        }
        TextKind::Changes => {
            Err("the console does not change stored views; use weir sql".to_owned())
        }
    }
}

async fn check(
    State(service): State<Arc<ConsoleState>>,
    body: JsonQuery,
) -> Result<Json<Value>, ApiError> {
    let (text, source) = text_of(&service, body)?;
    let _permit = permit(&service)?;
    Ok(Json(service.program.check(&source, &text).await?))
}

async fn explain(
    State(service): State<Arc<ConsoleState>>,
    body: JsonQuery,
) -> Result<Json<Value>, ApiError> {
    let (text, source) = text_of(&service, body)?;
    let _permit = permit(&service)?;
    checked(&service, &source, &text).await?;
    Ok(Json(service.program.explain(&source, &text).await?))
}

async fn status(State(service): State<Arc<ConsoleState>>) -> Json<Value> {
    let program = &service.program;
    let options = program.from.iter().chain(&program.define);
    let options: Vec<_> = options.map(|option| option.to_string_lossy()).collect();
    let monitor = program.monitor.as_ref();
    let monitor = monitor.map(|address| address.to_string_lossy());
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "live": program.live,
        "options": options,
        "monitor": monitor,
        "recent": service.sources.has_recent,
        "recordings": service.sources.folder.is_some(),
        "act": service.leases.may_end(),
        "limits": service.leases.limits,
        "only_vm": service.only_vm,
        "queries": service.queries.running(),
        "sockets": SOCKETS_MAX - service.sockets.available_permits(),
    }))
}

async fn openapi() -> Response {
    ([(CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

async fn push(
    State(service): State<Arc<ConsoleState>>,
    upgrade: WebSocketUpgrade,
) -> Result<Response, ApiError> {
    let sockets = service.sockets.clone().try_acquire_owned();
    let permit = sockets.map_err(|_| {
        let message = format!("{SOCKETS_MAX} tabs are connected already; close one");
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
    })?;
    let (queries, sources) = (service.queries.clone(), service.sources.clone());
    let upgrade = upgrade
        .max_message_size(socket::MESSAGE_BYTES_MAX)
        .max_frame_size(socket::MESSAGE_BYTES_MAX);
    Ok(upgrade.on_upgrade(async move |socket| {
        socket::serve(socket, queries, sources).await;
        drop(permit);
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct QueryParameters {
    q: String,
    #[serde(default)]
    format: ResultFormat,
    #[serde(rename = "for")]
    span: Option<String>,
    #[serde(default)]
    changes: bool,
    source: Option<String>,
}

/// The formats of a result.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ResultFormat {
    #[default]
    Json,
    Csv,
    Arrow,
    Parquet,
}

impl ResultFormat {
    /// The name for `--format`, the media type and the extension. In CSV, a text that a spreadsheet
    /// program would evaluate is escaped: processes choose their names.
    fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            ResultFormat::Json => ("json", "application/x-ndjson", "json"),
            ResultFormat::Csv => ("csv-safe", "text/csv; charset=utf-8; header=present", "csv"),
            ResultFormat::Arrow => ("arrow", "application/vnd.apache.arrow.stream", "arrow"),
            ResultFormat::Parquet => ("parquet", "application/vnd.apache.parquet", "parquet"),
        }
    }
}

async fn query(
    State(service): State<Arc<ConsoleState>>,
    parameters: Result<Query<QueryParameters>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(parameters) =
        parameters.map_err(|e| ApiError::new(StatusCode::BAD_REQUEST, e.body_text()))?;
    let text = &parameters.q;
    is_query(text).map_err(|message| ApiError::new(StatusCode::BAD_REQUEST, message))?;
    let source = source_of(&service, parameters.source.as_deref())?;
    let permit = permit(&service)?;
    let is_live = source.is_live(&service.program);
    if is_live && parameters.span.is_none() && !parameters.changes {
        let message = "the state at the end of a live query requires `for`, such as for=10s; \
            changes=true streams the changes";
        return Err(ApiError::new(StatusCode::BAD_REQUEST, message));
    }
    let result = checked(&service, &source, text).await?;
    let (name, media_type, extension) = parameters.format.names();
    let last = result["shape"] == "relation" && !parameters.changes;
    let body = if source == ResultSource::Recent {
        let request = SourceRequest::Query {
            q: text.clone(),
            recent: true,
            format: name.to_owned(),
            last,
        };
        recent_body(&service, request, permit).await?
    } else {
        let mut arguments = vec!["--format", name];
        let span = parameters.span.map(|span| format!("--for={span}"));
        arguments.extend(span.as_deref());
        arguments.extend(last.then_some("--final"));
        let command = service.program.query(&source, &arguments, text);
        let process = QueryProcess::start(command)?;
        ResultBody::begin(process, Some(permit)).await?.into_body()
    };
    let file = format!("attachment; filename=\"result.{extension}\"");
    let headers = [
        (CONTENT_TYPE, media_type.to_owned()),
        (CONTENT_DISPOSITION, file),
    ];
    Ok((headers, body).into_response())
}

/// The result of a query on the retained requests. A slow client delays only its own query.
async fn recent_body(
    service: &ConsoleState,
    request: SourceRequest,
    permit: OwnedSemaphorePermit,
) -> Result<Body, ApiError> {
    let shared = service.queries.shared_source().clone();
    let (parts, mut received) = tokio::sync::mpsc::channel(4);
    tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let failed = |message: String| Err(std::io::Error::other(message));
        let mut reader = match shared.open(&request) {
            Ok(reader) => reader,
            Err(ProgramError::Failed(message) | ProgramError::Refused(message)) => {
                // The client may have disconnected.
                let _ = parts.blocking_send(failed(message));
                return;
            }
        };
        let mut part = vec![0; PART_BYTES_MAX];
        let last = loop {
            match reader.read(&mut part) {
                Ok(0) => break None,
                Ok(size) => {
                    let bytes = Bytes::copy_from_slice(&part[..size]);
                    if parts.blocking_send(Ok(bytes)).is_err() {
                        return;
                    }
                }
                Err(error) => break Some(failed(error.to_string())),
            }
        };
        let end = reader.end().filter(|end| end.reason != "end");
        let refused = |message: &String| failed(format!("the recent requests: {message}"));
        let last = last.or(end.map(|end| refused(&end.message)));
        if let Some(last) = last {
            let _ = parts.blocking_send(last);
        }
    });
    let first = match received.recv().await {
        Some(Err(error)) => return Err(ProgramError::Refused(error.to_string()).into()),
        first => first,
    };
    let parts = futures_util::stream::unfold((first, received), |(first, mut received)| async {
        let part = match first {
            Some(part) => Some(part),
            None => received.recv().await,
        };
        part.map(|part: std::io::Result<Bytes>| (part, (None, received)))
    });
    Ok(Body::from_stream(parts))
}

/// The result of the check of a correct query.
async fn checked(
    service: &ConsoleState,
    source: &ResultSource,
    text: &str,
) -> Result<Value, ApiError> {
    let mut result = service.program.check(source, text).await?;
    if result["ok"] == true {
        return Ok(result);
    }
    let first = result["diagnostics"][0]["message"].as_str();
    let message = first.unwrap_or("the query is incorrect").to_owned();
    Err(ApiError {
        diagnostics: Some(result["diagnostics"].take()),
        ..ApiError::new(StatusCode::BAD_REQUEST, message)
    })
}

/// A permit for a process.
///
/// # Errors
/// When too many run.
pub fn permit(service: &ConsoleState) -> Result<OwnedSemaphorePermit, ApiError> {
    service.requests.clone().try_acquire_owned().map_err(|_| {
        let message = "too many queries run; wait for one of them, or end it";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
    })
}

/// The output of a process as the body of a response.
pub struct ResultBody {
    process: QueryProcess,
    messages: Option<tokio::task::JoinHandle<Vec<u8>>>,
    first: Option<Bytes>,
    ended: bool,
    _permit: Option<OwnedSemaphorePermit>,
}

impl ResultBody {
    /// Waits for the first part, so that a process that fails at its start is an error.
    ///
    /// # Errors
    /// Those of the process.
    pub async fn begin(
        mut process: QueryProcess,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<ResultBody, ApiError> {
        let messages = process.child().stderr.take().expect("it is a pipe");
        let mut body = ResultBody {
            process,
            messages: Some(tokio::spawn(program::messages(messages))),
            first: None,
            ended: false,
            _permit: permit,
        };
        // A live query may have no rows for long; the client receives the head of the response.
        let wait = tokio::time::timeout(Duration::from_millis(500), body.next_part());
        match wait.await {
            Ok(Ok(first)) => body.first = first,
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => {}
        }
        Ok(body)
    }

    async fn next_part(&mut self) -> Result<Option<Bytes>, ProgramError> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        if self.ended {
            return Ok(None);
        }
        let output = self.process.child().stdout.as_mut();
        let output = output.expect("it is a pipe");
        let mut part = Vec::with_capacity(PART_BYTES_MAX);
        let failed = |e: std::io::Error| ProgramError::Failed(format!("weir: {e}"));
        if output.read_buf(&mut part).await.map_err(failed)? > 0 {
            return Ok(Some(part.into()));
        }
        self.ended = true;
        let status = self.process.child().wait().await.map_err(failed)?;
        if status.success() {
            return Ok(None);
        }
        let messages = match self.messages.take() {
            Some(messages) => messages.await.unwrap_or_default(),
            None => Vec::new(),
        };
        Err(program::error(status, &messages))
    }

    /// A body that breaks off if the process fails, so that no client takes a part for the whole.
    pub fn into_body(self) -> Body {
        let parts = futures_util::stream::unfold(self, |mut body| async {
            let part = body.next_part().await.transpose()?;
            let part = part.map_err(|error| match error {
                ProgramError::Failed(message) | ProgramError::Refused(message) => {
                    tracing::warn!(%message, "a query over HTTP has failed");
                    std::io::Error::other(message)
                }
            });
            Some((part, body))
        });
        Body::from_stream(parts)
    }
}
