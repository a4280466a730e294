//! `weir probes --cost`: what a hit of a probe costs, as the kernel measures it.
//!
//! A child process counts the hits of the probe, as any query does, with the least of programs. The
//! kernel counts the runs of its programs and their time.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use weir_runtime::failure::Failure;
use weir_runtime::run_loop::Stop;
use weir_tap::ebpf::cost::{ProgramRuns, Statistics, programs_of};

/// The function of a probe (`probe.bpf.c`).
const PROGRAM: &str = "on_hit";

/// How often the programs are read.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long a child may take to attach a probe.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(20);

/// The hits of a probe in some time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HitCost {
    /// Number of hits.
    pub hits: u64,
    /// The time of the program in all of them.
    pub program_ns: u64,
    /// How long they were counted.
    pub span: Duration,
}

impl HitCost {
    /// Hits per second.
    pub fn hits_per_second(&self) -> f64 {
        self.hits as f64 / self.span.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// The time of a hit, ns; `None` without hits.
    pub fn per_hit_ns(&self) -> Option<f64> {
        (self.hits > 0).then(|| self.program_ns as f64 / self.hits as f64)
    }
}

/// Measures probes one after the other.
pub struct CostMeter {
    _statistics: Statistics,
    span: Duration,
}

/// A process that ends with this.
struct Counting(Child);

impl Drop for Counting {
    fn drop(&mut self) {
        // It has ended, unless it was interrupted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl CostMeter {
    /// Measures each probe for `span`.
    ///
    /// # Errors
    /// Without CAP_SYS_ADMIN.
    pub fn new(span: Duration) -> Result<CostMeter, Failure> {
        let statistics = Statistics::enable().map_err(|error| {
            Failure::world(format!(
                "--cost: the kernel does not measure programs: {error}; run as root, or with \
                 CAP_SYS_ADMIN"
            ))
        })?;
        Ok(CostMeter {
            _statistics: statistics,
            span,
        })
    }

    /// The cost of a hit of this probe; an error of the child as its first line. `None` if `stop`
    /// was requested.
    ///
    /// # Errors
    /// If no process can be started.
    pub fn measure(
        &self,
        probe: &str,
        stop: &Stop,
    ) -> Result<Option<Result<HitCost, String>>, Failure> {
        let query = format!(
            "create stream measured as probe '{}'; \
             select count(*) from measured [range 1 s slide 1 s]",
            probe.replace('\'', "\'\'")
        );
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["query", &query]).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = Counting(command.spawn()?);
        let started = Instant::now();
        let mut first: Option<(Instant, ProgramRuns)> = None;
        loop {
            if !stop.wait(POLL_INTERVAL) {
                return Ok(None);
            }
            if child.0.try_wait()?.is_some() {
                return Ok(Some(Err(message(&mut child.0))));
            }
            let programs = programs_of(child.0.id())?;
            let now = Instant::now();
            let found = programs.into_iter().find(|program| program.name == PROGRAM);
            match (&first, found) {
                (None, Some(program)) => first = Some((now, program)),
                (Some((since, before)), Some(program)) if now - *since >= self.span => {
                    return Ok(Some(Ok(HitCost {
                        hits: program.runs - before.runs,
                        program_ns: program.time_ns - before.time_ns,
                        span: now - *since,
                    })));
                }
                (None, None) if started.elapsed() > ATTACH_TIMEOUT => {
                    let seconds = ATTACH_TIMEOUT.as_secs();
                    return Ok(Some(Err(format!("not attached within {seconds} s"))));
                }
                _ => {}
            }
        }
    }
}

/// The first line of what a child printed.
fn message(child: &mut Child) -> String {
    let mut text = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        // A message that cannot be read is shown as far as it was.
        let _ = std::io::Read::read_to_string(&mut stderr, &mut text);
    }
    let line = text.lines().next().unwrap_or("it ended").to_owned();
    let line = line
        .strip_prefix("weir: ")
        .map(str::to_owned)
        .unwrap_or(line);
    line.split("; use --from")
        .next()
        .unwrap_or_default()
        .to_owned()
}
