//! Limits of disks: what lasts, what would be written, and limits that a client sets and ends.
//!
//! A limit is a lease of a process `weir act limit`, which restores the value from before after its
//! time, or when the console ends or is killed.

use std::ffi::OsString;
use std::process::Stdio;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;
use tokio::sync::Mutex;
use weir_model::text::matches_pattern;

use crate::api::{ApiError, permit};
use crate::program::{ANSWER_TIME_MAX, END_TIME_MAX, Program, error, messages, terminate};
use crate::server::ConsoleState;

/// What clients may do to disks.
#[derive(Clone, Debug, Default)]
pub struct LeasePermissions {
    /// Whether they may end leases.
    pub ends: bool,
    /// The VMs whose disks they may limit: names, in which `*` stands for any text.
    pub limits: Vec<String>,
    /// Options of `weir act`, which name the directory of the leases.
    pub options: Vec<OsString>,
}

/// The processes that hold the leases of clients.
#[derive(Debug, Default)]
pub struct LeaseProcesses(Mutex<Vec<Child>>);

/// A limit that a client requests.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitBody {
    vm: String,
    disk: Option<String>,
    iops: Option<u64>,
    /// Bytes per second, as `--bytes-per-second` reads it.
    bytes_per_second: Option<String>,
    weight: Option<u64>,
    /// The length of the lease, as `--for` reads it.
    r#for: Option<String>,
    /// Whether the limit is set; otherwise the answer is what would be written.
    #[serde(default)]
    apply: bool,
}

/// The lease that a client ends.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseBody {
    id: Value,
}

type ServiceState = State<Arc<ConsoleState>>;

/// The leases that last.
pub async fn leases(State(service): ServiceState) -> Result<Json<Value>, ApiError> {
    service.check_all_vms()?;
    let _permit = permit(&service)?;
    let arguments = arguments(&service, "status", ["--json".into()]);
    Ok(Json(service.program.json(arguments).await?))
}

/// Sets a limit, or answers what would be written.
pub async fn limit(
    State(service): ServiceState,
    body: Result<Json<LimitBody>, JsonRejection>,
) -> Result<Response, ApiError> {
    let Json(body) = body.map_err(|e| ApiError::new(e.status(), e.body_text()))?;
    let patterns = &service.leases.limits;
    if !patterns.iter().any(|one| matches_pattern(one, &body.vm)) {
        let message = match patterns.is_empty() {
            true => "this console limits no disks; start it with --act VM".to_owned(),
            false => format!("this console limits disks of {} only", patterns.join(", ")),
        };
        return Err(ApiError::new(StatusCode::FORBIDDEN, message));
    }
    let _permit = permit(&service)?;
    let arguments = arguments(&service, "limit", body.options());
    if !body.apply {
        return Ok(Json(service.program.json(arguments).await?).into_response());
    }
    let applied = service.held.start(&service.program, arguments).await?;
    Ok((StatusCode::CREATED, Json(applied)).into_response())
}

/// Ends a lease.
pub async fn end_lease(
    State(service): ServiceState,
    body: Result<Json<LeaseBody>, JsonRejection>,
) -> Result<StatusCode, ApiError> {
    let Json(body) = body.map_err(|e| ApiError::new(e.status(), e.body_text()))?;
    if !service.leases.may_end() {
        let message = "this console does not act; start it with --end-leases";
        return Err(ApiError::new(StatusCode::FORBIDDEN, message));
    }
    let id = match &body.id {
        Value::String(id) => id.clone(),
        Value::Number(id) => id.to_string(),
        _ => {
            return Err(ApiError::new(
                StatusCode::BAD_REQUEST,
                "`id` is a text or a number",
            ));
        }
    };
    let _permit = permit(&service)?;
    let arguments = arguments(&service, "undo", ["--".into(), id.into()]);
    service.program.run(arguments).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// `weir act COMMAND` with its options.
fn arguments(
    service: &ConsoleState,
    command: &str,
    more: impl IntoIterator<Item = OsString>,
) -> Vec<OsString> {
    let mut arguments = vec!["act".into(), command.into()];
    arguments.extend(service.leases.options.iter().cloned());
    arguments.extend(more);
    arguments
}

impl LeasePermissions {
    /// Whether clients may end leases: those who set them may.
    pub fn may_end(&self) -> bool {
        self.ends || !self.limits.is_empty()
    }
}

impl LimitBody {
    /// The options of `weir act limit`. Values are part of their option, so that none is an option.
    fn options(&self) -> Vec<OsString> {
        let number =
            |name: &str, value: Option<u64>| value.map(|value| format!("--{name}={value}"));
        let text = |name: &str, value: &Option<String>| {
            value.as_ref().map(|value| format!("--{name}={value}"))
        };
        let options = [
            Some("--json".to_owned()),
            Some(format!("--vm={}", self.vm)),
            text("disk", &self.disk),
            number("iops", self.iops),
            text("bytes-per-second", &self.bytes_per_second),
            number("weight", self.weight),
            text("for", &self.r#for),
            self.apply.then(|| "--apply".to_owned()),
            self.apply.then(|| "--while-input".to_owned()),
        ];
        options.into_iter().flatten().map(OsString::from).collect()
    }
}

impl LeaseProcesses {
    /// Starts `weir ARGUMENTS`; returns its first line once the limit is set.
    async fn start(&self, program: &Program, arguments: Vec<OsString>) -> Result<Value, ApiError> {
        let mut command = tokio::process::Command::from(program.process(arguments));
        let failed =
            |why: String| ApiError::new(StatusCode::BAD_GATEWAY, format!("weir act: {why}"));
        // Its input ends with this process, in whatever way that ends.
        let spawned = command.stdin(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|e| failed(e.to_string()))?;
        let mut line = String::new();
        let out = child.stdout.take().expect("its output is a pipe");
        let mut out = BufReader::new(out);
        let read = tokio::time::timeout(ANSWER_TIME_MAX, out.read_line(&mut line)).await;
        if !matches!(read, Ok(Ok(1..))) {
            if let Some(pid) = child.id() {
                terminate(pid);
            }
            let from = child.stderr.take().expect("its messages are a pipe");
            let printed = messages(from).await;
            let status = child.wait().await.map_err(|e| failed(e.to_string()))?;
            return Err(error(status, &printed).into());
        }
        // It prints one more line, at its end, which fits into the pipe.
        child.stdout = Some(out.into_inner());
        let mut held = self.0.lock().await;
        held.retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
        held.push(child);
        serde_json::from_str(&line).map_err(|e| failed(e.to_string()))
    }

    /// Ends all of them: each restores what was there before.
    pub async fn end(&self) {
        let mut held = self.0.lock().await;
        for pid in held.iter().filter_map(Child::id) {
            terminate(pid);
        }
        for mut child in held.drain(..) {
            // One that takes longer goes on by itself.
            let _ = tokio::time::timeout(END_TIME_MAX, child.wait()).await;
        }
    }
}
