//! [`Provenance`]: what a file reports about its origin, and whether it is complete.

/// What a file reports about its origin. Trace formats other than recordings have no such metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provenance {
    /// The source of the events: `live`, or the file that was converted.
    pub source: Option<String>,
    /// The name of the host that was observed.
    pub host: Option<String>,
    /// The release of its kernel.
    pub kernel: Option<String>,
    /// The program that wrote the file, with its version.
    pub writer: Option<String>,
    /// How the file ends.
    pub end: FileEnd,
}

/// How a file ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileEnd {
    /// Its writer closed it.
    Closed,
    /// Its writer was killed or is still running, or the file was truncated.
    Interrupted {
        /// Bytes after the last complete row group.
        bytes_lost: u64,
    },
    /// It is closed, and was converted from a file whose writer was interrupted.
    ConvertedInterrupted,
    /// The format does not record whether a file is complete.
    #[default]
    Unmarked,
}

impl FileEnd {
    /// The name of the variant, as data.
    pub fn name(self) -> &'static str {
        match self {
            FileEnd::Closed => "closed",
            FileEnd::Interrupted { .. } => "interrupted",
            FileEnd::ConvertedInterrupted => "converted_interrupted",
            FileEnd::Unmarked => "unmarked",
        }
    }
}
