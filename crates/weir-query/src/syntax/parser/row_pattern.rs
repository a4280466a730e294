//! `MATCH_RECOGNIZE (PARTITION BY .. MEASURES .. PATTERN (..) WITHIN .. DEFINE ..)`

use super::*;

/// Words that end a list of MEASURES, and the order before it.
const NEXT_CLAUSES: &str = "`one row per match`, `after match` or `pattern`";

impl Parser<'_> {
    /// Whether a MATCH_RECOGNIZE clause starts here. The keyword is not reserved.
    pub(super) fn begins_match(&self) -> bool {
        self.is_word("match_recognize") && self.lexeme(1).token == Token::LeftParen
    }

    /// The clause, and the window and alias of its result.
    pub(super) fn match_source(&mut self, input: TableRef) -> Result<TableSource> {
        let clause = self.match_clause()?;
        let (window, alias) = self.window_and_alias()?;
        Ok(TableSource::Match(Box::new(MatchSource {
            input: Box::new(input),
            clause,
            window,
            alias,
        })))
    }

    fn match_clause(&mut self) -> Result<MatchClause> {
        self.at += 2;
        let mut partition = Vec::new();
        if self.eat_word("partition") {
            self.expect_word("by")?;
            partition = self.exprs()?;
        }
        let order_by = self.order_by();
        let mut measures = Vec::new();
        if self.eat_word("measures") {
            measures = self.measures()?;
        }
        self.rows_per_match()?;
        let after = self.after_match()?;
        if !self.eat_word("pattern") {
            return Err(self.unexpected(NEXT_CLAUSES));
        }
        self.expect(Token::LeftParen, "`(` and a pattern")?;
        let pattern = self.pattern()?;
        self.expect(Token::RightParen, "a variable, `|` or `)`")?;
        let within = match self.eat_word("within") {
            true => Some(self.duration()?),
            false => None,
        };
        if self.is_word("subset") {
            let help = "write the alternatives in the pattern, and a measure for each variable";
            return Err(self.unsupported_in_match("SUBSET", help));
        }
        let mut definitions = Vec::new();
        if self.eat_word("define") {
            loop {
                let name = self.ident("a variable of the pattern")?;
                self.expect_word("as")?;
                definitions.push((name, self.expr()?));
                if !self.eat(Token::Comma) {
                    break;
                }
            }
        }
        self.expect(Token::RightParen, "`within`, `define` or `)`")?;
        Ok(MatchClause {
            partition,
            order_by,
            measures,
            after,
            pattern,
            within,
            definitions,
        })
    }

    /// `first(A.ts) AS begin, last(B.ts) AS done`
    fn measures(&mut self) -> Result<Vec<(SpannedExpr, Ident)>> {
        let mut measures = Vec::new();
        loop {
            let is_call = self.lexeme(2).token == Token::LeftParen
                && self.word_after(0).is_some_and(|word| !is_reserved(word));
            if self.is_any_word(&["final", "running"]) && is_call {
                let help = "remove it: with ONE ROW PER MATCH every measure is of the whole match";
                return Err(self.unsupported_in_match("FINAL or RUNNING", help));
            }
            let expr = self.expr()?;
            self.expect_word("as")?;
            measures.push((expr, self.ident("a name for the measure")?));
            if !self.eat(Token::Comma) {
                return Ok(measures);
            }
        }
    }

    /// `ONE ROW PER MATCH`, or nothing.
    fn rows_per_match(&mut self) -> Result<()> {
        if self.is_word("all") {
            let help = "write ONE ROW PER MATCH, with a measure for each value that is needed";
            return Err(self.unsupported_in_match("ALL ROWS PER MATCH", help));
        }
        if self.eat_word("one") {
            for word in ["row", "per", "match"] {
                self.expect_word(word)?;
            }
        }
        Ok(())
    }

    /// `AFTER MATCH SKIP PAST LAST ROW`, `AFTER MATCH SKIP TO NEXT ROW`, or nothing.
    fn after_match(&mut self) -> Result<AfterMatch> {
        if !self.eat_word("after") {
            return Ok(AfterMatch::PastLastRow);
        }
        self.expect_word("match")?;
        self.expect_word("skip")?;
        let (after, rest) = match self.eat_word("past") {
            true => (AfterMatch::PastLastRow, ["last", "row"]),
            false => {
                self.expect_word("to")?;
                (AfterMatch::ToNextRow, ["next", "row"])
            }
        };
        if !self.is_word(rest[0]) && after == AfterMatch::ToNextRow {
            let help = "write PAST LAST ROW or TO NEXT ROW";
            return Err(self.unsupported_in_match("SKIP TO a variable", help));
        }
        for word in rest {
            self.expect_word(word)?;
        }
        Ok(after)
    }

    /// `A B | C`
    fn pattern(&mut self) -> Result<Spanned<PatternTerm>> {
        let start = self.span();
        let mut terms = vec![self.pattern_sequence()?];
        while self.eat(Token::Bar) {
            terms.push(self.pattern_sequence()?);
        }
        Ok(match terms.len() {
            1 => terms.remove(0),
            _ => Spanned::new(PatternTerm::Alternatives(terms), start.to(self.before())),
        })
    }

    fn pattern_sequence(&mut self) -> Result<Spanned<PatternTerm>> {
        let start = self.span();
        let mut terms = vec![self.pattern_repetition()?];
        while !self.is(Token::Bar) && !self.is(Token::RightParen) && !self.is(Token::End) {
            terms.push(self.pattern_repetition()?);
        }
        Ok(match terms.len() {
            1 => terms.remove(0),
            _ => Spanned::new(PatternTerm::Sequence(terms), start.to(self.before())),
        })
    }

    /// A term and its quantifier.
    fn pattern_repetition(&mut self) -> Result<Spanned<PatternTerm>> {
        let start = self.span();
        let term = self.pattern_term()?;
        let quantified = self.span();
        let (min, max) = match () {
            () if self.eat(Token::Star) => (0, None),
            () if self.eat(Token::Plus) => (1, None),
            () if self.eat_symbol("?") => (0, Some(1)),
            () if self.is_symbol("{") && self.lexeme(1).token != Token::Minus => {
                self.counted_times()?
            }
            () => return Ok(term),
        };
        let reluctant = self.eat_symbol("?");
        let place = start.to(self.before());
        if max == Some(0) || max.is_some_and(|max| max < min) {
            let message = "the greatest number of times is 0 or less than the least one";
            let found = codes::ROW_PATTERN.at(quantified.to(self.before()), message);
            self.diagnostics.push(found);
        }
        let term = Box::new(term);
        let repeated = PatternTerm::Repeated {
            term,
            min,
            max,
            reluctant,
        };
        Ok(Spanned::new(repeated, place))
    }

    /// `{2}`, `{2,}`, `{2,3}`, `{,3}`
    fn counted_times(&mut self) -> Result<(u32, Option<u32>)> {
        self.eat_symbol("{");
        let min = match self.is(Token::Comma) {
            true => 0,
            false => self.times()?,
        };
        let max = match self.eat(Token::Comma) {
            true if self.is_symbol("}") => None,
            true => Some(self.times()?),
            false => Some(min),
        };
        match self.eat_symbol("}") {
            true => Ok((min, max)),
            false => Err(self.unexpected("`}`")),
        }
    }

    fn times(&mut self) -> Result<u32> {
        let count = self.count("a number of times")?;
        u32::try_from(count.value).map_err(|_| {
            let message = "the number does not fit in 32 bits";
            self.fail(codes::BAD_NUMBER.at(count.span, message))
        })
    }

    fn pattern_term(&mut self) -> Result<Spanned<PatternTerm>> {
        let start = self.span();
        if self.is_symbol("{") {
            while !self.is(Token::RightParen) && !self.is(Token::End) && !self.eat_symbol("}") {
                if !self.eat_symbol("{") {
                    self.at += 1;
                }
            }
            let help = "leave it out: with ONE ROW PER MATCH no rows of a match are emitted";
            return Err(self.unsupported_in_pattern(start, "the exclusion `{- -}`", help));
        }
        if self.eat_symbol("^") || self.eat_symbol("$") {
            let help = "leave it out: a stream has no first and no last row";
            return Err(self.unsupported_in_pattern(start, "an anchor", help));
        }
        if self.is_word("permute") && self.lexeme(1).token == Token::LeftParen {
            let help = "write the orders as alternatives: `(A B | B A)`";
            return Err(self.unsupported_in_match("PERMUTE", help));
        }
        if self.eat(Token::LeftParen) {
            let inner = self.deeper(Self::pattern)?;
            self.expect(Token::RightParen, "a variable, `|` or `)`")?;
            return Ok(Spanned::new(inner.value, start.to(self.before())));
        }
        let term = match self.eat_word("not") {
            true => PatternTerm::Absent(self.ident("a variable")?),
            false => PatternTerm::Variable(self.ident("a variable of the pattern")?),
        };
        Ok(Spanned::new(term, start.to(self.before())))
    }

    /// Whether the next token is a symbol that only patterns have.
    fn is_symbol(&self, symbol: &str) -> bool {
        self.is(Token::Unknown) && self.text_of(self.span()) == symbol
    }

    /// Accepts such a symbol, of which the lexer has reported that it is not one of CQL.
    fn eat_symbol(&mut self, symbol: &str) -> bool {
        let found = self.is_symbol(symbol);
        if found {
            let span = self.span();
            let code = codes::UNKNOWN_CHARACTER.code;
            self.diagnostics
                .retain(|d| d.span != span || d.code != code);
            self.at += 1;
        }
        found
    }

    /// Reports that a clause that begins here is not supported.
    fn unsupported_in_match(&mut self, what: &str, help: &str) -> Failed {
        self.unsupported_in_pattern(self.span(), what, help)
    }

    fn unsupported_in_pattern(&mut self, span: Span, what: &str, help: &str) -> Failed {
        let message = format!("MATCH_RECOGNIZE does not support {what}");
        let found = codes::ROW_PATTERN.at(span, message);
        self.diagnostics.push(found.help(help));
        Failed
    }
}
