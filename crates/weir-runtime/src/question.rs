//! The text of a query or script: from the command line, a file or standard input; and its
//! diagnostics.

use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use weir_model::{Catalog, NANOS_PER_SECOND, StoredView};
use weir_query::diagnostic::{Diagnostic, codes, render};
use weir_query::syntax::ast::{Statement, StreamDefinition};
use weir_query::syntax::{parse, split};
use weir_query::{CheckOptions, Checked, Dialect, Span, compile};
use weir_tap::format::source::is_standard_input;

use crate::failure::Failure;
use crate::output;
use crate::source::SourceOptions;
use crate::views;

/// More than the parser accepts, so that the parser reports the error.
const TEXT_BYTES_MAX: u64 = 2 << 20;

/// Whether a query or a script was read from standard input.
static ON_STANDARD_INPUT: AtomicBool = AtomicBool::new(false);

/// True if a query or a script was read from standard input, so that no trace can be.
pub fn is_on_standard_input() -> bool {
    ON_STANDARD_INPUT.load(Ordering::Relaxed)
}

/// The text of a query or script and its origin.
pub struct QueryText {
    /// The text.
    pub text: String,
    /// The file, for diagnostics.
    pub file: Option<String>,
    /// The definitions at the start of the text that come from other files, in order.
    pub definitions: Vec<DefinitionText>,
}

/// A part of a query's text that comes from a file of definitions.
pub struct DefinitionText {
    /// The file, for diagnostics.
    file: Option<String>,
    /// Its size in bytes.
    bytes: usize,
}

/// Ends the last definition of a file, also if it ends in a comment.
const END_OF_DEFINITIONS: &str = "\n;\n";

impl QueryText {
    /// The text in a file; `-` is standard input.
    ///
    /// # Errors
    /// When it cannot be read or is not UTF-8.
    pub fn read(path: &Path) -> Result<QueryText, Failure> {
        if is_standard_input(path) {
            ON_STANDARD_INPUT.store(true, Ordering::Relaxed);
        }
        let (name, bytes) = if path == Path::new("-") {
            (
                "standard input".to_owned(),
                bounded(std::io::stdin().lock()),
            )
        } else {
            let file = std::fs::File::open(path);
            (path.display().to_string(), file.and_then(bounded))
        };
        let bytes = bytes.map_err(|e| Failure::world(format!("{name}: {e}")))?;
        let text = String::from_utf8(bytes).map_err(|e| {
            let at = e.utf8_error().valid_up_to();
            Failure::words(format!("{name}: not UTF-8 at byte {at}"))
        })?;
        Ok(QueryText {
            text,
            file: Some(name),
            definitions: Vec::new(),
        })
    }

    /// A text that is not in a file.
    pub fn new(text: impl Into<String>) -> QueryText {
        QueryText {
            text: text.into(),
            file: None,
            definitions: Vec::new(),
        }
    }

    /// This text after the views that another one defines. Its streams of probes are those of the
    /// host ([`QueryText::define_streams`]).
    ///
    /// # Errors
    /// When the other text has syntax errors, or other statements than definitions.
    pub fn after(self, definitions: QueryText) -> Result<QueryText, Failure> {
        definitions.check_definitions()?;
        let before = definitions.views() + END_OF_DEFINITIONS;
        let part = DefinitionText {
            file: definitions.file,
            bytes: before.len(),
        };
        let mut parts = definitions.definitions;
        parts.push(part);
        parts.extend(self.definitions);
        Ok(QueryText {
            text: before + &self.text,
            file: self.file,
            definitions: parts,
        })
    }

    /// The text with spaces in place of the statements that are not CREATE VIEW, so that positions
    /// remain the same.
    fn views(&self) -> String {
        let mut text = self.text.clone();
        for span in split(&self.text).statements() {
            let statement = &self.text[span.range()];
            let is_view = |s: &Statement| matches!(s, Statement::View(_));
            if !parse(statement).tree.iter().all(is_view) {
                let blank = |byte| if byte == b'\n' { '\n' } else { ' ' };
                let blanks: String = statement.bytes().map(blank).collect();
                text.replace_range(span.range(), &blanks);
            }
        }
        text
    }

    /// Reports the errors of a text of definitions alone.
    fn check_definitions(&self) -> Result<(), Failure> {
        let parsed = parse(&self.text);
        let mut diagnostics = parsed.diagnostics;
        let is_other = |s: &Statement| !matches!(s, Statement::Stream(_) | Statement::View(_));
        if parsed.tree.iter().any(is_other) && diagnostics.is_empty() {
            let message = "a file of definitions has CREATE STREAM and CREATE VIEW statements only";
            diagnostics.push(codes::NOT_A_STATEMENT.at(Span::default(), message));
        }
        match diagnostics.is_empty() {
            true => Ok(()),
            false => Err(self.failure(&diagnostics)),
        }
    }

    /// Adds the streams of probes that this text of definitions has to those of the host.
    ///
    /// # Errors
    /// All its errors.
    pub fn define_streams(&self, args: &SourceOptions) -> Result<(), Failure> {
        self.check_definitions()?;
        args.define(self, &self.definitions())
    }

    /// The checked query; warnings are printed on standard error.
    ///
    /// # Errors
    /// The diagnostics, with excerpts of the query.
    pub fn compile(&self, catalog: &Catalog, live: bool) -> Result<Checked, Failure> {
        let checked = self.check(catalog, live)?;
        self.warn(&checked.warnings);
        Ok(checked)
    }

