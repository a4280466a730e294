//! Printing a tree and parsing the text yields the same tree.

use proptest::prelude::*;
use weir_model::{ProbeField, ProbeScope, ProbeType, Shape, Type, Unit};
use weir_query::Span;
use weir_query::expr::BinaryOp;
use weir_query::syntax::ast::*;
use weir_query::syntax::measure::MEASURES;
use weir_query::syntax::parse;

#[path = "support/alert_statements.rs"]
mod alert_statements;

use alert_statements::{alert, expectation};

fn at<T>(value: T) -> Spanned<T> {
    Spanned::new(value, Span::default())
}

fn ident() -> BoxedStrategy<Ident> {
    let plain = prop::sample::select(vec![
        "a", "op", "IO", "range", "rows", "every", "s", "count", "größe", "_x1", "desc",
    ]);
    // Reserved words and names that are not plain identifiers are between backticks.
    let quoted = prop::sample::select(vec!["select", "count(*)", "a`b", "1", "", "x y"]);
    prop_oneof![6 => plain, 1 => quoted]
        .prop_map(|name| at(name.to_owned()))
        .boxed()
}

fn number() -> impl Strategy<Value = Number> {
    let float = any::<f64>()
        .prop_filter("finite", |x| x.is_finite())
        .prop_map(f64::abs);
    prop_oneof![
        3 => (0_i64..100).prop_map(Number::Int),
        1 => (0..=i64::MAX).prop_map(Number::Int),
        1 => float.prop_map(Number::Float),
    ]
}

fn signed() -> impl Strategy<Value = Number> {
    (number(), any::<bool>()).prop_map(|(number, negative)| match number {
        Number::Int(x) if negative => Number::Int(-x - i64::from(x == i64::MAX)),
        Number::Float(x) if negative => Number::Float(-x),
        number => number,
    })
}

fn measure() -> impl Strategy<Value = &'static weir_query::syntax::measure::UnitName> {
    prop::sample::select(MEASURES.iter().collect::<Vec<_>>())
}

fn literal() -> BoxedStrategy<Literal> {
    prop_oneof![
        Just(Literal::Null),
        any::<bool>().prop_map(Literal::Bool),
        // `-0` is the integer 0 again; -0.0 keeps its sign.
        signed().prop_map(Literal::Number),
        "[ -~äß日]{0,8}".prop_map(Literal::Text),
        (signed(), measure()).prop_map(|(n, m)| Literal::Quantity(n, m)),
    ]
    .boxed()
}

fn ty() -> impl Strategy<Value = Spanned<Type>> {
    let types = vec![Type::Bool, Type::Int, Type::Float, Type::Text, Type::Time];
    prop::sample::select(types).prop_map(at)
}

fn node(kind: ExprKind) -> SpannedExpr {
    SpannedExpr::new(kind, Span::default())
}

fn binary_op() -> impl Strategy<Value = BinaryOp> {
    use BinaryOp::*;
    prop::sample::select(vec![
        Add,
        Subtract,
        Multiply,
        Divide,
        Modulo,
        Equal,
        NotEqual,
        Less,
        LessEqual,
        Greater,
        GreaterEqual,
        And,
        Or,
        Concat,
    ])
}

