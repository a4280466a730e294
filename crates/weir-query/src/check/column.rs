//! Names of columns: what they mean, and what was perhaps meant.

use super::Checker;
use super::expr::{Names, OUTER};
use super::scope::{Meaning, Scope};
use crate::diagnostic::{Diagnostic, codes, suggest::nearest, there_are};
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
        if let Meaning::Column(found) = meaning {
            names.used.push((
                found.index,
                table.map_or(name.span, |t| t.span.to(name.span)),
            ));
            return Some(found.expr());
        }
        if let Some(Meaning::Column(found)) = names.outer.map(|o| o.find(qualifier, &name.value)) {
            return Some(found.expr().map_columns(&|i| i + OUTER));
        }
        let same = |a: &&(&Ident, &ast::Expr)| a.0.value.eq_ignore_ascii_case(&name.value);
        if let (None, Meaning::Unknown, Some((_, expr))) =
            (table, &meaning, names.aliases.iter().find(same))
        {
            // Inside, names mean columns only: an alias cannot lead back to itself.
            let aliases = std::mem::take(&mut names.aliases);
            let said = self.diagnostics.len();
            let checked = self.expr(expr, names);
            // What is wrong with it has been said where it stands in SELECT, unless it is wrong
            // only here.
            for diagnostic in self.diagnostics.split_off(said) {
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

    /// Says that a name means no column, and what was perhaps meant.
    pub(super) fn no_column(
        &mut self,
        meaning: &Meaning,
        scope: &Scope,
        table: Option<&Ident>,
        name: &Ident,
    ) {
        let full = table.map_or(name.value.clone(), |t| {
            format!("{}.{}", t.value, name.value)
        });
        let qualifier = table.map(|t| t.value.as_str());
        let reachable = |s: &Scope| matches!(s.find(qualifier, &name.value), Meaning::Column(_));
        let found = match meaning {
            Meaning::Unknowable | Meaning::Column(_) => return,
            Meaning::Ambiguous(tables) => {
                let message = format!("`{full}` is a column of {}", tables.join(" and of "));
                let help = format!("say which one: `{}.{}`", tables[0], name.value);
                codes::AMBIGUOUS_COLUMN.at(name.span, message).help(help)
            }
            _ if self.around.iter().any(reachable) => {
                let message = format!("`{full}` of the outer query cannot be used here");
                let help = "only the WHERE of a plain SELECT .. FROM .. WHERE in EXISTS or IN may refer to the query around";
                codes::SUBQUERY_UNSUPPORTED
                    .at(name.span, message)
                    .help(help)
            }
            Meaning::UnknownTable => {
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
            Meaning::Unknown => {
                let tables = scope.tables.iter();
                let tables: Vec<_> = match qualifier {
                    Some(qualifier) => tables.filter(|t| t.is_called(qualifier)).collect(),
                    None => tables.collect(),
                };
                let names = tables.iter().flat_map(|t| t.column_names());
                let found = codes::UNKNOWN_COLUMN.at(name.span, format!("unknown column `{full}`"));
                let plain = tables.iter().flat_map(|t| t.schema.fields.iter());
                match nearest(&name.value, names) {
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
