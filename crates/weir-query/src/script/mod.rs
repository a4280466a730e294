//! STREAM's script format: the streams, the queries over them, and the destinations of their
//! results.
//!
//! ```text
//! table  : register stream S (A integer, B float);
//! source : S.dat
//! vquery : select A, avg(B) from S [rows 10] group by A;
//! vtable : register stream V (A integer, Mean float);
//! query  : select A from V where Mean > 5;
//! dest   : out.txt
//! ```
//!
//! (Stanford STREAM 0.6, user manual, "Scripts".) Time is an integer tick, also called a second.
//! `IOstream` is predefined; `source :` without a table before it sets its source. `#` starts a
//! comment anywhere. The `;` is optional before the next section and at the end.

mod section;

use std::sync::Arc;

use weir_model::{Catalog, Declaration, Field, Schema, Shape};

use crate::check::{CheckOptions, Checker, NamedQuery, describe_type, merged, sorted_diagnostics};
use crate::diagnostic::{Diagnostic, Span, codes, counted};
use crate::expr::Expr;
use crate::optimize::optimize;
use crate::plan::Plan;
use crate::syntax::ast::{Registration, Statement, StreamDefinition};
use crate::syntax::{Parsed, TEXT_BYTES_MAX, parse_part};
use section::{Keyword, Section, sections};

/// A checked script.
#[derive(Clone, Debug)]
pub struct Script {
    /// The sources it declares, in order.
    pub tables: Vec<ScriptTable>,
    /// The source of `IOstream`, if the script sets it.
    pub iostream_source: Option<String>,
    /// The queries with results, in order. Named queries are part of the plans that use them.
    pub queries: Vec<ScriptQuery>,
    /// Warnings: what is probably not intended.
    pub warnings: Vec<Diagnostic>,
}

/// A source of a script.
#[derive(Clone, Debug)]
pub struct ScriptTable {
    /// Its name, columns and shape.
    pub declaration: Declaration,
    /// The source of its rows: a path, or `tap:live`.
    pub source: String,
    /// The position in the script.
    pub span: Span,
}

/// A query of a script.
#[derive(Clone, Debug)]
pub struct ScriptQuery {
    /// Its plan, optimized.
    pub plan: Arc<Plan>,
    /// Its plan before optimization.
    pub unoptimized: Arc<Plan>,
    /// The destination of its result; `None` is standard output.
    pub dest: Option<String>,
    /// The position in the script.
    pub span: Span,
}

/// Parses and checks a script.
///
/// # Errors
/// All its errors, in the order of the text.
pub fn compile_script(text: &str) -> Result<Script, Vec<Diagnostic>> {
    compile_script_as(text, CheckOptions::script(), &[])
}

/// The streams of probes that a script defines: `table : create stream S as probe '..';`. Errors
/// are those of [`compile_script`].
pub fn stream_definitions(text: &str) -> Vec<StreamDefinition> {
    let of_section = |section: &Section| parse_part(text, section.body).tree;
    let tables = sections(text)
        .0
        .into_iter()
        .filter(|s| s.word == Keyword::Table);
    let statements = tables.flat_map(|section| of_section(&section));
    statements
        .filter_map(|statement| match statement {
            Statement::Stream(definition) => Some(definition),
            _ => None,
        })
        .collect()
}

/// As [`compile_script`], with other check options, such as a time that is not counted in ticks,
/// and with the streams of its probes.
///
/// # Errors
/// As [`compile_script`].
pub fn compile_script_as(
    text: &str,
    options: CheckOptions,
    probes: &[Declaration],
) -> Result<Script, Vec<Diagnostic>> {
    if text.len() > TEXT_BYTES_MAX {
        let message = format!("the script has {}", counted(text.len(), "byte"));
        let found = codes::TOO_LONG.at(Span::default(), message);
        return Err(vec![
            found.help(format!("the maximum is {TEXT_BYTES_MAX} bytes")),
        ]);
    }
    let (sections, mut diagnostics) = sections(text);
    let mut reader = Reader {
        text,
        sections: &sections,
        diagnostics: Vec::new(),
        sources_missing: false,
    };
    let (tables, iostream_source) = reader.tables();
    let mut catalog = Catalog::thesis();
    catalog.declarations.extend_from_slice(probes);
    for table in &tables {
        let same = |d: &Declaration| d.name.eq_ignore_ascii_case(&table.declaration.name);
        catalog.declarations.retain(|d| !same(d));
        catalog.declarations.push(table.declaration.clone());
    }
    let queries = reader.queries(&catalog, options);
    diagnostics.append(&mut reader.diagnostics);
    let mut diagnostics = sorted_diagnostics(diagnostics);
    if queries.is_empty() && diagnostics.is_empty() {
        let end = Span::new(text.len(), text.len());
        diagnostics.push(codes::NO_QUERY.at(end, "the script has no `query :`"));
    }
    match diagnostics.iter().any(Diagnostic::is_error) {
        true => Err(diagnostics),
        false => Ok(Script {
            tables,
            iostream_source,
            queries,
            warnings: diagnostics,
        }),
    }
}

