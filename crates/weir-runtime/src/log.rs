//! The log of a service: events of `tracing`, one line each on standard error.
//!
//! A line has a timestamp (RFC 3339, UTC), a level, a message and fields. Where standard error is
//! the journal of systemd, which has its own timestamps, the line begins with the level's priority
//! instead (`<4>`, see sd-daemon(3)). Control characters are escaped: messages and fields contain
//! texts of other processes, hosts and files.

use std::fmt;

use tracing::field::Field;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::{self, FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, Layer};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::{LookupSpan, Registry};
use weir_model::text::shown;

use crate::failure::Failure;

/// The environment variable that selects what is logged, unless the command line does.
pub const VARIABLE: &str = "WEIR_LOG";

/// The names of the levels, the most severe first.
pub const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// The prefix of the targets of all crates of weir.
const WEIR: &str = "weir";

/// Opens the log of this process: events up to `level`, otherwise those of [`VARIABLE`], otherwise
/// up to `usual`.
///
/// # Errors
/// When the value of the variable is not a valid filter.
pub fn open(level: Option<Level>, usual: Level) -> Result<(), Failure> {
    let variable = std::env::var(VARIABLE).unwrap_or_default();
    let filter = match (level, &*variable) {
        (Some(level), _) => up_to(level),
        (None, "") => up_to(usual),
        (None, text) => filter(text)?,
    };
    let lines = Layer::default()
        .fmt_fields(format::debug_fn(write_field).delimited(" "))
        .event_format(Lines {
            to_journal: is_journal(),
        })
        .with_writer(std::io::stderr)
        .log_internal_errors(false);
    let subscriber = Registry::default().with(filter).with(lines);
    tracing::subscriber::set_global_default(subscriber).expect("a process opens its log once");
    Ok(())
}

/// Whether this process has a log.
pub fn is_open() -> bool {
    tracing::dispatcher::has_been_set()
}

/// Events of weir up to a level. Libraries are silent unless a filter names them.
fn up_to(level: Level) -> Targets {
    Targets::new().with_target(WEIR, level)
}

/// The filter in a text: a level, or `TARGET=LEVEL` separated by commas.
fn filter(text: &str) -> Result<Targets, Failure> {
    if let Ok(level) = text.trim().parse::<LevelFilter>() {
        return Ok(Targets::new().with_target(WEIR, level));
    }
    text.parse().map_err(|error| {
        Failure::words(format_args!(
            "{VARIABLE}={text}: {error}; use a level ({}), or targets, such as \
             info,weir_agent=debug",
            LEVELS.join(", ")
        ))
    })
}

/// Whether standard error is the journal: systemd names its device and inode.
fn is_journal() -> bool {
    let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    rustix::fs::fstat(std::io::stderr())
        .is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Writes an event as a line.
struct Lines {
    to_journal: bool,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = String::new();
        context.format_fields(Writer::new(&mut text), event)?;
        let level = event.metadata().level();
        match self.to_journal {
            true => write!(writer, "<{}>", priority(level))?,
            false => {
                SystemTime.format_time(&mut writer)?;
                write!(writer, " {level:>5} ")?;
            }
        }
        writeln!(writer, "{}", shown(&text))
    }
}

/// The priority of syslog(3).
fn priority(level: &Level) -> u8 {
    match *level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// Writes the message as it is, and a field as `name=value`; a value with spaces, quotes,
/// backslashes or equals signs is quoted.
fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let text = format!("{value:?}");
    let name = field.name();
    match name {
        "message" => writer.write_str(&shown(&text)),
        _ if text.is_empty() || text.contains([' ', '"', '\\', '=']) => {
            // Backslashes first: those of escapes are added afterwards.
            let text = text.replace('\\', "\\\\").replace('"', "\\\"");
            write!(writer, "{name}=\"{}\"", shown(&text))
        }
        _ => write!(writer, "{name}={}", shown(&text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// The lines of the events that `emit` emits and that pass `filter`.
    fn lines(filter: Targets, to_journal: bool, emit: impl FnOnce()) -> Vec<String> {
        let written = Written::default();
        let writer = written.clone();
        let layer = Layer::default()
            .fmt_fields(format::debug_fn(write_field).delimited(" "))
            .event_format(Lines { to_journal })
            .with_writer(move || writer.clone());
        let subscriber = Registry::default().with(filter).with(layer);
        tracing::subscriber::with_default(subscriber, emit);
        let bytes = written.0.lock().unwrap().clone();
        let text = String::from_utf8(bytes).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_line_has_time_level_message_and_fields() {
        let lines = lines(up_to(Level::INFO), false, || {
            let reason = "no \"route\"\nto\x1b[31m host";
            tracing::warn!(host = %"a", %reason, "not connected");
            tracing::debug!("too much");
            tracing::error!(target: "h2::proto", "a library");
        });
        assert_eq!(lines.len(), 1, "{lines:?}");
        let (time, rest) = lines[0].split_once(' ').unwrap();
        let digits = time.replace(|c: char| c.is_ascii_digit(), "0");
        assert_eq!(digits, "0000-00-00T00:00:00.000000Z");
        assert_eq!(
            rest,
            " WARN not connected host=a reason=\"no \\\"route\\\"\\nto\\x1b[31m host\""
        );
    }

    #[test]
    fn a_value_cannot_end_its_quotes() {
        let lines = lines(up_to(Level::INFO), false, || {
            tracing::warn!(reason = %"x\\\" level=error", "refused");
            tracing::warn!(path = %"a=b", "refused");
        });
        assert!(
            lines[0].ends_with(r#" reason="x\\\" level=error""#),
            "{lines:?}"
        );
        assert!(lines[1].ends_with(r#" path="a=b""#), "{lines:?}");
    }

    #[test]
    fn the_journal_gets_priorities() {
        let lines = lines(up_to(Level::TRACE), true, || {
            tracing::error!("e");
            tracing::warn!("w");
            tracing::info!(agent = 7, "i");
            tracing::debug!("d");
            tracing::trace!("t");
        });
        assert_eq!(lines, ["<3>e", "<4>w", "<6>i agent=7", "<7>d", "<7>t"]);
    }

    #[test]
    fn a_filter_is_a_level_or_names_targets() {
        let emit = || {
            tracing::debug!(target: "weir_agent::live", "agent");
            tracing::debug!(target: "weir_monitor", "monitor");
            tracing::debug!(target: "tonic", "tonic");
        };
        let lines = |text: &str| lines(filter(text).unwrap(), true, emit).join(" ");
        assert_eq!(lines("debug"), "<7>agent <7>monitor");
        assert_eq!(lines("INFO"), "");
        assert_eq!(lines("info,weir_agent=debug"), "<7>agent");
        assert_eq!(lines("weir=warn,tonic=trace"), "<7>tonic");
        let wrong = filter("weir=loud").unwrap_err().text();
        assert!(wrong.starts_with("weir: WEIR_LOG=weir=loud: "), "{wrong}");
    }
}
