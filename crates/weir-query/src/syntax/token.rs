//! Text → tokens. The lexer never fails: an unknown character becomes [`Token::Unknown`] and a
//! diagnostic.

use crate::diagnostic::{Diagnostic, Span, codes};

/// A kind of token; its text is the query's at its span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// A name or keyword.
    Word,
    /// `` `count(*)` ``: a name that is not a plain identifier.
    QuotedWord,
    /// `42`, `3_000_000`
    Integer,
    /// `0.5`, `.5`, `1e9`
    Decimal,
    /// `'x'` or `"x"`; a quote inside is doubled.
    Text,
    /// `(`
    LeftParen,
    /// `)`
    RightParen,
    /// `[`
    LeftBracket,
    /// `]`
    RightBracket,
    /// `,`
    Comma,
    /// `;`
    Semicolon,
    /// `:`
    Colon,
    /// `.`
    Dot,
    /// `*`
    Star,
    /// `+`
    Plus,
    /// `-`
    Minus,
    /// `/`
    Slash,
    /// `%`
    Percent,
    /// `=`, `==`
    Equal,
    /// `<>`, `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterEqual,
    /// `||`
    Concat,
    /// `::`
    DoubleColon,
    /// `~`
    Tilde,
    /// `!~`
    NotTilde,
    /// `&`
    Ampersand,
    /// `|`
    Bar,
    /// `<<`
    ShiftLeft,
    /// `>>`
    ShiftRight,
    /// Not a token of CQL.
    Unknown,
    /// After the last one.
    End,
}

/// A token and its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lexeme {
    /// The token.
    pub token: Token,
    /// The position.
    pub span: Span,
}

/// The tokens of `text` from byte `start` up to `end`, terminated by [`Token::End`], and the
/// diagnostics. White space and comments are skipped: `#` or `--` up to the end of the line, and
/// `/* .. */`, also nested.
pub fn tokens(text: &str, start: usize, end: usize) -> (Vec<Lexeme>, Vec<Diagnostic>) {
    let mut lexer = Lexer {
        text: &text[..end],
        at: start,
        diagnostics: Vec::new(),
    };
    let mut lexemes = Vec::new();
    loop {
        lexer.skip_blank();
        let from = lexer.at;
        let token = lexer.next();
        let span = Span::new(from, lexer.at);
        lexemes.push(Lexeme { token, span });
        if token == Token::End {
            return (lexemes, lexer.diagnostics);
        }
    }
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
    diagnostics: Vec<Diagnostic>,
}