fn expr() -> BoxedStrategy<SpannedExpr> {
    let column = (prop::option::of(ident()), ident())
        .prop_map(|(table, name)| node(ExprKind::Column { table, name }));
    let leaf = prop_oneof![column, literal().prop_map(|l| node(ExprKind::Literal(l)))];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let boxed = inner.clone().prop_map(Box::new);
        let list = prop::collection::vec(inner.clone(), 1..4);
        let unary = (
            prop_oneof![Just(UnaryOp::Negate), Just(UnaryOp::Not)],
            boxed.clone(),
        )
            .prop_map(|(op, expr)| ExprKind::Unary { op, expr });
        let binary = (binary_op(), boxed.clone(), boxed.clone())
            .prop_map(|(op, left, right)| ExprKind::Binary { op, left, right });
        let is_null = (boxed.clone(), any::<bool>())
            .prop_map(|(expr, negated)| ExprKind::IsNull { expr, negated });
        let between = (boxed.clone(), boxed.clone(), boxed.clone(), any::<bool>()).prop_map(
            |(expr, low, high, negated)| ExprKind::Between {
                expr,
                low,
                high,
                negated,
            },
        );
        let in_list =
            (boxed.clone(), list.clone(), any::<bool>()).prop_map(|(expr, list, negated)| {
                ExprKind::InList {
                    expr,
                    list,
                    negated,
                }
            });
        let like = (boxed.clone(), boxed.clone(), any::<bool>(), any::<bool>()).prop_map(
            |(expr, pattern, ignore_case, negated)| ExprKind::Like {
                expr,
                pattern,
                ignore_case,
                negated,
            },
        );
        let branches = prop::collection::vec((inner.clone(), inner.clone()), 1..3);
        let optional = prop::option::of(boxed.clone());
        let case =
            (optional.clone(), branches, optional).prop_map(|(operand, branches, otherwise)| {
                ExprKind::Case {
                    operand,
                    branches,
                    otherwise,
                }
            });
        let (over, boxed_filter) = (over(inner.clone()), boxed.clone());
        let cast = (boxed, ty()).prop_map(|(expr, ty)| ExprKind::Cast { expr, ty });
        let call = (
            function(),
            any::<bool>(),
            prop::collection::vec(inner, 0..3),
            any::<bool>(),
            prop::option::of(boxed_filter),
        )
            .prop_map(|(name, distinct, args, star, filter)| {
                // Only aggregates have a filter.
                let is_aggregate = ["count", "sum", "quantile"].contains(&name.value.as_str());
                let args = if star { Vec::new() } else { args };
                ExprKind::Call {
                    name,
                    distinct: distinct && (star || !args.is_empty()),
                    args,
                    star,
                    filter: filter.filter(|_| is_aggregate),
                }
            });
        prop_oneof![
            unary, binary, is_null, between, in_list, like, case, cast, call, over
        ]
        .prop_map(node)
    })
    .boxed()
}

/// `(w PARTITION BY .. ORDER BY ..)`
fn row_window(
    expr: impl Strategy<Value = SpannedExpr> + Clone + 'static,
) -> BoxedStrategy<RowWindow> {
    let key = (expr.clone(), any::<bool>(), prop::option::of(any::<bool>())).prop_map(
        |(expr, descending, nulls_first)| OrderItem {
            expr,
            descending,
            nulls_first,
        },
    );
    let bound = || {
        prop_oneof![
            Just(FrameBound::Unbounded),
            Just(FrameBound::CurrentRow),
            expr.clone().prop_map(FrameBound::Preceding),
            expr.clone().prop_map(FrameBound::Following),
        ]
    };
    let unit = prop_oneof![
        Just(FrameUnit::Rows),
        Just(FrameUnit::Range),
        Just(FrameUnit::Groups)
    ];
    let frame = (unit, bound(), bound())
        .prop_map(|(unit, start, end)| at(FrameClause { unit, start, end }));
    (
        prop::option::of(ident()),
        prop::collection::vec(expr.clone(), 0..3),
        prop::collection::vec(key, 0..3),
        prop::option::of(frame),
    )
        .prop_map(|(base, partition, order_by, frame)| RowWindow {
            base,
            is_bare: false,
            partition,
            order_by,
            frame,
        })
        .boxed()
}

/// A call with OVER.
fn over(expr: impl Strategy<Value = SpannedExpr> + Clone + 'static) -> BoxedStrategy<ExprKind> {
    let bare = ident().prop_map(|name| RowWindow {
        base: Some(name),
        is_bare: true,
        ..RowWindow::default()
    });
    (
        function(),
        prop::collection::vec(expr.clone(), 0..3),
        prop_oneof![4 => row_window(expr), 1 => bare],
    )
        .prop_map(|(name, args, window)| {
            ExprKind::Over(Box::new(OverClause {
                name,
                distinct: false,
                args,
                star: false,
                filter: None,
                window,
            }))
        })
        .boxed()
}

fn function() -> impl Strategy<Value = Ident> {
    prop::sample::select(vec!["count", "sum", "quantile", "nosuch", "select"])
        .prop_map(|name| at(name.to_owned()))
}

