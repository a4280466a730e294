//! `weir hist-collector`: started by `weir hist -s` to count in the background. Not for direct use.

use std::io::Write;

use weir_runtime::failure::{Ending, Failure};
use weir_view::hist::background;

pub fn run() -> Result<Ending, Failure> {
    let Err(failure) = background::collect() else {
        return Ok(Ending::Done);
    };
    // The command that started it reads one line of standard output, and ignores standard error.
    let why = match failure {
        Failure::Words(text) => text,
        Failure::World(error) => format!("{error:#}"),
    };
    let _ = writeln!(std::io::stdout(), "{}", why.replace('\n', " "));
    Ok(Ending::Failed)
}
