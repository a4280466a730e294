//! Random input with few values, so that ties, duplicates, NULLs and cancellations are frequent.

use weir_model::{Catalog, Declaration, Field, Schema, Shape, Type, Unit, Value};

use super::choices::Choices;
use super::grammar::{Kind, Vocabulary};
use crate::support::Row;
use crate::support::feed::Event;
use crate::support::history::Element;

/// The names of the sources and their columns.
pub static VOCABULARY: Vocabulary = Vocabulary {
    streams: ["s", "u"],
    relation: Some("r"),
    columns: &[
        ("a", Kind::Int),
        ("b", Kind::Int),
        ("t", Kind::Text),
        ("f", Kind::Float),
        ("g", Kind::Bool),
        ("w", Kind::Time),
    ],
    texts: ["x", "y", ""],
    keys: ["a", "t", "a, t"],
    has_patterns: true,
};

/// The sources that random queries read: two streams and a relation, with the same columns.
pub fn catalog() -> Catalog {
    let source = |name: &str, shape| {
        let fields = [
            ("a", Type::Int),
            ("b", Type::Int),
            ("t", Type::Text),
            ("f", Type::Float),
            ("g", Type::Bool),
            ("w", Type::Time),
        ];
        let unit = |ty| {
            if ty == Type::Time {
                Unit::Nanoseconds
            } else {
                Unit::None
            }
        };
        let fields = fields.map(|(name, ty)| Field::new(name, ty).unit(unit(ty)).nullable());
        Declaration::new(name, shape, Schema::new(fields.to_vec()))
    };
    Catalog {
        declarations: vec![
            source("s", Shape::Stream),
            source("u", Shape::Stream),
            source("r", Shape::Relation),
        ],
        ..Catalog::default()
    }
}

/// A few rows and occasional heartbeats, in timestamp order.
pub fn feed(choices: &mut Choices<'_>) -> Vec<Event> {
    let mut feed = Vec::new();
    let mut ts = 0;
    let mut relation: Vec<Row> = Vec::new();
    while choices.any_left() {
        ts += choices.one(&[0, 1, 0, 2, 1, 3, 7]);
        let source = choices.one(&[0, 1, 2, 0, 1]);
        let row = row(choices);
        let weight = if source != 2 {
            1
        } else if choices.once_in(3) && !relation.is_empty() {
            let gone = relation.swap_remove(choices.pick(relation.len()));
            feed.push(Event::Row(
                2,
                Element {
                    ts,
                    weight: -1,
                    row: gone,
                },
            ));
            continue;
        } else {
            relation.push(row.clone());
            1
        };
        feed.push(Event::Row(source, Element { ts, weight, row }));
        if choices.once_in(7) {
            // No more rows may follow at this instant.
            feed.push(Event::Heartbeat(None, ts));
            ts += 1;
        }
    }
    if ts % 2 == 0 {
        feed.push(Event::Heartbeat(None, ts + 11));
    }
    feed
}

fn row(choices: &mut Choices<'_>) -> Row {
    let int = |x: Option<i64>| x.map_or(Value::Null, Value::Int);
    let text = |x: Option<&str>| x.map_or(Value::Null, Value::text);
    let bool = |x: Option<bool>| x.map_or(Value::Null, Value::Bool);
    let float = |x: Option<f64>| x.map_or(Value::Null, Value::Float);
    vec![
        int(choices.one(&[Some(1), Some(0), Some(2), None])),
        int(choices.one(&[Some(1), Some(0), Some(2), Some(3), Some(-1), Some(10), None])),
        text(choices.one(&[Some("x"), Some("y"), None])),
        // Sums of halves are not rounded, so that equal sums are equal to the last bit.
        float(choices.one(&[Some(1.0), Some(0.5), Some(-2.0), None])),
        bool(choices.one(&[Some(true), Some(false), None])),
        int(choices.one(&[Some(5), Some(6), Some(8), None])),
    ]
}
