//! Statements that are not queries: DESCRIBE and SHOW, and the changes of a library of views.
//!
//! [`kind`] distinguishes the kinds of text. [`changed`] applies CREATE VIEW and DROP VIEW to the
//! stored views of a catalog: a view is checked when it is stored, and one that others read cannot
//! be removed, or replaced so that they become invalid. Storing them is up to the caller.

use std::fmt;

use weir_model::{Catalog, StoredView};

use crate::check::{CheckOptions, Checked, Checker, merged, sorted_diagnostics};
use crate::diagnostic::{Diagnostic, Span, codes};
use crate::syntax::ast::{CatalogQuery, Ident, Statement, ViewDefinition};
use crate::syntax::parse;

/// Maximum number of views in a library.
pub const VIEWS_MAX: usize = 1_000;

/// What a text asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum TextKind {
    /// A query, or a text with errors, which the check of a query reports.
    Query,
    /// What its last statement shows.
    CatalogQuery(CatalogQuery),
    /// Changes of the library of views.
    Changes,
}

/// What a text asks for, by its statements.
pub fn kind(text: &str) -> TextKind {
    let parsed = parse(text);
    let is_change = |s: &Statement| matches!(s, Statement::View(_) | Statement::DropView(_));
    if parsed.diagnostics.iter().any(Diagnostic::is_error) || parsed.tree.is_empty() {
        return TextKind::Query;
    }
    if parsed.tree.iter().all(is_change) {
        return TextKind::Changes;
    }
    let mut tree = parsed.tree;
    let Some(Statement::Inspect(mut inspection)) = tree.pop() else {
        return TextKind::Query;
    };
    // A view of the text itself precedes a source of the same name.
    if let CatalogQuery::Describe { name, .. } = &mut inspection {
        let defines = |name: &Ident| {
            let is_it = |s: &Statement| matches!(s, Statement::View(view) if view.name.value.eq_ignore_ascii_case(&name.value));
            tree.iter().any(is_it)
        };
        name.take_if(|name| defines(name));
    }
    TextKind::CatalogQuery(inspection)
}

/// The query that the last statement, DESCRIBE, describes; it is not optimized.
///
/// # Errors
/// All errors in the text.
pub fn described(
    text: &str,
    catalog: &Catalog,
    options: &CheckOptions,
) -> Result<Checked, Vec<Diagnostic>> {
    let parsed = parse(text);
    let as_query = |statement| match statement {
        Statement::Inspect(CatalogQuery::Describe { query, .. }) => Statement::Query(*query),
        other => other,
    };
    let tree = parsed.tree.into_iter().map(as_query).collect();
    Checker::new(catalog, *options).checked(text, tree, parsed.diagnostics)
}

/// What became of a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ViewChange {
    /// It was created.
    Created(String),
    /// It was replaced.
    Replaced(String),
    /// It was removed.
    Dropped(String),
    /// There was none to remove.
    Absent(String),
}

impl fmt::Display for ViewChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ViewChange::Created(name) => write!(f, "view `{name}` was created"),
            ViewChange::Replaced(name) => write!(f, "view `{name}` was replaced"),
            ViewChange::Dropped(name) => write!(f, "view `{name}` was removed"),
            ViewChange::Absent(name) => write!(f, "there is no view `{name}`"),
        }
    }
}

/// A library after some statements.
#[derive(Clone, Debug)]
pub struct ChangedViews {
    /// The views.
    pub views: Vec<StoredView>,
    /// What was done, in the order of the statements.
    pub changes: Vec<ViewChange>,
}

/// Applies the CREATE VIEW and DROP VIEW statements of a text to the views of a catalog.
///
/// # Errors
/// All errors in the text; then nothing is changed.
pub fn changed(
    text: &str,
    catalog: &Catalog,
    options: &CheckOptions,
) -> Result<ChangedViews, Vec<Diagnostic>> {
    let parsed = parse(text);
    let mut library = Library {
        catalog: catalog.clone(),
        options,
        changes: Vec::new(),
        diagnostics: Vec::new(),
    };
    let valid_before = library.valid_views();
    for statement in &parsed.tree {
        match statement {
            Statement::View(view) => library.create(view),
            Statement::DropView(drop) => {
                let index = library.index(&drop.name.value);
                library.remove(&drop.name.value, drop.name.span, index, drop.if_exists);
            }
            _ => {
                let message = "only CREATE VIEW and DROP VIEW change the library";
                let found = codes::NOT_A_STATEMENT.at(Span::default(), message);
                library.diagnostics.push(found);
            }
        }
    }
    library.check_readers(&valid_before, Span::new(0, text.trim_end().len()));
    let diagnostics = sorted_diagnostics(merged(parsed.diagnostics, library.diagnostics));
    match diagnostics.iter().any(Diagnostic::is_error) {
        true => Err(diagnostics),
        false => Ok(ChangedViews {
            views: library.catalog.views,
            changes: library.changes,
        }),
    }
}

