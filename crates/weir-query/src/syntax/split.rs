//! [`split`]: the statements of a text that may end within one, as a prompt reads it.

use super::token::{Token, tokens};
use crate::diagnostic::Span;

/// The statements of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The statements that end with `;`, each from its first token to its last one; empty ones are
    /// left out.
    pub complete: Vec<Span>,
    /// The statement without `;` at the end of the text, from its first token or open comment.
    pub open: Option<Span>,
}

impl Split {
    /// All statements, in order.
    pub fn statements(&self) -> impl Iterator<Item = Span> {
        self.complete.iter().chain(&self.open).copied()
    }
}

/// Splits a text at each `;` that is not in a quoted text, a quoted name or a comment.
pub fn split(text: &str) -> Split {
    let (lexemes, diagnostics) = tokens(text, 0, text.len());
    let mut complete = Vec::new();
    let mut open: Option<Span> = None;
    for lexeme in lexemes {
        match lexeme.token {
            Token::End => break,
            Token::Semicolon => complete.extend(open.take()),
            _ => open = Some(open.map_or(lexeme.span, |open| open.to(lexeme.span))),
        }
    }
    // A quoted text ends with its line at the latest, a comment does not.
    let comment = diagnostics.iter().map(|d| d.span);
    let mut comment = comment.filter(|span| text[span.range()].starts_with("/*"));
    if let Some(comment) = comment.next_back() {
        let end = Span::new(comment.start, text.len());
        open = Some(open.map_or(end, |open| open.to(end)));
    }
    Split { complete, open }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The complete statements of a text, and the open one.
    fn parts(text: &str) -> (Vec<&str>, Option<&str>) {
        let split = split(text);
        let complete = split.complete.iter().map(|span| &text[span.range()]);
        (
            complete.collect(),
            split.open.map(|span| &text[span.range()]),
        )
    }

    #[test]
    fn a_statement_ends_with_a_semicolon_outside_quotes_and_comments() {
        for statement in [
            "select ';' from IO",
            "select \"a;b\" from IO",
            "select `a;b` from IO",
            "select 'it''s;' from IO",
            "select 1 /* ; /* ; */ ; */ from IO",
            "select 1 -- ;\nfrom IO",
            "select 1 # ;\nfrom IO",
        ] {
            let text = format!("{statement};");
            assert_eq!(parts(&text), (vec![statement], None), "{text}");
            assert_eq!(parts(statement), (vec![], Some(statement)), "{text}");
        }
    }

    #[test]
    fn several_statements_may_be_on_a_line() {
        let text = " ;; a 1 ; b;-- c\n d ";
        assert_eq!(parts(text), (vec!["a 1", "b"], Some("d")));
        assert_eq!(parts("a; -- the end"), (vec!["a"], None));
        assert_eq!(parts(" \n\t"), (vec![], None));
    }

    #[test]
    fn an_open_comment_leaves_a_statement_open() {
        assert_eq!(parts("a; /* b;"), (vec!["a"], Some("/* b;")));
        assert_eq!(parts("a /* ; "), (vec![], Some("a /* ; ")));
        assert_eq!(parts("'/*';"), (vec!["'/*'"], None));
    }

    #[test]
    fn an_open_quote_ends_with_its_line_as_in_the_parser() {
        assert_eq!(parts("select 'a\n;"), (vec!["select 'a"], None));
        assert_eq!(parts("select '/*\n;"), (vec!["select '/*"], None));
    }
}
