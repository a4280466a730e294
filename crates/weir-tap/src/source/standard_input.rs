//! `-`: standard input, as [`super::file`].

use super::SourceKind;
use super::file::FileSource;
use crate::format::source::{STANDARD_INPUT, STANDARD_INPUT_NAMES};

/// Standard input.
pub static KIND: SourceKind = SourceKind {
    name: "-",
    argument: "",
    aliases: STANDARD_INPUT_NAMES,
    doc: "standard input, which is read like FILE",
    is_live: false,
    part: "reader",
    open: |_, settings| {
        Ok(Box::new(FileSource::open(
            STANDARD_INPUT.as_ref(),
            settings,
        )?))
    },
};
