//! The names of the repository: a public type name has one meaning, and no name contains a word of
//! `names.txt`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use weir_testing::repository::{none, read, root, tracked};

/// A word that is not part of a name, and the standard term for it.
struct Word {
    word: String,
    term: String,
}

/// The content of `names.txt`.
#[derive(Default)]
struct Lists {
    words: Vec<Word>,
    /// Names of one file that may contain a word.
    names: Vec<(String, String)>,
    /// Type names that may have two definitions.
    types: Vec<String>,
}

fn lists() -> Lists {
    let mut lists = Lists::default();
    for line in read("xtask/names.txt").lines() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some((words, term)) = line.split_once(" => ") {
            lists.words.extend(words.split(", ").map(|word| Word {
                word: word.to_owned(),
                term: term.to_owned(),
            }));
            continue;
        }
        let (entry, reason) = line.split_once(" # ").expect("a reason");
        assert!(reason.len() > 8, "the reason for `{entry}` is too short");
        if let Some(name) = entry.strip_prefix("type ") {
            lists.types.push(name.to_owned());
        } else {
            let entry = entry.strip_prefix("allow ").expect("allow or type");
            let (path, name) = entry.split_once(": ").expect("a path and a name");
            lists.names.push((path.to_owned(), name.to_owned()));
        }
    }
    lists
}

/// The text without comments; quoted text stays, as it declares nothing.
fn code(path: &str) -> String {
    let text = read(path);
    let lines = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

fn leading_name(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    &text[..end.unwrap_or(text.len())]
}

/// A line without its visibility.
fn without_visibility(line: &str) -> &str {
    let Some(rest) = line.trim_start().strip_prefix("pub") else {
        return line.trim_start();
    };
    let rest = match rest.strip_prefix('(') {
        Some(rest) => rest.split_once(')').map_or(rest, |(_, rest)| rest),
        None => rest,
    };
    rest.trim_start()
}

/// A line without its quoted text.
fn unquoted(line: &str) -> String {
    let line = line.replace("\\\"", "").replace("'\"'", "");
    line.split('"').step_by(2).collect()
}

/// The patterns of a line: of `let` and `for`, and the parameters of closures.
fn patterns(line: &str) -> Vec<&str> {
    let mut patterns = Vec::new();
    for (keyword, end) in [("let ", "="), ("for ", " in ")] {
        for (at, _) in line.match_indices(keyword) {
            if !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
                let pattern = line[at + keyword.len()..].split(end).next();
                patterns.extend(pattern.and_then(|p| p.split(": ").next()));
            }
        }
    }
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('|') {
        let is_operator = after.starts_with([' ', '|', '=']);
        let opens = !is_operator && (before.is_empty() || before.ends_with(['(', ' ', '&']));
        rest = match after.split_once('|') {
            Some((parameters, body)) if opens => {
                let parameters = parameters.split(", ");
                patterns.extend(parameters.filter_map(|p| p.split(": ").next()));
                body
            }
            _ => after,
        };
    }
    patterns
}

/// The names that a line binds: variables, parameters and fields.
fn bound(line: &str) -> Vec<String> {
    let is_outside = |c: char| !c.is_alphanumeric() && c != '_';
    let typed = line.match_indices(": ");
    let typed = typed.filter_map(|(at, _)| line[..at].rsplit(is_outside).next());
    let patterns = patterns(line).into_iter();
    let names = patterns.flat_map(|p| p.split(is_outside)).chain(typed);
    let names = names.filter(|name| name.starts_with(|c: char| c.is_lowercase() || c == '_'));
    names.map(str::to_owned).collect()
}

