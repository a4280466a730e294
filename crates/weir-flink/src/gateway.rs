//! [`FlinkSession`]: a session at Flink's SQL Gateway, over its REST API (version 3, Flink 2.0 and
//! newer: "SQL Gateway", "REST Endpoint").

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ureq::{Agent, RequestBuilder};
use weir_runtime::http::{HttpOptions, http_agent};

/// The longest time of one request: a statement has its own time.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a statement may take. The first one of a gateway loads the planner.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(120);

/// The pause before the state of a statement is read again: first and longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];

/// The greatest size of a response.
const RESPONSE_BYTES_MAX: u64 = 16 << 20;

/// A gateway, or a job manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlinkAddress {
    /// `http://HOST:PORT` or `https://..`.
    pub url: String,
    /// Certificates of the authorities that sign its certificate, PEM; by default the system's.
    pub ca: Option<PathBuf>,
    /// A token for a proxy in front of it, sent as `Authorization: Bearer`.
    pub token: Option<String>,
}

/// Why Flink did not do it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlinkError {
    /// The URL or a file is wrong.
    Address(String),
    /// It cannot be reached, or does not answer as Flink does.
    Unreachable(String),
    /// It refuses a statement: its message.
    Refused(String),
}

impl fmt::Display for FlinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (FlinkError::Address(why) | FlinkError::Unreachable(why) | FlinkError::Refused(why)) =
            self;
        f.write_str(why)
    }
}

impl std::error::Error for FlinkError {}

/// A client for one address.
pub(crate) struct FlinkClient {
    agent: Agent,
    url: String,
    token: Option<String>,
    /// What it is, for messages.
    what: &'static str,
}

impl FlinkClient {
    pub(crate) fn new(
        address: &FlinkAddress,
        what: &'static str,
        timeout: Duration,
    ) -> Result<FlinkClient, FlinkError> {
        let options = HttpOptions {
            ca: address.ca.as_deref(),
            ca_option: "--gateway-ca",
            secret_option: "--gateway-token-file",
            timeout,
        };
        Ok(FlinkClient {
            agent: http_agent(&address.url, &options).map_err(FlinkError::Address)?,
            url: address.url.trim_end_matches('/').to_owned(),
            token: address.token.clone(),
            what,
        })
    }

