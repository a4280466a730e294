//! AST and catalog → [`Plan`]: resolves names, types and units.
//!
//! 1. FROM becomes a [`Scope`] and a plan: sources, windows, joins ([`from`]).
//! 2. WHERE becomes a selection; its `IN` and `EXISTS` subqueries become joins ([`subquery`]).
//! 3. GROUP BY and the aggregates become one node, SELECT a projection, HAVING a selection between
//!    them ([`select`]).
//! 4. Set operations, ORDER BY, Istream, Dstream and Rstream are applied to the blocks ([`query`]).
//!
//! All errors are reported in one pass. A part with an error is `None`, and causes no further
//! errors.

pub(crate) mod alert;
mod baseline;
mod call;
mod coerce;
mod column;
mod condition;
mod correlations;
mod expr;
mod factor;
mod foreign_function;
mod from;
mod grouping;
mod named_window;
mod navigation;
mod over;
mod query;
mod row_pattern;
mod scope;
mod select;
mod stored;
mod subquery;
mod timestamp;
mod trap;
mod value;
mod window;

use std::collections::HashSet;
use std::sync::Arc;

use weir_model::{Catalog, Declaration, Shape, StoredView};

use weir_model::suggest::nearest;

use crate::diagnostic::{Diagnostic, Span, codes, counted, there_are};
use crate::expr::Expr;
use crate::plan::Plan;
use crate::syntax::{self, ast};
pub(crate) use coerce::describe_type;
use scope::Scope;

/// A query that can run.
#[derive(Clone, Debug)]
pub struct Checked {
    /// What it computes.
    pub plan: Arc<Plan>,
    /// Warnings: what is probably not intended.
    pub warnings: Vec<Diagnostic>,
    /// The stored views that it reads, each after those that it reads itself.
    pub views: Vec<StoredView>,
}

impl Checked {
    /// A text with the definitions of the stored views that it reads, so that it means the same
    /// without them.
    pub fn with_views(&self, text: &str) -> String {
        let definitions = self.views.iter().map(|view| format!("{};\n", view.text));
        definitions.chain([text.to_owned()]).collect()
    }
}

/// The options of a check.
#[derive(Clone, Copy, Debug)]
pub struct CheckOptions {
    /// The number of instants in a second: 1,000,000,000 live, 1 in scripts. In STREAM's dialect a
    /// second is a tick.
    pub second: i64,
    /// The dialect of the text.
    pub dialect: Dialect,
    /// Whether time is live, so that Rstream needs EVERY or a Slide.
    pub live: bool,
}

/// A dialect of CQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// weir's: a duration has a unit.
    Cql,
    /// STREAM's: a duration without unit is in seconds, which are ticks.
    Stream,
}

impl CheckOptions {
    /// For live queries and those over recordings.
    pub fn live() -> CheckOptions {
        CheckOptions {
            second: weir_model::NANOS_PER_SECOND,
            dialect: Dialect::Cql,
            live: true,
        }
    }

    /// For scripts in STREAM's format.
    pub fn script() -> CheckOptions {
        CheckOptions {
            second: 1,
            dialect: Dialect::Stream,
            live: false,
        }
    }
}

impl Default for CheckOptions {
    fn default() -> CheckOptions {
        CheckOptions::live()
    }
}

/// Parses and checks a text: any number of CREATE VIEW and then one query, separated by `;`. The
/// plan is exactly what the query states, not optimized.
///
/// # Errors
/// All errors in the text, in the order of the text.
pub fn compile_unoptimized(
    text: &str,
    catalog: &Catalog,
    options: &CheckOptions,
) -> Result<Checked, Vec<Diagnostic>> {
    let parsed = syntax::parse(text);
    Checker::new(catalog, *options).checked(text, parsed.tree, parsed.diagnostics)
}

/// Maximum number of diagnostics that are reported for a text.
const DIAGNOSTICS_MAX: usize = 100;

/// The diagnostics of the parser and of the checker. A word that the parser rejected is not
/// reported a second time.
pub(crate) fn merged(read: Vec<Diagnostic>, checked: Vec<Diagnostic>) -> Vec<Diagnostic> {
    let spans: HashSet<Span> = read.iter().map(|d| d.span).collect();
    let new = checked.into_iter().filter(|d| !spans.contains(&d.span));
    let mut all = read;
    all.extend(new);
    all
}

