//! Queries: WITH, set operations, Istream, Dstream and Rstream, SELECT with its clauses.

use super::*;

impl Parser<'_> {
    /// `[WITH ..] body [ORDER BY ..] [LIMIT n] [OFFSET n] [EMIT CHANGES]`
    pub(super) fn query(&mut self) -> Result<Query> {
        self.measured_query().map(|(query, _)| query)
    }

    /// A query and its height.
    pub(super) fn measured_query(&mut self) -> Result<(Query, u16)> {
        let start = self.span();
        let around = std::mem::take(&mut self.highest);
        let query = self.deeper_by(QUERY_LEVELS, Self::query_here);
        let height = self.highest + 1;
        self.highest = around.max(height);
        match height > HEIGHT_MAX {
            true => Err(self.too_deep(start)),
            false => query.map(|query| (query, height)),
        }
    }

    fn query_here(&mut self) -> Result<Query> {
        let mut views = Vec::new();
        if self.eat_word("with") {
            loop {
                let name = self.ident("a name for the subquery")?;
                let columns = self.column_names()?;
                self.expect_word("as")?;
                self.expect(Token::LeftParen, "`(` and a query")?;
                let query = self.query()?;
                self.expect(Token::RightParen, "`)`")?;
                views.push(ViewDefinition {
                    or_replace: false,
                    name,
                    columns,
                    query,
                });
                if !self.eat(Token::Comma) {
                    break;
                }
            }
        }
        let body = self.set_operations()?;
        let order_by = self.order_by();
        let (mut limit, mut offset) = (None, None);
        loop {
            if limit.is_none() && self.eat_word("limit") {
                limit = Some(self.count("a number of rows")?);
            } else if offset.is_none() && self.eat_word("offset") {
                offset = Some(self.count("a number of rows")?);
            } else if self.begins_emit() {
                self.emit(&body)?;
            } else {
                return Ok(Query {
                    views,
                    body,
                    order_by,
                    limit,
                    offset,
                });
            }
        }
    }

    /// UNION and EXCEPT, from left to right.
    fn set_operations(&mut self) -> Result<QueryBody> {
        let mut left = self.intersections()?;
        loop {
            let op = match () {
                () if self.eat_word("union") => SetOp::Union,
                () if self.eat_word("except") => SetOp::Except,
                () => return Ok(left),
            };
            let all = self.all();
            let right = self.intersections()?;
            left = set_op(op, all, left, right);
        }
    }

    /// INTERSECT, which has a higher precedence.
    fn intersections(&mut self) -> Result<QueryBody> {
        let mut left = self.primary_body()?;
        while self.eat_word("intersect") {
            let all = self.all();
            let right = self.primary_body()?;
            left = set_op(SetOp::Intersect, all, left, right);
        }
        Ok(left)
    }

    fn all(&mut self) -> bool {
        self.eat_word("all") || {
            self.eat_word("distinct");
            false
        }
    }

    fn primary_body(&mut self) -> Result<QueryBody> {
        self.one_more_block()?;
        let start = self.span();
        let kind = if self.is_word("select") {
            BodyKind::Select(Box::new(self.select()?))
        } else if self.eat(Token::LeftParen) {
            let query = self.query()?;
            self.expect(Token::RightParen, "`)`")?;
            BodyKind::Nested(Box::new(query))
        } else if let Some(kind) = self.stream_op() {
            self.at += 2;
            self.changes(kind)?
        } else if self.is_ident() {
            let name = self.ident("a query")?;
            let window = self.window()?;
            BodyKind::Named(Box::new(Named {
                name,
                window,
                alias: None,
            }))
        } else {
            return Err(self.unexpected("a query"));
        };
        Ok(QueryBody::new(kind, start.to(self.before())))
    }

    /// The relation-to-stream operator at the cursor.
    fn stream_op(&self) -> Option<StreamOp> {
        if self.lexeme(1).token != Token::LeftParen {
            return None;
        }
        match self.word()?.to_ascii_lowercase().as_str() {
            "istream" => Some(StreamOp::Istream),
            "dstream" => Some(StreamOp::Dstream),
            "rstream" => Some(StreamOp::Rstream),
            _ => None,
        }
    }

    fn changes(&mut self, kind: StreamOp) -> Result<BodyKind> {
        let query = Box::new(self.query()?);
        self.expect(Token::RightParen, "`)`")?;
        let every = match self.eat_word("every") {
            true => Some(self.duration()?),
            false => None,
        };
        Ok(BodyKind::ToStream { kind, query, every })
    }

    fn select(&mut self) -> Result<SelectBlock> {
        self.expect_word("select")?;
        let distinct = self.eat_word("distinct");
        if !distinct {
            self.eat_word("all");
        }
        let (items, sound) = self.items();
        let mut select = SelectBlock {
            distinct,
            items,
            from: Vec::new(),
            filter: None,
            group_by: Vec::new(),
            grouping: Grouping::All,
            having: None,
            windows: Vec::new(),
        };
        if self.eat_word("from") {
            select.from = self.sources();
        } else if sound {
            self.unexpected("`from`");
        }
        if self.eat_word("where") {
            select.filter = Some(self.clause_expr());
        }
        if self.eat_word("group") {
            if !self.eat_word("by") {
                self.unexpected("`by`");
            }
            self.group_by(&mut select)?;
        }
        if self.eat_word("having") {
            select.having = Some(self.clause_expr());
        }
        select.windows = self.windows()?;
        Ok(select)
    }

    /// The elements after GROUP BY: keys, `ROLLUP (..)`, `CUBE (..)` and `GROUPING SETS (..)`.
    fn group_by(&mut self, select: &mut SelectBlock) -> Result<()> {
        let mut elements = vec![self.grouping_element()?];
        while self.eat(Token::Comma) {
            elements.push(self.grouping_element()?);
        }
        let is_plain = |(_, grouping): &GroupingElement| *grouping == Grouping::All;
        (select.group_by, select.grouping) = match elements.iter().all(is_plain) {
            true => {
                let keys = elements.into_iter().flat_map(|(keys, _)| keys);
                (keys.collect(), Grouping::All)
            }
            false if elements.len() == 1 => elements.remove(0),
            false => cross_product(&elements),
        };
        Ok(())
    }

    /// A key, `ROLLUP (..)`, `CUBE (..)` or `GROUPING SETS (..)`.
    fn grouping_element(&mut self) -> Result<GroupingElement> {
        let is_sets = self.is_word("grouping")
            && self
                .word_after(0)
                .is_some_and(|word| word.eq_ignore_ascii_case("sets"));
        let is_list =
            self.is_any_word(&["rollup", "cube"]) && self.lexeme(1).token == Token::LeftParen;
        if is_sets {
            self.at += 2;
            self.expect(Token::LeftParen, "`(`")?;
            let mut keys = Vec::new();
            let mut sets = vec![self.grouping_set(&mut keys)?];
            while self.eat(Token::Comma) {
                sets.push(self.grouping_set(&mut keys)?);
            }
            self.expect(Token::RightParen, "`,` or `)`")?;
            return Ok((keys, Grouping::Sets(sets)));
        }
        if !is_list {
            return Ok((vec![self.clause_expr()], Grouping::All));
        }
        let grouping = match self.is_word("cube") {
            true => Grouping::Cube,
            false => Grouping::Rollup,
        };
        self.at += 2;
        let keys = self.clause_exprs();
        self.expect(Token::RightParen, "`,` or `)`")?;
        Ok((keys, grouping))
    }

    /// `(a, b)`, `a` or `()`, as positions among the keys.
    fn grouping_set(&mut self, keys: &mut Vec<SpannedExpr>) -> Result<Vec<usize>> {
        let mut set = Vec::new();
        if !self.eat(Token::LeftParen) {
            let key = self.expr()?;
            set.push(position_among(keys, key));
            return Ok(set);
        }
        while !self.is(Token::RightParen) {
            let key = self.expr()?;
            set.push(position_among(keys, key));
            if !self.eat(Token::Comma) {
                break;
            }
        }
        self.expect(Token::RightParen, "`,` or `)`")?;
        Ok(set)
    }

    /// The select list, and whether all of it was parsed.
    fn items(&mut self) -> (Vec<Spanned<Item>>, bool) {
        let mut items = Vec::new();
        let mut sound = true;
        loop {
            let (start, first) = (self.span(), self.at);
            let item = match self.item() {
                Ok(item) => item,
                Err(Failed) => {
                    sound = false;
                    self.recover(first);
                    Item::Error
                }
            };
            items.push(Spanned::new(item, start.to(self.before())));
            if self.eat(Token::Comma) {
                continue;
            }
            let ends = self.is_any_word(CLAUSES)
                || self.is(Token::RightParen)
                || self.is(Token::Semicolon)
                || self.is(Token::End);
            if ends {
                return (items, sound);
            }
            // After an error inside an item the rest of the list may still be valid.
            sound = false;
            self.unexpected("`,` or `from`");
            self.recover(self.at);
            if !self.eat(Token::Comma) {
                return (items, sound);
            }
        }
    }

    pub(super) fn item(&mut self) -> Result<Item> {
        if self.eat(Token::Star) {
            return Ok(Item::Star);
        }
        let dotted = self.lexeme(1).token == Token::Dot && self.lexeme(2).token == Token::Star;
        if self.is_ident() && dotted {
            let table = self.ident("a name")?;
            self.at += 2;
            return Ok(Item::TableStar(table));
        }
        let expr = self.expr()?;
        let alias = self.alias("a name for the column")?;
        Ok(Item::Expr { expr, alias })
    }

    /// `AS x`, `x`, `AS 'x'`, `"x"`, or nothing.
    pub(super) fn alias(&mut self, what: &str) -> Result<Option<Ident>> {
        let span = self.span();
        let is_quoted = self.text_of(span).starts_with('"');
        let after_as = self.eat_word("as");
        if self.is(Token::Text) && (after_as || is_quoted) {
            let span = self.span();
            self.at += 1;
            return Ok(Some(Ident::new(unquote(self.text_of(span)), span)));
        }
        match after_as
            || self.is_ident()
                && !self.begins_emit()
                && !self.begins_windows()
                && !self.begins_match()
                && !self.begins_alert_clause()
        {
            true => self.ident(what).map(Some),
            false => Ok(None),
        }
    }

    pub(super) fn order_by(&mut self) -> Vec<OrderItem> {
        let mut order_by = Vec::new();
        if !self.eat_word("order") {
            return order_by;
        }
        if !self.eat_word("by") {
            self.unexpected("`by`");
        }
        loop {
            let expr = self.clause_expr();
            let descending = self.eat_word("desc") || {
                self.eat_word("asc");
                false
            };
            let mut nulls_first = None;
            if self.eat_word("nulls") {
                let first = self.eat_word("first");
                if !first && !self.eat_word("last") {
                    self.unexpected("`first` or `last`");
                }
                nulls_first = Some(first);
            }
            order_by.push(OrderItem {
                expr,
                descending,
                nulls_first,
            });
            if !self.eat(Token::Comma) {
                return order_by;
            }
        }
    }

    /// An expression; after an error in it, parsing continues at the next comma or clause.
    pub(super) fn clause_expr(&mut self) -> SpannedExpr {
        let (start, first) = (self.span(), self.at);
        self.expr().unwrap_or_else(|Failed| {
            self.recover(first);
            SpannedExpr::new(ExprKind::Error, start)
        })
    }

    pub(super) fn clause_exprs(&mut self) -> Vec<SpannedExpr> {
        let mut exprs = vec![self.clause_expr()];
        while self.eat(Token::Comma) {
            exprs.push(self.clause_expr());
        }
        exprs
    }
}

