//! Text → tokens → AST. The parser never fails: it returns a tree and the diagnostics.
//!
//! Printing a tree gives a text that parses to the same tree again.

pub mod alert;
pub mod ast;
mod grouping;
mod level;
mod library;
pub mod measure;
mod operands;
mod parser;
mod print;
pub mod row_pattern;
mod row_window;
mod split;
pub mod token;

use crate::diagnostic::{Diagnostic, Span, codes};
use parser::Parser;
pub use parser::{is_reserved, keywords};
pub use split::{Split, split};

/// Maximum size of a text in bytes.
pub const TEXT_BYTES_MAX: usize = 1 << 20;

/// Maximum height of a tree: the nesting of expressions, and of queries.
pub const HEIGHT_MAX: u16 = 128;

/// The number of levels for which a query counts: a recursion over a query has more calls than one
/// over an expression.
pub const QUERY_LEVELS: u16 = 4;

/// Maximum number of query blocks, and of sources, in a text.
pub const BLOCKS_MAX: usize = 256;

/// The result of parsing.
#[derive(Debug)]
pub struct Parsed<T> {
    /// The tree. It has an `Error` node for each part with a syntax error.
    pub tree: T,
    /// The diagnostics, in the order of the text.
    pub diagnostics: Vec<Diagnostic>,
}

/// Parses statements separated by `;`.
pub fn parse(text: &str) -> Parsed<Vec<ast::Statement>> {
    parse_part(text, Span::new(0, text.len()))
}

/// Parses the statements in one part of a text. Spans are relative to the whole text.
pub fn parse_part(text: &str, part: Span) -> Parsed<Vec<ast::Statement>> {
    if part.end - part.start > TEXT_BYTES_MAX {
        let message = format!("the text has {} bytes", part.end - part.start);
        let help = format!("the maximum is {TEXT_BYTES_MAX} bytes");
        let diagnostic = codes::TOO_LONG
            .at(Span::new(part.start, part.start), message)
            .help(help);
        return Parsed {
            tree: Vec::new(),
            diagnostics: vec![diagnostic],
        };
    }
    let mut parser = Parser::new(text, part);
    let tree = parser.statements();
    Parsed {
        tree,
        diagnostics: parser.finish(),
    }
}
