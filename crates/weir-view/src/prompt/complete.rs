//! The completions of the word at the cursor: the names that can be there.

use weir_query::diagnostic::Span;
use weir_query::function::documented;
use weir_query::syntax::token::{Lexeme, Token, tokens, unquote};
use weir_query::syntax::{is_reserved, keywords};

use super::command::{Argument, COMMANDS, find};
use super::names::{NamedSource, Names};
use weir_sink::SINKS;

/// Words at the start of a statement.
const STARTS: [&str; 7] = [
    "create", "describe", "drop", "explain", "select", "show", "with",
];

/// Keywords after which a source follows.
const BEFORE_SOURCE: [&str; 5] = ["from", "join", "describe", "desc", "into"];

/// Keywords that begin a clause, for the position of a comma.
const CLAUSES: [&str; 12] = [
    "select",
    "from",
    "where",
    "group",
    "having",
    "order",
    "limit",
    "on",
    "using",
    "union",
    "intersect",
    "except",
];

/// The completions of a word.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// The first byte of the word in the line.
    pub start: usize,
    /// The words that may be in its place, sorted.
    pub words: Vec<String>,
    /// A file name is expected.
    pub is_file: bool,
}

/// The completions at byte `at` of a text.
pub fn complete(text: &str, at: usize, names: &Names) -> Completion {
    if text.trim_start().starts_with('\\') {
        return of_command(text, at, names);
    }
    let Some(statement) = Statement::at(text, at) else {
        return Completion::default();
    };
    let prefix = &text[statement.start..at];
    let words = statement.candidates(names);
    Completion {
        start: statement.start,
        words: fitting(prefix, words),
        is_file: false,
    }
}

