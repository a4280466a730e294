//! `OVER (..)` after a call.

use super::*;
use crate::syntax::print::CLAUSES_OF_WINDOWS;

impl Parser<'_> {
    /// Whether `OVER (` or `OVER w` follows a call.
    pub(super) fn begins_over(&self) -> bool {
        let next = self.lexeme(1).token;
        let is_name =
            next == Token::QuotedWord || self.word_after(0).is_some_and(|word| !is_reserved(word));
        self.is_word("over") && (next == Token::LeftParen || is_name)
    }

    /// `OVER (PARTITION BY a ORDER BY b ROWS ..)` or `OVER w` after a call.
    pub(super) fn over(
        &mut self,
        name: Ident,
        distinct: bool,
        args: Vec<SpannedExpr>,
        star: bool,
        filter: Option<Box<SpannedExpr>>,
    ) -> Result<OverClause> {
        self.at += 1;
        let window = match self.is(Token::LeftParen) {
            true => self.row_window()?,
            false => RowWindow {
                base: Some(self.ident("the name of a window")?),
                is_bare: true,
                ..RowWindow::default()
            },
        };
        Ok(OverClause {
            name,
            distinct,
            args,
            star,
            filter,
            window,
        })
    }

    /// `(w PARTITION BY a ORDER BY b ROWS ..)`
    fn row_window(&mut self) -> Result<RowWindow> {
        self.expect(Token::LeftParen, "`(`")?;
        let base = match self.is_ident() && !self.is_any_word(CLAUSES_OF_WINDOWS) {
            true => Some(self.ident("the name of a window")?),
            false => None,
        };
        let mut partition = Vec::new();
        if self.eat_word("partition") {
            self.expect_word("by")?;
            partition = self.clause_exprs();
        }
        let order_by = self.order_by();
        let frame = match self.is_any_word(&["rows", "range", "groups"]) {
            true => Some(self.frame()?),
            false => None,
        };
        let expected = "`order by`, `rows`, `range`, `groups` or `)`";
        self.expect(Token::RightParen, expected)?;
        Ok(RowWindow {
            base,
            is_bare: false,
            partition,
            order_by,
            frame,
        })
    }

    /// Whether `WINDOW w AS (` begins here; `window` is also a name.
    pub(super) fn begins_windows(&self) -> bool {
        let is_as = |word: &str| word.eq_ignore_ascii_case("as");
        self.is_word("window")
            && self.word_after(1).is_some_and(is_as)
            && self.lexeme(3).token == Token::LeftParen
    }

    /// `WINDOW w AS (..), v AS (..)`, or nothing
    pub(super) fn windows(&mut self) -> Result<Vec<WindowDefinition>> {
        let mut windows = Vec::new();
        if !self.begins_windows() {
            return Ok(windows);
        }
        self.at += 1;
        loop {
            let name = self.ident("the name of a window")?;
            self.expect_word("as")?;
            let window = self.row_window()?;
            windows.push(WindowDefinition { name, window });
            if !self.eat(Token::Comma) {
                return Ok(windows);
            }
        }
    }

    /// `ROWS BETWEEN 2 PRECEDING AND CURRENT ROW`, `ROWS 2 PRECEDING`
    fn frame(&mut self) -> Result<Spanned<FrameClause>> {
        let start = self.span();
        let unit = match () {
            () if self.is_word("rows") => FrameUnit::Rows,
            () if self.is_word("groups") => FrameUnit::Groups,
            () => FrameUnit::Range,
        };
        self.at += 1;
        let (first, last) = match self.eat_word("between") {
            true => {
                let first = self.frame_bound("preceding")?;
                self.expect_word("and")?;
                (first, self.frame_bound("following")?)
            }
            false => (self.frame_bound("preceding")?, FrameBound::CurrentRow),
        };
        let frame = FrameClause {
            unit,
            start: first,
            end: last,
        };
        Ok(Spanned::new(frame, start.to(self.before())))
    }

    /// A bound; `unbounded` is the word after UNBOUNDED here.
    fn frame_bound(&mut self, unbounded: &str) -> Result<FrameBound> {
        if self.eat_word("unbounded") {
            self.expect_word(unbounded)?;
            return Ok(FrameBound::Unbounded);
        }
        if self.eat_word("current") {
            self.expect_word("row")?;
            return Ok(FrameBound::CurrentRow);
        }
        let distance = self.operand()?;
        match self.eat_word("preceding") {
            true => Ok(FrameBound::Preceding(distance)),
            false => {
                self.expect_word("following")?;
                Ok(FrameBound::Following(distance))
            }
        }
    }
}
