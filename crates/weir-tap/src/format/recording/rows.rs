//! [`Layout::rows`]: the rows of a batch of the file, as weir's columns.

use arrow_array::RecordBatch;
use arrow_schema::DataType;
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use weir_model::{Column, Demand, EventKind, Nanos, Type};

use super::column::from_arrow;
use super::stored::Stored;

/// The column with the kind of an event.
const KIND: &str = "type";

/// The columns of the file that are read, by their positions in it.
pub struct Layout {
    /// All of them, ascending.
    pub read: Vec<usize>,
    /// That of each column of the stream.
    pub columns: Vec<Option<usize>>,
    instant: usize,
    /// Of the kinds of events, if the rows are requests and responses.
    kind: Option<usize>,
    /// Of the weights of a relation's rows.
    weight: Option<usize>,
}

/// A row that can be delivered.
#[derive(Clone, Copy)]
pub struct Row {
    /// Its instant.
    pub ts: Nanos,
    /// Its position in the batch that is read.
    pub at: u32,
    /// Whether it is a request and no response.
    pub is_request: bool,
}

/// The columns of a batch that is read.
pub struct Columns {
    /// Those of the stream.
    pub own: Vec<Column>,
    /// The weights of a relation's rows.
    pub weights: Option<Column>,
}

/// The rows of a batch that is read.
pub struct Rows {
    /// The values of all rows.
    pub columns: Columns,
    /// Those that can be delivered.
    pub rows: Vec<Row>,
    /// The position of the first of the others.
    pub bad: Option<usize>,
}

impl Layout {
    /// The columns of the demands, and those that every row has. Columns of NULLs only, as pandas
    /// writes them, are excluded: the Parquet library panics at some.
    ///
    /// # Errors
    /// If the file lacks a column that every row must have, a sentence with its name.
    pub fn new(
        metadata: &ArrowReaderMetadata,
        stored: &Stored,
        demands: &[Demand],
    ) -> Result<Layout, String> {
        let fields = metadata.schema().fields();
        let schema = &stored.declaration.schema;
        let kind = stored.is_of_requests().then_some(KIND);
        let of_each_row = [Some(stored.instant()), kind, stored.weight()];
        let wanted = |name: &str| {
            let at = schema.fields.iter().position(|f| f.name == name);
            of_each_row.contains(&Some(name))
                || at.is_some_and(|at| demands.iter().any(|d| d.columns.contains(&at)))
        };
        let all_null = |ty: &DataType| match ty {
            DataType::Dictionary(_, values) => **values == DataType::Null,
            ty => *ty == DataType::Null,
        };
        let read: Vec<usize> = (0..fields.len())
            .filter(|&i| wanted(fields[i].name()) && !all_null(fields[i].data_type()))
            .collect();
        let place = |name: &str| read.iter().copied().find(|&i| fields[i].name() == name);
        let needed = |name: &str| {
            place(name)
                .ok_or_else(|| format!("a Parquet file without column `{name}` is not a recording"))
        };
        Ok(Layout {
            columns: schema.fields.iter().map(|f| place(&f.name)).collect(),
            instant: needed(stored.instant())?,
            kind: kind.map(needed).transpose()?,
            weight: stored.weight().map(needed).transpose()?,
            read,
        })
    }

    /// The rows of a batch with the columns `in_batch` of the file; the others are NULL.
    ///
    /// # Errors
    /// For a column that cannot be read, a sentence with its name and the reason.
    pub fn rows(
        &self,
        batch: &RecordBatch,
        in_batch: &[usize],
        stored: &Stored,
    ) -> Result<Rows, String> {
        let len = batch.num_rows();
        let position = |place| in_batch.iter().position(|&read| read == place);
        let parse = |name: &str, place: Option<usize>, ty: Type| match place.and_then(position) {
            Some(place) => from_arrow(batch.column(place), ty)
                .map_err(|reason| format!("column {name}: {reason}")),
            None => Ok(Column::Nulls(len)),
        };
        let fields = stored.declaration.schema.fields.iter();
        let own = self.columns.iter().zip(fields);
        let own = own.map(|(place, field)| parse(&field.name, *place, field.ty));
        let columns = Columns {
            own: own.collect::<Result<_, _>>()?,
            weights: match stored.weight() {
                Some(name) => Some(parse(name, self.weight, Type::Int)?),
                None => None,
            },
        };
        let ts = parse(stored.instant(), Some(self.instant), Type::Time)?;
        let kinds = match self.kind {
            Some(place) => Some(parse(KIND, Some(place), Type::Text)?),
            None => None,
        };
        let mut usable = vec![true; len];
        keep_non_null(&mut usable, &ts);
        let instants: &[Nanos] = match &ts {
            Column::Int(values) => values.values(),
            _ => &[],
        };
        if let Some(weights) = &columns.weights {
            for (at, usable) in usable.iter_mut().enumerate() {
                *usable &= int(weights, at).is_some_and(|weight| weight != 0);
            }
        }
        let mut is_request = vec![false; len];
        if let Some(kinds) = &kinds {
            keep_non_null(&mut usable, kinds);
            if let Column::Text(ids) = kinds {
                let [request, others @ ..] = EventKind::ALL.map(|kind| kind.symbol().id());
                let each = ids.values().iter().zip(&mut is_request).zip(&mut usable);
                for ((id, is_request), usable) in each {
                    *is_request = *id == request;
                    *usable &= *is_request || others.contains(id);
                }
            }
        }
        let row = |(at, ((&ts, &is_request), _))| Row { ts, at, is_request };
        let each = (0..).zip(instants.iter().zip(&is_request).zip(&usable));
        Ok(Rows {
            rows: each.filter(|(_, (_, usable))| **usable).map(row).collect(),
            bad: usable.iter().position(|usable| !usable),
            columns,
        })
    }

    /// What a row lacks that cannot be delivered.
    pub fn needs(&self) -> &'static str {
        match (self.kind, self.weight) {
            (Some(_), _) => "no timestamp, or a type other than Q, R, E and N",
            (None, Some(_)) => "no timestamp, or no weight",
            (None, None) => "no timestamp",
        }
    }
}

/// Clears `usable` where the column is NULL.
fn keep_non_null(usable: &mut [bool], column: &Column) {
    if !matches!(column, Column::Int(_) | Column::Text(_)) || column.nulls().is_some() {
        let each = usable.iter_mut().enumerate();
        each.for_each(|(at, usable)| *usable &= !column.is_null(at));
    }
}

/// The integer in a row.
pub fn int(column: &Column, row: usize) -> Option<i64> {
    match column {
        Column::Int(values) if !column.is_null(row) => Some(values.value(row)),
        _ => None,
    }
}
