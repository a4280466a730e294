//! [`Schema`]: the columns of a stream or relation, with names, types, units and descriptions.

use crate::{ClosedSet, Type, Unit};
use serde::{Deserialize, Serialize};

/// Another name of a column, optionally in another unit.
///
/// The thesis counts `BlktapTS` in microseconds where the plain column `ts` is a timestamp in
/// nanoseconds; both work in one query, and the checker converts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Alias {
    /// The other name.
    pub name: &'static str,
    /// The type and unit under that name, if they differ from the column's own. Only an integer in
    /// a unit of the same dimension is possible (`Time` counts as nanoseconds).
    pub converted: Option<Unit>,
}

impl Alias {
    /// The same column under another name.
    pub const fn same(name: &'static str) -> Alias {
        Alias {
            name,
            converted: None,
        }
    }

    /// The column under another name as an integer in `unit`.
    pub const fn in_unit(name: &'static str, unit: Unit) -> Alias {
        Alias {
            name,
            converted: Some(unit),
        }
    }
}

/// One column. In a plan that is sent to an agent it is its name, type and unit: the rest of a
/// source's column is in the agent's catalog.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Field {
    /// The name; names are compared without regard to case.
    pub name: String,
    /// The type.
    pub ty: Type,
    /// The unit of its numbers.
    #[serde(default)]
    pub unit: Unit,
    /// Whether it may be NULL.
    #[serde(default)]
    pub nullable: bool,
    /// Its meaning, in a sentence; empty for the columns of a query.
    #[serde(skip)]
    pub doc: String,
    /// Its other names.
    #[serde(skip)]
    pub aliases: Vec<Alias>,
    /// The set of its values, if it is fixed.
    #[serde(skip)]
    pub values: Option<ClosedSet>,
}

impl Field {
    /// A column that is not nullable and has no unit.
    pub fn new(name: impl Into<String>, ty: Type) -> Field {
        Field {
            name: name.into(),
            ty,
            unit: Unit::None,
            nullable: false,
            doc: String::new(),
            aliases: Vec::new(),
            values: None,
        }
    }

    /// The same column in `unit`.
    pub fn unit(self, unit: Unit) -> Field {
        Field { unit, ..self }
    }

    /// The same column, nullable.
    pub fn nullable(self) -> Field {
        Field {
            nullable: true,
            ..self
        }
    }

    /// The same column with its meaning.
    pub fn doc(self, doc: &str) -> Field {
        Field {
            doc: doc.into(),
            ..self
        }
    }

    /// The same column with a fixed set of values.
    pub fn values(self, values: ClosedSet) -> Field {
        Field {
            values: Some(values),
            ..self
        }
    }

    /// The same column with other names.
    pub fn aliases(self, aliases: &[Alias]) -> Field {
        Field {
            aliases: aliases.to_vec(),
            ..self
        }
    }
}

/// The columns of a stream or relation, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Schema {
    /// The columns.
    pub fields: Vec<Field>,
}

impl Schema {
    /// A schema with these columns.
    pub fn new(fields: Vec<Field>) -> Schema {
        Schema { fields }
    }

    /// The number of columns.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// True without columns.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// The position of the column with name `name`, its own or an alias, without regard to case.
    /// With an alias in another unit, the alias as well.
    pub fn find(&self, name: &str) -> Option<(usize, Option<&Alias>)> {
        let own = self
            .fields
            .iter()
            .position(|f| f.name.eq_ignore_ascii_case(name));
        own.map(|i| (i, None)).or_else(|| {
            self.fields.iter().enumerate().find_map(|(i, field)| {
                let alias = field
                    .aliases
                    .iter()
                    .find(|a| a.name.eq_ignore_ascii_case(name))?;
                Some((i, alias.converted.is_some().then_some(alias)))
            })
        })
    }

    /// The position of the column with exactly this plain name.
    ///
    /// # Panics
    /// When there is none; for names in our own code.
    pub fn index(&self, name: &str) -> usize {
        self.fields
            .iter()
            .position(|f| f.name == name)
            .unwrap_or_else(|| panic!("the schema has a column {name}"))
    }
}

impl std::ops::Index<usize> for Schema {
    type Output = Field;
    fn index(&self, i: usize) -> &Field {
        &self.fields[i]
    }
}
