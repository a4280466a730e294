//! A tap under the disk of a VM that runs: put there and taken away again while the guest reads and
//! writes.
//!
//! 1. [`Graph`] is what QEMU says of its block nodes; [`Seat`] is the place where a tap fits: between
//!    a raw node and the file or device that it stands on.
//! 2. [`Plan`] says which node comes between, and all options that the raw node has and must keep.
//! 3. [`insert`] adds the tap's node and exchanges what the raw node stands on (`blockdev-reopen`, which
//!    lets requests under way finish and holds new ones back meanwhile). [`remove`] does the opposite;
//!    it looks at what is there, so it also undoes what was done in part.
//!
//! QEMU 6.1 and later. The tap must listen before and until after: QEMU connects when its node is
//! added.

mod graph;
mod plan;
mod seat;
#[cfg(test)]
mod tests;

use std::fmt;

use serde_json::json;
use weir_tap::qmp::{Monitor, QmpError};

pub use graph::{Claim, Graph, Node, Parent};
pub use plan::{Plan, RECONNECT_DELAY_S};
pub use seat::{Below, Seat, TAP_PREFIX};

/// Why there is no tap under a disk, or still one.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// QEMU cannot be asked.
    #[error(transparent)]
    Qmp(#[from] QmpError),
    /// The disk is not one that a tap fits under.
    #[error("block node `{node}` {reason}; {remedy}")]
    Unsuited {
        /// The node.
        node: String,
        /// What is in the way.
        reason: String,
        /// What can be done.
        remedy: &'static str,
    },
    /// A node is not there any more.
    #[error(
        "block node `{node}` is gone: somebody changes the VM's disks at the same time; try again"
    )]
    Gone {
        /// The node.
        node: String,
    },
    /// A step failed.
    #[error("cannot {step}: {why}")]
    Step {
        /// Which.
        step: Step,
        /// QEMU's word.
        why: String,
    },
    /// Whoever asked does not want it any more.
    #[error("interrupted before the tap was in place")]
    Interrupted,
}

/// What putting a tap under a disk consists of, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The file's node is kept from going away, where it would.
    Hold,
    /// QEMU connects to the tap.
    Connect,
    /// The raw node is put on the tap.
    Exchange,
    /// The image stays locked, as the raw node had it.
    Lock,
    /// It is seen to be there.
    Look,
}

impl Step {
    /// All of them.
    pub const ALL: [Step; 5] = [
        Step::Hold,
        Step::Connect,
        Step::Exchange,
        Step::Lock,
        Step::Look,
    ];
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Hold => "keep the file's node (blockdev-add)",
            Step::Connect => "connect QEMU to the tap (blockdev-add)",
            Step::Exchange => "put the disk on the tap (blockdev-reopen)",
            Step::Lock => "keep the image locked (blockdev-add)",
            Step::Look => "see the disk on the tap",
        })
    }
}

/// Puts the tap under the disk. `wanted` is asked before each step whether to go on. What it gives are
/// remarks for the user.
///
/// # Errors
/// When a step fails, or is not wanted any more. What was done by then is still there: [`remove`]
/// undoes it.
pub fn insert(
    qemu: &mut dyn Monitor,
    plan: &Plan,
    mut wanted: impl FnMut() -> bool,
) -> Result<Vec<String>, ExchangeError> {
    let mut remarks = Vec::new();
    for step in Step::ALL {
        if !wanted() {
            return Err(ExchangeError::Interrupted);
        }
        match take(qemu, plan, step) {
            // There are QEMUs without the driver that it takes.
            Err(ExchangeError::Step { why, .. }) if step == Step::Lock => remarks.push(format!(
                "QEMU cannot keep the image locked meanwhile ({why}): see to it that nobody else writes it"
            )),
            other => other?,
        }
    }
    Ok(remarks)
}

fn take(qemu: &mut dyn Monitor, plan: &Plan, step: Step) -> Result<(), ExchangeError> {
    let failed = |why: QmpError| match why {
        QmpError::Refused { reason, .. } => ExchangeError::Step { step, why: reason },
        other => ExchangeError::Qmp(other),
    };
    match step {
        Step::Hold => {
            if let Some(options) = plan.hold_options() {
                qemu.execute("blockdev-add", options).map_err(failed)?;
            }
        }
        Step::Connect => {
            qemu.execute("blockdev-add", plan.tap_options())
                .map_err(failed)?;
            let graph = Graph::ask(qemu).map_err(failed)?;
            let size_bytes = graph.node(&plan.tap_node).map_or(0, |node| node.size_bytes);
            if size_bytes != plan.size_bytes {
                let why = format!(
                    "it serves {size_bytes} bytes, and the disk has {}; an image must be whole blocks",
                    plan.size_bytes
                );
                return Err(ExchangeError::Step { step, why });
            }
        }
        Step::Exchange => {
            let options = plan.reopened_on(&plan.tap_node);
            qemu.execute("blockdev-reopen", options).map_err(failed)?;
        }
        Step::Lock => {
            qemu.execute("blockdev-add", plan.lock_options())
                .map_err(failed)?;
        }
        Step::Look => {
            let graph = Graph::ask(qemu).map_err(failed)?;
            let below = graph.child(&plan.format_node, "file");
            if below != Some(&plan.tap_node) {
                let why = format!("it stands on {below:?}");
                return Err(ExchangeError::Step { step, why });
            }
        }
    }
    Ok(())
}

/// Makes the disk as it was before [`insert`], whichever of its steps were done; true if anything had to
/// be. The tap must listen until this returns: what it has not done yet, it does first.
///
/// # Errors
/// When QEMU does not do it. To try again does what is left.
pub fn remove(qemu: &mut dyn Monitor, plan: &Plan) -> Result<bool, ExchangeError> {
    let graph = Graph::ask(qemu)?;
    let mut changed = false;
    let mut delete = |qemu: &mut dyn Monitor, node: &str| {
        if graph.node(node).is_some() {
            qemu.execute("blockdev-del", json!({"node-name": node}))?;
            changed = true;
        }
        Ok::<(), QmpError>(())
    };
    delete(qemu, &plan.lock_node)?;
    let is_under = graph.child(&plan.format_node, "file") == Some(&plan.tap_node);
    if is_under {
        if graph.node(&plan.file_node).is_none() {
            return Err(ExchangeError::Gone {
                node: plan.file_node.clone(),
            });
        }
        let reopened = qemu.execute("blockdev-reopen", plan.reopened_on(&plan.file_node));
        if let Err(error) = reopened {
            // The disk stays on the tap, so the image is to stay locked. That it cannot be is no news: the
            // error is the same, and who tries again finds no lock in the way.
            if graph.node(&plan.lock_node).is_some() {
                let _ = qemu.execute("blockdev-add", plan.lock_options());
            }
            return Err(error.into());
        }
    }
    delete(qemu, &plan.tap_node)?;
    if let Some(hold) = &plan.hold_node {
        delete(qemu, hold)?;
    }
    Ok(changed || is_under)
}
