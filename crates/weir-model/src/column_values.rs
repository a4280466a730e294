//! [`ColumnValues`]: the values of a column whose type is known, for reading them row by row.

use arrow_array::{Array, ArrowPrimitiveType, PrimitiveArray};
use arrow_buffer::NullBuffer;

use crate::{Column, Symbol};

/// The values of a column.
#[derive(Clone, Copy)]
pub struct ColumnValues<'a, T> {
    values: &'a [T],
    nulls: Option<&'a NullBuffer>,
}

impl Column {
    /// The integers; a column of another type has none.
    pub fn int_values(&self) -> ColumnValues<'_, i64> {
        match self {
            Column::Int(array) => values(array),
            _ => ColumnValues::default(),
        }
    }

    /// The ids of the texts; a column of another type has none.
    pub fn text_ids(&self) -> ColumnValues<'_, u32> {
        match self {
            Column::Text(array) => values(array),
            _ => ColumnValues::default(),
        }
    }
}

impl<T> Default for ColumnValues<'_, T> {
    fn default() -> Self {
        ColumnValues {
            values: &[],
            nulls: None,
        }
    }
}

impl<T: Copy> ColumnValues<'_, T> {
    /// That of a row; `None` for NULL, and beyond the last row.
    #[inline]
    pub fn get(&self, row: usize) -> Option<T> {
        let value = self.values.get(row).copied();
        value.filter(|_| self.nulls.is_none_or(|nulls| nulls.is_valid(row)))
    }
}

impl ColumnValues<'_, i64> {
    /// That of a row, 0 for NULL.
    #[inline]
    pub fn or_zero(&self, row: usize) -> i64 {
        self.get(row).unwrap_or(0)
    }
}

impl ColumnValues<'_, u32> {
    /// The text of a row; `None` for NULL.
    #[inline]
    pub fn symbol(&self, row: usize) -> Option<Symbol> {
        self.get(row).map(Symbol::from_id)
    }
}

fn values<T: ArrowPrimitiveType>(array: &PrimitiveArray<T>) -> ColumnValues<'_, T::Native> {
    ColumnValues {
        values: array.values(),
        nulls: array.nulls(),
    }
}
