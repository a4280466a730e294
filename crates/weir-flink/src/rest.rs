//! [`FlinkRest`]: the state of a job's tasks, over the REST API of Flink's job manager ("REST API",
//! Flink 2.3).

use std::time::Duration;

use serde_json::Value;

use crate::gateway::{FlinkAddress, FlinkClient, FlinkError, FlinkSession};

/// The longest time of a request: without answers, a job is placed as well.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The slots of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct FlinkSlots {
    /// Those that no task has.
    pub free: u64,
    /// All of them.
    pub total: u64,
    /// The jobs that have not ended, with those that wait for slots.
    pub jobs: u64,
}

/// The REST API of the job manager that a gateway uses.
pub struct FlinkRest {
    client: FlinkClient,
}

/// The tasks of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskCounts {
    /// All of them.
    pub total: u64,
    /// Those that run.
    pub running: u64,
    /// Those without a slot.
    pub waiting: u64,
}

impl FlinkRest {
    /// The job manager of a session's configuration, with the authorities of `gateway`, and without
    /// its token: that is not for another address. `None` if it is not in the configuration.
    ///
    /// # Errors
    /// If the gateway cannot be reached.
    pub fn of_session(
        session: &FlinkSession,
        gateway: &FlinkAddress,
    ) -> Result<Option<FlinkRest>, FlinkError> {
        let settings = session.settings()?;
        let Some(host) = settings["rest.address"].as_str() else {
            return Ok(None);
        };
        let port = settings["rest.port"].as_str().unwrap_or("8081");
        let scheme = match settings["security.ssl.rest.enabled"].as_str() {
            Some("true") => "https",
            _ => "http",
        };
        let address = FlinkAddress {
            url: format!("{scheme}://{host}:{port}"),
            ca: gateway.ca.clone(),
            token: None,
        };
        let client = FlinkClient::new(&address, "the job manager of Flink", REQUEST_TIMEOUT)?;
        Ok(Some(FlinkRest { client }))
    }

    /// The tasks of a job.
    ///
    /// # Errors
    /// If the job manager cannot be reached.
    pub fn tasks(&self, job: &str) -> Result<TaskCounts, FlinkError> {
        let job = self.client.get(&format!("/jobs/{job}"))?;
        let mut counts = TaskCounts::default();
        for vertex in job["vertices"].as_array().into_iter().flatten() {
            for (state, count) in vertex["tasks"].as_object().into_iter().flatten() {
                let count = count.as_u64().unwrap_or(0);
                counts.total += count;
                match state.as_str() {
                    "RUNNING" | "FINISHED" => counts.running += count,
                    "CREATED" | "SCHEDULED" => counts.waiting += count,
                    _ => {}
                }
            }
        }
        Ok(counts)
    }

    /// Why a job has failed last, if it has: one line.
    ///
    /// # Errors
    /// If the job manager cannot be reached.
    pub fn failure(&self, job: &str) -> Result<Option<String>, FlinkError> {
        let found = self.client.get(&format!("/jobs/{job}/exceptions"))?;
        let entries = &found["exceptionHistory"]["entries"];
        let stack = entries[0]["stacktrace"].as_str();
        let name = entries[0]["exceptionName"].as_str();
        let text = stack.or(name).or(found["root-exception"].as_str());
        Ok(text
            .map(crate::gateway::cause)
            .filter(|text| !text.is_empty()))
    }

    /// The slots of all task managers, and the jobs that wait for them or use them.
    ///
    /// # Errors
    /// If the job manager cannot be reached.
    pub fn slots(&self) -> Result<FlinkSlots, FlinkError> {
        let found: Value = self.client.get("/overview")?;
        let count = |key: &str| found[key].as_u64().unwrap_or(0);
        Ok(FlinkSlots {
            free: count("slots-available"),
            total: count("slots-total"),
            jobs: count("jobs-running"),
        })
    }
}