/// Diagnostics in the order of the text, up to the maximum.
pub(crate) fn sorted_diagnostics(mut all: Vec<Diagnostic>) -> Vec<Diagnostic> {
    // Errors come first where there are too many, so that warnings displace none.
    if all.len() > DIAGNOSTICS_MAX {
        let more = all.len() - DIAGNOSTICS_MAX;
        all.sort_by_key(|d| (!d.is_error(), d.span.start));
        all.truncate(DIAGNOSTICS_MAX);
        let last = all[DIAGNOSTICS_MAX - 1].span;
        let message = format!("{} not shown", counted(more, "more diagnostic"));
        all.push(codes::TOO_MANY.at(last, message));
    }
    all.sort_by_key(|d| d.span.start);
    all
}

/// A named query: from WITH, CREATE VIEW or a script.
#[derive(Clone, Debug)]
pub(crate) struct NamedQuery {
    /// The name.
    pub name: String,
    /// What it computes; `None` when that has an error.
    pub plan: Option<Arc<Plan>>,
    /// A relation that a script registers as a stream: a window over it reads its insertions.
    pub as_stream: bool,
    /// How many sources it reads, each counted as often as it is read.
    reads: usize,
}

impl NamedQuery {
    /// A query under a name.
    pub fn new(name: &str, plan: Option<Arc<Plan>>, as_stream: bool) -> NamedQuery {
        NamedQuery {
            name: name.to_owned(),
            plan,
            as_stream,
            reads: 0,
        }
    }
}

/// Maximum number of sources of a query, each counted as often as it is read; nested named queries
/// double quickly.
const READS_MAX: usize = 512;

/// Maximum number of operators on a path from a query's result to its sources.
const PLAN_HEIGHT_MAX: usize = 512;

/// Checks queries against a catalog, one after the other, and collects the diagnostics.
pub(crate) struct Checker<'a> {
    catalog: &'a Catalog,
    options: CheckOptions,
    /// The diagnostics so far.
    pub diagnostics: Vec<Diagnostic>,
    /// Named queries in scope; later ones hide earlier ones.
    pub views: Vec<NamedQuery>,
    /// The streams that the text defines.
    streams: Vec<String>,
    /// Set when a source could not be declared: an unknown name may then be that source.
    pub sources_missing: bool,
    /// How many sources have been read since the statement began.
    reads: usize,
    /// The scopes of the outer queries, to distinguish an unknown column from one that cannot be
    /// used here.
    outer_scopes: Vec<Scope>,
    /// The value of `now()`, once it was read.
    started: Option<i64>,
    /// The subqueries of the expressions that are checked; `None` where they are not allowed.
    subqueries: Option<value::Subqueries>,
    /// The calls of window functions in those expressions; `None` where they are not allowed.
    window_calls: Option<Vec<over::WindowCall>>,
    /// The calls of `baseline` in those expressions; `None` where they are not allowed.
    baselines: Option<Vec<baseline::Baseline>>,
    /// The names that WINDOW of the block gives.
    windows: Vec<ast::WindowDefinition>,
    /// The keys of the block whose expressions are checked, and whether it has grouping sets.
    group_keys: Option<(Vec<Expr>, bool)>,
    /// The stored views that were read, so that each is checked once.
    stored: Vec<NamedQuery>,
    /// The texts of those and of the ones that they read, these first.
    views_read: Vec<StoredView>,
    /// The names of the stored views inside of which this checker is.
    inside: Vec<String>,
}

