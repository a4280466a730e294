//! Expressions, by precedence climbing.

use super::*;
use crate::expr::BinaryOp;
use crate::syntax::level;

/// What stands between two operands.
#[derive(Clone, Copy, PartialEq)]
enum Infix {
    /// A binary operator.
    Operator(BinaryOp),
    /// An operator on bits: the call of this function.
    Bits(&'static str),
    /// IS, IN, BETWEEN, LIKE, `~`.
    Predicate,
}

impl Infix {
    fn level(self) -> u8 {
        match self {
            Infix::Operator(op) => level::of(op),
            Infix::Bits(_) => level::CONCAT,
            Infix::Predicate => level::COMPARISON,
        }
    }
}

/// Maximum length of a chain of AND or OR that becomes a left-associative tree, as it is printed.
/// The tree of a longer chain has fewer operands than this between any two parentheses when it is
/// printed, so it is parsed to the same tree again.
const CHAIN_MAX: usize = 32;

impl Parser<'_> {
    /// An expression.
    pub(super) fn expr(&mut self) -> Result<SpannedExpr> {
        self.deeper(|p| p.operators(level::OR))
    }

    /// The node `kind` from `start` to the last token, if it is not too high.
    pub(super) fn node(&mut self, kind: ExprKind, start: Span) -> Result<SpannedExpr> {
        self.node_over(kind, start, 0)
    }

    /// The same over a subquery of height `below`.
    fn node_over(&mut self, kind: ExprKind, start: Span, below: u16) -> Result<SpannedExpr> {
        self.spanned(kind, start.to(self.before()), below)
    }

    /// The same at `span`.
    fn spanned(&mut self, kind: ExprKind, span: Span, below: u16) -> Result<SpannedExpr> {
        let expr = SpannedExpr::over(kind, span, below);
        self.highest = self.highest.max(expr.height);
        match expr.height > HEIGHT_MAX {
            true => Err(self.too_deep(expr.span)),
            false => Ok(expr),
        }
    }

    fn binary(
        &mut self,
        op: BinaryOp,
        left: SpannedExpr,
        right: SpannedExpr,
    ) -> Result<SpannedExpr> {
        let span = left.span.to(right.span);
        let (left, right) = (Box::new(left), Box::new(right));
        self.spanned(ExprKind::Binary { op, left, right }, span, 0)
    }

    /// Operands and the operators between them with a precedence of at least `least`.
    fn operators(&mut self, least: u8) -> Result<SpannedExpr> {
        let mut left = match least <= level::NOT && self.is_word("not") {
            true => self.negation()?,
            false => self.sign()?,
        };
        let mut most = u8::MAX;
        while let Some(infix) = self.infix() {
            let own = infix.level();
            if own < least || own > most {
                break;
            }
            left = match infix {
                Infix::Predicate => self.predicate(left)?,
                Infix::Bits(function) => {
                    self.at += 1;
                    let right = self.operators(own + 1)?;
                    let start = left.span;
                    self.call_of(function, vec![left, right], start)?
                }
                Infix::Operator(op @ (BinaryOp::And | BinaryOp::Or)) => self.chain(op, left)?,
                Infix::Operator(op) => {
                    self.at += 1;
                    let right = self.operators(own + 1)?;
                    self.binary(op, left, right)?
                }
            };
            // Comparisons do not chain; all other operators are left-associative.
            if own == level::COMPARISON {
                most = own - 1;
            }
        }
        Ok(left)
    }

    /// Operands joined by `op`, from the first one on.
    fn chain(&mut self, op: BinaryOp, first: SpannedExpr) -> Result<SpannedExpr> {
        let mut operands = vec![first];
        while self.infix() == Some(Infix::Operator(op)) {
            self.at += 1;
            operands.push(self.operators(level::of(op) + 1)?);
        }
        if operands.len() > CHAIN_MAX {
            return self.balanced(op, operands);
        }
        let mut operands = operands.into_iter();
        let first = operands.next().expect("it was there before the operator");
        operands.try_fold(first, |left, right| self.binary(op, left, right))
    }