fn duration() -> BoxedStrategy<Spanned<Duration>> {
    (number(), prop::option::of(measure()))
        .prop_map(|(count, measure)| at(Duration { count, measure }))
        .boxed()
}

fn window() -> BoxedStrategy<WindowClause> {
    let slide = || prop::option::of(duration());
    let keys = prop::collection::vec(expr(), 1..3);
    prop_oneof![
        Just(WindowSpec::Now),
        any::<u64>().prop_map(|n| WindowSpec::Rows(at(n))),
        (duration(), slide(), slide()).prop_map(|(size, slide, delay)| WindowSpec::Range {
            size,
            slide,
            delay
        }),
        (duration(), prop::collection::vec(expr(), 0..2))
            .prop_map(|(gap, keys)| WindowSpec::Session { gap, keys }),
        slide().prop_map(|slide| WindowSpec::Unbounded { slide }),
        (keys, any::<u64>()).prop_map(|(keys, n)| WindowSpec::Partition { keys, rows: at(n) }),
    ]
    .prop_map(at)
    .boxed()
}

fn named() -> BoxedStrategy<Named> {
    (
        ident(),
        prop::option::of(window()),
        prop::option::of(ident()),
    )
        .prop_map(|(name, window, alias)| Named {
            name,
            window,
            alias,
        })
        .boxed()
}

/// A pattern of MATCH_RECOGNIZE.
fn pattern() -> BoxedStrategy<PatternTerm> {
    let leaf = prop_oneof![
        4 => ident().prop_map(PatternTerm::Variable),
        1 => ident().prop_map(PatternTerm::Absent),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let terms = prop::collection::vec(inner.clone().prop_map(at), 2..4);
        let times = (0..4_u32, prop::option::of(1..4_u32), any::<bool>());
        let repeated =
            (inner, times).prop_map(|(term, (min, more, reluctant))| PatternTerm::Repeated {
                term: Box::new(at(term)),
                min,
                max: more.map(|more| min + more - u32::from(min > 0)),
                reluctant,
            });
        prop_oneof![
            terms.clone().prop_map(PatternTerm::Sequence),
            terms.prop_map(PatternTerm::Alternatives),
            repeated,
        ]
    })
    .boxed()
}

/// `S MATCH_RECOGNIZE (..)`
fn match_source(input: BoxedStrategy<TableRef>) -> BoxedStrategy<TableSource> {
    let rows = ident().prop_map(|variable| {
        node(ExprKind::Call {
            name: at("count".into()),
            distinct: false,
            args: vec![node(ExprKind::Rows(variable))],
            star: false,
            filter: None,
        })
    });
    let measure = (prop_oneof![3 => expr(), 1 => rows], ident());
    let order = (expr(), any::<bool>()).prop_map(|(expr, descending)| OrderItem {
        expr,
        descending,
        nulls_first: None,
    });
    let clause = (
        prop::collection::vec(expr(), 0..3),
        prop::collection::vec(order, 0..2),
        prop::collection::vec(measure, 0..3),
        prop_oneof![Just(AfterMatch::PastLastRow), Just(AfterMatch::ToNextRow)],
        pattern().prop_map(at),
        prop::option::of(duration()),
        prop::collection::vec((ident(), expr()), 0..3),
    )
        .prop_map(
            |(partition, order_by, measures, after, pattern, within, definitions)| MatchClause {
                partition,
                order_by,
                measures,
                after,
                pattern,
                within,
                definitions,
            },
        );
    let (window, alias) = (prop::option::of(window()), prop::option::of(ident()));
    (input.prop_map(Box::new), clause, window, alias)
        .prop_map(|(input, clause, window, alias)| {
            TableSource::Match(Box::new(MatchSource {
                input,
                clause,
                window,
                alias,
            }))
        })
        .boxed()
}

