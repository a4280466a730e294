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
    let hold = prop::option::of(hold());
    let parts = (
        ident(),
        query(),
        condition(),
        hold,
        prop::option::of(until),
        item(),
        item(),
    );
    parts.prop_map(|(name, query, when, hold, until, labels, annotations)| {
        Statement::Alert(Box::new(AlertDefinition {
            name,
            query,
            when,
            hold,
            until,
            labels,
            annotations,
        }))
    })
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
