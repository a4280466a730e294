//! `weir completions SHELL`: a script with which the shell completes weir's commands.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

/// The names of probes in bash, whose words end at colons: the part after the last one is inserted.
const BASH_PROBES: &str = r#"
_weir_and_probes() {
    local line="${COMP_LINE:0:COMP_POINT}" words names
    read -ra words <<< "$line"
    if [[ "${words[1]}" == probes && "$line" == *" probes "* && "${line##* }" != -* ]]; then
        local cur="${line##* }"
        mapfile -t names < <(weir probes "$cur*" --names 2> /dev/null)
        COMPREPLY=("${names[@]#"${cur%"${cur##*:}"}"}")
    else
        _weir "$@"
    fi
}
complete -F _weir_and_probes -o bashdefault -o default weir
"#;

/// The names of probes in fish.
const FISH_PROBES: &str = r#"
complete -c weir -n "__fish_weir_using_subcommand probes" -f -a "(weir probes (commandline -ct)'*' --names 2> /dev/null)"
"#;

/// The argument of `weir probes` as clap's script for zsh has it, and with the names of probes.
const ZSH_ARGUMENT: [&str; 2] = [
    "'::pattern -- Pattern of the probes:_default'",
    "'::pattern -- Pattern of the probes:_weir_probes'",
];

/// The names of probes in zsh.
const ZSH_PROBES: &str = r#"
_weir_probes() {
    local -a names
    names=("${(@f)$(weir probes "$PREFIX*" --names 2> /dev/null)}")
    compadd -a names
}
"#;

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
    let script = String::from_utf8_lossy(&script).into_owned();
    output::print(&match args.shell {
        Shell::Bash => script + BASH_PROBES,
        Shell::Fish => script + FISH_PROBES,
        Shell::Zsh => {
            // The script ends with the call of its function, which needs this one.
            let [before, after] = ZSH_ARGUMENT;
            let end = script.rfind("\nif [ ").unwrap_or(script.len());
            let (functions, call) = script.split_at(end);
            [&functions.replace(before, after), ZSH_PROBES, call].concat()
        }
        _ => script,
    })?;
    Ok(Ending::Done)
}