struct Library<'a> {
    catalog: Catalog,
    options: &'a CheckOptions,
    changes: Vec<ViewChange>,
    diagnostics: Vec<Diagnostic>,
}

impl Library<'_> {
    fn index(&self, name: &str) -> Option<usize> {
        let mut views = self.catalog.views.iter();
        views.position(|view| view.name.eq_ignore_ascii_case(name))
    }

    fn create(&mut self, view: &ViewDefinition) {
        let (name, span) = (&view.name.value, view.name.span);
        let index = self.index(name);
        let refusal = if self.catalog.find(name).is_some() {
            Some((
                format!("`{name}` is a stream or relation"),
                "choose another name",
            ))
        } else if index.is_some() && !view.or_replace {
            let help = "CREATE OR REPLACE VIEW replaces it";
            Some((format!("the view `{name}` already exists"), help))
        } else if index.is_none() && self.catalog.views.len() >= VIEWS_MAX {
            let help = "DROP VIEW removes one";
            Some((
                format!("the library has {VIEWS_MAX} views, the maximum"),
                help,
            ))
        } else {
            None
        };
        if let Some((message, help)) = refusal {
            let found = codes::DUPLICATE_SOURCE.at(span, message);
            self.diagnostics.push(found.help(help));
            return;
        }
        // A view does not read the one that it replaces.
        let before = index.map(|at| self.catalog.views.remove(at));
        let mut checker = Checker::new(&self.catalog, *self.options);
        checker.view(view);
        self.diagnostics.append(&mut checker.diagnostics);
        let stored = ViewDefinition {
            or_replace: false,
            ..view.clone()
        };
        let stored = StoredView {
            name: name.clone(),
            text: Statement::View(stored).to_string(),
        };
        let at = index.unwrap_or(self.catalog.views.len());
        self.catalog.views.insert(at, stored);
        self.changes.push(match before {
            Some(_) => ViewChange::Replaced(name.clone()),
            None => ViewChange::Created(name.clone()),
        });
    }

    fn remove(&mut self, name: &str, span: Span, index: Option<usize>, if_exists: bool) {
        match index {
            Some(index) => {
                self.catalog.views.remove(index);
                self.changes.push(ViewChange::Dropped(name.to_owned()));
            }
            None if if_exists => self.changes.push(ViewChange::Absent(name.to_owned())),
            None => {
                let message = format!("there is no stored view `{name}`");
                let found = codes::UNKNOWN_SOURCE.at(span, message);
                self.diagnostics.push(found.help("SHOW VIEWS lists them"));
            }
        }
    }

    /// The names of the views that are valid.
    fn valid_views(&self) -> Vec<String> {
        let is_valid = |view: &&StoredView| {
            let mut checker = Checker::new(&self.catalog, *self.options);
            checker.stored_view(view, Span::default()).is_some()
        };
        let valid = self.catalog.views.iter().filter(is_valid);
        valid.map(|view| view.name.clone()).collect()
    }

    /// Views that were valid before and are not any more are errors.
    fn check_readers(&mut self, valid_before: &[String], span: Span) {
        let valid = self.valid_views();
        let is_invalid = |name: &&String| {
            let is_stored = self.index(name).is_some();
            is_stored && !valid.iter().any(|v| v.eq_ignore_ascii_case(name))
        };
        let invalid: Vec<String> = valid_before
            .iter()
            .filter(is_invalid)
            .map(|name| format!("`{name}`"))
            .collect();
        if invalid.is_empty() || self.diagnostics.iter().any(Diagnostic::is_error) {
            return;
        }
        let message = format!("views that read it become invalid: {}", invalid.join(", "));
        let found = codes::STORED_VIEW.at(span, message);
        let help = "change them in the same text, before or after it";
        self.diagnostics.push(found.help(help));
    }
}
