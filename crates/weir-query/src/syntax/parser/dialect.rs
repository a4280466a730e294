//! What other streaming SQLs write: windows as functions of a table, `EMIT`, intervals as texts. Of
//! spellings that are not accepted the remedy is stated.

use super::standard::CONSTRUCTS;
use super::*;
use crate::expr::BinaryOp;

/// A spelling of another system: its words in the order in which they appear, and the remedy.
pub(super) struct Spelling(pub(super) &'static [&'static str], pub(super) &'static str);

/// Spellings that are recognised in a text with an error.
const SPELLINGS: &[Spelling] = &[
    Spelling(
        &["window", "tumbling"],
        "ksqlDB's window follows its stream in CQL: `IO [range 30 s slide 30 s]`",
    ),
    Spelling(
        &["window", "hopping"],
        "ksqlDB's window follows its stream in CQL: `IO [range 30 s slide 10 s]`",
    ),
    Spelling(
        &["window", "session"],
        "ksqlDB's window follows its stream in CQL: `IO [session 30 s by comm]`",
    ),
    Spelling(
        &["win", ":", "time"],
        "Esper's `.win:time(5 sec)` is the window `[range 5 s]` in CQL",
    ),
    Spelling(
        &["win", ":", "time_batch"],
        "Esper's `.win:time_batch(5 sec)` is the window `[range 5 s slide 5 s]` in CQL",
    ),
    Spelling(
        &["win", ":", "length"],
        "Esper's `.win:length(10)` is the window `[rows 10]` in CQL",
    ),
    Spelling(
        &["output", "every"],
        "Esper's `output every` is a Slide in CQL, `IO [range 5 s slide 1 s]`, or \
         `Rstream(..) EVERY 1 s`",
    ),
    Spelling(
        &["output", "last", "every"],
        "Esper's `output last every` is a Slide in CQL: `IO [range 5 s slide 1 s]`",
    ),
    Spelling(
        &["tracepoint", ":"],
        "bpftrace's `@[comm] = count()` is `select comm, count(*) .. group by comm` in CQL; \
         `create stream s as probe 'tp:..'` makes a stream of a tracepoint",
    ),
    Spelling(
        &["kprobe", ":"],
        "bpftrace's `@[comm] = count()` is `select comm, count(*) .. group by comm` in CQL; \
         `create stream s as probe 'kprobe:..'` makes a stream of a function's calls",
    ),
    Spelling(
        &["@", "["],
        "bpftrace's `@[comm] = count()` is `select comm, count(*) .. group by comm` in CQL",
    ),
    Spelling(
        &["@", "="],
        "bpftrace's `@ = hist(x)` is `select histogram(x) ..` in CQL",
    ),
];

