//! `weir completions SHELL`: a script with which the shell completes weir's commands.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::command::Cli;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;

/// Print a shell completion script
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir completions bash > /etc/bash_completion.d/weir\n  \
    weir completions zsh > /usr/local/share/zsh/site-functions/_weir\n  \
    weir completions fish > ~/.config/fish/completions/weir.fish")]
pub struct CompletionsArgs {
    /// The shell for which the script is printed
    shell: Shell,
}

pub fn run(args: &CompletionsArgs) -> Result<Ending, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "weir", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(Ending::Done)
}
