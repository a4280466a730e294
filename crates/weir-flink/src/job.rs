//! [`FlinkJob`]: the jobs of Flink that this program has started, by their names.
//!
//! The name of a job is `weir TOPIC NUMBER`: the topic of its results, and a number of what it
//! computes. So a job is found again after a restart of Flink, of its gateway or of this program.

use std::time::{Duration, Instant};

use crate::gateway::{FlinkError, FlinkSession};

/// The first word of the names of all jobs.
const WORD: &str = "weir";

/// How long a job may take to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// The states of a job that has ended.
const ENDED: [&str; 3] = ["FINISHED", "FAILED", "CANCELED"];

/// A job of Flink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlinkJob {
    /// Flink's number of it.
    pub id: String,
    /// The topic of its results.
    pub topic: String,
    /// What it computes, as a number.
    pub number: String,
    /// The state, such as `RUNNING`.
    pub state: String,
    /// When it was started, as Flink prints it.
    pub since: String,
}

impl FlinkJob {
    /// The name of a job.
    pub fn name(topic: &str, number: &str) -> String {
        format!("{WORD} {topic} {number}")
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        ENDED.contains(&self.state.as_str())
    }

    /// All jobs that this program has started and that have not ended.
    ///
    /// # Errors
    /// If Flink cannot be reached.
    pub fn all(session: &FlinkSession) -> Result<Vec<FlinkJob>, FlinkError> {
        let rows = session.run("SHOW JOBS")?.rows;
        let jobs = rows.iter().filter_map(|row| FlinkJob::of(row));
        Ok(jobs.filter(|job| !job.has_ended()).collect())
    }

    /// Those of them with this topic of results.
    ///
    /// # Errors
    /// If Flink cannot be reached.
    pub fn of_topic(session: &FlinkSession, topic: &str) -> Result<Vec<FlinkJob>, FlinkError> {
        let mut jobs = FlinkJob::all(session)?;
        jobs.retain(|job| job.topic == topic);
        Ok(jobs)
    }

    /// The job of a row of `SHOW JOBS`: its identity, name, state and start.
    fn of(row: &[String]) -> Option<FlinkJob> {
        let [id, name, state, since, ..] = row else {
            return None;
        };
        let mut words = name.split(' ');
        let (word, topic, number) = (words.next()?, words.next()?, words.next()?);
        (word == WORD && words.next().is_none()).then(|| FlinkJob {
            id: id.clone(),
            topic: topic.to_owned(),
            number: number.to_owned(),
            state: state.clone(),
            since: since.clone(),
        })
    }

    /// Stops it, and waits until it has ended.
    ///
    /// # Errors
    /// If Flink cannot be reached, or the job does not end.
    pub fn stop(&self, session: &FlinkSession) -> Result<(), FlinkError> {
        // It may end at the same time.
        let refused = session.run(&format!("STOP JOB '{}'", self.id)).err();
        let until = Instant::now() + STOP_TIMEOUT;
        loop {
            let jobs = FlinkJob::all(session)?;
            if !jobs.iter().any(|job| job.id == self.id) {
                return Ok(());
            }
            match &refused {
                Some(why) => return Err(why.clone()),
                None if Instant::now() > until => {
                    return Err(FlinkError::Unreachable(format!(
                        "job {} does not end",
                        self.id
                    )));
                }
                None => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_of_others_are_not_ours() {
        let row = |name: &str| ["1f", name, "RUNNING", "2026-11-28T00:00:00Z"].map(str::to_owned);
        let found = FlinkJob::of(&row(&FlinkJob::name("weir.load.results", "a2ddbaa4"))).unwrap();
        assert_eq!(
            (&*found.topic, &*found.number, found.has_ended()),
            ("weir.load.results", "a2ddbaa4", false)
        );
        for other in ["insert-into_default", "weir load", "weir a b c", "x a b"] {
            assert_eq!(FlinkJob::of(&row(other)), None, "{other}");
        }
    }
}