/// The names that a text declares: functions, types, modules, constants, variants, fields,
/// parameters and local variables.
fn declared(code: &str) -> BTreeSet<String> {
    const KEYWORDS: [&str; 9] = [
        "fn ", "struct ", "enum ", "trait ", "union ", "type ", "mod ", "const ", "static ",
    ];
    let mut names = BTreeSet::new();
    for line in code.lines() {
        names.extend(bound(&unquoted(line)));
        let mut rest = without_visibility(line);
        for prefix in ["async ", "unsafe ", "const fn ", "extern \"C\" "] {
            if let Some(shorter) = rest.strip_prefix(prefix) {
                rest = shorter;
                if prefix == "const fn " {
                    names.insert(leading_name(rest).to_owned());
                }
            }
        }
        let keyword = KEYWORDS.iter().find_map(|k| rest.strip_prefix(k));
        if let Some(rest) = keyword {
            names.insert(leading_name(rest).to_owned());
            continue;
        }
        let name = leading_name(rest);
        let after = &rest[name.len()..];
        let is_variant = name.starts_with(char::is_uppercase)
            && (after == "," || after == " {" || after.starts_with('('));
        if is_variant {
            names.insert(name.to_owned());
        }
    }
    names
}

/// The words of a name in lower case: `tell_hosts` and `TellHosts` are `tell`, `hosts`.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before_is_lower = false;
    for c in name.chars() {
        if c == '_' || c.is_uppercase() && before_is_lower {
            words.push(String::new());
        }
        before_is_lower = c.is_lowercase() || c.is_numeric();
        if c != '_' {
            let last = words.last_mut().expect("there is a word");
            last.extend(c.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[test]
fn names_use_the_terms_of_the_field() {
    let lists = lists();
    let mut found = Vec::new();
    let mut used = BTreeSet::new();
    for path in tracked(".rs") {
        let mut names = declared(&code(&path));
        let file = Path::new(&path).file_stem().expect("a file has a name");
        names.insert(file.to_string_lossy().into_owned());
        for name in names {
            let parts = words(&name);
            let Some(word) = lists.words.iter().find(|w| parts.contains(&w.word)) else {
                continue;
            };
            let allowed = (path.clone(), name.clone());
            match lists.names.iter().position(|entry| *entry == allowed) {
                Some(index) => drop(used.insert(index)),
                None => found.push(format!("{path}: `{name}`: {}", word.term)),
            }
        }
    }
    none(
        &found,
        "a name has a word for which there is a standard term",
    );
    let unused = lists.names.iter().enumerate();
    let unused = unused.filter(|(index, _)| !used.contains(index));
    let unused: Vec<String> = unused.map(|(_, (p, n))| format!("{p}: {n}")).collect();
    none(&unused, "an exception in names.txt has no use");
}

/// The public types of a text: those at its top level.
fn public_types(code: &str) -> Vec<&str> {
    let kinds = ["struct ", "enum ", "trait ", "union ", "type "];
    let lines = code.lines().filter_map(|line| line.strip_prefix("pub "));
    let lines = lines.map(|line| line.strip_prefix("unsafe ").unwrap_or(line));
    let named = lines.filter_map(|line| kinds.iter().find_map(|kind| line.strip_prefix(kind)));
    named.map(leading_name).collect()
}

/// The file of a module, below the folder of its parent's modules, and the folder of its own.
fn module(folder: &str, name: &str) -> Option<(String, String)> {
    let own = format!("{folder}/{name}");
    let files = [format!("{own}.rs"), format!("{own}/mod.rs")];
    let file = files.into_iter().find(|file| root().join(file).is_file());
    file.map(|file| (file, own))
}

/// The items of `pub use`: the path before the name, and the name.
fn exported(code: &str) -> Vec<(String, String)> {
    let mut items = Vec::new();
    for part in format!("\n{code}").split("\npub use ").skip(1) {
        let tree: String = part.split(';').next().unwrap_or_default().into();
        let tree = tree.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut prefixes = vec![String::new()];
        let mut path = String::new();
        for c in format!("{tree},").chars() {
            match c {
                '{' => prefixes.push(format!("{}{path}", prefixes[prefixes.len() - 1])),
                ',' | '}' => {
                    let whole = format!("{}{}", prefixes[prefixes.len() - 1], path.trim());
                    let whole = whole.split(" as ").next().unwrap_or_default().to_owned();
                    if let Some((before, name)) = whole.rsplit_once("::")
                        && !name.is_empty()
                    {
                        items.push((before.to_owned(), name.to_owned()));
                    }
                    if c == '}' {
                        prefixes.pop();
                    }
                }
                ' ' if path.is_empty() => continue,
                c => path.push(c),
            }
            if matches!(c, '{' | ',' | '}') {
                path.clear();
            }
        }
    }
    items
}

/// The types that other crates can name, with the files that define them.
fn public_types_of(source: &str) -> BTreeSet<(String, String)> {
    let mut types = BTreeSet::new();
    let mut modules = vec![(format!("{source}/lib.rs"), source.to_owned())];
    while let Some((file, folder)) = modules.pop() {
        let code = code(&file);
        let here = public_types(&code).into_iter();
        types.extend(here.map(|name| (name.to_owned(), file.clone())));
        let public = code
            .lines()
            .filter_map(|line| line.strip_prefix("pub mod "));
        modules.extend(public.filter_map(|line| module(&folder, leading_name(line))));
        for (path, name) in exported(&code) {
            let mut at = Some((file.clone(), folder.clone()));
            for step in path.split("::") {
                at = match step {
                    "crate" => Some((format!("{source}/lib.rs"), source.to_owned())),
                    "self" => at,
                    step => at.and_then(|(_, folder)| module(&folder, step)),
                };
            }
            let Some((file, _)) = at else { continue };
            if public_types(&self::code(&file)).contains(&name.as_str()) {
                types.insert((name, file));
            }
        }
    }
    types
}

#[test]
fn a_public_type_name_has_one_meaning() {
    let mut files: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in fs::read_dir(root().join("crates")).expect("a readable folder") {
        let name = entry.expect("a readable entry").file_name();
        let source = format!("crates/{}/src", name.to_string_lossy());
        if root().join(&source).join("lib.rs").is_file() {
            for (name, file) in public_types_of(&source) {
                files.entry(name).or_default().insert(file);
            }
        }
    }
    assert!(files.len() > 500, "the crates have public types");
    let lists = lists();
    let twice = files.iter().filter(|(_, files)| files.len() > 1);
    let (allowed, twice): (Vec<_>, Vec<_>) = twice.partition(|(n, _)| lists.types.contains(n));
    let twice = twice.iter().map(|(name, files)| {
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        format!("`{name}`: {}", files.join(", "))
    });
    none(
        &twice.collect::<Vec<_>>(),
        "a type name stands for one thing",
    );
    let is_used = |name: &&String| !allowed.iter().any(|(n, _)| n == name);
    let unused: Vec<String> = lists.types.iter().filter(is_used).cloned().collect();
    none(&unused, "an exception in names.txt has no use");
}

#[test]
fn the_checks_find_what_they_look_for() {
    assert_eq!(words("TellHosts"), ["tell", "hosts"]);
    assert_eq!(words("TELL_EVERY"), ["tell", "every"]);
    let code = "pub(crate) fn tell(\n    told: &str,\n}\npub enum A {\n    Said(u8),\n}\n";
    let expected = ["A", "Said", "tell", "told"].map(str::to_owned);
    assert_eq!(declared(code), BTreeSet::from(expected));
    let code = [
        "let (said, heard): (u8, u8) = f(x || y, |told: &u8, (tells, a)| b);",
        "if let Some(hears) = g(\"let dear = |nap|\") {",
        "for says in c {",
        "fn d(ear: u8) {}",
    ];
    let expected = [
        "a", "d", "ear", "heard", "hears", "said", "says", "tells", "told",
    ];
    let expected = expected.map(str::to_owned);
    assert_eq!(declared(&code.join("\n")), BTreeSet::from(expected));
    assert_eq!(
        public_types("pub struct A;\nstruct B;\npub enum C<T> {"),
        ["A", "C"]
    );
    let uses = exported("pub use a::{B, c::{D, E}};\npub use f::G;\nuse h::I;");
    let expected = [("a", "B"), ("a::c", "D"), ("a::c", "E"), ("f", "G")];
    let expected = expected.map(|(path, name)| (path.to_owned(), name.to_owned()));
    assert_eq!(uses, expected);
}
