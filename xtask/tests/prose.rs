//! The texts of the repository: idioms of `language.txt` in pages, comments and the strings of the
//! program, the length of lines, and dead links.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use weir_testing::repository::{none, read, root, tracked};

/// What is held to `language.txt` and to 100 columns: Markdown files below these paths, and
/// comments of Rust files below them. A crate is added here when its comments pass.
const SCANNED: &[&str] = &[
    ".github",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "crates/weir",
    "crates/weir-agent",
    "crates/weir-testing",
    "crates/weir-model",
    "crates/weir-monitor",
    "crates/weir-query",
    "crates/weir-runtime",
    "crates/weir-sink",
    "crates/weir-simulation",
    "crates/weir-sketch",
    "crates/weir-tap",
    "crates/weir-tapdisk",
    "crates/weir-view",
    "crates/weir-wire",
    "crates/weir-workload",
    "docs",
    "fuzz",
    "samples",
    "xtask",
];

/// Pages that a program writes: their text is in its source.
const GENERATED: &[&str] = &["docs/experiments.md", "docs/reference"];

/// A line of text has at most so many columns; tables, code and single words may be longer.
const COLUMNS_MAX: usize = 100;

/// An idiom and the standard term for it.
struct Idiom {
    phrase: String,
    term: String,
}

/// A text in a file in which an idiom is right.
struct Exception {
    path: String,
    text: String,
}

fn below(path: &str, folders: &[&str]) -> bool {
    folders
        .iter()
        .any(|folder| Path::new(path).starts_with(folder))
}

/// The lines of a Markdown text outside fenced code, with their numbers.
fn outside_code(text: &str) -> Vec<(usize, &str)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            lines.push((number + 1, line));
        }
    }
    lines
}

/// The text of a line without code spans and without the targets of links.
fn prose(line: &str) -> String {
    let spans: Vec<&str> = line.split('`').collect();
    let text: String = spans
        .iter()
        .step_by(2)
        .copied()
        .collect::<Vec<_>>()
        .join("_");
    let mut kept = String::new();
    let mut rest = text.as_str();
    while let Some(start) = rest.find("](") {
        kept.push_str(&rest[..start]);
        rest = rest[start..]
            .find(')')
            .map_or("", |end| &rest[start + end..]);
    }
    kept + rest
}

/// The comments of a Rust text, with their numbers.
fn comments(text: &str) -> Vec<(usize, &str)> {
    let lines = text.lines().enumerate();
    lines
        .filter_map(|(number, line)| {
            let comment = line.trim_start().strip_prefix("//")?;
            Some((number + 1, comment.trim_start_matches(['/', '!'])))
        })
        .collect()
}

/// The comments of a C text between `/*` and `*/`, by line, with their numbers.
fn block_comments(text: &str) -> Vec<(usize, &str)> {
    let mut is_inside = false;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let start = match is_inside {
            true => Some(0),
            false => line.find("/*"),
        };
        let Some(start) = start else { continue };
        let comment = &line[start..];
        is_inside = !comment.contains("*/");
        let comment = comment.split("*/").next().unwrap_or_default();
        lines.push((
            number + 1,
            comment.trim_start_matches(['/', '*', ' ', '\t']),
        ));
    }
    lines
}

/// Whether a Rust file is part of the program. Its unit tests are left out by [`strings`].
fn is_production(path: &str) -> bool {
    path.starts_with("crates/")
        && path.contains("/src/")
        && !path.contains("/tests/")
        && !path.ends_with("tests.rs")
}

/// The number of bytes of the token at the start of `text`, and its content if it is a string.
fn token(text: &str) -> (usize, Option<&str>) {
    let closing = |quote: char| {
        let mut is_escaped = false;
        let is_end = |c: char| {
            let is_end = c == quote && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            is_end
        };
        1 + text[1..].find(is_end).expect("a quote is closed")
    };
    let hashes = text
        .strip_prefix('r')
        .map_or(0, |rest| rest.len() - rest.trim_start_matches('#').len());
    let is_raw = text.starts_with('r') && text[1 + hashes..].starts_with('"');
    match text.chars().next().expect("a text is not empty") {
        '/' if text.starts_with("//") => (text.find('\n').unwrap_or(text.len()), None),
        '"' => (closing('"') + 1, Some(&text[1..closing('"')])),
        // A lifetime has no closing quote.
        '\'' if text[1..].starts_with('\\') => (closing('\'') + 1, None),
        '\'' => match text[1..].char_indices().nth(1) {
            Some((end, '\'')) => (end + 2, None),
            _ => (1, None),
        },
        'r' if is_raw => {
            let close = format!("\"{}", "#".repeat(hashes));
            let body = &text[2 + hashes..];
            let end = body.find(&close).expect("a raw string is closed");
            (2 + hashes + end + close.len(), Some(&body[..end]))
        }
        c if c.is_alphanumeric() || c == '_' => {
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            (text.find(|c| !is_word(c)).unwrap_or(text.len()), None)
        }
        c => (c.len_utf8(), None),
    }
}

