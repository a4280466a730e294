//! Views of the catalog: they are checked when a query reads them, each once.

use weir_model::StoredView;

use super::{Checker, Dialect, NamedQuery};
use crate::diagnostic::{Diagnostic, Span, codes};
use crate::syntax::{self, ast};

/// Maximum number of stored views that are nested in each other.
const NESTED_MAX: usize = 32;

impl Checker<'_> {
    /// A stored view, read at `span`.
    pub fn stored_view(&mut self, view: &StoredView, span: Span) -> Option<NamedQuery> {
        let same = |found: &&NamedQuery| found.name.eq_ignore_ascii_case(&view.name);
        if let Some(found) = self.stored.iter().find(same) {
            return found.plan.is_some().then(|| found.clone());
        }
        let found = match self.checked_view(view) {
            Ok(found) => found,
            Err(cause) => {
                let message = format!("the stored view `{}` is invalid: {cause}", view.name);
                let found = codes::STORED_VIEW.at(span, message);
                let help = format!(
                    "CREATE OR REPLACE VIEW {0} AS .. replaces it, DROP VIEW {0} removes it",
                    view.name
                );
                self.diagnostics.push(found.help(help));
                NamedQuery::new(&view.name, None, false)
            }
        };
        self.stored.push(found.clone());
        found.plan.is_some().then_some(found)
    }

    /// A stored view, or its first error.
    fn checked_view(&mut self, view: &StoredView) -> Result<NamedQuery, String> {
        let is_inside = |name: &String| name.eq_ignore_ascii_case(&view.name);
        if self.inside.iter().any(is_inside) {
            return Err("it reads itself".to_owned());
        }
        if self.inside.len() >= NESTED_MAX {
            return Err(format!("more than {NESTED_MAX} views are nested"));
        }
        let parsed = syntax::parse(&view.text);
        let mut inner = Checker::new(self.catalog, self.options);
        inner.options.dialect = Dialect::Cql;
        inner.inside.clone_from(&self.inside);
        inner.inside.push(view.name.clone());
        let found = match &parsed.tree[..] {
            [ast::Statement::View(definition)] => inner.named(definition),
            _ => return Err("its text is not one CREATE VIEW".to_owned()),
        };
        let mut diagnostics = parsed.diagnostics.iter().chain(&inner.diagnostics);
        match diagnostics.find(|d| Diagnostic::is_error(d)) {
            Some(error) => Err(error.message.clone()),
            None => {
                let read = inner.views_read.into_iter().chain([view.clone()]);
                let is_new = |view: &StoredView| !self.views_read.contains(view);
                let new: Vec<StoredView> = read.filter(is_new).collect();
                self.views_read.extend(new);
                Ok(found)
            }
        }
    }
}
