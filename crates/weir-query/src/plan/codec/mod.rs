//! The encoding of plans that the monitor sends to agents.
//!
//! ```text
//! plan         "weirplan" VERSION declarations node
//! declarations count, then each: name, shape, fields, star, doc
//! node         tag, inputs, parameters; sources by number, as declared above
//! ```
//!
//! Numbers are LEB128, as in [`weir_sketch::codec`]; texts are a length and UTF-8; functions are
//! encoded by name. What can be derived is not encoded: schemas of selections, types of operators.
//!
//! [`decode`] does not trust its input. Every type is derived again by the functions that the
//! checker uses, every column is looked up, every size is bounded, so that no bytes make the engine
//! panic, or the decoder use more than a small multiple of the memory of the bytes.

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

/// The version of the encoding. It changes whenever older decoders could not read a plan.
pub const VERSION: u64 = 2;

/// Maximum size of an encoded plan in bytes.
pub const BYTES_MAX: usize = 1 << 20;

/// Maximum number of nodes on a path from the result to a source.
pub const HEIGHT_MAX: usize = 512;

/// Maximum number of nodes of an expression on a path from its root to a column.
pub const EXPR_HEIGHT_MAX: usize = 256;

/// Maximum number of columns of a node.
pub const COLUMNS_MAX: usize = 16_384;

/// Maximum number of columns of all nodes together.
pub const COLUMNS_TOTAL_MAX: usize = 262_144;

/// The first bytes of an encoded plan.
const MAGIC: &[u8; 8] = b"weirplan";

/// Why bytes are not a valid plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CodecError {
    /// They do not start with the magic number.
    NotAPlan,
    /// They have another version.
    Version(u64),
    /// They are longer than [`BYTES_MAX`].
    TooLong(usize),
    /// They call an unknown function.
    UnknownFunction(String),
    /// They read an unknown source, or one with other columns.
    Source {
        /// Its name.
        name: String,
        /// The reason.
        why: String,
    },
    /// They are truncated, or a value is out of range.
    Malformed(Malformed),
    /// The plan is invalid: the reason, without full stop.
    Invalid(String),
}

const REMEDY: &str = "run the same release of weir on agent and monitor";

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CodecError::NotAPlan => write!(f, "the bytes are not an encoded plan; {REMEDY}"),
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
            CodecError::Invalid(why) => write!(f, "the plan is invalid: {why}; {REMEDY}"),
        }
    }
}

impl std::error::Error for CodecError {}

impl From<Malformed> for CodecError {
    fn from(malformed: Malformed) -> CodecError {
        CodecError::Malformed(malformed)
    }
}

/// Encodes a plan that is not placed yet: its sources deliver rows.
pub fn encode(plan: &Plan) -> Vec<u8> {
    write::plan(plan)
}

/// Decodes a plan.
///
/// # Errors
/// When the bytes are not a plan that the engine can run.
pub fn decode(bytes: &[u8]) -> Result<Plan, CodecError> {
    read::plan(bytes)
}

/// Decodes a plan and checks that its sources are those of `catalog`, so that they deliver the
/// expected columns.
///
/// # Errors
/// As [`decode`]; and when a source is unknown or has columns of other names, types or units.
pub fn decode_over(bytes: &[u8], catalog: &Catalog) -> Result<Plan, CodecError> {
    let plan = decode(bytes)?;
    // All of them are checked: bytes may declare one name twice, with other columns.
    let mut known = Ok(());
    plan.visit_sources(&mut |source| {
        if known.is_ok() {
            known = is_known(source, catalog);
        }
    });
    known.map(|()| plan)
}

/// Checks that a catalog has that source, with the same columns.
fn is_known(source: &Declaration, catalog: &Catalog) -> Result<(), CodecError> {
    let invalid = |why: &str| CodecError::Source {
        name: source.name.clone(),
        why: why.to_owned(),
    };
    let known = catalog.find(&source.name);
    let known = known.ok_or_else(|| invalid("which is unknown here"))?;
    let (theirs, ours) = (&source.schema.fields, &known.schema.fields);
    let same = theirs.len() == ours.len()
        && theirs
            .iter()
            .zip(ours)
            .all(|(a, b)| a.name == b.name && a.ty == b.ty && a.unit == b.unit);
    match source.shape == known.shape && same {
        true => Ok(()),
        false => Err(invalid("which has other columns here")),
    }
}
