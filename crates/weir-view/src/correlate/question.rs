//! [`query`]: the CQL for the load of each disk in each step.

use std::time::Duration;

use weir_query::disk_load;
use weir_runtime::quantity;

pub use weir_query::disk_load::{StepSource, load};

/// The query of [`disk_load`] with steps of this length.
pub fn query(step: Duration, source: StepSource) -> String {
    disk_load::query(&quantity::span_text(step), source)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_model::Catalog;
    use weir_query::compile;

    #[test]
    fn all_queries_are_correct() {
        for source in [StepSource::Host, StepSource::Fleet, StepSource::Recording] {
            let text = query(Duration::from_secs(1), source);
            let options = weir_runtime::question::options(source.is_live());
            let checked = compile(&text, &Catalog::builtin(), &options);
            assert!(checked.is_ok(), "{text}: {:?}", checked.err());
        }
    }
}
