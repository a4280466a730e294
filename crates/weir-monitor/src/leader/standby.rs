//! [`stand_by`]: a monitor that waits until it leads.

use std::thread;
use std::time::{Duration, Instant};

use tracing::{info, warn};
use weir_runtime::failure::Failure;
use weir_runtime::run_loop::Stop;
use weir_runtime::service::ServiceStatus;
use weir_wire::{EventQueue, NextEvent, Server};

use super::{Leadership, LeaseCandidate, families};
use crate::requests::log_rejected;

/// How long a monitor that is not a standby waits for one that is ending.
const ENDING_TIMEOUT: Duration = Duration::from_secs(2);

/// The interval at which the lease is read.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Leads at once, as a monitor without standbys does.
///
/// # Errors
/// If another monitor leads, or the state directory cannot be used.
pub fn lead(candidate: &mut LeaseCandidate) -> Result<Leadership, Failure> {
    let began = Instant::now();
    loop {
        if let Some(leadership) = candidate.poll()? {
            return Ok(leadership);
        }
        if let Some((path, why)) = candidate.defect() {
            warn!(file = %path.display(), reason = %why, "the claim is damaged");
        } else if began.elapsed() > ENDING_TIMEOUT {
            let leader = candidate.leader();
            let leader = leader.map_or_else(String::new, |leader| format!(", {}", leader.name()));
            return Err(Failure::world(format_args!(
                "{}: in use by another monitor{leader}; stop it, start both with --standby, or use \
                 another --state directory",
                candidate.state.display()
            )));
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Waits until this monitor leads, and rejects all requests meanwhile; `None` at a signal.
/// `on_turn` is called several times a second.
///
/// # Errors
/// If the state directory cannot be used at the start.
pub fn stand_by(
    candidate: &mut LeaseCandidate,
    server: &Server,
    events: &mut EventQueue,
    status: &ServiceStatus,
    stop: &Stop,
    on_turn: &mut dyn FnMut(),
) -> Result<Option<Leadership>, Failure> {
    let mut shown: Option<String> = None;
    let mut failed: Option<String> = None;
    loop {
        if stop.signal().is_some() {
            return Ok(None);
        }
        match candidate.poll() {
            Ok(Some(leadership)) => return Ok(Some(leadership)),
            Ok(None) => failed = None,
            // The file system may be away for some time, as the leader may be.
            Err(error) => {
                let why = error.text();
                if failed.as_ref() != Some(&why) {
                    warn!(reason = %why, "the lease cannot be read, trying again");
                    failed = Some(why);
                }
            }
        }
        let text = described(candidate);
        if shown.as_ref() != Some(&text) {
            info!("{text}");
            server.set_standby(Some(format!("is a {text}")));
            shown = Some(text.clone());
        }
        let term = candidate.leader().map_or(0, |leader| leader.term);
        status.publish(Vec::new(), families(false, term).into(), Ok(text));
        status.turned();
        on_turn();
        if let NextEvent::Event(event) = events.next(POLL_INTERVAL) {
            log_rejected(&event);
        }
    }
}

/// The state of a standby, for the log, its peers and health checks.
fn described(candidate: &LeaseCandidate) -> String {
    if let Some((path, why)) = candidate.defect() {
        let path = path.display();
        return format!("standby; {path} is damaged ({why}) and is treated as expired soon");
    }
    match candidate.leader() {
        Some(leader) => {
            let (name, term) = (leader.name(), leader.term);
            let remark = match leader.expires {
                true => "",
                false => ", which was started without --standby: its lease does not expire",
            };
            format!("standby; the leader is {name} in term {term}{remark}")
        }
        None => "standby; there is no leader".to_owned(),
    }
}