impl<'a> Checker<'a> {
    pub fn new(catalog: &'a Catalog, options: CheckOptions) -> Checker<'a> {
        Checker {
            catalog,
            options,
            diagnostics: Vec::new(),
            views: Vec::new(),
            streams: Vec::new(),
            sources_missing: false,
            reads: 0,
            outer_scopes: Vec::new(),
            started: None,
            subqueries: None,
            window_calls: None,
            windows: Vec::new(),
            baselines: None,
            group_keys: None,
            stored: Vec::new(),
            views_read: Vec::new(),
            inside: Vec::new(),
        }
    }

    /// The query of a text with these statements.
    pub fn checked(
        mut self,
        text: &str,
        tree: Vec<ast::Statement>,
        read: Vec<Diagnostic>,
    ) -> Result<Checked, Vec<Diagnostic>> {
        let sound = read.is_empty();
        let plan = self.statements(text, tree, sound);
        let diagnostics = sorted_diagnostics(merged(read, self.diagnostics));
        match plan {
            Some(plan) if !diagnostics.iter().any(Diagnostic::is_error) => Ok(Checked {
                plan,
                warnings: diagnostics,
                views: self.views_read,
            }),
            _ => Err(diagnostics),
        }
    }

    fn statements(
        &mut self,
        text: &str,
        statements: Vec<ast::Statement>,
        sound: bool,
    ) -> Option<Arc<Plan>> {
        let end = Span::new(text.len(), text.len());
        let mut plan = None;
        let mut queries = 0;
        let count = statements.len();
        for (i, statement) in statements.into_iter().enumerate() {
            match statement {
                ast::Statement::View(view) => self.view(&view),
                ast::Statement::DropView(ast::DropView { name, .. }) => {
                    let message = "DROP VIEW is not part of a query";
                    let found = codes::NOT_A_STATEMENT.at(name.span, message);
                    let help = "send it alone, or with CREATE VIEW statements only";
                    self.diagnostics.push(found.help(help));
                    queries += 1;
                }
                ast::Statement::Inspect(_) => {
                    let message = "DESCRIBE and SHOW are not queries";
                    let found = codes::NOT_A_STATEMENT.at(Span::default(), message);
                    let help = "`weir query` and `weir sql` run them, as the last statement";
                    self.diagnostics.push(found.help(help));
                    queries += 1;
                }
                ast::Statement::Stream(definition) => self.stream(&definition),
                ast::Statement::Alert(_) | ast::Statement::Expect(_) => {
                    let message = "CREATE ALERT and EXPECT are not queries";
                    let found = codes::NOT_A_STATEMENT.at(Span::default(), message);
                    let help =
                        "`weir check -f FILE` checks a file of alerts; no command runs one yet";
                    self.diagnostics.push(found.help(help));
                    queries += 1;
                }
                ast::Statement::Query(query) if i + 1 == count => {
                    queries += 1;
                    plan = self.top_query(&query);
                }
                ast::Statement::Query(query) => {
                    queries += 1;
                    self.top_query(&query);
                    let message = "only the last statement can be a query";
                    let help = "give it a name: CREATE VIEW name AS ..";
                    let found = codes::NOT_A_STATEMENT.at(query.body.span, message);
                    self.diagnostics.push(found.help(help));
                }
                ast::Statement::Register(registration) => {
                    let message = "REGISTER is only allowed in a script";
                    let found = codes::NOT_A_STATEMENT.at(registration.name.span, message);
                    self.diagnostics.push(found.help("`weir run` runs scripts"));
                    queries += 1;
                }
            }
        }
        if queries == 0 && sound && self.diagnostics.is_empty() {
            self.diagnostics
                .push(codes::NO_QUERY.at(end, "there is no query"));
        }
        plan
    }

    /// CREATE STREAM: the catalog has the streams of probes that the source attaches.
    pub fn stream(&mut self, definition: &ast::StreamDefinition) {
        let name = &definition.name;
        let same = |other: &String| other.eq_ignore_ascii_case(&name.value);
        if self.streams.iter().any(same) {
            let message = format!("the stream `{}` already exists", name.value);
            self.diagnostics
                .push(codes::DUPLICATE_SOURCE.at(name.span, message));
        } else if self.catalog.find(&name.value).is_none() && !self.sources_missing {
            let message = format!("no source has the probe of `{}`", name.value);
            let found = codes::UNKNOWN_SOURCE.at(name.span, message);
            let help = "`weir query`, `run`, `explain` and `record` attach probes on this host";
            self.diagnostics.push(found.help(help));
            // Its uses have no further errors.
            self.sources_missing = true;
        }
        self.streams.push(name.value.clone());
    }

    /// CREATE VIEW
    pub fn view(&mut self, view: &ast::ViewDefinition) {
        let same = |v: &NamedQuery| v.name.eq_ignore_ascii_case(&view.name.value);
        if !view.or_replace && self.views.iter().any(same) {
            let message = format!("the view `{}` already exists", view.name.value);
            self.diagnostics
                .push(codes::DUPLICATE_SOURCE.at(view.name.span, message));
        }
        self.start();
        let named = self.named(view);
        self.views.push(named);
    }

    /// Resets the counters for a new statement.
    fn start(&mut self) {
        self.reads = 0;
        self.outer_scopes.clear();
    }

    /// The plan of a top-level query.
    pub fn top_query(&mut self, query: &ast::Query) -> Option<Arc<Plan>> {
        self.start();
        let plan = self.query(query)?;
        self.check_height(plan, query.body.span)
    }

    /// Names the query that was checked last.
    pub fn name(&mut self, named: NamedQuery) {
        let reads = self.reads;
        self.views.push(NamedQuery { reads, ..named });
    }

    fn named(&mut self, view: &ast::ViewDefinition) -> NamedQuery {
        let before = self.reads;
        let plan = self.query(&view.query);
        let plan = plan.and_then(|plan| match view.columns.is_empty() {
            true => Some(plan),
            false => self.renamed(plan, view),
        });
        let plan = plan.and_then(|plan| self.check_height(plan, view.name.span));
        NamedQuery {
            reads: self.reads - before,
            ..NamedQuery::new(&view.name.value, plan, false)
        }
    }

    /// Rejects a plan that is too deep for recursive functions.
    fn check_height(&mut self, plan: Arc<Plan>, span: Span) -> Option<Arc<Plan>> {
        if plan.height() <= PLAN_HEIGHT_MAX {
            return Some(plan);
        }
        let message = format!("more than {PLAN_HEIGHT_MAX} operators are nested");
        self.diagnostics.push(codes::TOO_DEEP.at(span, message));
        None
    }

    /// Counts `more` sources read, up to the maximum.
    fn read(&mut self, more: usize, span: Span) -> Option<()> {
        let before = self.reads;
        self.reads = before.saturating_add(more);
        if self.reads <= READS_MAX {
            return Some(());
        }
        if before <= READS_MAX {
            let message = format!("the query reads more than {READS_MAX} sources");
            let found = codes::TOO_DEEP.at(span, message);
            self.diagnostics
                .push(found.help("a view or WITH query is counted each time it is used"));
        }
        None
    }

    fn renamed(&mut self, plan: Arc<Plan>, view: &ast::ViewDefinition) -> Option<Arc<Plan>> {
        let names: Vec<&str> = view.columns.iter().map(|c| c.value.as_str()).collect();
        if names.len() != plan.schema.len() {
            let span = view.columns[0].span.to(view.columns[names.len() - 1].span);
            let columns = counted(plan.schema.len(), "column");
            let message = format!("{} for {columns}", counted(names.len(), "name"));
            self.diagnostics.push(codes::COLUMN_COUNT.at(span, message));
            return None;
        }
        Some(Plan::rename(plan, &names))
    }

    /// The named query or source called `name`.
    fn source(&mut self, name: &ast::Ident) -> Option<Source<'a>> {
        let same = |other: &str| other.eq_ignore_ascii_case(&name.value);
        if let Some(view) = self.views.iter().rev().find(|v| same(&v.name)) {
            let view = view.clone();
            self.read(view.reads, name.span)?;
            return view.plan.is_some().then_some(Source::Query(view));
        }
        if let Some(declaration) = self.catalog.find(&name.value) {
            self.read(1, name.span)?;
            return Some(Source::Declared(declaration));
        }
        if let Some(view) = self.catalog.view(&name.value) {
            let view = self.stored_view(view, name.span)?;
            self.read(view.reads, name.span)?;
            return Some(Source::Query(view));
        }
        if self.sources_missing {
            return None;
        }
        let names = self.views.iter().map(|v| v.name.as_str());
        let names = names.chain(self.catalog.declarations.iter().map(|d| d.name.as_str()));
        let names = names.chain(self.catalog.views.iter().map(|v| v.name.as_str()));
        let message = format!("unknown stream or relation `{}`", name.value);
        let found = codes::UNKNOWN_SOURCE.at(name.span, message);
        let help = match nearest(&name.value, names.clone()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => there_are(&names.collect::<Vec<_>>()),
        };
        self.diagnostics.push(found.help(help));
        None
    }
}

/// What a name in FROM refers to.
enum Source<'a> {
    Declared(&'a Declaration),
    Query(NamedQuery),
}

/// The plan of a source of the catalog.
fn source_plan(declaration: &Declaration) -> Arc<Plan> {
    Plan::source(declaration.clone())
}

/// True for a relation.
fn is_relation(plan: &Plan) -> bool {
    plan.shape == Shape::Relation
}
