//! `weir completions SHELL`: what the shell must know to complete weir's commands.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::command::Cli;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;

/// Print completions for a shell: `weir completions bash > /etc/bash_completion.d/weir`
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

pub fn run(args: &CompletionsArgs) -> Result<Ending, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "weir", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(Ending::Done)
}