/// The strings of a Rust text that have several words, with their lines, without the placeholders
/// of formats. An empty line separates them, since an idiom is not spread over two strings.
fn strings(text: &str) -> Vec<(usize, String)> {
    let text = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or(text);
    let (mut found, mut at, mut line) = (Vec::new(), 0, 1);
    while at < text.len() {
        let (length, content) = token(&text[at..]);
        if let Some(content) = content.filter(|content| content.contains(' ')) {
            let parts = content.split('{').enumerate();
            let parts = parts.map(|(n, part)| match (n, part.split_once('}')) {
                (0, _) | (_, None) => part,
                (_, Some((_, rest))) => rest,
            });
            let words = parts.collect::<Vec<_>>().join("_").replace("\\n", " ");
            let words = words.split(['\\', '\n', ' ']);
            let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
            found.push((line, words.join(" ")));
            found.push((line, String::new()));
        }
        line += text[at..at + length].matches('\n').count();
        at += length;
    }
    found
}

fn vocabulary() -> (Vec<Idiom>, Vec<Exception>) {
    let mut idioms = Vec::new();
    let mut exceptions = Vec::new();
    for line in read("xtask/language.txt").lines() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(exception) = line.strip_prefix("allow ") {
            let (place, reason) = exception.split_once(" # ").expect("a reason");
            let (path, text) = place.split_once(": ").expect("a path and a text");
            assert!(reason.len() > 8, "the reason for `{text}` is too short");
            exceptions.push(Exception {
                path: path.to_owned(),
                text: text.to_owned(),
            });
        } else {
            let (phrases, term) = line.split_once(" => ").expect("idioms and a term");
            idioms.extend(phrases.split(", ").map(|phrase| Idiom {
                phrase: phrase.to_owned(),
                term: term.to_owned(),
            }));
        }
    }
    (idioms, exceptions)
}

/// Whether `phrase` is in `text` as whole words. Both are in lower case.
fn contains(text: &str, phrase: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    text.match_indices(phrase).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + phrase.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

#[test]
fn texts_use_the_terms_of_the_field() {
    let (idioms, exceptions) = vocabulary();
    let mut found = Vec::new();
    let mut used = BTreeSet::new();
    let mut check = |path: &str, lines: Vec<(usize, &str)>| {
        // The end of the previous line, since an idiom of several words may be broken.
        let mut before = String::new();
        for (number, line) in lines {
            let mut text = prose(line);
            for (index, exception) in exceptions.iter().enumerate() {
                if exception.path == path && text.contains(&exception.text) {
                    used.insert(index);
                    text = text.replace(&exception.text, "");
                }
            }
            let text = text.trim().to_lowercase();
            let joined = format!("{before} {text}");
            let is_new = |i: &&Idiom| {
                let broken = contains(&joined, &i.phrase) && !contains(&before, &i.phrase);
                broken || contains(&text, &i.phrase)
            };
            for idiom in idioms.iter().filter(is_new) {
                found.push(format!(
                    "{path}:{number}: `{}`: {}",
                    idiom.phrase, idiom.term
                ));
            }
            before = text;
        }
    };
    for path in tracked(".md") {
        if below(&path, SCANNED) && !below(&path, GENERATED) {
            check(&path, outside_code(&read(&path)));
        }
    }
    for path in tracked(".rs") {
        if below(&path, SCANNED) {
            check(&path, comments(&read(&path)));
        }
        if is_production(&path) {
            let strings = strings(&read(&path));
            let lines = strings.iter().map(|(line, text)| (*line, text.as_str()));
            check(&path, lines.collect());
        }
    }
    for ending in [".bpf.c", ".h"] {
        for path in tracked(ending) {
            check(&path, block_comments(&read(&path)));
        }
    }
    for path in tracked(".proto") {
        check(&path, comments(&read(&path)));
    }
    none(&found, "use the standard term");
    let unused = |(index, _): &(usize, &Exception)| !used.contains(index);
    let unused: Vec<String> = exceptions
        .iter()
        .enumerate()
        .filter(unused)
        .map(|(_, e)| format!("{}: {}", e.path, e.text))
        .collect();
    none(&unused, "an exception in language.txt has no use");
}

#[test]
fn a_line_of_text_has_at_most_100_columns() {
    let mut long = Vec::new();
    for path in tracked(".md") {
        if !below(&path, SCANNED) || below(&path, GENERATED) {
            continue;
        }
        for (number, line) in outside_code(&read(&path)) {
            let columns = line.chars().count();
            let breakable = line.trim().contains(' ') && !line.starts_with('|');
            if columns > COLUMNS_MAX && breakable {
                long.push(format!("{path}:{number}: {columns}"));
            }
        }
    }
    none(&long, "a line of text has at most 100 columns");
}

/// The anchors of a page, as GitHub makes them of its headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for (_, line) in outside_code(text) {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let kept = title.trim().to_lowercase();
        let kept: String = kept
            .chars()
            .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let first = anchors.insert(kept.clone());
        let repeated = (1..).map(|n| format!("{kept}-{n}"));
        if !first {
            let free = repeated.into_iter().find(|a| !anchors.contains(a));
            anchors.extend(free);
        }
    }
    anchors
}