/// A query, in which `inner` queries may stand.
fn query_over(inner: BoxedStrategy<Query>) -> BoxedStrategy<Query> {
    let boxed = inner.clone().prop_map(Box::new);
    let derived = (
        boxed.clone(),
        prop::option::of(window()),
        prop::option::of(ident()),
    )
        .prop_map(|(query, window, alias)| TableSource::Derived {
            query,
            window,
            alias,
        });
    let table = prop_oneof![3 => named().prop_map(TableSource::Named), 1 => derived].prop_map(at);
    let matches = match_source(table.clone().boxed());
    let table = prop_oneof![4 => table, 1 => matches.prop_map(at)];
    let condition = prop_oneof![
        Just(Condition::None),
        expr().prop_map(Condition::On),
        prop::collection::vec(ident(), 1..3).prop_map(Condition::Using),
    ];
    let kind = prop::sample::select(vec![
        JoinOp::Inner,
        JoinOp::Left,
        JoinOp::Right,
        JoinOp::Full,
        JoinOp::Cross,
    ]);
    let join = (kind, table.clone(), condition).prop_map(|(kind, table, condition)| Join {
        kind: at(kind),
        table,
        condition,
    });
    let from = (table, prop::collection::vec(join, 0..2))
        .prop_map(|(table, joins)| FromItem { table, joins });
    let item = prop_oneof![
        Just(Item::Star),
        ident().prop_map(Item::TableStar),
        (expr(), prop::option::of(ident())).prop_map(|(expr, alias)| Item::Expr { expr, alias }),
    ]
    .prop_map(at);
    let in_query = (expr().prop_map(Box::new), boxed.clone(), any::<bool>()).prop_map(
        |(expr, query, negated)| {
            node(ExprKind::InQuery {
                expr,
                query,
                negated,
            })
        },
    );
    let exists = boxed
        .clone()
        .prop_map(|query| node(ExprKind::Exists { query }));
    let scalar = select_query(inner.clone()).prop_map(|query| node(ExprKind::Scalar { query }));
    let filter =
        prop_oneof![3 => expr(), 1 => in_query_of(in_query.boxed()), 1 => exists, 1 => scalar];
    let named_window =
        (ident(), row_window(expr())).prop_map(|(name, window)| WindowDefinition { name, window });
    let select = (
        any::<bool>(),
        prop::collection::vec(item, 1..4),
        prop::collection::vec(from, 1..3),
        prop::option::of(filter),
        prop::collection::vec(expr(), 0..3),
        prop::option::of(expr()),
        prop_oneof![2 => Just(None), 1 => Just(Some(Grouping::Rollup)), 1 => Just(Some(Grouping::Cube))],
        prop::collection::vec(named_window, 0..2),
    )
        .prop_map(|(distinct, items, from, filter, group_by, having, grouping, windows)| {
            let sets = || match &group_by[..] {
                [a, b, ..] if a != b => Grouping::Sets(vec![vec![0, 1], vec![1], vec![]]),
                _ => Grouping::All,
            };
            let grouping = grouping.filter(|_| !group_by.is_empty()).unwrap_or_else(sets);
            let group_by = match grouping {
                Grouping::Sets(_) => group_by[..2].to_vec(),
                _ => group_by,
            };
            BodyKind::Select(Box::new(SelectBlock {
                distinct,
                items,
                from,
                filter,
                group_by,
                grouping,
                having,
                windows,
            }))
        })
        .boxed();
    let alone = (ident(), prop::option::of(window())).prop_map(|(name, window)| {
        BodyKind::Named(Box::new(Named {
            name,
            window,
            alias: None,
        }))
    });
    let nested = boxed.clone().prop_map(BodyKind::Nested);
    let kind = prop::sample::select(vec![
        StreamOp::Istream,
        StreamOp::Dstream,
        StreamOp::Rstream,
    ]);
    let stream = (kind, boxed, prop::option::of(duration()))
        .prop_map(|(kind, query, every)| BodyKind::ToStream { kind, query, every });
    let single = prop_oneof![4 => select, 1 => alone, 1 => nested, 1 => stream].boxed();
    // INTERSECT has a higher precedence than UNION and EXCEPT, and all are left-associative.
    let chain = |operand: BoxedStrategy<BodyKind>, ops: Vec<SetOp>| {
        let step = (prop::sample::select(ops), any::<bool>(), operand.clone());
        (operand, prop::collection::vec(step, 0..2)).prop_map(|(first, steps)| {
            steps.into_iter().fold(first, |left, (op, all, right)| {
                let (left, right) = (Box::new(at(left)), Box::new(at(right)));
                BodyKind::SetOp {
                    op,
                    all,
                    left,
                    right,
                }
            })
        })
    };
    let tight = chain(single, vec![SetOp::Intersect]).boxed();
    let body = chain(tight, vec![SetOp::Union, SetOp::Except]).prop_map(at);
    let order = (expr(), any::<bool>(), prop::option::of(any::<bool>())).prop_map(
        |(expr, descending, nulls_first)| OrderItem {
            expr,
            descending,
            nulls_first,
        },
    );
    let view = (ident(), prop::collection::vec(ident(), 0..3), inner).prop_map(
        |(name, columns, query)| ViewDefinition {
            or_replace: false,
            name,
            columns,
            query,
        },
    );
    (
        prop::collection::vec(view, 0..2),
        body,
        prop::collection::vec(order, 0..3),
        prop::option::of(any::<u64>()),
        prop::option::of(any::<u64>()),
    )
        .prop_map(|(views, body, order_by, limit, offset)| Query {
            views,
            body,
            order_by,
            limit: limit.map(at),
            offset: offset.map(at),
        })
        .boxed()
}

