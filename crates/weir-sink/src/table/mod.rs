//! `--format table`: aligned columns for the eye.
//!
//! A relation is shown as it is: on a terminal while it changes, drawn again in one place
//! ([`snapshot`]); otherwise once, at the end. A stream's rows are shown as they come ([`rows`]).

mod layout;
mod rows;
mod snapshot;

use weir_model::Shape;

use crate::Format;

/// `--format table`.
pub static FORMAT: Format = Format {
    name: "table",
    doc: "aligned columns: the relation as it is, or a stream's rows as they come (what a terminal gets by default)",
    open: |answer, target| {
        Ok(match answer.shape {
            Shape::Relation => Box::new(snapshot::Snapshot::new(answer, target)),
            Shape::Stream => Box::new(rows::Rows::new(answer, target)),
        })
    },
    resume: None,
};