    /// A long chain as a tree of minimum height: AND and OR are associative.
    fn balanced(&mut self, op: BinaryOp, mut operands: Vec<SpannedExpr>) -> Result<SpannedExpr> {
        if let [_] = &operands[..] {
            return Ok(operands.swap_remove(0));
        }
        let right = operands.split_off(operands.len() / 2);
        let right = self.balanced(op, right)?;
        let left = self.balanced(op, operands)?;
        self.binary(op, left, right)
    }

    /// The operator at the cursor.
    fn infix(&self) -> Option<Infix> {
        Some(Infix::Operator(match self.lexeme(0).token {
            Token::Equal => BinaryOp::Equal,
            Token::NotEqual => BinaryOp::NotEqual,
            Token::Less => BinaryOp::Less,
            Token::LessEqual => BinaryOp::LessEqual,
            Token::Greater => BinaryOp::Greater,
            Token::GreaterEqual => BinaryOp::GreaterEqual,
            Token::Concat => BinaryOp::Concat,
            Token::Plus => BinaryOp::Add,
            Token::Minus => BinaryOp::Subtract,
            Token::Star => BinaryOp::Multiply,
            Token::Slash => BinaryOp::Divide,
            Token::Percent => BinaryOp::Modulo,
            Token::Tilde | Token::NotTilde => return Some(Infix::Predicate),
            Token::Ampersand => return Some(Infix::Bits("bit_and")),
            Token::Bar => return Some(Infix::Bits("bit_or")),
            Token::ShiftLeft => return Some(Infix::Bits("shift_left")),
            Token::ShiftRight => return Some(Infix::Bits("shift_right")),
            Token::Word if self.is_word("or") => BinaryOp::Or,
            Token::Word if self.is_word("and") => BinaryOp::And,
            Token::Word if self.is_any_word(&["is", "not", "in", "between", "like", "ilike"]) => {
                return Some(Infix::Predicate);
            }
            _ => return None,
        }))
    }

    fn negation(&mut self) -> Result<SpannedExpr> {
        let start = self.span();
        self.at += 1;
        let expr = Box::new(self.deeper(|p| p.operators(level::NOT))?);
        let op = UnaryOp::Not;
        self.node(ExprKind::Unary { op, expr }, start)
    }

    /// `IS NULL`, `BETWEEN`, `IN`, `LIKE` after their first operand.
    fn predicate(&mut self, expr: SpannedExpr) -> Result<SpannedExpr> {
        let start = expr.span;
        let expr = Box::new(expr);
        if self.eat_word("is") {
            return self.is_predicate(expr);
        }
        if self.is(Token::Tilde) || self.is(Token::NotTilde) {
            return self.regex_match(*expr);
        }
        let negated = self.eat_word("not");
        if self.eat_word("between") {
            let low = Box::new(self.operand()?);
            self.expect_word("and")?;
            let high = Box::new(self.operand()?);
            return self.node(
                ExprKind::Between {
                    expr,
                    low,
                    high,
                    negated,
                },
                start,
            );
        }
        let ignore_case = self.is_word("ilike");
        if self.eat_word("like") || self.eat_word("ilike") {
            let pattern = Box::new(self.operand()?);
            let kind = ExprKind::Like {
                expr,
                pattern,
                ignore_case,
                negated,
            };
            return self.node(kind, start);
        }
        if self.eat_word("in") {
            self.expect(Token::LeftParen, "`(` and a list or a subquery")?;
            if self.begins_query() {
                let (query, below) = self.measured_query()?;
                self.expect(Token::RightParen, "`)`")?;
                let kind = ExprKind::InQuery {
                    expr,
                    query: Box::new(query),
                    negated,
                };
                return self.node_over(kind, start, below);
            }
            let mut list = vec![self.expr()?];
            while self.eat(Token::Comma) {
                list.push(self.expr()?);
            }
            self.expect(Token::RightParen, "`,` or `)`")?;
            return self.node(
                ExprKind::InList {
                    expr,
                    list,
                    negated,
                },
                start,
            );
        }
        match negated {
            true => Err(self.unexpected("`in`, `between` or `like`")),
            false => Ok(*expr),
        }
    }