/// IN is followed by SELECT, WITH or a stream; a name alone would be an expression.
fn in_query_of(strategy: BoxedStrategy<SpannedExpr>) -> impl Strategy<Value = SpannedExpr> {
    strategy.prop_filter("IN takes a subquery", |expr| match &expr.kind {
        ExprKind::InQuery { query, .. } => begins_with_word(query),
        _ => true,
    })
}

fn select_query(inner: BoxedStrategy<Query>) -> impl Strategy<Value = Box<Query>> {
    inner
        .clone()
        .prop_filter("a subquery as a value", begins_with_word)
        .prop_map(Box::new)
}

fn begins_with_word(query: &Query) -> bool {
    fn first(body: &QueryBody) -> bool {
        match &body.value {
            BodyKind::Select(_) | BodyKind::ToStream { .. } => true,
            BodyKind::SetOp { left, .. } => first(left),
            _ => false,
        }
    }
    !query.views.is_empty() || first(&query.body)
}

fn query() -> BoxedStrategy<Query> {
    let star = SelectBlock {
        distinct: false,
        items: vec![at(Item::Star)],
        from: vec![FromItem {
            table: at(TableSource::Named(Named {
                name: at("S".into()),
                window: None,
                alias: None,
            })),
            joins: Vec::new(),
        }],
        filter: None,
        group_by: Vec::new(),
        grouping: Grouping::All,
        having: None,
        windows: Vec::new(),
    };
    let least = Query {
        views: Vec::new(),
        body: at(BodyKind::Select(Box::new(star))),
        order_by: Vec::new(),
        limit: None,
        offset: None,
    };
    query_over(query_over(Just(least).boxed()))
}

fn statement() -> impl Strategy<Value = Statement> {
    let columns = prop::collection::vec((ident(), ty()), 1..4);
    let shape = prop_oneof![Just(Shape::Stream), Just(Shape::Relation)];
    let register = (shape, ident(), columns).prop_map(|(shape, name, columns)| {
        Statement::Register(Registration {
            shape,
            name,
            columns,
        })
    });
    let columns = prop::collection::vec(ident(), 0..3);
    let view = (any::<bool>(), ident(), columns, query()).prop_map(
        |(or_replace, name, columns, query)| {
            Statement::View(ViewDefinition {
                or_replace,
                name,
                columns,
                query,
            })
        },
    );
    let statements = query().prop_map(Statement::Query);
    prop_oneof![
        6 => statements,
        1 => view,
        1 => register,
        1 => stream_definition(),
        1 => library_statement(),
        1 => alert(),
        1 => expectation(),
    ]
}

