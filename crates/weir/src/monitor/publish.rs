//! [`Publisher`]: where the results of one query go.

use weir_model::Batch;
use weir_sink::{Sink, SinkError};

use super::completeness::Completeness;

/// Where the results of a query go.
pub struct Publisher {
    sink: Option<Box<dyn Sink>>,
    /// Why the sink takes no more.
    failed: Option<String>,
}

impl Publisher {
    /// One that shows results in a sink.
    pub fn to(sink: Box<dyn Sink>) -> Publisher {
        Publisher {
            sink: Some(sink),
            failed: None,
        }
    }

    /// Shows rows of a stream or changes of a relation, in time order.
    pub fn rows(&mut self, batch: &Batch) {
        self.with(|sink| sink.write(batch));
    }

    /// All results up to an instant were shown; no instant is torn.
    pub fn whole(&mut self, _completeness: &Completeness) {
        self.with(|sink| sink.flush());
    }

    /// Nothing more comes, because of `why`.
    pub fn end(&mut self, _why: &str) {
        self.with(|sink| sink.finish());
    }

    fn with(&mut self, act: impl FnOnce(&mut dyn Sink) -> Result<(), SinkError>) {
        if let Some(sink) = &mut self.sink
            && let Err(error) = act(sink.as_mut())
        {
            self.failed = Some(error.to_string());
            self.sink = None;
        }
    }
}
