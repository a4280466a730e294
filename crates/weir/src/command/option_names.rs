//! The options of all commands are those of the tables in `docs/options.md`.

use std::collections::{BTreeMap, BTreeSet};

use clap::{Arg, Command, CommandFactory};

use super::Cli;

/// The page.
const PAGE: &str = include_str!("../../../../docs/options.md");

/// The rows of the table with this header: the cells without backquotes.
fn table(header: &str) -> Vec<Vec<String>> {
    let (_, rest) = PAGE
        .split_once(&format!("\n{header}\n"))
        .expect("the table");
    let rows = rest
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with('|'));
    let cells = |row: &str| {
        let cells = row.trim_matches('|').split(" | ");
        cells.map(|cell| cell.trim().replace('`', "")).collect()
    };
    let rows: Vec<Vec<String>> = rows.map(cells).collect();
    assert!(rows.len() > 1, "{header}");
    rows
}

/// `a, b` as a set.
fn listed(cell: &str) -> BTreeSet<String> {
    cell.split(", ").map(str::to_owned).collect()
}

/// The visible commands by name, such as `fleet watch`, and `weir` itself.
fn commands() -> BTreeMap<String, Command> {
    fn walk(name: &str, command: &Command, all: &mut BTreeMap<String, Command>) {
        for below in command.get_subcommands().filter(|c| !c.is_hide_set()) {
            let path = format!("{name} {}", below.get_name());
            if below.get_name() != "help" {
                walk(path.trim_start(), below, all);
            }
        }
        let name = if name.is_empty() { "weir" } else { name };
        all.insert(name.to_owned(), command.clone());
    }
    let mut root = Cli::command();
    root.build();
    let mut all = BTreeMap::new();
    walk("", &root, &mut all);
    assert!(all.len() > 35, "{:?}", all.keys());
    all
}

/// The options of every command that clap does not add itself.
fn options() -> Vec<(String, Arg)> {
    let of = |(name, command): (String, Command)| {
        let options = command.get_arguments().filter(|arg| !arg.is_positional());
        let own = options.filter(|arg| arg.get_id() != "help" && !arg.is_hide_set());
        let own: Vec<_> = own.map(|arg| (name.clone(), arg.clone())).collect();
        own
    };
    commands().into_iter().flat_map(of).collect()
}

/// A letter or a name with its value, such as `-w VM` and `--only-vm VM`.
fn spelled(name: &str, arg: &Arg) -> String {
    let values = arg.get_value_names().unwrap_or_default();
    let value = match arg.get_action().takes_values() {
        true => format!(" {}", values.join(" ")),
        false => String::new(),
    };
    format!("{name}{value}")
}

/// A use of a letter: `-w VM` of `--only-vm`.
type Letter = (String, String);

/// The commands that use each letter with each name.
fn letters() -> BTreeMap<Letter, BTreeSet<String>> {
    let mut letters: BTreeMap<Letter, BTreeSet<String>> = BTreeMap::new();
    for (command, arg) in options() {
        let Some(short) = arg.get_short() else {
            continue;
        };
        let letter = spelled(&format!("-{short}"), &arg);
        let long = arg.get_long().map(|long| format!("--{long}"));
        let uses = letters
            .entry((letter, long.unwrap_or_default()))
            .or_default();
        uses.insert(command);
    }
    letters
}

#[test]
fn a_letter_has_the_meaning_of_the_table_or_is_a_listed_exception() {
    let with_json = options()
        .into_iter()
        .filter(|(_, arg)| arg.get_long() == Some("json"));
    let with_json: BTreeSet<String> = with_json.map(|(command, _)| command).collect();
    let all: BTreeSet<String> = commands().into_keys().collect();
    let mut uses = letters();
    for row in table("| letter | option | meaning | commands |") {
        let expected = match row[3].as_str() {
            "all" => all.clone(),
            "all with --json" => with_json.clone(),
            names => listed(names),
        };
        let found = uses.remove(&(row[0].clone(), row[1].clone()));
        assert_eq!(found, Some(expected), "{row:?}");
    }
    let mut others: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for ((letter, _), commands) in uses {
        for command in commands {
            let letter = letter[..2].to_owned();
            others.entry(command).or_default().insert(letter);
        }
    }
    let exceptions = table("| command | letters | reason |");
    let exceptions = exceptions
        .iter()
        .map(|row| (row[0].clone(), listed(&row[1])));
    assert_eq!(others, exceptions.collect(), "unlisted letters");
}

#[test]
fn a_name_of_several_commands_has_the_value_of_the_table_or_is_a_listed_exception() {
    let mut uses: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for (command, arg) in options() {
        let Some(long) = arg.get_long() else { continue };
        let spelled = spelled(&format!("--{long}"), &arg);
        let of_name = uses.entry(long.to_owned()).or_default();
        of_name.entry(spelled).or_default().insert(command);
    }
    for row in table("| command | option | meaning |") {
        let name = row[1].trim_start_matches('-').split(' ').next().unwrap();
        let of_name = uses.get_mut(name).expect("an option");
        let commands = of_name.get_mut(&row[1]);
        assert!(
            commands.is_some_and(|c| c.remove(&row[0])),
            "no such exception: {row:?}"
        );
    }
    let rest = uses.into_values().flat_map(|of_name| {
        let many = of_name.values().map(BTreeSet::len).sum::<usize>() > 1;
        let used = of_name
            .into_iter()
            .filter(move |(_, c)| many && !c.is_empty());
        used.map(|(spelled, _)| spelled)
    });
    let expected = table("| option | meaning |");
    let expected: BTreeSet<String> = expected.into_iter().map(|row| row[0].clone()).collect();
    assert_eq!(rest.collect::<BTreeSet<String>>(), expected);
}

#[test]
fn earlier_spellings_are_hidden_aliases_that_are_listed() {
    let mut found: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for (command, arg) in options() {
        let shorts = arg.get_all_short_aliases().unwrap_or_default();
        let longs = arg.get_all_aliases().unwrap_or_default();
        let visible = (arg.get_visible_short_aliases(), arg.get_visible_aliases());
        let is_hidden =
            visible.0.unwrap_or_default().is_empty() && visible.1.unwrap_or_default().is_empty();
        assert!(is_hidden, "{command}: {}", arg.get_id());
        let shorts = shorts.iter().map(|c| format!("-{c}"));
        let longs = longs.iter().map(|name| format!("--{name}"));
        let now = format!("--{}", arg.get_long().unwrap_or_default());
        for alias in shorts.chain(longs) {
            let commands = found.entry((alias, now.clone())).or_default();
            commands.insert(command.clone());
        }
    }
    let rows = table("| spelling | now | commands |").into_iter();
    let expected = rows.map(|row| ((row[0].clone(), row[1].clone()), listed(&row[2])));
    assert_eq!(found, expected.collect());
}
