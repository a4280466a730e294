//! Tidy checks: what the house style asks of every file, held by a test.

use std::path::Path;

use weir_testing::repository::{none, read, tracked};

/// Words without a meaning of their own, not used in names of files or types.
const EMPTY_WORDS: [&str; 7] = [
    "manager",
    "handler",
    "helper",
    "util",
    "common",
    "misc",
    "processor",
];

/// A file longer than this is two ideas. The soft limit is 500; this one fails.
const LINES_MAX: usize = 700;

/// A line of code longer than this does not fit on a page.
const COLUMNS_MAX: usize = 140;

/// Maximum columns of a comment.
const COMMENT_COLUMNS_MAX: usize = 100;

/// The paths and texts of all Rust files.
fn rust_files() -> impl Iterator<Item = (String, String)> {
    tracked(".rs").into_iter().map(|path| {
        let text = read(&path);
        (path, text)
    })
}

#[test]
fn every_file_opens_with_what_it_is() {
    let bare = rust_files().filter(|(_, text)| !text.starts_with("//!"));
    none(
        &bare.map(|(p, _)| p).collect::<Vec<_>>(),
        "a file opens with `//!`",
    );
}

#[test]
fn no_file_is_two_ideas() {
    let long = rust_files().filter_map(|(path, text)| {
        let lines = text.lines().count();
        (lines > LINES_MAX).then(|| format!("{}: {lines} lines", path))
    });
    none(&long.collect::<Vec<_>>(), "a file has at most 700 lines");
}

#[test]
fn no_line_is_too_long_to_read() {
    let mut long = Vec::new();
    for (path, text) in rust_files() {
        for (number, line) in text.lines().enumerate() {
            // Prose in a literal is as long as it is; rustfmt leaves it alone too.
            let prose = line.contains('"');
            if line.chars().count() > COLUMNS_MAX && !prose {
                long.push(format!("{}:{}", path, number + 1));
            }
        }
    }
    none(&long, "a line has at most 140 columns");
}

#[test]
fn a_comment_has_at_most_100_columns() {
    let mut long = Vec::new();
    for (path, text) in rust_files() {
        for (number, line) in text.lines().enumerate() {
            // Code, messages and tables in a comment are not wrapped.
            let is_prose = !line.contains(['"', ';', '|', '─']);
            let is_comment = line.trim_start().starts_with("//") && is_prose;
            if is_comment && line.chars().count() > COMMENT_COLUMNS_MAX {
                long.push(format!("{}:{}", path, number + 1));
            }
        }
    }
    none(&long, "a comment has at most 100 columns");
}

#[test]
fn names_are_specific() {
    let mut empty = Vec::new();
    for (path, text) in rust_files() {
        let stem = Path::new(&path)
            .file_stem()
            .expect("a file has a name")
            .to_string_lossy()
            .to_lowercase();
        if EMPTY_WORDS.iter().any(|w| {
            stem.split('_')
                .any(|part| part == *w || part == format!("{w}s"))
        }) {
            empty.push(path.clone());
        }
        for (number, line) in text.lines().enumerate() {
            let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            let declares = ["struct", "enum", "trait", "mod"];
            while let Some(word) = words.next() {
                if !declares.contains(&word) {
                    continue;
                }
                let name = words.next().unwrap_or_default().to_lowercase();
                if EMPTY_WORDS.iter().any(|w| name.ends_with(w))
                    && !line.trim_start().starts_with("//")
                {
                    empty.push(format!("{}:{}: {name}", path, number + 1));
                }
            }
        }
    }
    none(&empty, "names are the field's nouns and verbs");
}

#[test]
fn nothing_is_left_for_later() {
    let marks = [
        "TO".to_string() + "DO",
        "FIX".to_string() + "ME",
        "XX".to_string() + "X",
        "todo".to_string() + "!(",
        "unimplemented".to_string() + "!(",
    ];
    let mut left = Vec::new();
    for (path, text) in rust_files() {
        for (number, line) in text.lines().enumerate() {
            if marks.iter().any(|m| line.contains(m.as_str())) {
                left.push(format!("{}:{}", path, number + 1));
            }
        }
    }
    none(&left, "no mark of unfinished work");
}

#[test]
fn unsafe_lives_in_the_taps_only() {
    let allow = "allow(".to_string() + "unsafe_code)";
    // The load client of the tests writes into memory that it shares with a back end.
    let taps = [
        "crates/weir-tap",
        "crates/weir-tapdisk",
        "crates/weir-testing/src/vhost",
        "xtask",
    ];
    let outside = rust_files().filter(|(path, text)| {
        text.contains(&allow) && !taps.iter().any(|tap| Path::new(path).starts_with(tap))
    });
    none(
        &outside.map(|(p, _)| p).collect::<Vec<_>>(),
        "only weir-tap, weir-tapdisk and the load client allow unsafe code",
    );
}
