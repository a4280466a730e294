//! [`ServiceStatus`]: the counters, the readiness and the progress of a service, which its main
//! loop publishes and its HTTP server reads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use weir_model::Nanos;
use weir_sink::metrics::Family;
use weir_sink::metrics::serve::HealthCheck;

use super::metrics::{families_of, own_families};
use super::systemd::Systemd;
use crate::run_loop::{CounterReading, wall_clock};

/// A main loop that has made no turn for this time is not live. Checkpoints and large results take
/// seconds on slow disks.
const STALLED_AFTER: Duration = Duration::from_secs(60);

/// Whether the service can serve its purpose now: a short description, or the reason.
pub type Readiness = Result<String, String>;

/// What a service reports about itself.
pub struct ServiceStatus {
    service: &'static str,
    began: Nanos,
    started: Instant,
    /// The last turn of the main loop, in ms since the start.
    turned_ms: AtomicU64,
    systemd: Systemd,
    published: Mutex<Published>,
}

/// What the main loop has published.
struct Published {
    readings: Vec<CounterReading>,
    families: Vec<Family>,
    readiness: Readiness,
    /// What another part of the service has published beside its main loop.
    of_part: (Vec<CounterReading>, Vec<Family>),
    /// The text that systemd has.
    shown: String,
}

impl ServiceStatus {
    /// The status of the service `service`, which is starting.
    pub fn new(service: &'static str) -> Arc<ServiceStatus> {
        Arc::new(ServiceStatus {
            service,
            began: wall_clock(),
            started: Instant::now(),
            turned_ms: AtomicU64::new(0),
            systemd: Systemd::from_environment(),
            published: Mutex::new(Published {
                readings: Vec::new(),
                families: Vec::new(),
                readiness: Err("starting".to_owned()),
                of_part: (Vec::new(), Vec::new()),
                shown: String::new(),
            }),
        })
    }

    /// The service has started, or its reload has ended: systemd is notified.
    pub fn started(&self) {
        let text = self.published().shown.clone();
        self.systemd.ready(&text);
    }

    /// A reload of the configuration begins; [`ServiceStatus::started`] ends it.
    pub fn reloading(&self) {
        self.systemd.reloading();
    }

    /// The service is ending: it is no longer ready.
    pub fn stopping(&self) {
        self.published().readiness = Err("stopping".to_owned());
        self.systemd.stopping();
    }

    /// The main loop has made a turn.
    pub fn turned(&self) {
        let now_ms = self.now_ms();
        self.turned_ms.store(now_ms, Ordering::Relaxed);
        self.systemd.turned(now_ms);
    }

    /// Publishes the totals of all counters, and whether the service is ready.
    pub fn publish(
        &self,
        readings: Vec<CounterReading>,
        families: Vec<Family>,
        readiness: Readiness,
    ) {
        let (Ok(text) | Err(text)) = readiness.clone();
        let mut published = self.published();
        published.readings = readings;
        published.families = families;
        published.readiness = readiness;
        if published.shown != text {
            self.systemd.status(&text);
            published.shown = text;
        }
    }

    /// Publishes the counters of a part of the service that runs beside the main loop.
    pub fn publish_part(&self, readings: Vec<CounterReading>, families: Vec<Family>) {
        self.published().of_part = (readings, families);
    }

    /// The result of a health check.
    ///
    /// # Errors
    /// The reason why the check fails.
    pub fn check(&self, check: HealthCheck) -> Result<String, String> {
        let stalled_ms = self.now_ms() - self.turned_ms.load(Ordering::Relaxed);
        if u128::from(stalled_ms) > STALLED_AFTER.as_millis() {
            return Err(format!(
                "the main loop has made no turn for {} s",
                stalled_ms / 1_000
            ));
        }
        match check {
            HealthCheck::Live => Ok("ok".to_owned()),
            HealthCheck::Ready => self.published().readiness.clone(),
        }
    }

    /// All metrics.
    pub fn families(&self) -> Vec<Family> {
        let published = self.published();
        let mut families = own_families(self.service, self.began, published.readiness.is_ok());
        let (readings, more) = &published.of_part;
        let readings = [&published.readings[..], readings].concat();
        families.extend(families_of(&readings, self.began));
        families.extend(published.families.iter().chain(more).cloned());
        families
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn published(&self) -> MutexGuard<'_, Published> {
        self.published.lock().expect("no panic while held")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_live_before_it_is_ready() {
        let status = ServiceStatus::new("agent");
        status.turned();
        assert_eq!(status.check(HealthCheck::Live), Ok("ok".to_owned()));
        assert_eq!(status.check(HealthCheck::Ready), Err("starting".to_owned()));
        status.publish(Vec::new(), Vec::new(), Ok("connected".to_owned()));
        assert_eq!(status.check(HealthCheck::Ready), Ok("connected".to_owned()));
        status.stopping();
        assert_eq!(status.check(HealthCheck::Ready), Err("stopping".to_owned()));
    }

    #[test]
    fn the_counters_of_a_part_are_beside_those_of_the_main_loop() {
        let status = ServiceStatus::new("agent");
        let reading = |place| vec![CounterReading::new(place, "events_lost", 1)];
        let family = |name| vec![Family::gauge(name, "", "", 1.0)];
        status.publish(reading("network"), family("a"), Ok(String::new()));
        status.publish_part(reading("forward"), family("b"));
        status.publish(reading("network"), family("a"), Ok(String::new()));
        let families = status.families();
        let lost = families.iter().filter(|f| f.name.contains("events_lost"));
        let lost: Vec<&Family> = lost.collect();
        assert_eq!((lost.len(), lost[0].series.len()), (1, 2));
        let names = families.iter().map(|family| &*family.name);
        assert_eq!(names.filter(|name| ["a", "b"].contains(name)).count(), 2);
    }
}
