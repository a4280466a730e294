//! `OVER (..)` after a call.

use super::*;

impl Parser<'_> {
    /// `OVER (PARTITION BY a ORDER BY b ROWS ..)` after a call.
    pub(super) fn over(
        &mut self,
        name: Ident,
        distinct: bool,
        args: Vec<SpannedExpr>,
        star: bool,
        filter: Option<Box<SpannedExpr>>,
    ) -> Result<OverClause> {
        self.at += 2;
        let mut partition = Vec::new();
        if self.eat_word("partition") {
            self.expect_word("by")?;
            partition = self.clause_exprs();
        }
        let order_by = self.order_by();
        let frame = match self.is_any_word(&["rows", "range"]) {
            true => Some(self.frame()?),
            false => None,
        };
        self.expect(Token::RightParen, "`order by`, `rows`, `range` or `)`")?;
        Ok(OverClause {
            name,
            distinct,
            args,
            star,
            filter,
            partition,
            order_by,
            frame,
        })
    }

    /// `ROWS BETWEEN 2 PRECEDING AND CURRENT ROW`, `ROWS 2 PRECEDING`
    fn frame(&mut self) -> Result<Spanned<FrameClause>> {
        let start = self.span();
        let unit = match self.eat_word("rows") {
            true => FrameUnit::Rows,
            false => FrameUnit::Range,
        };
        if unit == FrameUnit::Range {
            self.at += 1;
        }
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
