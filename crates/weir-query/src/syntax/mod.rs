//! Text → tokens → AST. The parser never fails: it returns a tree and the diagnostics.
//!
//! Printing a tree gives a text that parses to the same tree again.

pub mod ast;
mod level;
pub mod measure;
mod parser;
mod print;
pub mod token;

use crate::diagnostic::{Diagnostic, Span, codes};
use parser::Parser;

/// Longest text that is read, in bytes.
pub const TEXT_BYTES_MAX: usize = 1 << 20;

/// Highest tree that is built: how deep expressions, and queries, may be nested.
pub const HEIGHT_MAX: u16 = 128;

/// How many levels of that a query counts for: walks down go through more calls in a query than in
/// an expression.
pub const QUERY_LEVELS: u16 = 4;

/// Most query blocks and most sources in one text.
pub const BLOCKS_MAX: usize = 256;

/// Statements and what was wrong with their text.
#[derive(Debug)]
pub struct Parsed<T> {
    /// What could be read. Where something could not, the tree holds an `Error` node there.
    pub tree: T,
    /// What is wrong, in the order of the text.
    pub diagnostics: Vec<Diagnostic>,
}

/// Parses statements separated by `;`.
pub fn parse(text: &str) -> Parsed<Vec<ast::Statement>> {
    parse_part(text, Span::new(0, text.len()))
}

/// Parses the statements in one part of a text. Spans count from the beginning of the whole text.
pub fn parse_part(text: &str, part: Span) -> Parsed<Vec<ast::Statement>> {
    if part.end - part.start > TEXT_BYTES_MAX {
        let message = format!("the text has {} bytes", part.end - part.start);
        let help = format!("a query may have {TEXT_BYTES_MAX} bytes");
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
