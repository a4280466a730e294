//! Mistakes: what is said about them, where reading goes on, and the bounds of what is read.

use super::*;

impl Parser<'_> {
    pub(super) fn fail(&mut self, diagnostic: Diagnostic) -> Failed {
        // What the lexer could not read has been reported; an open text has swallowed the rest of
        // its line.
        let swallowed = self.is(Token::End)
            && self
                .diagnostics
                .iter()
                .any(|d| d.code == codes::UNTERMINATED_TEXT.code);
        if !self.is(Token::Unknown) && !swallowed {
            self.diagnostics.push(diagnostic);
        }
        Failed
    }

    /// Reports that the next token is not `what`, and guesses which keyword was meant.
    pub(super) fn unexpected(&mut self, what: &str) -> Failed {
        let Lexeme { token, span } = self.lexeme(0);
        let found = match token {
            Token::End => "the end".into(),
            Token::Text => "a text".into(),
            _ => format!("`{}`", self.text_of(span)),
        };
        let mut diagnostic = codes::UNEXPECTED.at(span, format!("expected {what}, found {found}"));
        // A misspelt keyword has been taken for a name, most likely the token just before.
        let near_keyword = |lexeme: Lexeme| {
            let word = (lexeme.token == Token::Word).then(|| self.text_of(lexeme.span))?;
            let keyword = nearest(
                word,
                CLAUSES.iter().copied().chain(["join", "by", "distinct"]),
            )?;
            (!keyword.eq_ignore_ascii_case(word) && word.len() > 2)
                .then(|| (lexeme.span, format!("did you mean `{keyword}`?")))
        };
        let before = (self.at > 0).then(|| self.lexemes[self.at - 1]);
        if let Some((near, help)) = before
            .and_then(near_keyword)
            .or_else(|| near_keyword(self.lexeme(0)))
        {
            diagnostic = Diagnostic {
                span: near,
                ..diagnostic
            }
            .help(help);
        }
        self.fail(diagnostic)
    }

    /// Goes on after a mistake in something that began at token `first`: at the next comma or
    /// clause that is not inside of it.
    pub(super) fn recover(&mut self, first: usize) {
        // A clause where an expression should go on: a parenthesis was left open.
        if self.is_any_word(CLAUSES) {
            return;
        }
        let count = |tokens: [Token; 2]| {
            let read = &self.lexemes[first..self.at.max(first)];
            read.iter().filter(|l| tokens.contains(&l.token)).count()
        };
        let opened = count([Token::LeftParen, Token::LeftBracket]);
        let closed = count([Token::RightParen, Token::RightBracket]);
        self.skip(opened.saturating_sub(closed), &[Token::Comma], CLAUSES);
    }

    /// Skips to one of `tokens` or `words` outside of parentheses, of which `open` are open, or to
    /// the one that closes what is around, or to the end.
    pub(super) fn skip(&mut self, mut open: usize, tokens: &[Token], words: &[&str]) {
        loop {
            let token = self.lexeme(0).token;
            let here = open == 0 && (tokens.contains(&token) || self.is_any_word(words));
            // A statement's end closes whatever was left open.
            if here || matches!(token, Token::End | Token::Semicolon) {
                return;
            }
            match token {
                Token::LeftParen | Token::LeftBracket => open += 1,
                Token::RightParen | Token::RightBracket if open > 0 => open -= 1,
                Token::RightParen if tokens != [Token::Semicolon] => return,
                _ => {}
            }
            self.at += 1;
        }
    }

    /// Runs `parse` one level deeper, if the bound allows it.
    pub(super) fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.deeper_by(1, parse)
    }

    /// Runs `parse` some levels deeper, if the bound allows it.
    pub(super) fn deeper_by<T>(
        &mut self,
        levels: u16,
        parse: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        if self.depth + levels > HEIGHT_MAX {
            return Err(self.too_deep(self.span()));
        }
        self.depth += levels;
        let result = parse(self);
        self.depth -= levels;
        result
    }

    pub(super) fn too_deep(&mut self, span: Span) -> Failed {
        let message = format!("nested more than {HEIGHT_MAX} deep");
        let help = "split the query with WITH";
        // Said once: every level above would say it again.
        if self
            .diagnostics
            .iter()
            .all(|d| d.code != codes::TOO_DEEP.code)
        {
            self.diagnostics
                .push(codes::TOO_DEEP.at(span, message).help(help));
        }
        Failed
    }

    /// Counts one more query block or source.
    pub(super) fn one_more_block(&mut self) -> Result<()> {
        self.blocks += 1;
        if self.blocks <= BLOCKS_MAX {
            return Ok(());
        }
        if self
            .diagnostics
            .iter()
            .all(|d| d.code != codes::TOO_DEEP.code)
        {
            let message = format!("more than {BLOCKS_MAX} query blocks and sources");
            let diagnostic = codes::TOO_DEEP.at(self.span(), message);
            self.diagnostics.push(diagnostic);
        }
        // Nothing after this can be read within the bound.
        self.at = self.lexemes.len() - 1;
        Err(Failed)
    }
}
