//! Splits a script into sections: `word :` and its content.

use weir_model::suggest::nearest;

use crate::diagnostic::{Diagnostic, Span, codes};

/// The keyword of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keyword {
    Table,
    Source,
    Vquery,
    Vtable,
    Query,
    Dest,
}

const KEYWORDS: &[(&str, Keyword)] = &[
    ("table", Keyword::Table),
    ("source", Keyword::Source),
    ("vquery", Keyword::Vquery),
    ("vtable", Keyword::Vtable),
    ("query", Keyword::Query),
    ("dest", Keyword::Dest),
];

/// One section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Section {
    /// The keyword.
    pub word: Keyword,
    /// The position of the keyword.
    pub head: Span,
    /// The position of its content: for a path the rest of the line, else everything up to `;` or
    /// the next section.
    pub body: Span,
}

/// The sections of a script, in order.
pub(super) fn sections(text: &str) -> (Vec<Section>, Vec<Diagnostic>) {
    let mut scanner = Scanner { text, at: 0 };
    let (mut sections, mut diagnostics) = (Vec::new(), Vec::new());
    loop {
        scanner.skip_blank(true);
        let start = scanner.at;
        if start == text.len() {
            return (sections, diagnostics);
        }
        let Some(head) = scanner.head() else {
            scanner.statement();
            let span = Span::new(start, trimmed_end(text, start, scanner.at));
            let message = "expected a section, `table :`, `vquery :` or `query :`";
            diagnostics.push(codes::SCRIPT_SECTION.at(span, message));
            continue;
        };
        let name = &text[head.range()];
        let word = KEYWORDS
            .iter()
            .find(|(w, _)| w.eq_ignore_ascii_case(name))
            .map(|(_, word)| *word);
        let is_path = matches!(word, Some(Keyword::Source | Keyword::Dest));
        let body = if is_path {
            scanner.path()
        } else {
            scanner.body()
        };
        match word {
            Some(word) => sections.push(Section { word, head, body }),
            None => {
                let message = format!("there is no section `{name} :`");
                let found = codes::SCRIPT_SECTION.at(head, message);
                let near = nearest(name, KEYWORDS.iter().map(|(word, _)| *word));
                diagnostics.push(match near {
                    Some(near) => found.help(format!("did you mean `{near} :`?")),
                    None => {
                        found.help("sections are table, source, vquery, vtable, query and dest")
                    }
                });
            }
        }
    }
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl Scanner<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn take_while(&mut self, keep: impl Fn(char) -> bool) {
        let rest = self.rest();
        self.at += rest.find(|c| !keep(c)).unwrap_or(rest.len());
    }

    fn is_comment(&self) -> bool {
        self.rest().starts_with('#') || self.rest().starts_with("--")
    }

    /// Skips blanks and comments, and `;` between sections.
    fn skip_blank(&mut self, semicolons: bool) {
        loop {
            self.take_while(|c| c.is_whitespace() || c == '\u{feff}' || semicolons && c == ';');
            match self.is_comment() {
                true => self.take_while(|c| c != '\n'),
                false => return,
            }
        }
    }

    /// The word of `word :`, if the scanner is at one; the scanner is then after the colon.
    fn head(&mut self) -> Option<Span> {
        let start = self.at;
        self.take_while(|c| c.is_alphanumeric() || c == '_');
        let word = Span::new(start, self.at);
        self.take_while(|c| c == ' ' || c == '\t');
        if word.start == word.end || !self.rest().starts_with(':') {
            self.at = start;
            return None;
        }
        self.at += 1;
        Some(word)
    }

    /// A path: the rest of the line, or else of the next line that is not blank.
    fn path(&mut self) -> Span {
        self.take_while(|c| c == ' ' || c == '\t');
        if self.rest().starts_with(['\n', '\r']) || self.is_comment() {
            self.skip_blank(false);
            let here = self.at;
            // A section in the place of a path: the path is missing.
            if self.head().is_some() && !self.rest().starts_with(|c: char| !c.is_whitespace()) {
                self.at = here;
                return Span::new(here, here);
            }
            self.at = here;
        }
        let start = self.at;
        self.take_while(|c| c != '\n' && c != ';');
        let line = &self.text[start..self.at];
        let comment = line.find(" #").or_else(|| line.find("\t#"));
        let end = comment.map_or(self.at, |i| start + i);
        Span::new(start, trimmed_end(self.text, start, end))
    }

    /// A statement: up to `;`, the next section or the end.
    fn body(&mut self) -> Span {
        self.skip_blank(false);
        let start = self.at;
        self.statement();
        Span::new(start, trimmed_end(self.text, start, self.at))
    }

    /// Skips a statement, up to the `;` or the section that ends it.
    fn statement(&mut self) {
        loop {
            self.skip_blank(false);
            let Some(c) = self.rest().chars().next() else {
                return;
            };
            if c == ';' {
                return;
            }
            let here = self.at;
            if self.head().is_some() {
                self.at = here;
                return;
            }
            match c {
                '\'' | '"' | '`' => {
                    self.at += 1;
                    // A text literal ends on its line, closed or not.
                    self.take_while(|d| d != c && d != '\n');
                    self.at += usize::from(self.rest().starts_with(c));
                }
                c if c.is_alphanumeric() || c == '_' => {
                    self.take_while(|c| c.is_alphanumeric() || c == '_');
                }
                c => self.at += c.len_utf8(),
            }
        }
    }
}

fn trimmed_end(text: &str, start: usize, end: usize) -> usize {
    start + text[start..end].trim_end().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies(text: &str) -> Vec<(Keyword, &str)> {
        let (sections, diagnostics) = sections(text);
        assert_eq!(diagnostics, [], "{text}");
        sections
            .iter()
            .map(|s| (s.word, &text[s.body.range()]))
            .collect()
    }

    #[test]
    fn sections_end_at_semicolons_sections_and_the_end() {
        let text = "# a: b\nquery :\nselect 1 # x : y\n from 'a;:'\nvtable :register x;dest: /tmp/o.txt # o\nSource : tap:live;\nquery : z";
        assert_eq!(
            bodies(text),
            [
                (Keyword::Query, "select 1 # x : y\n from 'a;:'"),
                (Keyword::Vtable, "register x"),
                (Keyword::Dest, "/tmp/o.txt"),
                (Keyword::Source, "tap:live"),
                (Keyword::Query, "z"),
            ]
        );
    }

    #[test]
    fn a_path_can_be_on_the_next_line() {
        assert_eq!(
            bodies("source :\n  # here\n  a b.dat\nquery : x"),
            [(Keyword::Source, "a b.dat"), (Keyword::Query, "x")]
        );
        assert_eq!(
            bodies("dest :\nquery : x"),
            [(Keyword::Dest, ""), (Keyword::Query, "x")]
        );
        assert_eq!(
            bodies("source :\ntap:live"),
            [(Keyword::Source, "tap:live")]
        );
    }

    #[test]
    fn unknown_sections_are_reported() {
        let (_, diagnostics) = sections("hello; qurey : select");
        let diagnostics: Vec<_> = diagnostics.iter().map(|d| d.help.as_deref()).collect();
        assert_eq!(diagnostics, [None, Some("did you mean `query :`?")]);
    }
}