impl Lexer<'_> {
    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn peek_second(&self) -> Option<char> {
        self.text[self.at..].chars().nth(1)
    }

    fn take_while(&mut self, keep: impl Fn(char) -> bool) {
        while let Some(c) = self.peek().filter(|c| keep(*c)) {
            self.at += c.len_utf8();
        }
    }

    fn take_if(&mut self, c: char) -> bool {
        let found = self.peek() == Some(c);
        if found {
            self.at += c.len_utf8();
        }
        found
    }

    fn skip_blank(&mut self) {
        loop {
            self.take_while(|c| c.is_whitespace() || c == '\u{feff}');
            if self.peek() == Some('#') || self.text[self.at..].starts_with("--") {
                self.take_while(|c| c != '\n');
            } else if self.text[self.at..].starts_with("/*") {
                self.block_comment();
            } else {
                return;
            }
        }
    }

    /// The comment at the cursor, which may contain others.
    fn block_comment(&mut self) {
        let start = self.at;
        let mut depth = 0_usize;
        while let Some(c) = self.peek() {
            let rest = &self.text[self.at..];
            if rest.starts_with("/*") {
                depth += 1;
                self.at += 2;
            } else if rest.starts_with("*/") {
                depth -= 1;
                self.at += 2;
                if depth == 0 {
                    return;
                }
            } else {
                self.at += c.len_utf8();
            }
        }
        let span = Span::new(start, start + 2);
        let message = "the closing */ is missing";
        self.diagnostics
            .push(codes::UNTERMINATED_TEXT.at(span, message));
    }

    fn next(&mut self) -> Token {
        let Some(c) = self.peek() else {
            return Token::End;
        };
        let starts_number = c.is_ascii_digit()
            || c == '.' && self.peek_second().is_some_and(|d| d.is_ascii_digit());
        if starts_number {
            return self.number();
        }
        if c.is_alphabetic() || c == '_' {
            self.take_while(|c| c.is_alphanumeric() || c == '_');
            return Token::Word;
        }
        let start = self.at;
        self.at += c.len_utf8();
        match c {
            '\'' | '"' => self.quoted(start, c, Token::Text),
            '`' => self.quoted(start, c, Token::QuotedWord),
            '(' => Token::LeftParen,
            ')' => Token::RightParen,
            '[' => Token::LeftBracket,
            ']' => Token::RightBracket,
            ',' => Token::Comma,
            ';' => Token::Semicolon,
            ':' if self.take_if(':') => Token::DoubleColon,
            ':' => Token::Colon,
            '~' => Token::Tilde,
            '&' => Token::Ampersand,
            '.' => Token::Dot,
            '*' => Token::Star,
            '+' => Token::Plus,
            '-' => Token::Minus,
            '/' => Token::Slash,
            '%' => Token::Percent,
            '=' => {
                self.take_if('=');
                Token::Equal
            }
            '!' if self.take_if('=') => Token::NotEqual,
            '!' if self.take_if('~') => Token::NotTilde,
            '<' if self.take_if('=') => Token::LessEqual,
            '<' if self.take_if('>') => Token::NotEqual,
            '<' if self.take_if('<') => Token::ShiftLeft,
            '<' => Token::Less,
            '>' if self.take_if('=') => Token::GreaterEqual,
            '>' if self.take_if('>') => Token::ShiftRight,
            '>' => Token::Greater,
            '|' if self.take_if('|') => Token::Concat,
            '|' => Token::Bar,
            _ => {
                let span = Span::new(start, self.at);
                let message = format!("`{}` is not a CQL symbol", c.escape_debug());
                self.diagnostics
                    .push(codes::UNKNOWN_CHARACTER.at(span, message));
                Token::Unknown
            }
        }
    }

    fn number(&mut self) -> Token {
        let digit = |c: char| c.is_ascii_digit() || c == '_';
        let mut token = Token::Integer;
        self.take_while(digit);
        if self.peek() == Some('.') && self.peek_second().is_some_and(|c| c.is_ascii_digit()) {
            token = Token::Decimal;
            self.at += 1;
            self.take_while(digit);
        }
        // `1e9` is a number, `1 e` is not: the exponent needs a digit.
        let mut rest = self.text[self.at..].chars();
        if matches!(rest.next(), Some('e' | 'E')) {
            let mut after = rest.next();
            let sign = matches!(after, Some('+' | '-'));
            if sign {
                after = rest.next();
            }
            if after.is_some_and(|c| c.is_ascii_digit()) {
                token = Token::Decimal;
                self.at += 1 + usize::from(sign);
                self.take_while(|c| c.is_ascii_digit());
            }
        }
        token
    }

    /// The rest of a quoted text, up to the closing quote or, without one, the end of the line.
    fn quoted(&mut self, start: usize, quote: char, token: Token) -> Token {
        loop {
            self.take_while(|c| c != quote && c != '\n');
            if !self.take_if(quote) {
                let message = format!("the closing {quote} is missing");
                let span = Span::new(start, self.at);
                self.diagnostics
                    .push(codes::UNTERMINATED_TEXT.at(span, message));
                return token;
            }
            if !self.take_if(quote) {
                return token;
            }
        }
    }
}

/// The content of a quoted token: without its quotes, doubled ones once.
pub fn unquote(quoted: &str) -> String {
    let Some(quote) = quoted.chars().next() else {
        return String::new();
    };
    let inner = &quoted[quote.len_utf8()..];
    let doubled = [quote, quote].iter().collect::<String>();
    // An unterminated text has no closing quote to remove, nor has one that ends in a doubled
    // quote.
    let closing = inner.chars().rev().take_while(|c| *c == quote).count() % 2;
    inner[..inner.len() - closing].replace(&doubled, &quote.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<Token> {
        tokens(text, 0, text.len())
            .0
            .iter()
            .map(|l| l.token)
            .collect()
    }

    #[test]
    fn comments_and_white_space_are_skipped() {
        assert_eq!(
            kinds("a # b\n-- c\n 1.5e3 /* d /* e */\n f */ .5"),
            [Token::Word, Token::Decimal, Token::Decimal, Token::End]
        );
    }

    #[test]
    fn a_number_and_its_unit_are_two_tokens() {
        assert_eq!(
            kinds("5s 1.e 2_000"),
            [
                Token::Integer,
                Token::Word,
                Token::Integer,
                Token::Dot,
                Token::Word,
                Token::Integer,
                Token::End
            ]
        );
    }

    #[test]
    fn doubled_quotes_are_unescaped() {
        assert_eq!(unquote("'it''s'"), "it's");
        assert_eq!(unquote("\"a'b\""), "a'b");
        assert_eq!(unquote("'open"), "open");
        assert_eq!(unquote("''''"), "'");
        assert_eq!(unquote("''"), "");
    }

    #[test]
    fn an_unterminated_text_ends_with_its_line() {
        let (lexemes, diagnostics) = tokens("'abc\nselect", 0, 11);
        assert_eq!(lexemes.len(), 3);
        assert_eq!(diagnostics.len(), 1);
        assert_eq!(diagnostics[0].span, Span::new(0, 4));
    }
}
