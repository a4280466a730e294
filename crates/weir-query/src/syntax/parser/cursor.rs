//! The parser's cursor: looking at, accepting and requiring the next token; and elements of one or
//! two tokens.

use super::*;

impl<'a> Parser<'a> {
    pub(super) fn lexeme(&self, ahead: usize) -> Lexeme {
        let last = self.lexemes.len() - 1;
        self.lexemes[(self.at + ahead).min(last)]
    }

    pub(super) fn is(&self, token: Token) -> bool {
        self.lexeme(0).token == token
    }

    pub(super) fn eat(&mut self, token: Token) -> bool {
        let found = self.is(token);
        self.at += usize::from(found);
        found
    }

    /// The position of the next token.
    pub(super) fn span(&self) -> Span {
        self.lexeme(0).span
    }

    /// The position of the last token.
    pub(super) fn before(&self) -> Span {
        self.lexemes[self.at.saturating_sub(1)].span
    }

    pub(super) fn text_of(&self, span: Span) -> &'a str {
        &self.text[span.range()]
    }

    /// The next token's text, if it is a plain word.
    pub(super) fn word(&self) -> Option<&'a str> {
        let lexeme = self.lexeme(0);
        (lexeme.token == Token::Word).then(|| self.text_of(lexeme.span))
    }

    /// The text of the word `skip` tokens after the next one.
    pub(super) fn word_after(&self, skip: usize) -> Option<&'a str> {
        let lexeme = self.lexeme(skip + 1);
        (lexeme.token == Token::Word).then(|| self.text_of(lexeme.span))
    }

    pub(super) fn is_word(&self, word: &str) -> bool {
        self.word().is_some_and(|w| w.eq_ignore_ascii_case(word))
    }

    pub(super) fn is_any_word(&self, words: &[&str]) -> bool {
        words.iter().any(|w| self.is_word(w))
    }

    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect(&mut self, token: Token, what: &str) -> Result<Span> {
        match self.is(token) {
            true => {
                self.at += 1;
                Ok(self.before())
            }
            false => Err(self.unexpected(what)),
        }
    }

    pub(super) fn expect_word(&mut self, word: &str) -> Result<Span> {
        match self.eat_word(word) {
            true => Ok(self.before()),
            false => Err(self.unexpected(&format!("`{word}`"))),
        }
    }

    /// Whether the next token is a name.
    pub(super) fn is_ident(&self) -> bool {
        self.is(Token::QuotedWord) || self.word().is_some_and(|w| !self.is_reserved_here(w))
    }

    /// Whether the next token, `word`, is reserved: `offset`, which is the name of columns as well,
    /// only before a number.
    pub(super) fn is_reserved_here(&self, word: &str) -> bool {
        let is_column =
            word.eq_ignore_ascii_case("offset") && self.lexeme(1).token != Token::Integer;
        is_reserved(word) && !is_column
    }

    pub(super) fn ident(&mut self, what: &str) -> Result<Ident> {
        if !self.is_ident() {
            return Err(self.unexpected(what));
        }
        let lexeme = self.lexeme(0);
        let text = self.text_of(lexeme.span);
        let name = match lexeme.token {
            Token::QuotedWord => unquote(text),
            _ => text.to_owned(),
        };
        self.at += 1;
        Ok(Ident::new(name, lexeme.span))
    }

    /// A non-negative integer.
    pub(super) fn count(&mut self, what: &str) -> Result<Spanned<u64>> {
        let span = self.expect(Token::Integer, what)?;
        match self.text_of(span).replace('_', "").parse() {
            Ok(count) => Ok(Spanned::new(count, span)),
            Err(_) => {
                let message = "the number does not fit in 64 bits";
                Err(self.fail(codes::BAD_NUMBER.at(span, message)))
            }
        }
    }

    /// A number, negated if `negative`.
    pub(super) fn number(&mut self, negative: bool) -> Result<Number> {
        let Lexeme { token, span } = self.lexeme(0);
        let sign = if negative { "-" } else { "" };
        let text = format!("{sign}{}", self.text_of(span).replace('_', ""));
        let number = match token {
            Token::Integer => text.parse().ok().map(Number::Int),
            Token::Decimal => text
                .parse()
                .ok()
                .filter(|x: &f64| x.is_finite())
                .map(Number::Float),
            _ => return Err(self.unexpected("a number")),
        };
        self.at += 1;
        number.ok_or_else(|| {
            let message = "the number does not fit in 64 bits";
            self.fail(codes::BAD_NUMBER.at(span, message))
        })
    }

    /// `5 seconds`, `250 ms`, `5`
    pub(super) fn duration(&mut self) -> Result<Spanned<Duration>> {
        let start = self.span();
        if let Some(interval) = self.interval()? {
            return Ok(Spanned::new(interval, start.to(self.before())));
        }
        let count = self.number(false)?;
        let measure = match self.word() {
            Some(word)
                if !is_reserved(word)
                    && !self.begins_alert_clause()
                    && !self.is_any_word(&["slide", "rows", "delay", "by", "define"]) =>
            {
                Some(self.measure(word)?)
            }
            _ => None,
        };
        Ok(Spanned::new(
            Duration { count, measure },
            start.to(self.before()),
        ))
    }

    pub(super) fn measure(&mut self, word: &str) -> Result<&'static UnitName> {
        let span = self.span();
        self.at += 1;
        find_measure(word).ok_or_else(|| {
            let names = MEASURES
                .iter()
                .flat_map(|m| m.aliases.iter().copied().chain([m.name]));
            let help = match nearest(word, names) {
                Some(name) => format!("did you mean `{name}`?"),
                None => "durations are in ns, us, ms, s, minutes, hours or days".into(),
            };
            let message = format!("unknown unit `{word}`");
            self.fail(codes::UNKNOWN_UNIT.at(span, message).help(help))
        })
    }
}