impl Parser<'_> {
    /// `TUMBLE(TABLE s, DESCRIPTOR(ts), size)`, `HOP(TABLE s, DESCRIPTOR(ts), slide, size)` or
    /// `SESSION(TABLE s PARTITION BY key, DESCRIPTOR(ts), gap)`, with or without the words in
    /// capitals; `None` if no such function begins here.
    pub(super) fn window_function(&mut self) -> Result<Option<TableSource>> {
        const FUNCTIONS: &[&str] = &["tumble", "hop", "session"];
        if !self.is_any_word(FUNCTIONS) || self.lexeme(1).token != Token::LeftParen {
            return Ok(None);
        }
        let (start, which) = (self.span(), self.word().expect("a function"));
        let which = which.to_ascii_lowercase();
        self.at += 2;
        if self.is_word("table") && self.lexeme(1).token == Token::Word {
            self.at += 1;
        }
        let name = self.ident("the name of a stream")?;
        let mut keys = Vec::new();
        if which == "session" && self.eat_word("partition") {
            self.expect_word("by")?;
            keys.push(self.expr()?);
            while !(self.lexeme(1).token == Token::Word
                && self
                    .word_after(0)
                    .is_some_and(|w| w.eq_ignore_ascii_case("descriptor")))
                && self.eat(Token::Comma)
            {
                keys.push(self.expr()?);
            }
        }
        self.expect(Token::Comma, "`,` and the column of the time")?;
        self.time_column()?;
        self.expect(Token::Comma, "`,` and a duration")?;
        let first = self.duration()?;
        let spec = match which.as_str() {
            "session" => WindowSpec::Session {
                gap: first.clone(),
                keys,
            },
            "hop" => {
                self.expect(Token::Comma, "`,` and the size of the window")?;
                WindowSpec::Range {
                    size: self.duration()?,
                    slide: Some(first.clone()),
                    delay: None,
                }
            }
            _ => WindowSpec::Range {
                size: first.clone(),
                slide: Some(first.clone()),
                delay: None,
            },
        };
        self.expect(Token::RightParen, "`)`")?;
        let window = Some(WindowClause::new(spec, start.to(self.before())));
        let alias = self.alias("a name for the source")?;
        if which != "tumble" {
            return Ok(Some(TableSource::Named(Named {
                name,
                window,
                alias,
            })));
        }
        self.one_more_block()?;
        self.highest = self.highest.max(QUERY_LEVELS + 8);
        let alias = Some(alias.unwrap_or_else(|| name.clone()));
        let named = TableSource::Named(Named {
            name,
            window,
            alias: None,
        });
        Ok(Some(tumbling(named, alias, &first)))
    }

    /// `DESCRIPTOR(ts)`, `ts`
    fn time_column(&mut self) -> Result<()> {
        let describes = self.eat_word("descriptor");
        if describes {
            self.expect(Token::LeftParen, "`(` and the column of the time")?;
        }
        let column = self.ident("the column of the time, `ts`")?;
        if !column.value.eq_ignore_ascii_case("ts") {
            let message = format!(
                "a window reads the timestamps of rows, `ts`, not `{}`",
                column.value
            );
            let help = format!("for another time, group by `bucket({}, 1 s)`", column.value);
            self.fail(codes::BAD_WINDOW.at(column.span, message).help(help));
        }
        if describes {
            self.expect(Token::RightParen, "`)`")?;
        }
        Ok(())
    }

    /// `interval '5' second`, `interval '5 seconds'`, `'5 seconds'`; `None` if no text is here.
    pub(super) fn interval(&mut self) -> Result<Option<Duration>> {
        let skip = usize::from(self.is_word("interval"));
        let Lexeme { token, span } = self.lexeme(skip);
        if token != Token::Text {
            return Ok(None);
        }
        self.at += skip + 1;
        let text = unquote(self.text_of(span));
        let mut words = text.split_whitespace();
        let count = words.next().and_then(|count| {
            let whole = count.parse().ok().map(Number::Int);
            let fraction = || count.parse().ok().map(Number::Float);
            whole.or_else(fraction)
        });
        let unit = words.next();
        let (Some(count), None) = (count, words.next()) else {
            let message = "the text is not a duration";
            let found = codes::BAD_WINDOW.at(span, message);
            return Err(self.fail(found.help("write `5 seconds` or `interval '5' second`")));
        };
        let measure = match (unit, self.word()) {
            (Some(unit), _) => find_measure(unit),
            (None, Some(word)) if !is_reserved(word) => return self.measured(count),
            (None, _) => None,
        };
        if unit.is_some() && measure.is_none() {
            let message = format!("unknown unit `{}`", unit.unwrap_or_default());
            let help = "durations are in ns, us, ms, s, minutes, hours or days";
            return Err(self.fail(codes::UNKNOWN_UNIT.at(span, message).help(help)));
        }
        Ok(Some(Duration { count, measure }))
    }

    fn measured(&mut self, count: Number) -> Result<Option<Duration>> {
        let word = self.word().expect("a unit");
        let measure = Some(self.measure(word)?);
        Ok(Some(Duration { count, measure }))
    }

    /// Whether `EMIT CHANGES`, `EMIT FINAL` or `EMIT ON WINDOW CLOSE` begins here.
    pub(super) fn begins_emit(&self) -> bool {
        let next = self.word_after(0).unwrap_or_default();
        let words = ["changes", "final", "on"];
        self.is_word("emit") && words.iter().any(|w| next.eq_ignore_ascii_case(w))
    }

    /// EMIT, after the clauses of a query. A relation has its changes, and with a Slide only final
    /// results, so that neither changes the query.
    pub(super) fn emit(&mut self, body: &QueryBody) -> Result<()> {
        let start = self.span();
        self.at += 1;
        if self.eat_word("changes") {
            return Ok(());
        }
        if self.eat_word("on") {
            self.expect_word("window")?;
            self.expect_word("close")?;
        } else {
            self.expect_word("final")?;
        }
        if !is_final(body) {
            let message = "without a Slide in every window no result is final";
            let found = codes::BAD_WINDOW.at(start.to(self.before()), message);
            self.fail(found.help("write `[range 5 s slide 5 s]`, or EMIT CHANGES"));
        }
        Ok(())
    }

    /// Warns of Esper's windows, `IO#time(5 sec)`: `#` begins a comment.
    fn warn_of_comments(&mut self) {
        for (window, own) in COMMENTS {
            let Some(at) = self.text.find(window) else {
                continue;
            };
            let glued = self
                .lexemes
                .iter()
                .any(|l| l.span.end == at && l.token == Token::Word);
            if glued {
                let message = format!("`{window}..` is a comment: `#` begins one");
                let place = Span::new(at, at + window.len());
                let found = codes::WINDOW_IN_COMMENT.at(place, message);
                let help = format!("Esper's window is {own} in CQL");
                self.diagnostics.push(found.help(help));
            }
        }
    }

    /// Adds to the first diagnostic at or after the spelling of another system what CQL has
    /// instead.
    pub(super) fn recognize(&mut self) {
        self.warn_of_comments();
        let found = (0..self.lexemes.len()).find_map(|at| {
            let matches = |spelling: &&Spelling| {
                let words = spelling.0.iter().enumerate();
                words.into_iter().all(|(i, word)| {
                    let lexeme = self.lexemes.get(at + i);
                    lexeme.is_some_and(|l| self.text_of(l.span).eq_ignore_ascii_case(word))
                })
            };
            SPELLINGS
                .iter()
                .chain(CONSTRUCTS)
                .find(matches)
                .map(|spelling| (at, spelling.1))
        });
        let Some((at, remedy)) = found else { return };
        let start = self.lexemes[at].span.start;
        let last = self.lexemes[(at + 2).min(self.lexemes.len() - 1)].span.end;
        let here = |d: &&mut Diagnostic| d.span.end >= start && d.span.start <= last;
        if let Some(diagnostic) = self.diagnostics.iter_mut().find(here) {
            diagnostic.help = Some(remedy.into());
        }
    }
}

