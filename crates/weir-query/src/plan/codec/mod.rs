//! Plans as bytes, for the way from the monitor to an agent.
//!
//! ```text
//! plan         "weirplan" VERSION declarations node
//! declarations count, then each: name, shape, fields, star, doc
//! node         tag, inputs, what it does with them; sources by number, as declared above
//! ```
//!
//! Numbers are LEB128, as in [`weir_sketch::codec`]; texts are a length and UTF-8; functions go by
//! name. What follows from other things is not written: schemas of selections, types of operators.
//!
//! [`decode`] trusts nothing. Every type is computed anew by the functions that the checker uses,
//! every column is looked up, every size is bounded, so that no bytes make the engine panic, or the
//! decoder use more than a small multiple of the memory that the bytes take.

mod expr;
mod read;
mod tags;
#[cfg(test)]
mod tests;
mod write;

use std::fmt;

use weir_model::{Catalog, Declaration};
use weir_sketch::Malformed;

use super::Plan;

/// The version of the encoding. It changes whenever older readers would not understand a plan.
pub const VERSION: u64 = 2;

/// Most bytes of an encoded plan.
pub const BYTES_MAX: usize = 1 << 20;

/// Most nodes on the way from the result down to a source.
pub const HEIGHT_MAX: usize = 512;

/// Most nodes of an expression on the way from its top to a column.
pub const EXPR_HEIGHT_MAX: usize = 256;

/// Most columns of one node.
pub const COLUMNS_MAX: usize = 16_384;

/// Most columns of all nodes together.
pub const COLUMNS_TOTAL_MAX: usize = 262_144;

/// What an encoded plan begins with.
const MAGIC: &[u8; 8] = b"weirplan";

/// Why bytes are no plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CodecError {
    /// They do not begin as a plan does.
    NotAPlan,
    /// Another version wrote them.
    Version(u64),
    /// They are longer than [`BYTES_MAX`].
    TooLong(usize),
    /// A function is unknown here.
    UnknownFunction(String),
    /// A source is unknown here, or has other columns.
    Source {
        /// Its name.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// They are cut off, or out of range.
    Malformed(Malformed),
    /// They are a plan that cannot run: a sentence without full stop.
    Wrong(String),
}

const REMEDY: &str = "run the same release of weir on agent and monitor";

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CodecError::NotAPlan => write!(f, "the bytes are no encoded plan; {REMEDY}"),
            CodecError::Version(version) => write!(
                f,
                "the plan is encoded in version {version}, and this is version {VERSION}; {REMEDY}"
            ),
            CodecError::TooLong(bytes) => write!(
                f,
                "the plan takes {bytes} bytes, more than {BYTES_MAX}; write a shorter query"
            ),
            CodecError::UnknownFunction(name) => {
                write!(
                    f,
                    "the plan calls `{name}`, which is unknown here; {REMEDY}"
                )
            }
            CodecError::Source { name, why } => {
                write!(f, "the plan reads `{name}`, {why}; {REMEDY}")
            }
            CodecError::Malformed(Malformed(why)) => {
                write!(f, "the plan cannot be read: {why}; {REMEDY}")
            }
            CodecError::Wrong(why) => write!(f, "the plan is wrong: {why}; {REMEDY}"),
        }
    }
}

impl std::error::Error for CodecError {}

impl From<Malformed> for CodecError {
    fn from(malformed: Malformed) -> CodecError {
        CodecError::Malformed(malformed)
    }
}

/// The bytes of a plan that is not placed yet: its sources deliver rows.
pub fn encode(plan: &Plan) -> Vec<u8> {
    write::plan(plan)
}

/// The plan that [`encode`] wrote.
///
/// # Errors
/// When the bytes are no plan that the engine could run.
pub fn decode(bytes: &[u8]) -> Result<Plan, CodecError> {
    read::plan(bytes)
}

/// The plan that [`encode`] wrote, if its sources are those of `catalog`: whoever runs it delivers
/// rows with the columns that it expects.
///
/// # Errors
/// As [`decode`]; and when a source is unknown or has columns of other names, types or units.
pub fn decode_over(bytes: &[u8], catalog: &Catalog) -> Result<Plan, CodecError> {
    let plan = decode(bytes)?;
    // All of them: bytes may give one name twice, with other columns.
    let mut known = Ok(());
    plan.visit_sources(&mut |source| {
        if known.is_ok() {
            known = is_known(source, catalog);
        }
    });
    known.map(|()| plan)
}

/// Whether a catalog has that source, with the same columns.
fn is_known(source: &Declaration, catalog: &Catalog) -> Result<(), CodecError> {
    let wrong = |why: &str| CodecError::Source {
        name: source.name.clone(),
        why: why.to_owned(),
    };
    let known = catalog.find(&source.name);
    let known = known.ok_or_else(|| wrong("which is unknown here"))?;
    let (theirs, ours) = (&source.schema.fields, &known.schema.fields);
    let same = theirs.len() == ours.len()
        && theirs
            .iter()
            .zip(ours)
            .all(|(a, b)| a.name == b.name && a.ty == b.ty && a.unit == b.unit);
    match source.shape == known.shape && same {
        true => Ok(()),
        false => Err(wrong("which has other columns here")),
    }
}