struct Reader<'a> {
    text: &'a str,
    sections: &'a [Section],
    diagnostics: Vec<Diagnostic>,
    /// Set when a table has an error.
    sources_missing: bool,
}

impl Reader<'_> {
    /// `table :` and `source :`. Also returns the source of `IOstream`.
    fn tables(&mut self) -> (Vec<ScriptTable>, Option<String>) {
        let (mut tables, mut iostream_source) = (Vec::<ScriptTable>::new(), None);
        for (i, section) in self.sections.iter().enumerate() {
            let before = i.checked_sub(1).map(|i| self.sections[i].word);
            match section.word {
                Keyword::Table => {
                    let source = self.sections.get(i + 1);
                    let source = source.filter(|s| s.word == Keyword::Source);
                    if self.is_stream(section) {
                        continue;
                    }
                    let registration = self.registration(section);
                    self.sources_missing |= registration.is_none();
                    if source.is_none() {
                        let message = "the table is not followed by `source :`";
                        self.diagnostics
                            .push(codes::SCRIPT_SECTION.at(section.head, message));
                    }
                    let path = source.and_then(|source| self.path(source));
                    let Some(registration) = registration else {
                        continue;
                    };
                    let declaration = declaration(&registration);
                    let name = &declaration.name;
                    let same = |t: &ScriptTable| t.declaration.name.eq_ignore_ascii_case(name);
                    if tables.iter().any(same) {
                        self.twice(&registration);
                    }
                    let span = source.map_or(section.head, |source| source.body);
                    // Without a path the script does not run, but its queries are checked.
                    let source = path.unwrap_or_default();
                    tables.push(ScriptTable {
                        declaration,
                        source,
                        span,
                    });
                }
                Keyword::Source if before != Some(Keyword::Table) || self.follows_stream(i) => {
                    let path = self.path(section);
                    if iostream_source.is_some() {
                        let message = "there is no table before this source";
                        self.diagnostics
                            .push(codes::SCRIPT_SECTION.at(section.head, message));
                    }
                    iostream_source = path.or(iostream_source);
                }
                _ => {}
            }
        }
        (tables, iostream_source)
    }

    /// `vquery :`, `vtable :`, `query :` and `dest :`.
    fn queries(&mut self, catalog: &Catalog, options: CheckOptions) -> Vec<ScriptQuery> {
        let mut checker = Checker::new(catalog, options);
        checker.sources_missing = self.sources_missing;
        for definition in stream_definitions(self.text) {
            checker.stream(&definition);
        }
        self.diagnostics.append(&mut checker.diagnostics);
        let mut queries = Vec::new();
        for (i, section) in self.sections.iter().enumerate() {
            let before = i.checked_sub(1).map(|i| self.sections[i].word);
            let next = self.sections.get(i + 1);
            match section.word {
                Keyword::Query => {
                    let plan = self.query(section, &mut checker);
                    let dest = next.filter(|s| s.word == Keyword::Dest);
                    let dest = dest.map(|dest| self.path(dest));
                    // A missing path is already reported.
                    if let (Some(plan), Some(dest)) =
                        (plan, dest.map_or(Some(None), |d| d.map(Some)))
                    {
                        let span = section.body;
                        queries.push(ScriptQuery {
                            plan: optimize(&plan),
                            unoptimized: plan,
                            dest,
                            span,
                        });
                    }
                }
                Keyword::Vquery => {
                    let plan = self.query(section, &mut checker);
                    match next.filter(|s| s.word == Keyword::Vtable) {
                        Some(vtable) => self.view(vtable, plan, &mut checker),
                        None => {
                            let message =
                                "the query is not followed by `vtable :`, so no query can use it";
                            self.diagnostics
                                .push(codes::SCRIPT_SECTION.at(section.head, message));
                        }
                    }
                }
                Keyword::Vtable if before != Some(Keyword::Vquery) => {
                    let message = "there is no `vquery :` before this `vtable :`";
                    self.diagnostics
                        .push(codes::SCRIPT_SECTION.at(section.head, message));
                }
                Keyword::Dest if before != Some(Keyword::Query) => {
                    let message = "there is no `query :` before this `dest :`";
                    self.diagnostics
                        .push(codes::SCRIPT_SECTION.at(section.head, message));
                }
                _ => {}
            }
        }
        queries
    }

    /// The one statement of a section.
    fn statement(&mut self, section: &Section, what: &str) -> (Option<Statement>, Vec<Diagnostic>) {
        let Parsed {
            mut tree,
            diagnostics,
        } = parse_part(self.text, section.body);
        if diagnostics.is_empty() && tree.len() != 1 {
            let found = match tree.is_empty() {
                true => codes::SCRIPT_EMPTY.at(section.head, format!("{what} is missing")),
                false => codes::SCRIPT_SECTION.at(
                    section.body,
                    format!("one statement is expected here, {what}"),
                ),
            };
            return (None, vec![found]);
        }
        (if tree.len() == 1 { tree.pop() } else { None }, diagnostics)
    }

    /// Whether the section defines the stream of a probe.
    fn is_stream(&self, section: &Section) -> bool {
        let tree = parse_part(self.text, section.body).tree;
        matches!(tree[..], [Statement::Stream(_)])
    }

    /// Whether the section before this one defines the stream of a probe.
    fn follows_stream(&self, section: usize) -> bool {
        let before = section.checked_sub(1).map(|i| &self.sections[i]);
        before.is_some_and(|before| self.is_stream(before))
    }

    fn registration(&mut self, section: &Section) -> Option<Registration> {
        let (statement, mut diagnostics) =
            self.statement(section, "REGISTER STREAM or REGISTER RELATION");
        self.diagnostics.append(&mut diagnostics);
        match statement? {
            Statement::Register(registration) => Some(registration),
            _ => {
                let message = "REGISTER STREAM or REGISTER RELATION is expected here";
                self.diagnostics
                    .push(codes::SCRIPT_SECTION.at(section.body, message));
                None
            }
        }
    }

    fn query(&mut self, section: &Section, checker: &mut Checker) -> Option<Arc<Plan>> {
        let (statement, diagnostics) = self.statement(section, "a query");
        let plan = match statement {
            Some(Statement::Query(query)) => checker.top_query(&query),
            Some(_) => {
                let message = "a query is expected here";
                self.diagnostics
                    .push(codes::SCRIPT_SECTION.at(section.body, message));
                None
            }
            None => None,
        };
        let checked = std::mem::take(&mut checker.diagnostics);
        self.diagnostics.extend(merged(diagnostics, checked));
        plan
    }

    /// `vtable :` names the query before it.
    fn view(&mut self, section: &Section, plan: Option<Arc<Plan>>, checker: &mut Checker) {
        let Some(registration) = self.registration(section) else {
            return;
        };
        let name = &registration.name.value;
        if checker
            .views
            .iter()
            .any(|v| v.name.eq_ignore_ascii_case(name))
        {
            self.twice(&registration);
        }
        let stream = registration.shape == Shape::Stream;
        let plan = plan.and_then(|plan| self.declared(plan, &registration));
        if plan.as_ref().is_some_and(|p| p.shape == Shape::Stream) && !stream {
            let message = format!("`{name}` is a stream, not a relation");
            let found = codes::SCRIPT_SHAPE.at(registration.name.span, message);
            self.diagnostics.push(found.help("write `register stream`"));
        }
        checker.name(NamedQuery::new(name, plan, stream));
    }

    /// The query's columns with the names and types that `vtable :` declares.
    fn declared(&mut self, plan: Arc<Plan>, registration: &Registration) -> Option<Arc<Plan>> {
        let columns = &registration.columns;
        if columns.len() != plan.schema.len() {
            let sides = (
                counted(columns.len(), "column"),
                counted(plan.schema.len(), "column"),
            );
            let message = format!("{} declared, the query gives {}", sides.0, sides.1);
            self.diagnostics
                .push(codes::COLUMN_COUNT.at(registration.name.span, message));
            return None;
        }
        let (mut exprs, mut fields) = (Vec::new(), Vec::new());
        for ((name, ty), (column, field)) in columns
            .iter()
            .zip(plan.columns().into_iter().zip(&plan.schema.fields))
        {
            let mut expr = column;
            if ty.value != field.ty {
                let given = describe_type(field.ty, field.unit);
                let message = format!(
                    "`{}` is declared as {}, the query gives {given}",
                    name.value, ty.value
                );
                let found = codes::TYPE_DIFFERS.at(ty.span, message);
                let numeric = ty.value.is_numeric() && field.ty.is_numeric();
                self.diagnostics.push(match numeric {
                    true => found.help("it is converted"),
                    false => found.help(format!("it stays {given}")),
                });
                if numeric {
                    expr = Expr::Cast {
                        expr: Box::new(expr),
                        ty: ty.value,
                        unit: field.unit,
                    };
                }
            }
            fields.push(Field {
                name: name.value.clone(),
                ty: expr.ty(),
                aliases: Vec::new(),
                doc: String::new(),
                ..field.clone()
            });
            exprs.push(expr);
        }
        Some(Plan::project(plan, exprs, fields))
    }

    /// The path of a section.
    fn path(&mut self, section: &Section) -> Option<String> {
        let path = self.text[section.body.range()].trim();
        if path.is_empty() {
            let message = "the path is missing";
            self.diagnostics
                .push(codes::SCRIPT_EMPTY.at(section.head, message));
            return None;
        }
        Some(path.to_owned())
    }

    fn twice(&mut self, registration: &Registration) {
        let message = format!("`{}` is registered already", registration.name.value);
        self.diagnostics
            .push(codes::DUPLICATE_SOURCE.at(registration.name.span, message));
    }
}

fn declaration(registration: &Registration) -> Declaration {
    let fields = registration
        .columns
        .iter()
        .map(|(name, ty)| Field::new(name.value.clone(), ty.value));
    Declaration::new(
        registration.name.value.clone(),
        registration.shape,
        Schema::new(fields.collect()),
    )
}
