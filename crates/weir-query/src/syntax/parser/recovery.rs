//! Syntax errors: their messages, error recovery, and limits.

use super::*;

impl Parser<'_> {
    pub(super) fn fail(&mut self, diagnostic: Diagnostic) -> Failed {
        // An error of the lexer is already reported; an unterminated text extends to the end of its
        // line.
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

    /// Reports that the next token is not `what`, and suggests a keyword.
    pub(super) fn unexpected(&mut self, what: &str) -> Failed {
        let Lexeme { token, span } = self.lexeme(0);
        let found = match token {
            Token::End => "the end".into(),
            Token::Text => "a text".into(),
            _ => format!("`{}`", self.text_of(span)),
        };
        let mut diagnostic = codes::UNEXPECTED.at(span, format!("expected {what}, found {found}"));
        // A misspelt keyword was parsed as a name, most likely the token just before.
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

    /// Continues after an error in an element that began at token `first`: at the next comma or
    /// clause outside of it.
    pub(super) fn recover(&mut self, first: usize) {
        // A clause where an expression should continue: a parenthesis was not closed.
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
    /// the closing one of the enclosing parentheses, or to the end.
    pub(super) fn skip(&mut self, mut open: usize, tokens: &[Token], words: &[&str]) {
        loop {
            let token = self.lexeme(0).token;
            let here = open == 0 && (tokens.contains(&token) || self.is_any_word(words));
            // The end of a statement closes all parentheses.
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

    /// Runs `parse` one level deeper, up to the maximum.
    pub(super) fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.deeper_by(1, parse)
    }

    /// Runs `parse` `levels` levels deeper, up to the maximum.
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
        // Reported once, not again for every level above.
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

    /// Counts one more query block or source, up to the maximum.
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
        // Nothing after this can be parsed within the limit.
        self.at = self.lexemes.len() - 1;
        Err(Failed)
    }
}
