//! Inserts a tap below the disk of a running VM, and removes it, while the guest reads and writes.
//!
//! 1. [`Graph`] is the graph of QEMU's block nodes; [`InsertionPoint`] is the insertion point:
//!    between a raw node and its file or device.
//! 2. [`InsertionPlan`] has the node to insert, and all options that the raw node must keep.
//! 3. [`insert`] adds the tap's node and replaces the child of the raw node (`blockdev-reopen`,
//!    which lets requests in flight finish and holds back new ones meanwhile). [`remove`] does the
//!    opposite; it examines the graph, so it also undoes a partial insertion.
//!
//! QEMU 6.1 and later. The tap must listen before the insertion and until after the removal: QEMU
//! connects when its node is added.

mod graph;
mod plan;
mod point;
#[cfg(test)]
mod tests;

use std::fmt;

use serde_json::json;
use weir_tap::qmp::{QemuMonitor, QmpError};

pub use graph::{BlockNode, Graph, NodePermissions, Parent};
pub use plan::{InsertionPlan, RECONNECT_DELAY_S};
pub use point::{Below, InsertionPoint, TAP_PREFIX};

/// Why a tap cannot be inserted or removed.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// QEMU cannot be queried.
    #[error(transparent)]
    Qmp(#[from] QmpError),
    /// The disk is not suitable for a tap.
    #[error("block node `{node}` {reason}; {remedy}")]
    Unsuitable {
        /// The node.
        node: String,
        /// The reason.
        reason: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// A node does not exist any more.
    #[error(
        "block node `{node}` does not exist any more: the VM's disks were changed concurrently; try again"
    )]
    NodeMissing {
        /// The node.
        node: String,
    },
    /// A step failed.
    #[error("cannot {step}: {why}")]
    Step {
        /// The step.
        step: InsertionStep,
        /// The error of QEMU.
        why: String,
    },
    /// The caller cancelled the insertion.
    #[error("interrupted before the tap was inserted")]
    Interrupted,
}

/// The steps of an insertion, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertionStep {
    /// Keeps the file's node alive, where it would be removed.
    Hold,
    /// QEMU connects to the tap.
    Connect,
    /// Replaces the raw node's child by the tap.
    Exchange,
    /// Keeps the image locked with the permissions of the raw node.
    Lock,
    /// Verifies the insertion.
    Verify,
}

impl InsertionStep {
    /// All steps.
    pub const ALL: [InsertionStep; 5] = [
        InsertionStep::Hold,
        InsertionStep::Connect,
        InsertionStep::Exchange,
        InsertionStep::Lock,
        InsertionStep::Verify,
    ];
}

impl fmt::Display for InsertionStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            InsertionStep::Hold => "keep the file's node (blockdev-add)",
            InsertionStep::Connect => "connect QEMU to the tap (blockdev-add)",
            InsertionStep::Exchange => "connect the disk to the tap (blockdev-reopen)",
            InsertionStep::Lock => "keep the image locked (blockdev-add)",
            InsertionStep::Verify => "find the disk connected to the tap",
        })
    }
}

/// Inserts the tap below the disk. `may_continue` is called before each step and returns whether to
/// continue. Returns remarks for the user.
///
/// # Errors
/// When a step fails, or the caller cancels. The finished steps stay: [`remove`] undoes them.
pub fn insert(
    qemu: &mut dyn QemuMonitor,
    plan: &InsertionPlan,
    mut may_continue: impl FnMut() -> bool,
) -> Result<Vec<String>, ExchangeError> {
    let mut remarks = Vec::new();
    for step in InsertionStep::ALL {
        if !may_continue() {
            return Err(ExchangeError::Interrupted);
        }
        match take(qemu, plan, step) {
            // Some builds of QEMU lack the required driver.
            Err(ExchangeError::Step { why, .. }) if step == InsertionStep::Lock => {
                remarks.push(format!(
                    "QEMU cannot lock the image while the tap is inserted ({why}): ensure that no \
                 other program writes it"
                ))
            }
            other => other?,
        }
    }
    Ok(remarks)
}

fn take(
    qemu: &mut dyn QemuMonitor,
    plan: &InsertionPlan,
    step: InsertionStep,
) -> Result<(), ExchangeError> {
    let failed = |why: QmpError| match why {
        QmpError::Refused { reason, .. } => ExchangeError::Step { step, why: reason },
        other => ExchangeError::Qmp(other),
    };
    match step {
        InsertionStep::Hold => {
            if let Some(options) = plan.hold_options() {
                qemu.execute("blockdev-add", options).map_err(failed)?;
            }
        }
        InsertionStep::Connect => {
            qemu.execute("blockdev-add", plan.tap_options())
                .map_err(failed)?;
            let graph = Graph::query(qemu).map_err(failed)?;
            let size_bytes = graph.node(&plan.tap_node).map_or(0, |node| node.size_bytes);
            if size_bytes != plan.size_bytes {
                let why = format!(
                    "it serves {size_bytes} bytes, but the disk has {}; the size of an image \
                     must be a multiple of the block size",
                    plan.size_bytes
                );
                return Err(ExchangeError::Step { step, why });
            }
        }
        InsertionStep::Exchange => {
            let options = plan.reopened_on(&plan.tap_node);
            qemu.execute("blockdev-reopen", options).map_err(failed)?;
        }
        InsertionStep::Lock => {
            qemu.execute("blockdev-add", plan.lock_options())
                .map_err(failed)?;
        }
        InsertionStep::Verify => {
            let graph = Graph::query(qemu).map_err(failed)?;
            let below = graph.child(&plan.format_node, "file");
            if below != Some(&plan.tap_node) {
                let why = format!("it is connected to {below:?}");
                return Err(ExchangeError::Step { step, why });
            }
        }
    }
    Ok(())
}

/// Restores the disk as it was before [`insert`], whichever of its steps were done; returns whether
/// anything had to be done. The tap must listen until this returns: it first finishes its requests.
///
/// # Errors
/// When QEMU fails. Calling it again does the remaining steps.
pub fn remove(qemu: &mut dyn QemuMonitor, plan: &InsertionPlan) -> Result<bool, ExchangeError> {
    let graph = Graph::query(qemu)?;
    let mut changed = false;
    let mut delete = |qemu: &mut dyn QemuMonitor, node: &str| {
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
            return Err(ExchangeError::NodeMissing {
                node: plan.file_node.clone(),
            });
        }
        let reopened = qemu.execute("blockdev-reopen", plan.reopened_on(&plan.file_node));
        if let Err(error) = reopened {
            // The disk stays on the tap, so the image is to stay locked. A failure to lock it adds
            // nothing: the error is the same, and a retry finds no lock.
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
