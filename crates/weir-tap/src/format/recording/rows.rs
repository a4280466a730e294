//! [`Layout`]: the columns of a file that are read, and its rows as weir's columns.

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, BooleanArray, Int64Array, RecordBatch};
use arrow_buffer::ScalarBuffer;
use arrow_schema::DataType;
use arrow_select::filter::FilterBuilder;
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use weir_model::capabilities::RequestRows;
use weir_model::{Column, Demand, EventKind, Nanos, Type};

use super::column::from_arrow;
use super::file::Constant;
use super::folded::{ADDED, BLOCK, IssueOrder, REQUEST, added, stored_as};
use super::stored::Stored;
use super::unfold::{self, ReadColumns, Requests};

/// The column with the kind of an event.
const KIND: &str = "type";

/// The position of that column in `IO`.
const KIND_AT: usize = 1;

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
    /// How many columns of the stream are read for the demands and since every row has them.
    pub named: usize,
    /// Whether requests are delivered.
    with_requests: bool,
    /// If the file has one row for a request and its response.
    folded: Option<FoldedLayout>,
}

/// The columns of a file with one row for a request and its response.
struct FoldedLayout {
    /// The positions of the columns of [`ADDED`].
    added: Vec<Option<usize>>,
    /// Whether rows are read block by block.
    by_block: bool,
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
    /// Whether it is a request in the row of its response.
    pub is_in_response: bool,
}

/// The rows of a batch that a demand gets.
enum Wanted {
    All,
    Some(BooleanArray),
}

/// The rows of a batch that can be delivered.
pub enum Deliverable {
    /// All of them, at these instants, in timestamp order: finished requests, or rows of another
    /// stream.
    All {
        ts: ScalarBuffer<Nanos>,
        /// The first and the last instant of the rows that were read, with requests that no demand
        /// gets; `None` without rows.
        span: Option<[Nanos; 2]>,
    },
    /// These.
    Some(Vec<Row>),
}

/// The columns of a batch that is read.
pub struct Columns {
    /// Those of the stream.
    pub own: Vec<Column>,
    /// The weights of a relation's rows.
    pub weights: Option<Column>,
    /// Those of requests in the rows of their responses.
    pub requests: Option<Requests>,
}

