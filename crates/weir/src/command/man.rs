//! `weir man DIR`: manual pages, one per command, from the same descriptions as the help.

use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_mangen::Man;

use crate::command::{Cli, EXIT_STATUS};
use weir_runtime::failure::{Ending, Failure};

/// Write the manual pages of all commands
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir man /usr/local/share/man/man1\n  \
    man weir-query")]
pub struct ManArgs {
    /// Directory for the pages; it is created if it does not exist
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub fn run(args: &ManArgs) -> Result<Ending, Failure> {
    let name = args.directory.display();
    let failed = |e: std::io::Error| Failure::world(format!("{name}: {e}"));
    std::fs::create_dir_all(&args.directory).map_err(failed)?;
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    for command in with_subcommands(&command) {
        let page = page(command).map_err(failed)?;
        let file = Man::new(command.clone()).get_filename();
        std::fs::write(args.directory.join(file), page).map_err(failed)?;
    }
    Ok(Ending::Done)
}

/// A command and the visible commands below it.
fn with_subcommands(command: &clap::Command) -> Vec<&clap::Command> {
    let below = command.get_subcommands().filter(|c| !c.is_hide_set());
    let below = below.flat_map(with_subcommands);
    std::iter::once(command).chain(below).collect()
}

/// The manual page of a command.
fn page(command: &clap::Command) -> std::io::Result<Vec<u8>> {
    let mut page = Vec::new();
    let version = format!("weir {}", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).source(version).manual("weir");
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    match command.get_before_help() {
        Some(overview) => page.extend(section("COMMANDS", &overview.to_string()).bytes()),
        None if command.has_subcommands() => man.render_subcommands_section(&mut page)?,
        None => {}
    }
    let text = command.get_after_help().map(ToString::to_string);
    let mut notes = Vec::new();
    for block in text.unwrap_or_default().split("\n\n") {
        match block.split_once('\n') {
            Some(("Examples:", examples)) => page.extend(section("EXAMPLES", examples).bytes()),
            _ if block.is_empty() || block == EXIT_STATUS => {}
            _ => notes.push(block.to_owned()),
        }
    }
    if !notes.is_empty() {
        let notes: Vec<String> = notes.iter().map(|note| escaped(note)).collect();
        page.extend(format!(".SH NOTES\n{}\n", notes.join("\n.PP\n")).bytes());
    }
    let codes = EXIT_STATUS.trim_start_matches("Exit status:\n");
    page.extend(section("EXIT STATUS", codes).bytes());
    Ok(page)
}

/// A section whose lines are not filled.
fn section(title: &str, text: &str) -> String {
    format!(".SH \"{title}\"\n.nf\n{}\n.fi\n", escaped(text))
}

/// Text without control characters of roff.
fn escaped(text: &str) -> String {
    let line = |line: &str| {
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        let line = line.replace('\'', "\\(aq");
        match line.starts_with('.') {
            true => format!("\\&{line}"),
            false => line,
        }
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}
