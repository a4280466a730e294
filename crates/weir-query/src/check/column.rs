//! Resolves column names, and suggests similar names for unknown ones.

use weir_model::suggest::nearest;

use super::Checker;
use super::expr::{Names, OUTER};
use super::scope::{Resolution, Scope};
use crate::diagnostic::{Diagnostic, codes, there_are};
use crate::expr::Expr;
use crate::syntax::ast::{self, Ident};

impl Checker<'_> {
    pub(super) fn column(
        &mut self,
        table: Option<&Ident>,
        name: &Ident,
        names: &mut Names,
    ) -> Option<Expr> {
        let qualifier = table.map(|t| t.value.as_str());
        let meaning = names.scope.find(qualifier, &name.value);
        if let Resolution::Column(found) = meaning {
            names.used.push((
                found.index,
                table.map_or(name.span, |t| t.span.to(name.span)),
            ));
            return Some(found.expr());
        }
        if let Some(Resolution::Column(found)) = names.outer.map(|o| o.find(qualifier, &name.value))
        {
            return Some(found.expr().map_columns(&|i| i + OUTER));
        }
        let same = |a: &&(&Ident, &ast::SpannedExpr)| a.0.value.eq_ignore_ascii_case(&name.value);
        if let (None, Resolution::Unknown, Some((_, expr))) =
            (table, &meaning, names.aliases.iter().find(same))
        {
            // Inside an alias names are columns only: an alias cannot refer to itself.
            let aliases = std::mem::take(&mut names.aliases);
            let reported = self.diagnostics.len();
            let checked = self.expr(expr, names);
            // Errors of the expression are already reported for SELECT, unless they only exist
            // here.
            for diagnostic in self.diagnostics.split_off(reported) {
                if diagnostic.code == codes::AGGREGATE_MISPLACED.code {
                    self.diagnostics.push(Diagnostic {
                        span: name.span,
                        ..diagnostic
                    });
                }
            }
            names.aliases = aliases;
            return checked;
        }
        self.no_column(&meaning, names.scope, table, name);
        None
    }

    /// Reports a name that is not a column, with a suggestion.
    pub(super) fn no_column(
        &mut self,
        meaning: &Resolution,
        scope: &Scope,
        table: Option<&Ident>,
        name: &Ident,
    ) {
        let full = table.map_or(name.value.clone(), |t| {
            format!("{}.{}", t.value, name.value)
        });
        let qualifier = table.map(|t| t.value.as_str());
        let reachable = |s: &Scope| matches!(s.find(qualifier, &name.value), Resolution::Column(_));
        let found = match meaning {
            Resolution::Indeterminate | Resolution::Column(_) => return,
            Resolution::Ambiguous(tables) => {
                let message = format!("`{full}` is a column of {}", tables.join(" and of "));
                let help = format!("qualify it: `{}.{}`", tables[0], name.value);
                codes::AMBIGUOUS_COLUMN.at(name.span, message).help(help)
            }
            _ if self.outer_scopes.iter().any(reachable) => {
                let message = format!("`{full}` of the outer query cannot be used here");
                let help = "only the WHERE of a plain SELECT .. FROM .. WHERE in EXISTS or IN may refer to the outer query";
                codes::SUBQUERY_UNSUPPORTED
                    .at(name.span, message)
                    .help(help)
            }
            Resolution::UnknownTable => {
                let table = table.expect("only a qualified name can have an unknown table");
                let message = format!("there is no source `{}` in FROM", table.value);
                let names = || {
                    scope
                        .tables
                        .iter()
                        .map(|t| t.name.as_str())
                        .filter(|n| !n.is_empty())
                };
                let found = codes::UNKNOWN_TABLE.at(table.span, message);
                match nearest(&table.value, names()) {
                    Some(near) => found.help(format!("did you mean `{near}`?")),
                    None => found.help(there_are(&names().collect::<Vec<_>>())),
                }
            }
            Resolution::Unknown => {
                let tables = scope.tables.iter();
                let tables: Vec<_> = match qualifier {
                    Some(qualifier) => tables.filter(|t| t.has_name(qualifier)).collect(),
                    None => tables.collect(),
                };
                let names = tables.iter().flat_map(|t| t.column_names());
                let found = codes::UNKNOWN_COLUMN.at(name.span, format!("unknown column `{full}`"));
                let plain = tables.iter().flat_map(|t| t.schema.fields.iter());
                let mut sets = plain.clone().filter_map(|f| f.values);
                match nearest(&name.value, names) {
                    _ if qualifier.is_none() && sets.any(|s| s.find(&name.value).is_some()) => {
                        found.help(format!("a text is quoted: '{}'", name.value))
                    }
                    _ if ["window_start", "window_end"].contains(&&*name.value) => {
                        found.help("a relation changes at the end of a slide: its time is that end")
                    }
                    Some(near) => found.help(format!("did you mean `{near}`?")),
                    None => {
                        let plain: Vec<_> = plain.map(|f| f.name.as_str()).collect();
                        found.help(there_are(&plain))
                    }
                }
            }
        };
        self.diagnostics.push(found);
    }
}