/// `DROP VIEW ..` and `SHOW ..`
fn library_statement() -> impl Strategy<Value = Statement> {
    let drop = (any::<bool>(), ident())
        .prop_map(|(if_exists, name)| Statement::DropView(DropView { name, if_exists }));
    let what = prop::sample::select(CatalogList::WORDS.map(|(_, what)| what).to_vec());
    let like = prop::option::of("[a-z%_']{0,5}".prop_map(at));
    let show = (what, like).prop_map(|(what, like)| CatalogQuery::Show { what, like });
    let show = prop_oneof![3 => show, 1 => ident().prop_map(CatalogQuery::ShowView)];
    prop_oneof![1 => drop, 2 => show.prop_map(Statement::Inspect)]
}

/// `CREATE STREAM .. AS PROBE ..`
fn stream_definition() -> impl Strategy<Value = Statement> {
    let text = (1_u64..=512).prop_map(|bytes| ProbeType::Text { bytes });
    let integer = (prop::sample::select(vec![1_u8, 2, 4, 8]), any::<bool>());
    let integer = integer.prop_map(|(bytes, is_signed)| ProbeType::Integer { bytes, is_signed });
    let ty = prop::option::of(prop_oneof![text, integer]);
    let unit = prop::sample::select(vec![Unit::None, Unit::Nanoseconds, Unit::Sectors]);
    let path = prop::sample::select(vec!["prev_pid", "rq.q.disk.major", "args[1]", "from"]);
    let name = prop::option::of(ident().prop_map(|name| name.value));
    let field = (path, name, ty, unit).prop_map(|(path, name, ty, unit)| {
        let path = path.into();
        at(ProbeField {
            path,
            name,
            ty,
            unit,
        })
    });
    let fields = prop::collection::vec(field, 0..3);
    let most = prop::option::of((0_u64..9).prop_map(at));
    let keys = prop::sample::select(vec!["tid", "next.pid", "args[0]"]).prop_map(str::to_owned);
    let keys = prop::collection::vec((keys.clone(), keys), 0..3);
    let probe = ("[a-z:']{1,9}".prop_map(at), fields);
    let end = (probe.clone(), keys).prop_map(|((probe, fields), keys)| EndDefinition {
        probe,
        fields,
        keys,
    });
    let share = prop::option::of((1_u8..101).prop_map(at));
    let scope = (prop::option::of(1_u32..), prop::option::of("[a-z/']{0,5}"));
    let scope = scope.prop_map(|(pid, cgroup)| ProbeScope { pid, cgroup });
    let parts = (ident(), probe, prop::option::of(end), scope, most, share);
    parts.prop_map(|(name, probe, end, scope, hits_max, cpu_percent_max)| {
        Statement::Stream(StreamDefinition {
            name,
            probe: probe.0,
            fields: probe.1,
            end,
            scope,
            hits_max,
            cpu_percent_max,
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_printed_parses_to_the_same(statement in statement()) {
        let text = statement.to_string();
        let parsed = parse(&text);
        prop_assert!(parsed.diagnostics.is_empty(), "{text}\n{:?}", parsed.diagnostics);
        prop_assert_eq!(&parsed.tree, &vec![statement], "{}", text);
    }
}

/// The text, and the result of parsing and printing it.
fn printed(text: &str) -> String {
    let parsed = parse(text);
    assert_eq!(parsed.diagnostics.len(), 0, "{:?}", parsed.diagnostics);
    let statements = parsed.tree.iter().map(|s| s.to_string());
    statements.collect::<Vec<_>>().join("; ")
}

#[test]
fn a_chain_of_any_length_is_flat() {
    for word in ["OR", "AND"] {
        for length in [2, 31, 32, 33, 64, 127, 128, 129, 1_000, 20_000] {
            let operands: Vec<String> = (0..length).map(|i| format!("a = {i}")).collect();
            let text = format!(
                "SELECT a FROM s WHERE {}",
                operands.join(&format!(" {word} "))
            );
            let once = printed(&text);
            assert_eq!(printed(&once), once, "{length} {word}");
            assert_eq!(once.matches(&format!(" {word} ")).count(), length - 1);
        }
    }
    // Parentheses count as nesting, whatever is between them.
    let deep = format!(
        "SELECT a FROM s WHERE {}a = 1{}",
        "(a = 0 OR ".repeat(200),
        ")".repeat(200)
    );
    assert!(!parse(&deep).diagnostics.is_empty());
}
