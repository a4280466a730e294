//! Tokens → AST, by recursive descent. After an error the parser continues at the next comma,
//! clause or statement, so that one pass finds all errors; a part with an error becomes an `Error`
//! node, which causes no further diagnostics.

mod alert;
mod cursor;
mod dialect;
mod expr;
mod keyword;
mod library;
mod over;
mod probe;
mod query;
mod recovery;
mod row_pattern;
mod spelling;
mod standard;
mod table;

use weir_model::{Shape, Type};

use super::ast::*;
use super::measure::{MEASURES, UnitName, find as find_measure};
use super::token::{Lexeme, Token, tokens, unquote};
use super::{BLOCKS_MAX, HEIGHT_MAX, QUERY_LEVELS};
use weir_model::suggest::nearest;

use crate::diagnostic::{Diagnostic, Span, codes};

/// Keywords that cannot be names unless they are between backticks.
const RESERVED: &[&str] = &[
    "all",
    "and",
    "as",
    "between",
    "case",
    "cast",
    "create",
    "cross",
    "distinct",
    "else",
    "end",
    "except",
    "exists",
    "false",
    "from",
    "full",
    "group",
    "having",
    "ilike",
    "in",
    "inner",
    "intersect",
    "is",
    "join",
    "left",
    "like",
    "limit",
    "not",
    "null",
    "offset",
    "on",
    "or",
    "order",
    "right",
    "select",
    "then",
    "true",
    "union",
    "using",
    "when",
    "where",
    "with",
];

/// Keywords at the start of a clause, where the parser continues after an error.
const CLAUSES: &[&str] = &[
    "select",
    "from",
    "where",
    "group",
    "having",
    "order",
    "limit",
    "offset",
    "union",
    "intersect",
    "except",
];

pub use keyword::{is_reserved, keywords};

/// Parsing failed; the diagnostic is already recorded.
pub(super) struct Failed;

type Result<T> = std::result::Result<T, Failed>;

pub(super) struct Parser<'a> {
    text: &'a str,
    lexemes: Vec<Lexeme>,
    at: usize,
    depth: u16,
    /// The greatest height of an expression or subquery in the current query.
    highest: u16,
    blocks: usize,
    /// Inside of CREATE ALERT, whose clauses follow a query.
    in_alert: bool,
    diagnostics: Vec<Diagnostic>,
}

impl<'a> Parser<'a> {
    /// A parser of one part of `text`.
    pub fn new(text: &'a str, part: Span) -> Parser<'a> {
        let (lexemes, diagnostics) = tokens(text, part.start, part.end);
        Parser {
            text,
            lexemes,
            at: 0,
            depth: 0,
            highest: 0,
            blocks: 0,
            in_alert: false,
            diagnostics,
        }
    }

    /// The diagnostics, in the order of the text.
    pub fn finish(mut self) -> Vec<Diagnostic> {
        self.diagnostics.sort_by_key(|d| d.span.start);
        self.recognize();
        self.diagnostics
    }

    /// All statements.
    pub fn statements(&mut self) -> Vec<Statement> {
        let mut statements = Vec::new();
        loop {
            while self.eat(Token::Semicolon) {}
            if self.is(Token::End) {
                return statements;
            }
            match self.statement() {
                Ok(statement) => statements.push(statement),
                Err(Failed) => self.skip(0, &[Token::Semicolon], &[]),
            }
            if !self.is(Token::Semicolon) && !self.is(Token::End) {
                self.unexpected("`;` or the end");
                self.skip(0, &[Token::Semicolon], &[]);
            }
        }
    }

    fn statement(&mut self) -> Result<Statement> {
        if self.eat_word("create") {
            if self.eat_word("stream") {
                return self.stream_definition().map(Statement::Stream);
            }
            if self.eat_word("alert") {
                let alert = self.alert_definition();
                return alert.map(|alert| Statement::Alert(Box::new(alert)));
            }
            return self.view_definition().map(Statement::View);
        }
        if self.begins_expectation() {
            self.at += 1;
            return self.expectation().map(Statement::Expect);
        }
        if let Some(statement) = self.library_statement()? {
            return Ok(statement);
        }
        // `register` is an ordinary word, unless what follows makes it a statement.
        let shape = match self.word_after(0) {
            Some(w) if w.eq_ignore_ascii_case("stream") => Some(Shape::Stream),
            Some(w) if w.eq_ignore_ascii_case("relation") => Some(Shape::Relation),
            _ => None,
        };
        match shape {
            Some(shape) if self.is_word("register") => {
                self.at += 2;
                self.registration(shape).map(Statement::Register)
            }
            _ => self.query().map(Statement::Query),
        }
    }

    fn registration(&mut self, shape: Shape) -> Result<Registration> {
        let name = self.ident("a name")?;
        self.expect(Token::LeftParen, "`(` and the columns")?;
        let mut columns = Vec::new();
        loop {
            let column = self.ident("the name of a column")?;
            let ty = self.type_name()?;
            columns.push((column, ty));
            if !self.eat(Token::Comma) {
                break;
            }
        }
        self.expect(Token::RightParen, "`,` or `)`")?;
        Ok(Registration {
            shape,
            name,
            columns,
        })
    }

    /// `(a, b)`, or nothing.
    fn column_names(&mut self) -> Result<Vec<Ident>> {
        let mut names = Vec::new();
        if self.eat(Token::LeftParen) {
            loop {
                names.push(self.ident("the name of a column")?);
                if !self.eat(Token::Comma) {
                    break;
                }
            }
            self.expect(Token::RightParen, "`,` or `)`")?;
        }
        Ok(names)
    }

    /// `integer`, `char(10)`
    fn type_name(&mut self) -> Result<Spanned<Type>> {
        const TYPES: &[(&str, Type)] = &[
            ("integer", Type::Int),
            ("int", Type::Int),
            ("bigint", Type::Int),
            ("float", Type::Float),
            ("double", Type::Float),
            ("real", Type::Float),
            ("text", Type::Text),
            ("char", Type::Text),
            ("varchar", Type::Text),
            ("byte", Type::Text),
            ("boolean", Type::Bool),
            ("bool", Type::Bool),
            ("timestamp", Type::Time),
        ];
        let span = self.span();
        let Some(word) = self.word() else {
            return Err(self.unexpected("a type"));
        };
        let Some((_, ty)) = TYPES
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(word))
        else {
            let message = format!("unknown type `{word}`");
            let near = nearest(word, TYPES.iter().map(|(name, _)| *name));
            let help = match near {
                Some(name) => format!("did you mean `{name}`?"),
                None => "types are integer, float, text, boolean and timestamp".into(),
            };
            return Err(self.fail(codes::UNKNOWN_TYPE.at(span, message).help(help)));
        };
        self.at += 1;
        if self.eat(Token::LeftParen) {
            self.count("a length")?;
            self.expect(Token::RightParen, "`)`")?;
        }
        Ok(Spanned::new(*ty, span.to(self.before())))
    }
}
