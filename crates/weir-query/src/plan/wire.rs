//! The encoding of plans that the monitor sends to agents.
//!
//! A plan travels as the list of its nodes, inputs before the node that reads them ([`Steps`]), in
//! MessagePack ([`weir_model::packed`]). Nodes and expressions are serialised as they are;
//! functions by name; of sources only name, shape and columns, the rest is in the receiver's
//! catalog. What follows from the inputs is not sent: schemas of selections, types of operators.
//!
//! [`decode`] does not trust its input: [`validate`] makes a plan of the
//! steps that is as sound as a checked one.

#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};
use weir_model::{Catalog, Field, packed};

use super::validate::{EXPR_HEIGHT_MAX, validate};
use super::{Node, Plan};

/// Maximum size of an encoded plan in bytes.
pub const BYTES_MAX: usize = 1 << 20;

/// Maximum number of nested lists and maps: three for each level of an expression, and those around
/// it.
const DEPTH_MAX: usize = 3 * EXPR_HEIGHT_MAX + 16;

/// A plan as it is sent: its nodes, each after its inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Steps(pub Vec<PlanStep>);

/// A node of a plan as it is sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanStep {
    /// The node; its inputs are the last nodes before it that are not inputs of others.
    pub node: Node,
    /// The columns that it names; the others are those of its inputs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<Field>,
}

/// Why bytes are not a plan that this program can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// They are longer than [`BYTES_MAX`].
    TooLong(usize),
    /// They are not the encoding of a plan, or one with functions or operators that are unknown
    /// here.
    Malformed(String),
    /// The plan reads an unknown source, or one with other columns.
    Source {
        /// Its name.
        name: String,
        /// The reason.
        why: String,
    },
    /// The plan is invalid: the reason, without full stop.
    Invalid(String),
}

const REMEDY: &str = "run the same release of weir on agent and monitor";

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::TooLong(bytes) => write!(
                f,
                "the plan takes {bytes} bytes, more than {BYTES_MAX}; write a shorter query"
            ),
            PlanError::Malformed(why) => write!(f, "the plan cannot be read: {why}; {REMEDY}"),
            PlanError::Source { name, why } => {
                write!(f, "the plan reads `{name}`, {why}; {REMEDY}")
            }
            PlanError::Invalid(why) => write!(f, "the plan is invalid: {why}; {REMEDY}"),
        }
    }
}

impl std::error::Error for PlanError {}

/// Encodes a plan that is not placed yet: its sources deliver rows.
///
/// # Panics
/// When a source delivers groups, or a constant is a tally: neither is in a checked plan.
pub fn encode(plan: &Plan) -> Vec<u8> {
    let mut steps = Vec::new();
    append(plan, &mut steps);
    packed::encode(&Steps(steps)).expect("a checked plan can be sent")
}

fn append(plan: &Plan, steps: &mut Vec<PlanStep>) {
    for input in plan.inputs() {
        append(input, steps);
    }
    if let Node::Source(source) = &plan.node {
        assert!(
            source.fold.is_none(),
            "a plan is encoded before it is placed"
        );
    }
    let named = match &plan.node {
        Node::Project { .. }
        | Node::Aggregate { .. }
        | Node::Merge { .. }
        | Node::Over { .. }
        | Node::Match { .. } => plan.schema.len(),
        Node::Partial { keys, .. } => keys.len(),
        _ => 0,
    };
    steps.push(PlanStep {
        node: plan.node.clone(),
        fields: plan.schema.fields[..named].to_vec(),
    });
}

/// Decodes a plan over the sources of `catalog`.
///
/// # Errors
/// When the bytes are not a plan that the engine can run, or a source is unknown or has columns of
/// other names, types or units.
pub fn decode(bytes: &[u8], catalog: &Catalog) -> Result<Plan, PlanError> {
    if bytes.len() > BYTES_MAX {
        return Err(PlanError::TooLong(bytes.len()));
    }
    let steps = packed::decode(bytes, DEPTH_MAX).map_err(PlanError::Malformed)?;
    validate(steps, catalog)
}