/// The targets of a page's links, with the numbers of their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut targets = Vec::new();
    for (number, line) in outside_code(text) {
        let spans: Vec<&str> = line.split('`').collect();
        let line = spans
            .iter()
            .step_by(2)
            .copied()
            .collect::<Vec<_>>()
            .join("_");
        for part in line.split("](").skip(1) {
            targets.extend(part.split_once(')').map(|(t, _)| (number, t.to_owned())));
        }
    }
    targets
}

/// `folder/../file` as `file`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                normal.pop();
            }
            other => normal.push(other),
        }
    }
    normal
}

#[test]
fn no_link_is_dead() {
    let mut dead = Vec::new();
    let mut checked = 0;
    for path in tracked(".md") {
        for (number, target) in links(&read(&path)) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            checked += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let folder = Path::new(&path).parent().expect("a file is in a folder");
            let page = match file {
                "" => PathBuf::from(&path),
                file => normal(&folder.join(file)),
            };
            let exists = root().join(&page).exists();
            let has_anchor = anchor.is_empty()
                || exists && anchors(&read(&page.to_string_lossy())).contains(anchor);
            if !exists || !has_anchor {
                dead.push(format!("{path}:{number}: {target}"));
            }
        }
    }
    assert!(checked > 100, "the pages have links");
    none(&dead, "a link leads nowhere");
}

#[test]
fn every_page_is_in_the_index_of_the_readme() {
    let index: BTreeSet<String> = links(&read("README.md"))
        .into_iter()
        .map(|(_, target)| target)
        .collect();
    let missing: Vec<String> = tracked(".md")
        .into_iter()
        .filter(|path| path.starts_with("docs/") && !path.starts_with("docs/decisions/"))
        .filter(|path| !index.contains(path))
        .collect();
    none(&missing, "a page is linked from README.md");
}

#[test]
fn the_checks_find_what_they_look_for() {
    let c = "int a; /* one\n\t * two */\nint b;\n";
    assert_eq!(block_comments(c), [(1, "one"), (2, "two ")]);
    assert!(contains("rows are told", "told"));
    assert!(!contains("retold stories, un-told", "told"));
    assert_eq!(prose("a `told` b [c](told.md) d"), "a _ b [c) d");
    assert_eq!(outside_code("a\n```\nb\n```\nc"), [(1, "a"), (5, "c")]);
    assert_eq!(comments("x // a\n  /// told\n"), [(2, " told")]);
    let code =
        "// \"no no\"\nf('\"', \"a {b} \\\n  c\\\" d\", r#\"e \"f\"\"#, 'a');\n#[cfg(test)]\nmod t";
    let found: Vec<(usize, String)> = strings(code).into_iter().step_by(2).collect();
    let expected = [(2, "a _ c \" d"), (3, "e \"f\"")];
    assert_eq!(found, expected.map(|(line, text)| (line, text.to_owned())));
    let page = "# A `b` C\n## D, e\n## D, e\n```\n# f\n```\n";
    let expected = ["a-b-c", "d-e", "d-e-1"].map(str::to_owned);
    assert_eq!(anchors(page), BTreeSet::from(expected));
    let found = links("[a](b.md#c) `[d](e)` ![f](g.svg)");
    assert_eq!(found, [(1, "b.md#c".to_owned()), (1, "g.svg".to_owned())]);
}
