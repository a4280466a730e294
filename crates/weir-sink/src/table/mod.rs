//! `--format table`: aligned columns for reading.
//!
//! A relation is displayed as its current content: on a terminal it is redrawn in place while it
//! changes ([`snapshot`]); otherwise it is printed once, at the end. The rows of a stream are
//! printed as they arrive ([`rows`]).

mod layout;
mod rows;
mod snapshot;

use weir_model::Shape;

use crate::SinkFormat;

/// `--format table`.
pub static FORMAT: SinkFormat = SinkFormat {
    name: "table",
    doc: "aligned columns: the current relation, or the rows of a stream",
    open: |answer, target| {
        Ok(match answer.shape {
            Shape::Relation => Box::new(snapshot::Snapshot::new(answer, target)),
            Shape::Stream => Box::new(rows::Rows::new(answer, target)),
        })
    },
    resume: None,
};
