//! [`Progress`]: a progress line on standard error, if the run is long and standard error is a
//! terminal.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_model::Unit;
use weir_sink::number::scaled;

/// Shorter runs have no progress line.
const FIRST_LINE_DELAY: Duration = Duration::from_secs(1);

/// The interval between two updates of the line.
const EVERY: Duration = Duration::from_millis(200);

/// What is printed during the run.
#[derive(Clone, Debug)]
pub enum ProgressKind {
    /// Nothing: the answers are printed on the same terminal.
    Nothing,
    /// The share of the files that was read; nothing for live sources, which have no end.
    Files,
    /// The size of a recording. The file is open, since its directory may no longer be readable.
    Recording(Arc<File>),
}

/// The progress of the run.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunProgress {
    /// The share of the files that was read, up to 1; `None` for live sources.
    pub done: Option<f64>,
    /// Rows read so far.
    pub rows: u64,
    /// Events lost or unseen so far.
    pub missed: i64,
}

/// A progress line.
pub struct Progress {
    progress: ProgressKind,
    started: Instant,
    shown: Option<Instant>,
}

impl Progress {
    /// Starts the timer; shows nothing unless standard error is a terminal.
    pub fn new(progress: ProgressKind) -> Progress {
        Progress {
            progress: match std::io::stderr().is_terminal() {
                true => progress,
                false => ProgressKind::Nothing,
            },
            started: Instant::now(),
            shown: None,
        }
    }

    /// Updates the line, if the interval has passed.
    pub fn show(&mut self, state: impl FnOnce() -> RunProgress) {
        let elapsed = self.started.elapsed();
        let fresh = self.shown.is_some_and(|at| at.elapsed() < EVERY);
        if matches!(self.progress, ProgressKind::Nothing) || elapsed < FIRST_LINE_DELAY || fresh {
            return;
        }
        let state = state();
        let text = match (&self.progress, state.done) {
            (ProgressKind::Recording(file), _) => {
                let bytes = file.metadata().map_or(0, |m| m.len());
                Some(recorded(&state, bytes, elapsed))
            }
            (_, Some(done)) => Some(read(&state, done, elapsed)),
            _ => None,
        };
        if let Some(text) = text {
            self.shown = Some(Instant::now());
            // A line that cannot be written does not stop the run.
            let _ = write!(std::io::stderr(), "\r\x1b[2Kweir: {text}");
        }
    }

    /// Removes the line.
    pub fn clear(&mut self) {
        if self.shown.take().is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[2K");
        }
    }
}

fn read(state: &RunProgress, done: f64, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64();
    let rate = magnitude(state.rows as f64 / seconds);
    let rest = clock(seconds * (1.0 - done) / done.max(1e-6));
    let percent = 100.0 * done;
    format!(
        "{percent:3.0} %  {} rows  {rate} rows/s  {rest} left",
        state.rows
    )
}

fn recorded(state: &RunProgress, bytes: u64, elapsed: Duration) -> String {
    let size = scaled(bytes as f64, Unit::Bytes).expect("bytes have greater units");
    let RunProgress { rows, missed, .. } = state;
    format!(
        "{}  {rows} events  {size}  {missed} missed",
        clock(elapsed.as_secs_f64())
    )
}

fn magnitude(rate: f64) -> String {
    match rate {
        r if r >= 1e6 => format!("{:.1} M", r / 1e6),
        r if r >= 1e3 => format!("{:.0} k", r / 1e3),
        r => format!("{r:.0}"),
    }
}

fn clock(seconds: f64) -> String {
    let seconds = seconds as u64;
    let (hours, minutes, seconds) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_the_rate_and_the_remaining_time() {
        let state = RunProgress {
            rows: 5_000_000,
            ..RunProgress::default()
        };
        let text = read(&state, 0.25, Duration::from_secs(2));
        assert_eq!(text, " 25 %  5000000 rows  2.5 M rows/s  0:06 left");
        assert!(read(&state, 0.5, Duration::from_secs(3_700)).ends_with("1:01:40 left"));
    }

    #[test]
    fn the_progress_of_a_recording_shows_its_size() {
        let state = RunProgress {
            rows: 12,
            missed: 3,
            done: None,
        };
        let text = recorded(&state, 4096, Duration::from_secs(61));
        assert_eq!(text, "1:01  12 events  4.0 KiB  3 missed");
    }
}
