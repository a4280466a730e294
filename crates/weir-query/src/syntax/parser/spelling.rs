//! Expressions that SQL writes with words of their own, as the calls and casts that they mean:
//! `x::integer`, `extract(hour from ts)`, `x IS TRUE`, `t ~ 'p'`, `interval '1' second`.

use super::*;
use crate::expr::timestamp;
use crate::function::aggregate::is_aggregate;

impl Parser<'_> {
    /// The call of `name`.
    pub(super) fn call_of(
        &mut self,
        name: &str,
        args: Vec<SpannedExpr>,
        start: Span,
    ) -> Result<SpannedExpr> {
        let kind = ExprKind::Call {
            name: Ident::new(name.to_owned(), start),
            distinct: false,
            args,
            star: false,
            filter: None,
        };
        self.node(kind, start)
    }

    /// A primary expression and the casts after it.
    pub(super) fn primary_cast(&mut self) -> Result<SpannedExpr> {
        let expr = self.primary()?;
        self.casts(expr)
    }

    /// `expr::integer::text`
    pub(super) fn casts(&mut self, mut expr: SpannedExpr) -> Result<SpannedExpr> {
        while self.eat(Token::DoubleColon) {
            let start = expr.span;
            let ty = self.type_name()?;
            let expr_before = Box::new(expr);
            let kind = ExprKind::Cast {
                expr: expr_before,
                ty,
            };
            expr = self.node(kind, start)?;
        }
        Ok(expr)
    }

    /// What follows IS: `[NOT] NULL | TRUE | FALSE | UNKNOWN | DISTINCT FROM y`.
    pub(super) fn is_predicate(&mut self, expr: Box<SpannedExpr>) -> Result<SpannedExpr> {
        let start = expr.span;
        let negated = self.eat_word("not");
        if self.eat_word("distinct") {
            self.expect_word("from")?;
            let right = self.operand()?;
            let call = self.call_of("is_distinct_from", vec![*expr, right], start)?;
            return match negated {
                true => self.negated(call, start),
                false => Ok(call),
            };
        }
        if self.is_any_word(&["true", "false"]) {
            let is_false = self.is_word("false");
            self.at += 1;
            let when = match is_false {
                true => self.negated(*expr, start)?,
                false => *expr,
            };
            let truth = |x: bool| SpannedExpr::new(ExprKind::Literal(Literal::Bool(x)), start);
            let kind = ExprKind::Case {
                operand: None,
                branches: vec![(when, truth(!negated))],
                otherwise: Some(Box::new(truth(negated))),
            };
            return self.node(kind, start);
        }
        if !self.eat_word("unknown") {
            self.expect_word("null")?;
        }
        self.node(ExprKind::IsNull { expr, negated }, start)
    }

    fn negated(&mut self, expr: SpannedExpr, start: Span) -> Result<SpannedExpr> {
        let expr = Box::new(expr);
        let op = UnaryOp::Not;
        self.node(ExprKind::Unary { op, expr }, start)
    }

    /// `~ 'p'`, `!~ 'p'`, and `~* 'p'` without regard to case, after their first operand.
    pub(super) fn regex_match(&mut self, text: SpannedExpr) -> Result<SpannedExpr> {
        let start = text.span;
        let negated = self.is(Token::NotTilde);
        self.at += 1;
        let ignore_case = self.eat(Token::Star);
        let mut args = vec![text, self.operand()?];
        if ignore_case {
            let flags = ExprKind::Literal(Literal::Text("i".into()));
            args.push(SpannedExpr::new(flags, start));
        }
        let call = self.call_of("regexp_matches", args, start)?;
        match negated {
            true => self.negated(call, start),
            false => Ok(call),
        }
    }

    /// A primary expression that begins with a word which has a syntax of its own only there.
    pub(super) fn sql_spelling(&mut self, start: Span) -> Option<Result<SpannedExpr>> {
        let next = self.lexeme(1).token;
        let word = self.word()?.to_ascii_lowercase();
        match (word.as_str(), next) {
            ("interval", Token::Text) => Some(self.interval_literal(start)),
            ("timestamp", Token::Text) => Some(self.timestamp(start)),
            ("extract", Token::LeftParen) => Some(self.extract(start)),
            ("position", Token::LeftParen) => Some(self.position(start)),
            ("trim", Token::LeftParen) => Some(self.trim(start)),
            _ => None,
        }
    }

    /// `interval '1' second` as a value.
    fn interval_literal(&mut self, start: Span) -> Result<SpannedExpr> {
        let literal = match self.interval()? {
            Some(Duration {
                count,
                measure: Some(measure),
            }) => Literal::Quantity(count, measure),
            _ => return Err(self.unexpected("an interval, as in interval '1' second")),
        };
        self.node(ExprKind::Literal(literal), start)
    }

    /// `timestamp '2026-01-31 12:00:00'`
    fn timestamp(&mut self, start: Span) -> Result<SpannedExpr> {
        self.at += 1;
        let span = self.span();
        let text = unquote(self.text_of(span));
        self.at += 1;
        if timestamp::nanos(&text).is_none() {
            let message = format!("`{text}` is not a timestamp");
            let found = codes::BAD_TIMESTAMP.at(span, message);
            return Err(self.fail(found.help("write it as '2026-01-31 12:00:00'")));
        }
        let literal = ExprKind::Literal(Literal::Text(text));
        let kind = ExprKind::Cast {
            expr: Box::new(SpannedExpr::new(literal, span)),
            ty: Spanned::new(Type::Time, start),
        };
        self.node(kind, start)
    }

    /// `extract(hour from ts)`
    fn extract(&mut self, start: Span) -> Result<SpannedExpr> {
        self.at += 2;
        let span = self.span();
        let part = match self.is(Token::Text) {
            true => unquote(self.text_of(span)),
            false if self.is(Token::Word) => self.text_of(span).to_ascii_lowercase(),
            false => {
                return Err(self.unexpected("a part of a timestamp, as in extract(hour from ts)"));
            }
        };
        self.at += 1;
        self.expect_word("from")?;
        let ts = self.expr()?;
        self.expect(Token::RightParen, "`)`")?;
        let part = SpannedExpr::new(ExprKind::Literal(Literal::Text(part)), span);
        self.call_of("date_part", vec![part, ts], start)
    }

    /// `position('a' in t)`, `position('a', t)`
    fn position(&mut self, start: Span) -> Result<SpannedExpr> {
        self.at += 2;
        let part = self.operand()?;
        if !self.eat_word("in") {
            self.expect(Token::Comma, "`in` or `,`")?;
        }
        let text = self.expr()?;
        self.expect(Token::RightParen, "`)`")?;
        self.call_of("position", vec![part, text], start)
    }

    /// `trim(both 'x' from t)`, `trim(leading from t)`, `trim(t, 'x')`
    fn trim(&mut self, start: Span) -> Result<SpannedExpr> {
        const SIDES: &[(&str, &str)] = &[
            ("both", "trim"),
            ("leading", "ltrim"),
            ("trailing", "rtrim"),
        ];
        self.at += 2;
        let ends = [Token::Comma, Token::RightParen, Token::Dot];
        let side = SIDES.iter().find(|(side, _)| self.is_word(side));
        let side = side.filter(|_| !ends.contains(&self.lexeme(1).token));
        self.at += usize::from(side.is_some());
        let mut args = Vec::new();
        if !self.is_word("from") && !self.is(Token::RightParen) {
            args.push(self.expr()?);
        }
        if self.eat_word("from") {
            args.insert(0, self.expr()?);
        } else if side.is_some() {
            return Err(self.unexpected("`from`"));
        }
        while self.eat(Token::Comma) {
            args.push(self.expr()?);
        }
        self.expect(Token::RightParen, "`)`")?;
        self.call_of(side.map_or("trim", |(_, function)| function), args, start)
    }

    /// `WITHIN GROUP (ORDER BY x)`, which gives the first argument, and the condition of
    /// `FILTER (WHERE c)`.
    pub(super) fn aggregate_clauses(
        &mut self,
        name: &Ident,
        args: &mut Vec<SpannedExpr>,
    ) -> Result<Option<Box<SpannedExpr>>> {
        let follows = self.word_after(0).unwrap_or_default();
        if self.is_word("within") && follows.eq_ignore_ascii_case("group") {
            self.at += 2;
            self.expect(Token::LeftParen, "`(order by x)`")?;
            self.expect_word("order")?;
            self.expect_word("by")?;
            args.insert(0, self.expr()?);
            self.eat_word("asc");
            self.expect(Token::RightParen, "`)`")?;
        }
        let filters = self.is_word("filter") && self.lexeme(1).token == Token::LeftParen;
        if !filters {
            return Ok(None);
        }
        let start = self.span();
        if !is_aggregate(&name.value) {
            let message = format!("`{}` is not an aggregate, so it has no FILTER", name.value);
            return Err(self.fail(codes::UNEXPECTED.at(start, message)));
        }
        self.at += 2;
        self.expect_word("where")?;
        let filter = self.expr()?;
        self.expect(Token::RightParen, "`)`")?;
        Ok(Some(Box::new(filter)))
    }
}
