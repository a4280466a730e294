//! [`ResultObserver`]: a consumer of a query's results inside the monitor's process.

use std::collections::BTreeSet;

use weir_model::Batch;

use super::completeness::FleetCompleteness;

/// See the module's documentation.
pub trait ResultObserver: Send {
    /// Rows, or changes of a relation, in timestamp order; after a restart of the monitor also
    /// those that were emitted before it.
    fn write(&mut self, batch: &Batch);

    /// All results up to an instant were written. The agents of the hosts `silent` are away or
    /// excluded: their rows are missing.
    fn complete(&mut self, completeness: &FleetCompleteness, silent: &BTreeSet<String>);

    /// The query has ended, with the reason.
    fn end(&mut self, why: &str);
}