fn set_op(op: SetOp, all: bool, left: QueryBody, right: QueryBody) -> QueryBody {
    let span = left.span.to(right.span);
    let (left, right) = (Box::new(left), Box::new(right));
    QueryBody::new(
        BodyKind::SetOp {
            op,
            all,
            left,
            right,
        },
        span,
    )
}

/// The keys of an element of GROUP BY, and by which of them it groups.
type GroupingElement = (Vec<SpannedExpr>, Grouping);

/// Each set of keys of one element together with each of the others, as in SQL:1999; at most one
/// more than [`SETS_MAX`]. The keys are in the order in which the sets contain them.
fn cross_product(elements: &[GroupingElement]) -> GroupingElement {
    let mut sets: Vec<Vec<&SpannedExpr>> = vec![Vec::new()];
    for (keys, grouping) in elements {
        let all = || vec![(0..keys.len()).collect()];
        let added = grouping.sets(keys.len()).unwrap_or_else(all);
        let pairs = sets.iter().flat_map(|set| {
            added.iter().map(|positions| {
                let added = positions.iter().map(|i| &keys[*i]);
                let mut both = set.clone();
                both.extend(added.filter(|key| !set.contains(key)));
                both
            })
        });
        sets = pairs.take(SETS_MAX + 1).collect();
    }
    let mut keys = Vec::new();
    let mut positions = |set: Vec<&SpannedExpr>| {
        let set = set
            .into_iter()
            .map(|key| position_among(&mut keys, key.clone()));
        set.collect()
    };
    let sets = sets.into_iter().map(&mut positions).collect();
    (keys, Grouping::Sets(sets))
}

/// The position of a key, which is added if it is new.
fn position_among(keys: &mut Vec<SpannedExpr>, key: SpannedExpr) -> usize {
    keys.iter()
        .position(|known| *known == key)
        .unwrap_or_else(|| {
            keys.push(key);
            keys.len() - 1
        })
}
