//! Configuration files of the monitor, of the agent and of tapdisks: TOML, one file each.
//!
//! A file is checked whole: every mistake is told at once, with the file, the line, the key and the
//! remedy. Sizes and times are words, as on the command line (`"16 MiB"`, `"50 ms"`). What the
//! command line says goes before what the file says.

mod agent;
mod changes;
mod monitor;
mod table;
mod tapdisk;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

pub use agent::{AgentConfig, TAKEN_AT_ONCE as AGENT_TAKEN_AT_ONCE, UplinkSecurity, host};
pub use changes::{Changes, Settings};
pub use monitor::{TAKEN_AT_ONCE as MONITOR_TAKEN_AT_ONCE, listen};
use table::Document;
pub use tapdisk::TapdiskConfig;

use weir_runtime::failure::Failure;

/// Where the monitor looks for its file.
pub const MONITOR_FILE: &str = "/etc/weir/monitor.toml";

/// Where the agent looks for its file.
pub const AGENT_FILE: &str = "/etc/weir/agent.toml";

/// Most bytes of a configuration file.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// A configuration as it was read: what it means, and what it says, to tell later what changed.
#[derive(Clone, Debug)]
pub struct Loaded<T> {
    /// What it means, defaults included.
    pub config: T,
    /// What the file says, key by key; nothing without a file.
    pub settings: Settings,
    /// The file, if there is one.
    pub path: Option<PathBuf>,
}

/// The monitor's configuration: of the file that was named, else of [`MONITOR_FILE`] where that
/// exists, else the defaults.
///
/// # Errors
/// When the file cannot be read; or everything that is wrong in it.
pub fn monitor(
    named: Option<&Path>,
) -> Result<Loaded<weir_monitor::config::MonitorConfig>, Failure> {
    load(named, MONITOR_FILE, monitor::of)
}

/// The agent's configuration: of the file that was named, else of [`AGENT_FILE`] where that exists,
/// else the defaults.
///
/// # Errors
/// As [`monitor()`].
pub fn agent(named: Option<&Path>) -> Result<Loaded<AgentConfig>, Failure> {
    load(named, AGENT_FILE, AgentConfig::of)
}

/// What a tapdisk's file says.
///
/// # Errors
/// As [`monitor()`].
pub fn tapdisk(named: &Path) -> Result<TapdiskConfig, Failure> {
    Ok(load(Some(named), "", TapdiskConfig::of)?.config)
}

/// Reads a named file, or the usual one if it exists.
fn load<T>(
    named: Option<&Path>,
    usual: &str,
    of: fn(&mut Document) -> T,
) -> Result<Loaded<T>, Failure> {
    let usual = Path::new(usual);
    let path = named.or_else(|| usual.exists().then_some(usual));
    let text = path.map_or(Ok(String::new()), read)?;
    let name = path.map_or(String::new(), |p| p.display().to_string());
    let mut document = Document::parse(&name, &text);
    let config = of(&mut document);
    let settings = document.settings();
    match document.faults() {
        faults if faults.is_empty() => Ok(Loaded {
            config,
            settings,
            path: path.map(Path::to_owned),
        }),
        faults => Err(Failure::Words(faults.join("\n"))),
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    use std::io::Read;
    let world = |e: std::io::Error| Failure::world(format_args!("{}: {e}", path.display()));
    let file = std::fs::File::open(path).map_err(world)?;
    let mut bytes = Vec::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    if read.map_err(world)? as u64 > FILE_BYTES_MAX {
        return Err(Failure::words(format_args!(
            "{}: has more than {} MiB; is it a configuration?",
            path.display(),
            FILE_BYTES_MAX >> 20
        )));
    }
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Failure::words(format_args!("{}: not UTF-8 at byte {at}", path.display()))
    })
}