/// Esper's windows, which are comments in CQL, and those of CQL.
const COMMENTS: &[(&str, &str)] = &[
    ("#time_batch(", "`[range 5 s slide 5 s]`"),
    ("#time(", "`[range 5 s]`"),
    ("#length_batch(", "`[rows 10]`"),
    ("#length(", "`[rows 10]`"),
];

/// The rows of `named` with the columns `window_start` and `window_end` of their window, which is
/// one slide long: a row of instant t is in the one that ends at t rounded up.
fn tumbling(named: TableSource, alias: Option<Ident>, size: &Spanned<Duration>) -> TableSource {
    let span = size.span;
    let expr = |kind| SpannedExpr::new(kind, span);
    let word = |word: &str| Ident::new(word.to_owned(), span);
    let quantity = |Duration { count, measure }: Duration| {
        expr(ExprKind::Literal(match measure {
            Some(measure) => Literal::Quantity(count, measure),
            None => Literal::Number(count),
        }))
    };
    let binary = |op, left, right| {
        let (left, right) = (Box::new(left), Box::new(right));
        expr(ExprKind::Binary { op, left, right })
    };
    let start = || {
        let ts = expr(ExprKind::Column {
            table: None,
            name: word("ts"),
        });
        let instant = quantity(Duration {
            count: Number::Int(1),
            measure: find_measure("ns"),
        });
        expr(ExprKind::Call {
            name: word("bucket"),
            distinct: false,
            args: vec![
                binary(BinaryOp::Subtract, ts, instant),
                quantity(size.value.clone()),
            ],
            star: false,
            filter: None,
        })
    };
    let end = binary(BinaryOp::Add, start(), quantity(size.value.clone()));
    let item = |expr, name| {
        let alias = Some(word(name));
        Spanned::new(Item::Expr { expr, alias }, span)
    };
    let select = SelectBlock {
        distinct: false,
        items: vec![
            Spanned::new(Item::Star, span),
            item(start(), "window_start"),
            item(end, "window_end"),
        ],
        from: vec![FromItem {
            table: TableRef::new(named, span),
            joins: Vec::new(),
        }],
        filter: None,
        group_by: Vec::new(),
        grouping: Grouping::All,
        having: None,
        windows: Vec::new(),
    };
    let query = Box::new(Query {
        views: Vec::new(),
        body: QueryBody::new(BodyKind::Select(Box::new(select)), span),
        order_by: Vec::new(),
        limit: None,
        offset: None,
    });
    TableSource::Derived {
        query,
        window: None,
        alias,
    }
}

/// Whether every window has a slide, so that a result is final when it is emitted.
fn is_final(body: &QueryBody) -> bool {
    let slides = |window: &Option<WindowClause>| {
        matches!(
            window.as_ref().map(|w| &w.value),
            Some(
                WindowSpec::Range { slide: Some(_), .. }
                    | WindowSpec::Unbounded { slide: Some(_) }
                    | WindowSpec::Error
            )
        )
    };
    let table = |table: &TableRef| match &table.value {
        TableSource::Named(named) => slides(&named.window),
        TableSource::Derived { query, window, .. } => slides(window) || is_final(&query.body),
        TableSource::Match(matches) => matches.window.is_none() || slides(&matches.window),
        TableSource::Error => true,
    };
    match &body.value {
        BodyKind::Select(select) => select.from.iter().all(|item| {
            let joined = item.joins.iter().map(|join| &join.table);
            std::iter::once(&item.table).chain(joined).all(table)
        }),
        BodyKind::SetOp { left, right, .. } => is_final(left) && is_final(right),
        BodyKind::Nested(query) | BodyKind::ToStream { query, .. } => is_final(&query.body),
        BodyKind::Named(named) => slides(&named.window),
        BodyKind::Error => true,
    }
}
