//! The sources of agents in random queries: two streams and a relation.

use weir_model::{Catalog, Declaration, Field, Schema, Shape, Type, Unit};

use super::{Kind, Vocabulary};

/// Their names and columns. Half of the text columns contain the host.
pub static VOCABULARY: Vocabulary = Vocabulary {
    streams: ["s", "u"],
    relation: Some("r"),
    columns: &[
        ("a", Kind::Int),
        ("t", Kind::Text),
        ("host", Kind::Text),
        ("req_id", Kind::Int),
        ("f", Kind::Float),
        ("w", Kind::Time),
        ("ts", Kind::Time),
    ],
    texts: ["h1", "y", "h0"],
    keys: ["host", "host, a", "a"],
    has_patterns: true,
};

/// Their declarations, with `more` columns.
pub fn catalog(more: &[Field]) -> Catalog {
    let mut fields = vec![
        Field::new("a", Type::Int).nullable(),
        Field::new("t", Type::Text).nullable(),
        Field::new("host", Type::Text).nullable(),
        Field::new("req_id", Type::Int),
        Field::new("f", Type::Float).nullable(),
        Field::new("w", Type::Time)
            .unit(Unit::Nanoseconds)
            .nullable(),
        Field::new("ts", Type::Time).unit(Unit::Nanoseconds),
    ];
    fields.extend_from_slice(more);
    let source = |name: &str, shape| Declaration::new(name, shape, Schema::new(fields.clone()));
    Catalog {
        declarations: vec![
            source("s", Shape::Stream),
            source("u", Shape::Stream),
            source("r", Shape::Relation),
        ],
        ..Catalog::default()
    }
}
