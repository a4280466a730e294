//! A fleet as its users see it: how a monitor is reached (`--monitor` and what goes with it), and
//! how the answer of a query that runs there is shown.
//!
//! | module | is |
//! | --- | --- |
//! | [`mod@explain`] | how a query would be cut where hosts are like this one |
//! | [`held`] | what a watched relation holds, through snapshots and changes |
//! | [`note`] | how complete an answer is, in words |
//! | [`script`] | the queries of a script as those of a fleet |
//! | [`show`] | watches a query and shows what comes, until it ends |

mod explain;
mod held;
mod note;
pub mod script;
pub mod show;

pub use note::{Missed, Note};

pub use explain::{SPAN, explain};

use std::path::PathBuf;

use clap::Args;
use clap::builder::PossibleValuesParser;
use weir_query::place::fleet::Way;
use weir_wire::{Client, Dial, Refusal, WireError, read_token};

use crate::failure::Failure;
use crate::source::SourceArgs;

/// The variable that names the monitor.
const MONITOR_VARIABLE: &str = "WEIR_MONITOR";

/// The variable that names the file with the token.
const TOKEN_VARIABLE: &str = "WEIR_TOKEN_FILE";

/// The monitor unless another is named: the one of this host, at its default socket.
const MONITOR_DEFAULT: &str = "unix:";

/// How a monitor is reached.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Fleet")]
pub struct FleetArgs {
    /// Query the fleet of this monitor: HOST or HOST:PORT, https://HOST for TLS, or unix:PATH
    /// (unix: alone for the default socket of this host)
    #[arg(long, value_name = "ADDRESS")]
    pub monitor: Option<String>,
    /// The file with your token, which other users may not read [default: that of WEIR_TOKEN_FILE]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Use TLS, and trust monitors whose certificate this authority signed (PEM)
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Your certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "key")]
    pub certificate: Option<PathBuf>,
    /// The key that goes with your certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub key: Option<PathBuf>,
    /// The name in the monitor's certificate, where it is not HOST
    #[arg(long, value_name = "NAME")]
    pub server_name: Option<String>,
}

impl FleetArgs {
    /// Connects to the monitor: of `--monitor`, else of `WEIR_MONITOR`, else of this host.
    ///
    /// # Errors
    /// When the address or a file is wrong, or the monitor cannot be reached.
    pub fn connect(&self) -> Result<Client, Failure> {
        Ok(Client::connect(self.dial()?)?)
    }

    /// The way to the monitor.
    ///
    /// # Errors
    /// When the address or a file is wrong.
    pub fn dial(&self) -> Result<Dial, Failure> {
        let named = self.monitor.clone();
        let named = named.or_else(|| std::env::var(MONITOR_VARIABLE).ok());
        let address = named.as_deref().unwrap_or(MONITOR_DEFAULT).parse()?;
        let by_variable = std::env::var_os(TOKEN_VARIABLE).map(PathBuf::from);
        let token_file = self.token_file.clone().or(by_variable);
        Ok(Dial {
            token: token_file.as_deref().map(read_token).transpose()?,
            authority: self.ca.clone(),
            identity: self.certificate.clone().zip(self.key.clone()),
            server_name: self.server_name.clone(),
            ..Dial::new(address)
        })
    }
}

/// Where a query may be told to run, as command lines take it.
pub fn places() -> PossibleValuesParser {
    PossibleValuesParser::new(Way::ALL.map(Way::name))
}

/// Refuses the choice of a source where the agents choose.
///
/// # Errors
/// When one was chosen.
pub fn agents_choose(source: &SourceArgs) -> Result<(), Failure> {
    match source.is_usual() {
        true => Ok(()),
        false => Err(Failure::words(
            "--monitor: its agents choose what they watch; leave out --from, --device, --stacked and --vm",
        )),
    }
}

impl From<WireError> for Failure {
    fn from(error: WireError) -> Failure {
        match error {
            // Diagnostics are complete pictures.
            WireError::Refused(Refusal::Words(text)) => Failure::Words(text),
            WireError::Refused(Refusal::Unknown(_) | Refusal::Taken(_))
            | WireError::Address { .. }
            | WireError::Unprotected(_)
            | WireError::Option { .. } => Failure::words(error),
            error => Failure::World(error.into()),
        }
    }
}