    /// Whether a subquery starts here rather than an expression.
    fn begins_query(&self) -> bool {
        let streams = ["istream", "dstream", "rstream"];
        self.is_word("select")
            || self.is_word("with")
            || self.is_any_word(&streams) && self.lexeme(1).token == Token::LeftParen
    }

    /// An operand of a comparison.
    pub(super) fn operand(&mut self) -> Result<SpannedExpr> {
        self.operators(level::COMPARISON + 1)
    }

    fn sign(&mut self) -> Result<SpannedExpr> {
        let start = self.span();
        if self.eat(Token::Plus) {
            return self.deeper(Self::sign);
        }
        if !self.eat(Token::Minus) {
            return self.primary_cast();
        }
        // A sign belongs to the number that follows: the least integer cannot be written otherwise.
        if matches!(self.lexeme(0).token, Token::Integer | Token::Decimal) {
            let number = self.number_literal(true, start)?;
            return self.casts(number);
        }
        let expr = Box::new(self.deeper(Self::sign)?);
        self.node(
            ExprKind::Unary {
                op: UnaryOp::Negate,
                expr,
            },
            start,
        )
    }

    pub(super) fn primary(&mut self) -> Result<SpannedExpr> {
        let Lexeme { token, span } = self.lexeme(0);
        match token {
            Token::Integer | Token::Decimal => self.number_literal(false, span),
            Token::Text => {
                self.at += 1;
                let text = unquote(self.text_of(span));
                self.node(ExprKind::Literal(Literal::Text(text)), span)
            }
            Token::LeftParen => self.parenthesized(span),
            Token::Word => self.word_primary(span),
            Token::QuotedWord => self.column_or_call(span),
            _ => Err(self.unexpected("an expression")),
        }
    }

    fn parenthesized(&mut self, span: Span) -> Result<SpannedExpr> {
        self.at += 1;
        if self.begins_query() {
            let (query, below) = self.measured_query()?;
            self.expect(Token::RightParen, "`)`")?;
            let kind = ExprKind::Scalar {
                query: Box::new(query),
            };
            return self.node_over(kind, span, below);
        }
        let inner = self.expr()?;
        self.expect(Token::RightParen, "`)`")?;
        Ok(SpannedExpr {
            span: span.to(self.before()),
            ..inner
        })
    }

    /// A number and its optional unit.
    fn number_literal(&mut self, negative: bool, start: Span) -> Result<SpannedExpr> {
        let number = self.number(negative)?;
        let measure = self
            .word()
            .filter(|w| !is_reserved(w))
            .and_then(find_measure);
        let literal = match measure {
            Some(measure) => {
                self.at += 1;
                Literal::Quantity(number, measure)
            }
            None => {
                // `0x10` would otherwise be 0 with the alias `x10`.
                let Lexeme { token, span } = self.lexeme(0);
                if token == Token::Word && span.start == self.before().end {
                    let word = self.text_of(span);
                    if !is_reserved(word) {
                        self.measure(word)?;
                    }
                }
                Literal::Number(number)
            }
        };
        self.node(ExprKind::Literal(literal), start)
    }

