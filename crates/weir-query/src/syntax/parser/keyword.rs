//! The keywords, for completion and highlighting.

use super::RESERVED;

/// Keywords that are also names where no keyword can be.
const OTHERS: &[&str] = &[
    "act",
    "after",
    "alert",
    "annotations",
    "asc",
    "at",
    "by",
    "cgroup",
    "changes",
    "close",
    "cooldown",
    "cpu",
    "cube",
    "current",
    "define",
    "delay",
    "desc",
    "describe",
    "descriptor",
    "drop",
    "emit",
    "every",
    "expect",
    "filter",
    "final",
    "first",
    "following",
    "for",
    "functions",
    "grouping",
    "groups",
    "if",
    "interval",
    "labels",
    "last",
    "match",
    "match_recognize",
    "measures",
    "no",
    "now",
    "nulls",
    "one",
    "outer",
    "over",
    "partition",
    "past",
    "pattern",
    "permute",
    "pid",
    "preceding",
    "probe",
    "queries",
    "range",
    "register",
    "relation",
    "replace",
    "rollup",
    "row",
    "rows",
    "running",
    "session",
    "sets",
    "show",
    "skip",
    "slide",
    "stream",
    "streams",
    "subset",
    "table",
    "to",
    "unbounded",
    "unit",
    "unknown",
    "until",
    "view",
    "views",
    "window",
    "within",
    "witness",
];

/// The keywords, lower case: the reserved ones first.
pub fn keywords() -> impl Iterator<Item = &'static str> {
    RESERVED.iter().chain(OTHERS).copied()
}

/// Whether a word is a keyword that cannot be a name unless it is between backticks.
pub fn is_reserved(word: &str) -> bool {
    RESERVED.iter().any(|r| r.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// The words that the code of the parser compares with the text: the literals in calls such as
    /// `eat_word("by")` and `is_any_word(&["true", "false"])`.
    fn compared_words(code: &str) -> Vec<String> {
        let calls = code.split("_word(").skip(1);
        let literals = calls.map(|rest| rest.split(')').next().unwrap_or(""));
        let words = literals.flat_map(|call| call.split('"').skip(1).step_by(2));
        words.map(str::to_owned).collect()
    }

    #[test]
    fn every_word_that_the_parser_compares_is_a_keyword() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/syntax/parser");
        let mut compared = Vec::new();
        for entry in fs::read_dir(folder).unwrap() {
            let code = fs::read_to_string(entry.unwrap().path()).unwrap();
            let code = code.split("#[cfg(test)]").next().unwrap();
            compared.extend(compared_words(code));
        }
        assert!(compared.len() > 60, "{compared:?}");
        compared.retain(|word| !keywords().any(|keyword| keyword == word));
        assert!(compared.is_empty(), "not in the list: {compared:?}");
    }

    #[test]
    fn no_keyword_is_listed_twice() {
        let mut all: Vec<&str> = keywords().collect();
        let listed = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), listed);
    }
}
