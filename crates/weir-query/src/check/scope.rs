//! [`Scope`]: resolves the column names of one FROM.

use std::sync::Arc;

use weir_model::{Field, Schema, Type, Unit};

use crate::expr::fold_expr;
use crate::expr::{BinaryOp, Expr};

/// The sources of a FROM. Their columns are concatenated, in order.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// The sources.
    pub tables: Vec<ScopeTable>,
}

/// One source of a FROM.
#[derive(Clone, Debug)]
pub struct ScopeTable {
    /// Its alias, or else its name; empty for a subquery without alias.
    pub name: String,
    /// Position of its first column.
    pub first: usize,
    /// Its columns.
    pub schema: Arc<Schema>,
    /// The columns of `*`, by name.
    pub star: Option<Vec<String>>,
    /// False for a source with an error: any column may be one of its.
    pub known: bool,
    /// Columns that USING has merged with another source's: only the qualified name refers to them.
    pub merged: Vec<usize>,
}

/// A resolved column.
#[derive(Clone, Debug)]
pub struct ResolvedColumn {
    /// Its position among all columns of the scope.
    pub index: usize,
    /// The column.
    pub field: Field,
    /// The unit to which the name converts it.
    pub converted: Option<Unit>,
    /// The name as it was declared.
    pub name: String,
}

/// The resolution of a name.
#[derive(Clone, Debug)]
pub enum Resolution {
    /// A column.
    Column(Box<ResolvedColumn>),
    /// Ambiguous; these sources have it.
    Ambiguous(Vec<String>),
    /// Nothing.
    Unknown,
    /// No source has the name before the dot.
    UnknownTable,
    /// Possibly a column of a source whose error is already reported.
    Indeterminate,
}

impl ScopeTable {
    fn find(&self, name: &str) -> Option<ResolvedColumn> {
        let (index, alias) = self.schema.find(name)?;
        let field = self.schema[index].clone();
        let declared = field
            .aliases
            .iter()
            .find(|a| a.name.eq_ignore_ascii_case(name));
        let declared = match field.name.eq_ignore_ascii_case(name) {
            true => field.name.clone(),
            false => declared.map_or(name, |a| a.name).to_owned(),
        };
        let converted = alias.and_then(|a| a.converted);
        Some(ResolvedColumn {
            index: self.first + index,
            field,
            converted,
            name: declared,
        })
    }

    /// Whether `name` refers to this source.
    pub fn has_name(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }

    /// Every column name in scope, for suggestions.
    pub fn column_names(&self) -> impl Iterator<Item = &str> {
        self.schema.fields.iter().flat_map(|field| {
            std::iter::once(field.name.as_str()).chain(field.aliases.iter().map(|a| a.name))
        })
    }

    /// The columns of `*`.
    pub fn star(&self) -> Vec<ResolvedColumn> {
        let shown = |f: &ResolvedColumn| !self.merged.contains(&f.index);
        match &self.star {
            Some(names) => names
                .iter()
                .filter_map(|name| {
                    self.find(name).map(|f| ResolvedColumn {
                        name: name.clone(),
                        ..f
                    })
                })
                .filter(shown)
                .collect(),
            None => (self.schema.fields.iter().enumerate())
                .map(|(i, field)| ResolvedColumn {
                    index: self.first + i,
                    field: field.clone(),
                    converted: None,
                    name: field.name.clone(),
                })
                .filter(shown)
                .collect(),
        }
    }
}

impl Scope {
    /// The scope of one source, whose columns are `schema`'s.
    pub fn of(name: &str, schema: Arc<Schema>, star: Option<Vec<String>>) -> Scope {
        let name = name.to_owned();
        let table = ScopeTable {
            name,
            first: 0,
            schema,
            star,
            known: true,
            merged: Vec::new(),
        };
        Scope {
            tables: vec![table],
        }
    }

    /// The column at a position.
    pub fn field(&self, index: usize) -> Option<&Field> {
        let of = |t: &&ScopeTable| (t.first..t.first + t.schema.len()).contains(&index);
        let table = self.tables.iter().find(of)?;
        Some(&table.schema[index - table.first])
    }

    /// A scope of unknown columns, because its source has an error.
    pub fn unknown(name: &str) -> Scope {
        let mut scope = Scope::of(name, Arc::default(), None);
        scope.tables[0].known = false;
        scope
    }

    /// The number of columns.
    pub fn len(&self) -> usize {
        self.tables.last().map_or(0, |t| t.first + t.schema.len())
    }

    /// The columns of both, this scope's first.
    pub fn concat(mut self, right: Scope) -> Scope {
        let shift = self.len();
        self.tables
            .extend(right.tables.into_iter().map(|t| ScopeTable {
                first: t.first + shift,
                merged: t.merged.iter().map(|i| i + shift).collect(),
                ..t
            }));
        self
    }

    /// True when every source is known.
    pub fn is_known(&self) -> bool {
        self.tables.iter().all(|t| t.known)
    }

    /// Resolves `name`, or `table.name`.
    pub fn find(&self, table: Option<&str>, name: &str) -> Resolution {
        if let Some(table) = table {
            let Some(table) = self.table(table) else {
                return match self.is_known() {
                    true => Resolution::UnknownTable,
                    false => Resolution::Indeterminate,
                };
            };
            return match table.find(name) {
                Some(found) => Resolution::Column(Box::new(found)),
                None if table.known => Resolution::Unknown,
                None => Resolution::Indeterminate,
            };
        }
        let mut found: Vec<(&str, ResolvedColumn)> = (self.tables.iter())
            .filter_map(|t| Some((t.name.as_str(), t.find(name)?)))
            .filter(|(_, f)| self.tables.iter().all(|t| !t.merged.contains(&f.index)))
            .collect();
        match found.len() {
            0 if self.is_known() => Resolution::Unknown,
            0 => Resolution::Indeterminate,
            1 => Resolution::Column(Box::new(found.remove(0).1)),
            _ => {
                Resolution::Ambiguous(found.iter().map(|(table, _)| (*table).to_owned()).collect())
            }
        }
    }

    /// The source called `name`.
    pub fn table(&self, name: &str) -> Option<&ScopeTable> {
        self.tables.iter().find(|t| t.has_name(name))
    }
}

impl ResolvedColumn {
    /// The column as an expression, converted to the unit of the name.
    pub fn expr(&self) -> Expr {
        let column = Expr::column(self.index, self.field.ty, self.field.unit);
        let Some(unit) = self.converted else {
            return column;
        };
        let (from, to) = (self.field.unit, unit);
        let number = match self.field.ty {
            Type::Time => Expr::Cast {
                expr: Box::new(column),
                ty: Type::Int,
                unit: from,
            },
            _ => column,
        };
        let (op, ratio) = match from.scale() <= to.scale() {
            true => (BinaryOp::Divide, to.scale() / from.scale()),
            false => (BinaryOp::Multiply, from.scale() / to.scale()),
        };
        let (left, right) = (Box::new(number), Box::new(Expr::int(ratio)));
        fold_expr(Expr::Binary {
            op,
            left,
            right,
            unit: to,
        })
    }

    /// The column of a result that contains this one: it keeps its other names if it keeps its own.
    pub fn field(&self) -> Field {
        let expr = self.expr();
        let own = self.name == self.field.name;
        Field {
            name: self.name.clone(),
            ty: expr.ty(),
            unit: expr.unit(),
            nullable: self.field.nullable,
            doc: String::new(),
            values: self.field.values,
            aliases: if own {
                self.field.aliases.clone()
            } else {
                Vec::new()
            },
        }
    }
}
