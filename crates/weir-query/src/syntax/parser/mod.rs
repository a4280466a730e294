//! Tokens → AST, by recursive descent. After an error the parser goes on at the next comma, clause or statement, so that one run
//! finds all errors; what could not be read becomes an `Error` node, about which nobody complains again.

mod expr;
mod query;
mod table;

use weir_model::{Shape, Type};

use super::ast::*;
use super::measure::{MEASURES, Measure, find as find_measure};
use super::token::{Lexeme, Token, tokens, unquote};
use super::{BLOCKS_MAX, HEIGHT_MAX, QUERY_LEVELS};
use crate::diagnostic::{Diagnostic, Span, codes, suggest::nearest};

/// Words that cannot be names unless they stand between backticks.
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

/// Words with which a clause begins: what follows a mistake is read again from here.
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

/// True for words that cannot be names.
pub(super) fn is_reserved(word: &str) -> bool {
    RESERVED.iter().any(|r| r.eq_ignore_ascii_case(word))
}

/// Reading failed; the diagnostic is there already.
pub(super) struct Failed;

type Result<T> = std::result::Result<T, Failed>;

pub(super) struct Parser<'a> {
    text: &'a str,
    lexemes: Vec<Lexeme>,
    at: usize,
    depth: u16,
    /// The greatest height of an expression or subquery in the query that is being read.
    highest: u16,
    blocks: usize,
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
            diagnostics,
        }
    }

    /// What was wrong, in the order of the text.
    pub fn finish(mut self) -> Vec<Diagnostic> {
        self.diagnostics.sort_by_key(|d| d.span.start);
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
            self.expect_word("view")?;
            let name = self.ident("a name for the view")?;
            let columns = self.column_names()?;
            self.expect_word("as")?;
            let query = self.query()?;
            return Ok(Statement::View(View {
                name,
                columns,
                query,
            }));
        }
        // `register` is a word like any other, unless what follows makes it a statement.
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

    // ---- tokens ----

    fn lexeme(&self, ahead: usize) -> Lexeme {
        let last = self.lexemes.len() - 1;
        self.lexemes[(self.at + ahead).min(last)]
    }

    fn is(&self, token: Token) -> bool {
        self.lexeme(0).token == token
    }

    fn eat(&mut self, token: Token) -> bool {
        let found = self.is(token);
        self.at += usize::from(found);
        found
    }

    /// Where the next token is.
    fn span(&self) -> Span {
        self.lexeme(0).span
    }

    /// Where the last token read was.
    fn before(&self) -> Span {
        self.lexemes[self.at.saturating_sub(1)].span
    }

    fn text_of(&self, span: Span) -> &'a str {
        &self.text[span.range()]
    }

    /// The next token's text, if it is a plain word.
    fn word(&self) -> Option<&'a str> {
        let lexeme = self.lexeme(0);
        (lexeme.token == Token::Word).then(|| self.text_of(lexeme.span))
    }

    /// The text of the word `skip` tokens after the next one.
    fn word_after(&self, skip: usize) -> Option<&'a str> {
        let lexeme = self.lexeme(skip + 1);
        (lexeme.token == Token::Word).then(|| self.text_of(lexeme.span))
    }

    fn is_word(&self, word: &str) -> bool {
        self.word().is_some_and(|w| w.eq_ignore_ascii_case(word))
    }

    fn is_any_word(&self, words: &[&str]) -> bool {
        words.iter().any(|w| self.is_word(w))
    }

    fn eat_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, token: Token, what: &str) -> Result<Span> {
        match self.is(token) {
            true => {
                self.at += 1;
                Ok(self.before())
            }
            false => Err(self.unexpected(what)),
        }
    }

    fn expect_word(&mut self, word: &str) -> Result<Span> {
        match self.eat_word(word) {
            true => Ok(self.before()),
            false => Err(self.unexpected(&format!("`{word}`"))),
        }
    }

    /// True where a name stands.
    fn is_ident(&self) -> bool {
        self.is(Token::QuotedWord) || self.word().is_some_and(|w| !is_reserved(w))
    }

    fn ident(&mut self, what: &str) -> Result<Ident> {
        if !self.is_ident() {
            return Err(self.unexpected(what));
        }
        let lexeme = self.lexeme(0);
        let text = self.text_of(lexeme.span);
        let name = match lexeme.token {
            Token::QuotedWord => unquote(text),
            _ => text.to_owned(),
        };
        self.at += 1;
        Ok(Ident::new(name, lexeme.span))
    }

    /// A whole number that is not negative.
    fn count(&mut self, what: &str) -> Result<Spanned<u64>> {
        let span = self.expect(Token::Integer, what)?;
        match self.text_of(span).replace('_', "").parse() {
            Ok(count) => Ok(Spanned::new(count, span)),
            Err(_) => {
                let message = "the number does not fit in 64 bits";
                Err(self.fail(codes::BAD_NUMBER.at(span, message)))
            }
        }
    }

    /// A number, negated if `negative`.
    fn number(&mut self, negative: bool) -> Result<Number> {
        let Lexeme { token, span } = self.lexeme(0);
        let sign = if negative { "-" } else { "" };
        let text = format!("{sign}{}", self.text_of(span).replace('_', ""));
        let number = match token {
            Token::Integer => text.parse().ok().map(Number::Int),
            Token::Decimal => text
                .parse()
                .ok()
                .filter(|x: &f64| x.is_finite())
                .map(Number::Float),
            _ => return Err(self.unexpected("a number")),
        };
        self.at += 1;
        number.ok_or_else(|| {
            let message = "the number does not fit in 64 bits";
            self.fail(codes::BAD_NUMBER.at(span, message))
        })
    }

    /// `5 seconds`, `250 ms`, `5`
    fn duration(&mut self) -> Result<Spanned<Duration>> {
        let start = self.span();
        let count = self.number(false)?;
        let measure = match self.word() {
            Some(word) if !is_reserved(word) && !self.is_any_word(&["slide", "rows"]) => {
                Some(self.measure(word)?)
            }
            _ => None,
        };
        Ok(Spanned::new(
            Duration { count, measure },
            start.to(self.before()),
        ))
    }

    fn measure(&mut self, word: &str) -> Result<&'static Measure> {
        let span = self.span();
        self.at += 1;
        find_measure(word).ok_or_else(|| {
            let names = MEASURES
                .iter()
                .flat_map(|m| m.aliases.iter().copied().chain([m.name]));
            let help = match nearest(word, names) {
                Some(name) => format!("did you mean `{name}`?"),
                None => "spans are counted in ns, us, ms, s, minutes, hours or days".into(),
            };
            let message = format!("unknown unit `{word}`");
            self.fail(codes::UNKNOWN_UNIT.at(span, message).help(help))
        })
    }

    // ---- errors ----

    fn fail(&mut self, diagnostic: Diagnostic) -> Failed {
        // What the lexer could not read has been reported; an open text has swallowed the rest of its line.
        let swallowed = self.is(Token::End)
            && self
                .diagnostics
                .iter()
                .any(|d| d.code == codes::UNTERMINATED_TEXT.code);
        if !self.is(Token::Unknown) && !swallowed {
            self.diagnostics.push(diagnostic);
        }
        Failed
    }

    /// Reports that the next token is not `what`, and guesses which keyword was meant.
    fn unexpected(&mut self, what: &str) -> Failed {
        let Lexeme { token, span } = self.lexeme(0);
        let found = match token {
            Token::End => "the end".into(),
            Token::Text => "a text".into(),
            _ => format!("`{}`", self.text_of(span)),
        };
        let mut diagnostic = codes::UNEXPECTED.at(span, format!("expected {what}, found {found}"));
        // A misspelt keyword has been taken for a name, most likely the token just before.
        let near_keyword = |lexeme: Lexeme| {
            let word = (lexeme.token == Token::Word).then(|| self.text_of(lexeme.span))?;
            let keyword = nearest(
                word,
                CLAUSES.iter().copied().chain(["join", "by", "distinct"]),
            )?;
            (!keyword.eq_ignore_ascii_case(word) && word.len() > 2)
                .then(|| (lexeme.span, format!("did you mean `{keyword}`?")))
        };
        let before = (self.at > 0).then(|| self.lexemes[self.at - 1]);
        if let Some((near, help)) = before
            .and_then(near_keyword)
            .or_else(|| near_keyword(self.lexeme(0)))
        {
            diagnostic = Diagnostic {
                span: near,
                ..diagnostic
            }
            .help(help);
        }
        self.fail(diagnostic)
    }

    /// Goes on after a mistake in something that began at token `first`: at the next comma or clause that is not inside of it.
    fn recover(&mut self, first: usize) {
        // A clause where an expression should go on: a parenthesis was left open.
        if self.is_any_word(CLAUSES) {
            return;
        }
        let count = |tokens: [Token; 2]| {
            let read = &self.lexemes[first..self.at.max(first)];
            read.iter().filter(|l| tokens.contains(&l.token)).count()
        };
        let opened = count([Token::LeftParen, Token::LeftBracket]);
        let closed = count([Token::RightParen, Token::RightBracket]);
        self.skip(opened.saturating_sub(closed), &[Token::Comma], CLAUSES);
    }

    /// Skips to one of `tokens` or `words` outside of parentheses, of which `open` are open, or to the one that closes what is
    /// around, or to the end.
    fn skip(&mut self, mut open: usize, tokens: &[Token], words: &[&str]) {
        loop {
            let token = self.lexeme(0).token;
            let here = open == 0 && (tokens.contains(&token) || self.is_any_word(words));
            // A statement's end closes whatever was left open.
            if here || matches!(token, Token::End | Token::Semicolon) {
                return;
            }
            match token {
                Token::LeftParen | Token::LeftBracket => open += 1,
                Token::RightParen | Token::RightBracket if open > 0 => open -= 1,
                Token::RightParen if tokens != [Token::Semicolon] => return,
                _ => {}
            }
            self.at += 1;
        }
    }

    /// Runs `parse` one level deeper, if the bound allows it.
    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.deeper_by(1, parse)
    }

    /// Runs `parse` some levels deeper, if the bound allows it.
    fn deeper_by<T>(
        &mut self,
        levels: u16,
        parse: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        if self.depth + levels > HEIGHT_MAX {
            return Err(self.too_deep(self.span()));
        }
        self.depth += levels;
        let result = parse(self);
        self.depth -= levels;
        result
    }

    fn too_deep(&mut self, span: Span) -> Failed {
        let message = format!("nested more than {HEIGHT_MAX} deep");
        let help = "split the query with WITH, or write a chain of OR with IN";
        // Said once: every level above would say it again.
        if self
            .diagnostics
            .iter()
            .all(|d| d.code != codes::TOO_DEEP.code)
        {
            self.diagnostics
                .push(codes::TOO_DEEP.at(span, message).help(help));
        }
        Failed
    }

    /// Counts one more query block or source.
    fn one_more_block(&mut self) -> Result<()> {
        self.blocks += 1;
        if self.blocks <= BLOCKS_MAX {
            return Ok(());
        }
        if self
            .diagnostics
            .iter()
            .all(|d| d.code != codes::TOO_DEEP.code)
        {
            let message = format!("more than {BLOCKS_MAX} query blocks and sources");
            let diagnostic = codes::TOO_DEEP.at(self.span(), message);
            self.diagnostics.push(diagnostic);
        }
        // Nothing after this can be read within the bound.
        self.at = self.lexemes.len() - 1;
        Err(Failed)
    }
}