    pub(crate) fn get(&self, path: &str) -> Result<Value, FlinkError> {
        let request = self.agent.get(format!("{}{path}", self.url));
        self.answer(self.authorized(request).call())
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value, FlinkError> {
        let request = self.agent.post(format!("{}{path}", self.url));
        let request = self.authorized(request).content_type("application/json");
        self.answer(request.send(body.to_string()))
    }

    fn delete(&self, path: &str) -> Result<Value, FlinkError> {
        let request = self.agent.delete(format!("{}{path}", self.url));
        self.answer(self.authorized(request).call())
    }

    /// With the token, if there is one.
    fn authorized<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.token {
            Some(token) => request.header("Authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    fn answer(
        &self,
        response: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<Value, FlinkError> {
        let at = format!("{} at {}", self.what, self.url);
        let mut response = response
            .map_err(|e| FlinkError::Unreachable(format!("{at} cannot be reached: {e}")))?;
        let status = response.status().as_u16();
        let body = response.body_mut().with_config().limit(RESPONSE_BYTES_MAX);
        let text = body
            .read_to_string()
            .map_err(|e| FlinkError::Unreachable(format!("{at} does not answer: {e}")))?;
        let answer: Option<Value> = serde_json::from_str(&text).ok();
        match (status, answer) {
            (200..=299, Some(answer)) => Ok(answer),
            (401 | 403, _) => Err(FlinkError::Unreachable(format!(
                "{at} refuses access (status {status}); state a token with --gateway-token-file"
            ))),
            (_, Some(answer)) if answer["errors"].is_array() => {
                let errors = answer["errors"].as_array().into_iter().flatten();
                let errors: Vec<&str> = errors.filter_map(Value::as_str).collect();
                Err(FlinkError::Refused(cause(&errors.join("\n"))))
            }
            _ => Err(FlinkError::Unreachable(format!(
                "{at} does not answer as Flink does: status {status}"
            ))),
        }
    }
}

/// A session. It ends when this is dropped; its jobs continue.
pub struct FlinkSession {
    client: FlinkClient,
    handle: String,
}

/// The result of a statement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatementResult {
    /// Its rows, as texts.
    pub rows: Vec<Vec<String>>,
    /// The job that it has started.
    pub job: Option<String>,
}

impl FlinkSession {
    /// Opens a session, with settings such as `pipeline.name`.
    ///
    /// # Errors
    /// If the gateway cannot be reached or refuses.
    pub fn open(
        address: &FlinkAddress,
        settings: &[(String, String)],
    ) -> Result<FlinkSession, FlinkError> {
        let client = FlinkClient::new(address, "the SQL Gateway of Flink", REQUEST_TIMEOUT)?;
        let settings = settings
            .iter()
            .map(|(key, value)| (key.clone(), json!(value)));
        let settings: serde_json::Map<String, Value> = settings.collect();
        let body = json!({ "sessionName": "weir", "properties": settings });
        let opened = client.post("/v3/sessions", &body)?;
        let handle = opened["sessionHandle"].as_str();
        let handle = handle.ok_or_else(|| {
            FlinkError::Unreachable(format!("{} opened no session: {opened}", client.url))
        })?;
        Ok(FlinkSession {
            handle: handle.to_owned(),
            client,
        })
    }

    /// The settings of the session, those of the gateway's configuration among them: an object of
    /// texts.
    ///
    /// # Errors
    /// If the gateway cannot be reached.
    pub fn settings(&self) -> Result<Value, FlinkError> {
        let mut session = self.client.get(&format!("/v3/sessions/{}", self.handle))?;
        Ok(session["properties"].take())
    }

    /// Runs a statement that is no query, and waits for its result.
    ///
    /// # Errors
    /// What Flink reports about it.
    pub fn run(&self, statement: &str) -> Result<StatementResult, FlinkError> {
        let session = format!("/v3/sessions/{}", self.handle);
        let body = json!({ "statement": statement });
        let started = self.client.post(&format!("{session}/statements"), &body)?;
        let odd = |answer: &Value| {
            FlinkError::Unreachable(format!(
                "the SQL Gateway does not answer as that of Flink 2: {answer}"
            ))
        };
        let operation = started["operationHandle"]
            .as_str()
            .ok_or_else(|| odd(&started))?;
        let operation = format!("{session}/operations/{operation}");
        let until = Instant::now() + STATEMENT_TIMEOUT;
        let mut pause = PAUSES[0];
        let mut result = StatementResult::default();
        let mut token = 0;
        loop {
            let path = format!("{operation}/result/{token}?rowFormat=JSON");
            let answer = self.client.get(&path)?;
            match answer["resultType"].as_str() {
                Some("NOT_READY") if Instant::now() < until => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(PAUSES[1]);
                    continue;
                }
                Some("NOT_READY") => {
                    return Err(FlinkError::Unreachable(format!(
                        "Flink has no result of a statement after {} s",
                        STATEMENT_TIMEOUT.as_secs()
                    )));
                }
                Some("PAYLOAD" | "EOS") => {}
                _ => return Err(odd(&answer)),
            }
            if let Some(job) = answer["jobID"].as_str() {
                result.job = Some(job.to_owned());
            }
            for row in answer["results"]["data"].as_array().into_iter().flatten() {
                let fields = row["fields"].as_array().into_iter().flatten();
                let text = |field: &Value| match field {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                result.rows.push(fields.map(text).collect());
            }
            if answer["resultType"] == "EOS" || !answer["nextResultUri"].is_string() {
                return Ok(result);
            }
            token += 1;
        }
    }
}

impl Drop for FlinkSession {
    fn drop(&mut self) {
        // The gateway closes sessions that nothing uses.
        let _ = self.client.delete(&format!("/v3/sessions/{}", self.handle));
    }
}

/// The innermost cause in Flink's report, without the names of classes and the stacks.
pub(crate) fn cause(report: &str) -> String {
    let causes = report.lines().rev();
    let causes = causes.filter_map(|line| line.trim().strip_prefix("Caused by: "));
    // The first line is the HTTP server's.
    let is_message = |line: &&str| {
        !line.is_empty() && *line != "Internal server error." && !line.starts_with('<')
    };
    let first = || report.lines().map(str::trim).find(is_message);
    let Some(line) = causes.into_iter().next().or_else(first) else {
        return "Flink reports an error without a message".into();
    };
    let is_class = |text: &str| {
        text.contains('.')
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "._$".contains(c))
    };
    match line.split_once(": ") {
        Some((class, message)) if is_class(class) => message.to_owned(),
        _ => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::cause;

    #[test]
    fn the_innermost_cause_is_reported() {
        let report = "Internal server error.\n<Exception on server side:\n\
            org.apache.flink.table.gateway.api.utils.SqlGatewayException: Failed to fetchResults.\n\
            \tat org.apache.flink.A.b(A.java:91)\n\
            Caused by: org.apache.flink.table.api.ValidationException: SQL validation failed. From\n\
            \tat org.apache.flink.C.d(C.java:1)\n\
            Caused by: org.apache.calcite.CalciteContextException: From line 1: Object 'x' not found\n\
            \tat java.base/java.lang.E.f(G.java:2)\n\
            End of exception on server side>";
        assert_eq!(cause(report), "From line 1: Object 'x' not found");
        let alone = "Internal server error.\n<Exception on server side:\n\
            java.lang.IllegalStateException: closed\n\tat a.B.c(B.java:1)";
        assert_eq!(cause(alone), "closed");
        assert_eq!(cause("Not found: /v3/x"), "Not found: /v3/x");
        assert_eq!(cause("\n"), "Flink reports an error without a message");
    }
}
