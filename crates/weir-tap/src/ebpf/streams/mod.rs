//! The kernel streams: each a folder with its programs and its table of columns.

pub mod fileio;
pub mod iopath;
