//! The rows of a fleet for commands that read `IO` of this host or, with `--monitor`, a fleet.

use weir_monitor::client::show::{self, PrintOptions};
use weir_monitor::client::statements;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::question::QueryText;
use weir_runtime::run_loop::Stop;
use weir_sink::Sink;
use weir_wire::Submit;

use crate::args::{FleetArgs, SourceArgs, agents_choose};

/// Runs a query of a command at a monitor. Its rows go to the sink that `open` makes once the query
/// runs, until a signal or the end of `--for`.
///
/// # Errors
/// If the monitor cannot be reached or refuses the query, or the sink fails.
pub fn read(
    fleet: &FleetArgs,
    source: &SourceArgs,
    query: String,
    open: impl FnOnce() -> Result<Box<dyn Sink>, Failure>,
    stop: &Stop,
) -> Result<Ending, Failure> {
    agents_choose(source)?;
    let question = QueryText::new(query);
    let (checked, mut client) = statements::checked(&question, || fleet.connect())?;
    let placed = client.submit(&Submit {
        query: checked.with_views(&question.text),
        name: None,
        standing: false,
        place: None,
        script: None,
    })?;
    let answer = show::answer(&placed, false)?;
    let watched = PrintOptions {
        query: &placed,
        standing: false,
        duration: source.span,
        instant_ns: 1,
    };
    show::print_results(&mut client, &watched, &answer, open()?, stop)
}
