//! Random CREATE ALERT and EXPECT statements.

use super::*;

/// `30 ms`
fn hold() -> impl Strategy<Value = Spanned<Duration>> {
    let measure = MEASURES.iter().find(|measure| measure.name == "ms");
    (1_i64..99).prop_map(move |count| {
        at(Duration {
            count: Number::Int(count),
            measure,
        })
    })
}

/// `CREATE ALERT ..`
pub fn alert() -> impl Strategy<Value = Statement> {
    let condition = || prop::option::of(expr());
    let until = (condition(), prop::option::of(hold()))
        .prop_filter("UNTIL has a part", |(c, h)| c.is_some() || h.is_some())
        .prop_map(|(condition, hold)| UntilClause { condition, hold });
    let item = || {
        let alias = prop::option::of(ident());
        let item = (expr(), alias).prop_map(|(expr, alias)| at(Item::Expr { expr, alias }));
        prop::collection::vec(item, 0..3)
    };
    let named = (expr(), ident()).prop_map(|(expr, alias)| {
        at(Item::Expr {
            expr,
            alias: Some(alias),
        })
    });
    let verb = prop::sample::select(vec!["limit", "weight", "select"]);
    let act = (
        verb.prop_map(|verb| Ident::new(verb.to_owned(), Span::default())),
        prop::collection::vec(named, 1..3),
        hold(),
        prop::option::of(hold()),
        prop::option::of((expr(), hold())),
    );
    let act = act.prop_map(|(verb, items, hold, cooldown, witness)| ActClause {
        verb,
        items,
        hold,
        cooldown,
        witness,
    });
    let hold = prop::option::of(hold());
    let parts = (
        ident(),
        query(),
        condition(),
        hold,
        prop::option::of(until),
        item(),
        item(),
        prop::option::of(act),
    );
    parts.prop_map(
        |(name, query, when, hold, until, labels, annotations, act)| {
            Statement::Alert(Box::new(AlertDefinition {
                name,
                query,
                when,
                hold,
                until,
                labels,
                annotations,
                act,
            }))
        },
    )
}

/// `EXPECT ..`
pub fn expectation() -> impl Strategy<Value = Statement> {
    let label = (ident(), "[a-z' ]{0,5}".prop_map(at));
    let labels = prop::collection::vec(label, 0..3);
    let interval = prop::option::of((hold(), hold()));
    let parts = (any::<bool>(), ident(), ident(), interval, labels);
    parts.prop_map(|(negated, alert, state, interval, labels)| {
        Statement::Expect(Expectation {
            negated,
            alert,
            state,
            interval,
            labels,
        })
    })
}