    /// The checked query over the streams of the catalog, and of the sources if it names another;
    /// warnings are printed on standard error.
    ///
    /// # Errors
    /// As [`QueryText::compile`].
    pub fn compile_over(&self, args: &SourceOptions) -> Result<Checked, Failure> {
        let checked = self.check_over(args, args.is_live())?;
        let checked = checked.map_err(|d| self.failure(&d))?;
        self.warn(&checked.warnings);
        Ok(checked)
    }

    /// The checked query over the streams of the catalog, and of the sources if it names another,
    /// or its diagnostics; nothing is printed.
    ///
    /// # Errors
    /// When a stream of probes cannot be defined on this host, or the library of views is damaged.
    pub fn check_over(
        &self,
        args: &SourceOptions,
        live: bool,
    ) -> Result<Result<Checked, Vec<Diagnostic>>, Failure> {
        self.over(args, live, compile)
    }

    /// What `of` makes of the text over the streams of the catalog; if it names another source,
    /// with the stored views; and then with the streams of the sources.
    ///
    /// # Errors
    /// As [`QueryText::check_over`].
    pub fn over<T>(
        &self,
        args: &SourceOptions,
        live: bool,
        of: impl Fn(&str, &Catalog, &CheckOptions) -> Result<T, Vec<Diagnostic>>,
    ) -> Result<Result<T, Vec<Diagnostic>>, Failure> {
        let options = options(live);
        args.define(self, &self.definitions())?;
        let mut found = match of(&self.text, &Catalog::builtin(), &options) {
            Err(found) if is_foreign(&found) => found,
            other => return Ok(other),
        };
        let views = views::read()?;
        if !views.is_empty() {
            match of(
                &self.text,
                &with_views(Catalog::builtin(), &views),
                &options,
            ) {
                Err(again) if is_foreign(&again) => found = again,
                other => return Ok(other),
            }
            // A view may read a shipped stream.
            for name in views.iter().flat_map(views::words) {
                let _ = args.define_shipped_stream(&name);
            }
        }
        args.define_shipped(self, &found)?;
        Ok(match args.capabilities() {
            Ok(capabilities) => {
                let catalog = with_views(capabilities.catalog(), &views);
                of(&self.text, &catalog, &options)
            }
            Err(_) => Err(found),
        })
    }

    /// Whether the text defines a stream of a probe.
    pub fn defines_streams(&self) -> bool {
        !self.definitions().is_empty()
    }

    /// The streams of probes that a query defines. Errors are those of [`QueryText::compile`].
    fn definitions(&self) -> Vec<StreamDefinition> {
        let statements = parse(&self.text).tree.into_iter();
        let definition = |statement| match statement {
            Statement::Stream(definition) => Some(definition),
            _ => None,
        };
        statements.filter_map(definition).collect()
    }

    /// Adds the streams of probes that this text defines, which has nothing else, to those of the
    /// host.
    ///
    /// # Errors
    /// All its errors.
    pub fn define(&self, args: &SourceOptions) -> Result<(), Failure> {
        let parsed = parse(&self.text);
        let mut diagnostics = parsed.diagnostics;
        let definitions = self.definitions();
        if definitions.len() != parsed.tree.len() && diagnostics.is_empty() {
            let message = "a file of definitions has CREATE STREAM statements only";
            diagnostics.push(codes::NOT_A_STATEMENT.at(Span::default(), message));
        }
        if !diagnostics.is_empty() {
            return Err(self.failure(&diagnostics));
        }
        args.define(self, &definitions)
    }

    /// The checked query; warnings are not printed.
    ///
    /// # Errors
    /// As [`QueryText::compile`].
    pub fn check(&self, catalog: &Catalog, live: bool) -> Result<Checked, Failure> {
        compile(&self.text, catalog, &options(live)).map_err(|d| self.failure(&d))
    }

    /// Prints warnings on standard error.
    pub fn warn(&self, warnings: &[Diagnostic]) {
        if !warnings.is_empty() {
            output::notice_lines(self.pictures(warnings).trim_end());
        }
    }

    /// All diagnostics as one failure.
    pub fn failure(&self, diagnostics: &[Diagnostic]) -> Failure {
        Failure::Words(self.pictures(diagnostics))
    }

    /// All diagnostics, with excerpts of the query.
    fn pictures(&self, diagnostics: &[Diagnostic]) -> String {
        let picture = |d: &Diagnostic| {
            let (file, start, end) = self.part_at(d.span.start);
            let span = Span::new(d.span.start - start, d.span.end.min(end) - start);
            let own = Diagnostic { span, ..d.clone() };
            render(&own, &self.text[start..end], file)
        };
        diagnostics.iter().map(picture).collect()
    }

    /// The file that has the byte at `position` of the text, and the file's start and end in it.
    fn part_at(&self, position: usize) -> (Option<&str>, usize, usize) {
        let mut start = 0;
        for part in &self.definitions {
            let end = start + part.bytes;
            if position < end {
                return (part.file.as_deref(), start, end);
            }
            start = end;
        }
        (self.file.as_deref(), start, self.text.len())
    }
}

/// The options for checking a query of the command line.
pub fn options(live: bool) -> CheckOptions {
    CheckOptions {
        second: NANOS_PER_SECOND,
        dialect: Dialect::Cql,
        live,
    }
}

/// True if a source may be declared elsewhere, or be a stored view.
pub fn is_foreign(diagnostics: &[Diagnostic]) -> bool {
    let codes = [codes::UNKNOWN_SOURCE.code, codes::STORED_VIEW.code];
    diagnostics.iter().any(|d| codes.contains(&d.code))
}

/// A catalog with stored views.
pub fn with_views(catalog: Catalog, views: &[StoredView]) -> Catalog {
    Catalog {
        views: views.to_vec(),
        ..catalog
    }
}

/// A text as a CQL literal.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn bounded(input: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(TEXT_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}