    fn word_primary(&mut self, span: Span) -> Result<SpannedExpr> {
        let calls = self.lexeme(1).token == Token::LeftParen;
        if let Some(spelled) = self.sql_spelling(span) {
            return spelled;
        }
        let word = self.text_of(span).to_ascii_lowercase();
        let literal = match word.as_str() {
            "null" => Literal::Null,
            "true" => Literal::Bool(true),
            "false" => Literal::Bool(false),
            "case" => return self.case(span),
            "cast" | "try_cast" if calls => return self.cast(span),
            "exists" if calls => {
                self.at += 2;
                let (query, below) = self.measured_query()?;
                self.expect(Token::RightParen, "`)`")?;
                let kind = ExprKind::Exists {
                    query: Box::new(query),
                };
                return self.node_over(kind, span, below);
            }
            // Functions of these names do not conflict with joins, which have no parenthesis here.
            "left" | "right" if calls => return self.column_or_call(span),
            word if self.is_reserved_here(word) => return Err(self.unexpected("an expression")),
            _ => return self.column_or_call(span),
        };
        self.at += 1;
        self.node(ExprKind::Literal(literal), span)
    }

    fn case(&mut self, start: Span) -> Result<SpannedExpr> {
        self.at += 1;
        let operand = match self.is_word("when") {
            true => None,
            false => Some(Box::new(self.expr()?)),
        };
        let mut branches = Vec::new();
        while self.eat_word("when") {
            let when = self.expr()?;
            self.expect_word("then")?;
            branches.push((when, self.expr()?));
        }
        if branches.is_empty() {
            return Err(self.unexpected("`when`"));
        }
        let otherwise = match self.eat_word("else") {
            true => Some(Box::new(self.expr()?)),
            false => None,
        };
        self.expect_word("end")?;
        self.node(
            ExprKind::Case {
                operand,
                branches,
                otherwise,
            },
            start,
        )
    }

    fn cast(&mut self, start: Span) -> Result<SpannedExpr> {
        self.at += 2;
        let expr = Box::new(self.expr()?);
        self.expect_word("as")?;
        let ty = self.type_name()?;
        self.expect(Token::RightParen, "`)`")?;
        self.node(ExprKind::Cast { expr, ty }, start)
    }

    /// An argument of a call: an expression, or `A.*`.
    fn argument(&mut self) -> Result<SpannedExpr> {
        let is_rows = self.lexeme(1).token == Token::Dot && self.lexeme(2).token == Token::Star;
        if !self.is_ident() || !is_rows {
            return self.expr();
        }
        let start = self.span();
        let variable = self.ident("a variable of a pattern")?;
        self.at += 2;
        self.node(ExprKind::Rows(variable), start)
    }

    /// `a`, `t.a`, `f(x)`, `count(*)`
    fn column_or_call(&mut self, start: Span) -> Result<SpannedExpr> {
        let lexeme = self.lexeme(0);
        let text = self.text_of(lexeme.span);
        let name = match lexeme.token {
            Token::QuotedWord => unquote(text),
            _ => text.to_owned(),
        };
        let name = Ident::new(name, lexeme.span);
        self.at += 1;
        if self.eat(Token::Dot) {
            let column = self.ident("the name of a column")?;
            let kind = ExprKind::Column {
                table: Some(name),
                name: column,
            };
            return self.node(kind, start);
        }
        if !self.eat(Token::LeftParen) {
            return self.node(ExprKind::Column { table: None, name }, start);
        }
        let distinct = self.eat_word("distinct");
        let mut args = Vec::new();
        let star = self.eat(Token::Star);
        if !star && !self.is(Token::RightParen) {
            args.push(self.argument()?);
            while self.eat(Token::Comma) {
                args.push(self.argument()?);
            }
        }
        self.expect(Token::RightParen, "`,` or `)`")?;
        let filter = self.aggregate_clauses(&name, &mut args)?;
        if self.begins_over() {
            let over = self.over(name, distinct, args, star, filter)?;
            return self.node(ExprKind::Over(Box::new(over)), start);
        }
        self.node(
            ExprKind::Call {
                name,
                distinct,
                args,
                star,
                filter,
            },
            start,
        )
    }
}
