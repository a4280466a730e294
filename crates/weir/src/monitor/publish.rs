//! [`Publisher`]: where the results of one query go.

use std::path::PathBuf;

use weir_model::Batch;
use weir_sink::{Sink, SinkError};

use super::completeness::Completeness;
use super::state::Position;

/// Where the results of a query go.
pub struct Publisher {
    sink: Option<Box<dyn Sink>>,
    /// The file that the sink appends to.
    file: Option<PathBuf>,
    /// Why the sink takes no more.
    failed: Option<String>,
}

impl Publisher {
    /// One that shows results in a sink.
    pub fn to(sink: Box<dyn Sink>) -> Publisher {
        Publisher {
            sink: Some(sink),
            file: None,
            failed: None,
        }
    }

    /// One that shows results in a sink that appends to `file`.
    pub fn to_file(sink: Box<dyn Sink>, file: PathBuf) -> Publisher {
        Publisher {
            file: Some(file),
            ..Publisher::to(sink)
        }
    }

    /// How much of its file holds what was shown until now, all of it handed to the system.
    ///
    /// # Errors
    /// When the file cannot be written, in words.
    pub fn position(&mut self) -> Result<Option<Position>, String> {
        self.with(|sink| sink.flush());
        if let Some(why) = &self.failed {
            return Err(why.clone());
        }
        let Some(path) = self.file.clone() else {
            return Ok(None);
        };
        match std::fs::metadata(&path) {
            Ok(metadata) => Ok(Some(Position {
                path,
                bytes: metadata.len(),
            })),
            Err(error) => Err(format!("{}: {error}", path.display())),
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