/// The rows of a batch that is read.
pub struct Rows {
    /// The values of all rows.
    pub columns: Columns,
    /// The number of events in them.
    pub events: usize,
    /// The number of events in those that cannot be delivered.
    pub lost: usize,
    /// Those that can be delivered.
    pub deliverable: Deliverable,
    /// The position of the first of the others.
    pub bad: Option<usize>,
    /// Why columns of the rows are unknown.
    pub incomplete: Option<String>,
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
        let of_demands = schema.fields.iter().enumerate().filter(|(at, field)| {
            of_each_row.contains(&Some(&field.name))
                || demands.iter().any(|demand| demand.columns.contains(at))
        });
        let mut names: Vec<&str> = of_demands.map(|(_, field)| field.name.as_str()).collect();
        let named = names.clone();
        names.extend(of_each_row.into_iter().flatten());
        let is_in_file = |name: &str| fields.iter().any(|field| field.name() == name);
        let is_folded = kind.is_some() && is_in_file(REQUEST);
        let of_events = |demand: &Demand| match RequestRows::of(&demand.stream) {
            Some(RequestRows::Events | RequestRows::All) => true,
            Some(RequestRows::Finished) | None => false,
        };
        let with_requests = demands.iter().any(of_events);
        if is_folded {
            unfold::needed(&mut names, with_requests, is_in_file);
        }
        let wanted = |name: &str| names.contains(&name);
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
            named: named
                .into_iter()
                .filter(|name| {
                    let stored = stored_as(name).filter(|_| is_folded);
                    place(name).or_else(|| place(stored?)).is_some()
                })
                .count(),
            with_requests,
            folded: is_folded.then(|| FoldedLayout {
                added: ADDED.iter().map(|field| place(&field.name)).collect(),
                by_block: wanted(BLOCK),
            }),
            read,
        })
    }

    /// The position of the column of instants.
    pub fn instant(&self) -> usize {
        self.instant
    }

    /// Whether the rows that are delivered are those of the file: no requests in the rows of their
    /// responses, and no changes of a relation.
    pub fn is_of_file(&self) -> bool {
        self.weight.is_none() && !(self.folded.is_some() && self.with_requests)
    }

    /// Whether [`Layout::rows`] needs all rows of a block at once.
    pub fn is_by_block(&self) -> bool {
        self.folded.as_ref().is_some_and(|folded| folded.by_block)
    }

    /// The columns of a batch with the columns `in_batch` of the file, and those with one value; the
    /// others are NULL.
    ///
    /// # Errors
    /// For a column that cannot be read, a sentence with its name and the reason.
    pub fn columns(
        &self,
        batch: &RecordBatch,
        in_batch: &[usize],
        constants: &[(usize, Constant)],
        stored: &Stored,
    ) -> Result<ReadColumns, String> {
        let len = batch.num_rows();
        let position = |place| in_batch.iter().position(|&read| read == place);
        let constant = |place: usize, ty| {
            let (_, value) = constants.iter().find(|(column, _)| *column == place)?;
            value.column(ty, len)
        };
        let parse = |name: &str, place: Option<usize>, ty: Type| match place.and_then(position) {
            Some(place) => from_arrow(batch.column(place), ty)
                .map_err(|reason| format!("column {name}: {reason}")),
            None => {
                let constant = place.and_then(|place| constant(place, ty));
                Ok(constant.unwrap_or(Column::Nulls(len)))
            }
        };
        let fields = stored.declaration.schema.fields.iter();
        let own = self.columns.iter().zip(fields);
        let own = own.map(|(place, field)| parse(&field.name, *place, field.ty));
        let of_file = match &self.folded {
            Some(folded) => {
                let each = ADDED.iter().zip(&folded.added);
                let each = each.map(|(field, place)| parse(&field.name, *place, field.ty));
                each.collect::<Result<_, _>>()?
            }
            None => {
                let weight = stored
                    .weight()
                    .map(|name| parse(name, self.weight, Type::Int));
                let instant = parse(stored.instant(), Some(self.instant), Type::Time);
                [Some(instant), weight]
                    .into_iter()
                    .flatten()
                    .collect::<Result<_, _>>()?
            }
        };
        Ok(ReadColumns {
            len,
            own: own.collect::<Result<_, _>>()?,
            of_file,
        })
    }

    /// The rows of columns that were read.
    pub fn rows(&self, read: ReadColumns, stored: &Stored) -> Rows {
        let ReadColumns {
            len,
            mut own,
            of_file,
        } = read;
        let (ts, weights) = match &self.folded {
            Some(_) => (own[0].clone(), None),
            None => (of_file[0].clone(), of_file.get(1).cloned()),
        };
        if let Column::Int(values) = &ts
            && ts.nulls().is_none()
            && weights.is_none()
            && values.values().is_sorted()
            && let Some(wanted) = self.wanted(&own)
        {
            let instants = values.values().clone();
            return self.wanted_rows(own, &of_file, instants, &wanted);
        }
        let mut usable = vec![true; len];
        keep_non_null(&mut usable, &ts);
        let instants: &[Nanos] = match &ts {
            Column::Int(values) => values.values(),
            _ => &[],
        };
        if let Some(weights) = &weights {
            for (at, usable) in usable.iter_mut().enumerate() {
                *usable &= int(weights, at).is_some_and(|weight| weight != 0);
            }
        }
        let is_request = match self.kind {
            Some(_) => requests(&own[KIND_AT], &mut usable),
            None => vec![false; len],
        };
        let (mut incomplete, mut of_issue) = (None, None);
        if let Some(folded) = &self.folded
            && !instants.is_empty()
        {
            match unfold::derive(&mut own, &of_file, instants, folded.by_block) {
                Ok(order) => of_issue = order,
                Err(reason) => incomplete = Some(reason),
            }
        }
        let row = |(at, ((&ts, &is_request), _))| Row {
            ts,
            at,
            is_request,
            is_in_response: false,
        };
        let each = (0..).zip(instants.iter().zip(&is_request).zip(&usable));
        let rows: Vec<Row> = each.filter(|(_, (_, usable))| **usable).map(row).collect();
        let mut all = Rows {
            events: len,
            lost: len - rows.len(),
            deliverable: Deliverable::Some(rows),
            bad: usable.iter().position(|usable| !usable),
            incomplete,
            columns: Columns {
                own,
                weights,
                requests: None,
            },
        };
        if self.folded.is_some() {
            all.unfold(&of_file, self.with_requests, of_issue.as_ref());
        }
        debug_assert!(stored.declaration.schema.len() == all.columns.own.len());
        all
    }

    /// The rows that a demand gets, where that follows from their kinds: all rows of another
    /// stream, and all but requests if no demand has these. `None` if requests are delivered, or a
    /// kind is not known.
    fn wanted(&self, own: &[Column]) -> Option<Wanted> {
        if self.kind.is_none() {
            return Some(Wanted::All);
        }
        let Column::Text(ids) = &own[KIND_AT] else {
            return None;
        };
        let [request, finished @ ..] = EventKind::ALL.map(|kind| kind.symbol().id());
        if own[KIND_AT].nulls().is_some() || (self.folded.is_some() && self.with_requests) {
            return None;
        }
        // Without an early end, so that the comparisons are of many values at once.
        let requests = ids.values().iter().filter(|id| **id == request).count();
        let others = ids
            .values()
            .iter()
            .filter(|id| finished.contains(id))
            .count();
        match (requests, others) {
            (0, others) if others == ids.len() => Some(Wanted::All),
            (requests, others) if requests + others == ids.len() && !self.with_requests => {
                let is_wanted = ids.values().iter().map(|id| *id != request);
                Some(Wanted::Some(is_wanted.collect()))
            }
            _ => None,
        }
    }

    /// A batch of which no other rows than these are delivered.
    fn wanted_rows(
        &self,
        mut own: Vec<Column>,
        of_file: &[Column],
        mut instants: ScalarBuffer<Nanos>,
        wanted: &Wanted,
    ) -> Rows {
        let mut events = instants.len();
        let span = instants.first().zip(instants.last());
        let span = span.map(|(first, last)| [*first, *last]);
        let mut incomplete = None;
        if let Some(folded) = &self.folded {
            incomplete = unfold::derive(&mut own, of_file, &instants, folded.by_block).err();
            events += number_folded(&of_file[added(REQUEST)]);
        }
        if let Wanted::Some(wanted) = wanted {
            let filter = FilterBuilder::new(wanted).optimize().build();
            let of = |array: &dyn Array| filter.filter(array).expect("as long as the filter");
            let own_of = |column: &Column| selected(column, filter.count(), of);
            own = own.iter().map(own_of).collect();
            let ts = of(&Int64Array::new(instants, None));
            instants = ts.as_primitive::<Int64Type>().values().clone();
        }
        Rows {
            events,
            lost: 0,
            deliverable: Deliverable::All { ts: instants, span },
            bad: None,
            incomplete,
            columns: Columns {
                own,
                weights: None,
                requests: None,
            },
        }
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

impl Rows {
    /// Counts the requests in the rows of their responses, and adds them if they are delivered.
    fn unfold(&mut self, of_file: &[Column], with_requests: bool, of_issue: Option<&IssueOrder>) {
        let kinds = of_file[added(REQUEST)].int_values();
        let is_folded = |at: usize| kinds.get(at).is_some_and(|kind| kind != 0);
        let Deliverable::Some(rows) = &mut self.deliverable else {
            unreachable!("rows that are all delivered are not unfolded")
        };
        let requests = number_folded(&of_file[added(REQUEST)]);
        let usable = rows.iter().filter(|row| is_folded(row.at as usize));
        self.lost += requests - usable.count();
        self.events += requests;
        if with_requests {
            *rows = unfold::events(rows, &self.columns.own, is_folded, of_issue);
            self.columns.requests = Some(unfold::of_requests(of_file));
            self.lost = self.events - rows.len();
        }
    }
}

/// The number of requests in the rows of their responses, from the column of their kinds.
fn number_folded(kinds: &Column) -> usize {
    match kinds {
        Column::Int(values) if values.null_count() == 0 => {
            values.values().iter().filter(|kind| **kind != 0).count()
        }
        kinds => {
            let values = kinds.int_values();
            let is_folded = |at: &usize| values.get(*at).is_some_and(|kind| kind != 0);
            (0..kinds.len()).filter(is_folded).count()
        }
    }
}

/// `len` rows of a column of a recording, which `of` selects.
pub fn selected(column: &Column, len: usize, of: impl Fn(&dyn Array) -> ArrayRef) -> Column {
    match column {
        Column::Int(a) => Column::Int(of(a).as_primitive().clone()),
        Column::Text(a) => Column::Text(of(a).as_primitive().clone()),
        Column::Float(a) => Column::Float(of(a).as_primitive().clone()),
        Column::Bool(a) => Column::Bool(of(a).as_boolean().clone()),
        Column::Nulls(_) | Column::Tally(_) | Column::Bytes(_) => Column::Nulls(len),
    }
}

/// Whether each row is a request; clears `usable` where it has no known type.
fn requests(kinds: &Column, usable: &mut [bool]) -> Vec<bool> {
    let mut is_request = vec![false; usable.len()];
    keep_non_null(usable, kinds);
    if let Column::Text(ids) = kinds {
        let [request, others @ ..] = EventKind::ALL.map(|kind| kind.symbol().id());
        let each = ids.values().iter().zip(&mut is_request).zip(usable);
        for ((id, is_request), usable) in each {
            *is_request = *id == request;
            *usable &= *is_request || others.contains(id);
        }
    }
    is_request
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
