//! The colours of a statement on a terminal.

use std::ops::Range;

use weir_query::syntax::keywords;
use weir_query::syntax::token::{Token, tokens};

const KEYWORD: &str = "\x1b[1m";
const TEXT: &str = "\x1b[32m";
const NUMBER: &str = "\x1b[36m";
const COMMENT: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// The text with the escape sequences of its colours. A `\` command has none.
pub fn highlighted(text: &str) -> String {
    if text.trim_start().starts_with('\\') {
        return text.to_owned();
    }
    let (lexemes, _) = tokens(text, 0, text.len());
    let mut drawn = String::new();
    let mut end = 0;
    for lexeme in lexemes {
        let between = end..lexeme.span.start;
        let is_comment = !text[between.clone()].trim().is_empty();
        add(&mut drawn, text, between, is_comment.then_some(COMMENT));
        let word = &text[lexeme.span.range()];
        let colour = match lexeme.token {
            Token::Word if keywords().any(|k| k.eq_ignore_ascii_case(word)) => Some(KEYWORD),
            Token::Text => Some(TEXT),
            Token::Integer | Token::Decimal => Some(NUMBER),
            _ => None,
        };
        add(&mut drawn, text, lexeme.span.range(), colour);
        end = lexeme.span.end;
    }
    drawn
}

fn add(drawn: &mut String, text: &str, part: Range<usize>, colour: Option<&str>) {
    let part = &text[part];
    match colour {
        Some(colour) => drawn.extend([colour, part, PLAIN]),
        None => drawn.push_str(part),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text without escape sequences.
    fn stripped(drawn: &str) -> String {
        let mut parts = drawn.split('\x1b');
        let first = parts.next().unwrap_or("").to_owned();
        let rest = parts.map(|part| part.split_once('m').expect("a colour").1);
        first + &rest.collect::<String>()
    }

    #[test]
    fn colours_change_no_character() {
        for text in [
            "",
            "select 'a' from IO -- b\n where x > 10 ms;",
            "/* open",
            "'open",
            "\\d select",
            "äöü § select",
        ] {
            assert_eq!(stripped(&highlighted(text)), text);
        }
    }

    #[test]
    fn keywords_texts_numbers_and_comments_differ() {
        let drawn = highlighted("SELECT 'x', 5, a -- b");
        let expected = format!(
            "{KEYWORD}SELECT{PLAIN} {TEXT}'x'{PLAIN}, {NUMBER}5{PLAIN}, a{COMMENT} -- b{PLAIN}"
        );
        assert_eq!(drawn, expected);
    }
}