/// The words that begin with a prefix, in any case, sorted. A keyword is in the case of the prefix.
fn fitting(prefix: &str, words: Vec<Candidate>) -> Vec<String> {
    let is_upper =
        prefix.chars().any(char::is_uppercase) && !prefix.chars().any(char::is_lowercase);
    let begins = |word: &str| {
        let start = word.get(..prefix.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    };
    let words = words.into_iter().map(|candidate| match candidate {
        Candidate::Keyword(word) if is_upper => word.to_uppercase(),
        Candidate::Keyword(word) => word.to_owned(),
        Candidate::Name(word) => word,
    });
    let mut words: Vec<String> = words.filter(|word| begins(word)).collect();
    words.sort_unstable();
    words.dedup();
    words
}

/// The completions of a `\` command or its argument.
fn of_command(text: &str, at: usize, names: &Names) -> Completion {
    let indent = text.len() - text.trim_start().len();
    let before = &text[indent..at.max(indent)];
    let Some((name, argument)) = before.split_once(char::is_whitespace) else {
        let names = COMMANDS.iter().flat_map(|command| command.names);
        let words = names.map(|name| Candidate::Name(format!("\\{name}")));
        return Completion {
            start: indent,
            words: fitting(before, words.collect()),
            is_file: false,
        };
    };
    let Some(command) = find(&name[1..]) else {
        return Completion::default();
    };
    let word = argument.rsplit(char::is_whitespace).next().unwrap_or("");
    let start = at - word.len();
    let own = |word: &str| Candidate::Name(word.to_owned());
    let words = match command.argument {
        Argument::Other => Vec::new(),
        Argument::File => {
            return Completion {
                start,
                words: Vec::new(),
                is_file: true,
            };
        }
        Argument::Query => {
            // The query is completed as if it were alone.
            let query = at - argument.len();
            let completion = complete(&text[query..], at - query, names);
            return Completion {
                start: completion.start + query,
                ..completion
            };
        }
        Argument::Source => names.sources.iter().map(|s| own(&s.name)).collect(),
        Argument::Function => documented().map(|(_, doc)| own(doc.name)).collect(),
        Argument::Format => {
            let formats = SINKS.iter().map(|format| own(format.name));
            formats.chain([own("default")]).collect()
        }
        Argument::Switch => vec![own("off"), own("on")],
    };
    Completion {
        start,
        words: fitting(word, words),
        is_file: false,
    }
}

/// A word that may be completed.
enum Candidate {
    /// A keyword, lower case.
    Keyword(&'static str),
    /// A name, in its own case.
    Name(String),
}

/// The statement at the cursor.
struct Statement<'a> {
    text: &'a str,
    /// The first byte of the word that is completed.
    start: usize,
    /// The tokens before that word.
    before: Vec<Lexeme>,
    /// All tokens.
    all: Vec<Lexeme>,
}

impl<'a> Statement<'a> {
    /// `None` within a comment, a quoted text or a number.
    fn at(text: &'a str, at: usize) -> Option<Statement<'a>> {
        let (mut all, _) = tokens(text, 0, text.len());
        all.retain(|lexeme| lexeme.token != Token::End);
        let is_end = |l: &Lexeme| l.token == Token::Semicolon && l.span.end <= at;
        let first = all.iter().rposition(is_end).map_or(0, |at| at + 1);
        all.drain(..first);
        let is_end = |l: &Lexeme| l.token == Token::Semicolon;
        let last = all.iter().position(is_end).unwrap_or(all.len());
        all.truncate(last);
        let touches = |l: &&Lexeme| l.span.start < at && at <= l.span.end;
        let touched = all.iter().find(touches).copied();
        let start = match touched {
            Some(Lexeme {
                token: Token::Word,
                span,
            }) => span.start,
            Some(lexeme) if is_inside(text, lexeme, at) => return None,
            _ => at,
        };
        let before = all.iter().take_while(|l| l.span.end <= start);
        let before: Vec<Lexeme> = before.copied().collect();
        let gap = before.last().map_or(0, |l| l.span.end);
        match is_comment(&text[gap..start]) {
            true => None,
            false => Some(Statement {
                text,
                start,
                before,
                all,
            }),
        }
    }

    fn word(&self, lexeme: &Lexeme) -> String {
        let word = &self.text[lexeme.span.range()];
        match lexeme.token {
            Token::Word => word.to_lowercase(),
            Token::QuotedWord => unquote(word).to_lowercase(),
            _ => String::new(),
        }
    }

    fn candidates(&self, names: &Names) -> Vec<Candidate> {
        let name = |name: &String| Candidate::Name(spelled(name));
        let Some(last) = self.before.last() else {
            return STARTS.map(Candidate::Keyword).into();
        };
        let used = self.sources(names);
        if last.token == Token::Dot {
            let owner = self.before.len().checked_sub(2).map(|at| &self.before[at]);
            let owner = owner.map_or(String::new(), |owner| self.word(owner));
            let of_owner = used.iter().filter(|(alias, _)| *alias == owner);
            let columns = of_owner.flat_map(|(_, source)| &source.columns);
            return columns.map(|field| name(&field.name)).collect();
        }
        if self.expects_source() {
            return names
                .sources
                .iter()
                .map(|source| name(&source.name))
                .collect();
        }
        let columns = used.iter().flat_map(|(_, source)| &source.columns);
        let columns = columns.map(|field| name(&field.name));
        let aliases = used.iter().map(|(alias, _)| name(alias));
        let functions = documented().map(|(_, doc)| Candidate::Name(format!("{}(", doc.name)));
        let keywords = keywords().map(Candidate::Keyword);
        columns
            .chain(aliases)
            .chain(functions)
            .chain(keywords)
            .collect()
    }

    /// Whether the name of a source is next.
    fn expects_source(&self) -> bool {
        let Some((last, rest)) = self.before.split_last() else {
            return false;
        };
        if last.token == Token::Word {
            return BEFORE_SOURCE.contains(&self.word(last).as_str());
        }
        last.token == Token::Comma && self.is_in_from(rest)
    }

    /// Whether the end of these tokens is in the list of FROM, outside its brackets.
    fn is_in_from(&self, tokens: &[Lexeme]) -> bool {
        let mut depth = 0;
        for lexeme in tokens.iter().rev() {
            match lexeme.token {
                Token::RightParen | Token::RightBracket => depth += 1,
                Token::LeftParen | Token::LeftBracket if depth == 0 => return false,
                Token::LeftParen | Token::LeftBracket => depth -= 1,
                Token::Word if depth == 0 => {
                    let word = self.word(lexeme);
                    if CLAUSES.contains(&word.as_str()) {
                        return word == "from";
                    }
                }
                _ => {}
            }
        }
        false
    }

    /// The sources that the statement reads, each by its name and by its alias.
    fn sources<'n>(&self, names: &'n Names) -> Vec<(String, &'n NamedSource)> {
        let mut used = Vec::new();
        for (at, lexeme) in self.all.iter().enumerate() {
            let Some(source) = names.find(&self.word(lexeme)) else {
                continue;
            };
            let is_source = at.checked_sub(1).is_some_and(|before| {
                let word = self.word(&self.all[before]);
                let is_list = self.all[before].token == Token::Comma;
                matches!(word.as_str(), "from" | "join")
                    || is_list && self.is_in_from(&self.all[..before])
            });
            if is_source {
                used.push((source.name.to_lowercase(), source));
                used.extend(self.alias_after(at + 1).map(|alias| (alias, source)));
            }
        }
        used
    }

    /// The alias of the source whose name is before the token `at`.
    fn alias_after(&self, mut at: usize) -> Option<String> {
        if self.all.get(at)?.token == Token::LeftBracket {
            let closes = |l: &Lexeme| l.token == Token::RightBracket;
            at += self.all[at..].iter().position(closes)? + 1;
        }
        if self.word(self.all.get(at)?) == "as" {
            at += 1;
        }
        let lexeme = self.all.get(at)?;
        let alias = self.word(lexeme);
        let is_completed = lexeme.span.start == self.start;
        (!is_completed && !alias.is_empty() && !is_reserved(&alias)).then_some(alias)
    }
}

/// Whether a position is within a quoted text or a number, or directly after it.
fn is_inside(text: &str, lexeme: Lexeme, at: usize) -> bool {
    let Span { start, end } = lexeme.span;
    match lexeme.token {
        Token::Integer | Token::Decimal => true,
        Token::Text | Token::QuotedWord => {
            let quote = text[start..].chars().next();
            let is_closed = end - start > 1 && text[start..end].chars().next_back() == quote;
            at < end || !is_closed
        }
        _ => false,
    }
}

/// Whether the end of a text without tokens is within a comment.
fn is_comment(gap: &str) -> bool {
    let line = gap.rsplit('\n').next().unwrap_or("");
    let opened = gap.matches("/*").count();
    line.contains("--") || line.contains('#') || opened > gap.matches("*/").count()
}

/// A name as a query writes it: between backticks unless it is a plain identifier.
pub fn spelled(name: &str) -> String {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let is_plain = name.chars().all(is_word) && !name.starts_with(|c: char| c.is_ascii_digit());
    match is_plain && !name.is_empty() && !is_reserved(name) {
        true => name.to_owned(),
        false => format!("`{}`", name.replace('`', "``")),
    }
}

#[cfg(test)]
mod tests {
    use weir_model::{Field, Type};

    use super::*;

    /// Names of a view beside the built-in sources.
    fn names() -> Names {
        let mut names = Names::of_fleet();
        let column = |name: &str| Field::new(name, Type::Int);
        names.sources.push(NamedSource {
            name: "busy".into(),
            kind: "view",
            doc: String::new(),
            columns: vec![column("busy_since"), column("count(*)")],
        });
        names
    }

    /// The completions where `|` is in a text.
    fn at_bar(text: &str) -> Vec<String> {
        let at = text.find('|').expect("a cursor");
        let completion = complete(&text.replacen('|', "", 1), at, &names());
        completion.words
    }

    #[test]
    fn a_source_follows_from_join_and_a_comma_of_from() {
        for text in [
            "select * from di|",
            "select * from IO [now] as i join di|",
            "select f(1, 2) from IO, di|",
            "select * from IO [range 1 s], di|",
            "select 1; select * from di|; select 2",
            "select * from IO where vm in (select vm from di|)",
        ] {
            assert_eq!(at_bar(text), ["disks"], "{text}");
        }
        assert_eq!(at_bar("select * from bu|"), ["busy"]);
        assert!(!at_bar("select di| from IO").contains(&"disks".to_owned()));
        assert!(!at_bar("select op, di| from IO").contains(&"disks".to_owned()));
    }

    #[test]
    fn columns_are_those_of_the_sources_of_the_statement() {
        assert_eq!(at_bar("select laten| from IO"), ["latency"]);
        assert_eq!(at_bar("select laten| from disks"), Vec::<String>::new());
        assert_eq!(
            at_bar("select 1 from IO; select laten|"),
            Vec::<String>::new()
        );
        assert_eq!(at_bar("select busy_| from IO, busy"), ["busy_since"]);
        assert_eq!(
            at_bar("select * from busy where `cou|"),
            Vec::<String>::new()
        );
        assert_eq!(at_bar("select i.laten| from IO [now] as i"), ["latency"]);
        assert_eq!(at_bar("select b.bu|, 1 from IO i, busy b"), ["busy_since"]);
        assert_eq!(
            at_bar("select b.| from IO i, busy b"),
            ["`count(*)`", "busy_since"]
        );
        assert_eq!(at_bar("select x.laten| from IO"), Vec::<String>::new());
    }

    #[test]
    fn keywords_have_the_case_of_what_was_typed() {
        assert_eq!(at_bar("sel|"), ["select"]);
        assert_eq!(at_bar("SEL|"), ["SELECT"]);
        assert_eq!(
            at_bar("select 1 from IO GRO|"),
            ["GROUP", "GROUPING", "GROUPS"]
        );
        assert_eq!(at_bar("select quanti| from IO"), ["quantile("]);
    }

    #[test]
    fn nothing_is_completed_in_texts_comments_and_numbers() {
        for text in [
            "select 'sel|",
            "select 'sel|'",
            "select 1 -- sel|",
            "select 1 # sel|",
            "select 1 /* sel|",
            "select 12|",
        ] {
            assert_eq!(at_bar(text), Vec::<String>::new(), "{text}");
        }
        assert!(!at_bar("select 1 -- x\n, sel|").is_empty());
    }

    #[test]
    fn commands_and_their_arguments_are_completed() {
        assert_eq!(at_bar("\\ti|"), ["\\timing"]);
        assert_eq!(at_bar("\\timing o|"), ["off", "on"]);
        assert_eq!(at_bar("\\d DIS|"), ["disks"]);
        assert_eq!(at_bar("\\format js|"), ["json"]);
        assert_eq!(at_bar("\\df quanti|"), ["quantile"]);
        assert_eq!(at_bar("\\explain select * from di|"), ["disks"]);
        assert!(complete("\\i fi", 5, &names()).is_file);
        assert_eq!(complete("\\i fi", 5, &names()).start, 3);
    }

    #[test]
    fn a_completed_name_is_a_name_of_the_language() {
        for name in ["a", "A_1", "count(*)", "a`b", "select", "1a", ""] {
            let spelled = spelled(name);
            let (lexemes, found) = tokens(&spelled, 0, spelled.len());
            assert_eq!((lexemes.len(), found.len()), (2, 0), "{spelled}");
            let same = match lexemes[0].token {
                Token::Word => spelled.clone(),
                _ => unquote(&spelled),
            };
            assert_eq!(same, name);
        }
    }
}
