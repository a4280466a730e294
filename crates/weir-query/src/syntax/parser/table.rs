//! FROM: sources, windows and joins.

use super::*;

/// Keywords at the start of a join.
const JOINS: &[&str] = &["join", "inner", "left", "right", "full", "cross"];

impl Parser<'_> {
    pub(super) fn sources(&mut self) -> Vec<FromItem> {
        let mut items = Vec::new();
        loop {
            items.push(self.source_and_joins());
            if !self.eat(Token::Comma) {
                return items;
            }
        }
    }

    /// A source and its joins. A part with a syntax error becomes an error node, up to the next
    /// comma or clause.
    fn source_and_joins(&mut self) -> FromItem {
        let (start, first) = (self.span(), self.at);
        let mut item = FromItem {
            table: TableRef::new(TableSource::Error, start),
            joins: Vec::new(),
        };
        match self.table_ref() {
            Ok(table) => item.table = table,
            Err(Failed) => self.recover(first),
        }
        while self.is_any_word(JOINS) {
            let first = self.at;
            match self.join() {
                Ok(join) => item.joins.push(join),
                Err(Failed) => {
                    // A source with an error may have had any column: later names are not reported
                    // as unknown.
                    item.joins.push(Join {
                        kind: Spanned::new(JoinOp::Cross, start),
                        table: TableRef::new(TableSource::Error, start),
                        condition: Condition::None,
                    });
                    self.recover(first);
                }
            }
        }
        item
    }

    fn table_ref(&mut self) -> Result<TableRef> {
        self.one_more_block()?;
        let start = self.span();
        let table = if let Some(table) = self.window_function()? {
            table
        } else if self.eat(Token::LeftParen) {
            let query = Box::new(self.query()?);
            self.expect(Token::RightParen, "`)`")?;
            let (window, alias) = self.window_and_alias()?;
            TableSource::Derived {
                query,
                window,
                alias,
            }
        } else {
            let name = self.ident("a stream, a relation or a subquery")?;
            let (window, alias) = self.window_and_alias()?;
            TableSource::Named(Named {
                name,
                window,
                alias,
            })
        };
        let mut table = TableRef::new(table, start.to(self.before()));
        while self.begins_match() {
            self.one_more_block()?;
            let matches = self.match_source(table)?;
            table = TableRef::new(matches, start.to(self.before()));
        }
        Ok(table)
    }

    /// The window precedes the alias, as in STREAM, or follows it.
    pub(super) fn window_and_alias(&mut self) -> Result<(Option<WindowClause>, Option<Ident>)> {
        let mut window = self.window()?;
        let alias = self.alias("a name for the source")?;
        if window.is_none() {
            window = self.window()?;
        }
        Ok((window, alias))
    }

    fn join(&mut self) -> Result<Join> {
        let start = self.span();
        let kind = match () {
            () if self.eat_word("left") => JoinOp::Left,
            () if self.eat_word("right") => JoinOp::Right,
            () if self.eat_word("full") => JoinOp::Full,
            () if self.eat_word("cross") => JoinOp::Cross,
            () => {
                self.eat_word("inner");
                JoinOp::Inner
            }
        };
        if matches!(kind, JoinOp::Left | JoinOp::Right | JoinOp::Full) {
            self.eat_word("outer");
        }
        let end = self.expect_word("join")?;
        let table = self.table_ref()?;
        let condition = if self.eat_word("on") {
            Condition::On(self.expr()?)
        } else if self.eat_word("using") {
            if !self.is(Token::LeftParen) {
                return Err(self.unexpected("`(` and the columns"));
            }
            Condition::Using(self.column_names()?)
        } else {
            Condition::None
        };
        Ok(Join {
            kind: Spanned::new(kind, start.to(end)),
            table,
            condition,
        })
    }

    /// `[Range 5 seconds]`, or nothing.
    pub(super) fn window(&mut self) -> Result<Option<WindowClause>> {
        let start = self.span();
        if !self.eat(Token::LeftBracket) {
            return Ok(None);
        }
        let read = self.window_kind().and_then(|kind| {
            self.expect(Token::RightBracket, "`]`")?;
            Ok(kind)
        });
        let kind = read.unwrap_or_else(|Failed| {
            self.skip(0, &[Token::RightBracket], CLAUSES);
            self.eat(Token::RightBracket);
            WindowSpec::Error
        });
        Ok(Some(WindowClause::new(kind, start.to(self.before()))))
    }

    fn window_kind(&mut self) -> Result<WindowSpec> {
        if self.eat_word("now") {
            return Ok(WindowSpec::Now);
        }
        if self.eat_word("unbounded") {
            return Ok(WindowSpec::Unbounded {
                slide: self.slide()?,
            });
        }
        if self.eat_word("range") {
            if self.eat_word("unbounded") {
                return Ok(WindowSpec::Unbounded {
                    slide: self.slide()?,
                });
            }
            let size = self.duration()?;
            return Ok(WindowSpec::Range {
                size,
                slide: self.slide()?,
                delay: match self.eat_word("delay") {
                    true => Some(self.duration()?),
                    false => None,
                },
            });
        }
        if self.eat_word("session") {
            let gap = self.duration()?;
            let keys = match self.eat_word("by") {
                true => self.exprs()?,
                false => Vec::new(),
            };
            return Ok(WindowSpec::Session { gap, keys });
        }
        if self.eat_word("rows") {
            if self.eat_word("unbounded") {
                return Ok(WindowSpec::Unbounded { slide: None });
            }
            return Ok(WindowSpec::Rows(self.count("a number of rows")?));
        }
        if self.eat_word("partition") {
            self.expect_word("by")?;
            let keys = self.exprs()?;
            self.expect_word("rows")?;
            return Ok(WindowSpec::Partition {
                keys,
                rows: self.count("a number of rows")?,
            });
        }
        const WINDOWS: [&str; 6] = ["now", "range", "rows", "partition", "session", "unbounded"];
        let what = "now, range, rows, partition by, session or unbounded";
        match self.word().map(|word| nearest(word, WINDOWS)) {
            Some(Some(near)) => {
                let message = format!("expected {what}, found `{}`", self.text_of(self.span()));
                let help = format!("did you mean `{near}`?");
                Err(self.fail(codes::UNEXPECTED.at(self.span(), message).help(help)))
            }
            _ => Err(self.unexpected(what)),
        }
    }

    /// Expressions separated by commas.
    pub(super) fn exprs(&mut self) -> Result<Vec<SpannedExpr>> {
        let mut exprs = vec![self.expr()?];
        while self.eat(Token::Comma) {
            exprs.push(self.expr()?);
        }
        Ok(exprs)
    }

    fn slide(&mut self) -> Result<Option<Spanned<Duration>>> {
        match self.eat_word("slide") {
            true => self.duration().map(Some),
            false => Ok(None),
        }
    }
}
