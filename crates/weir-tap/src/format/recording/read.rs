//! [`RecordingTap`]: a recording as a tap. Only the columns that the demands name are read.

use std::collections::VecDeque;
use std::time::Duration;

use arrow_array::{RecordBatch, UInt32Array};
use arrow_schema::DataType;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ParquetRecordBatchReader};
use weir_model::capabilities::RequestRows;
use weir_model::event::iostream_schema;
use weir_model::{Batch, Column, Demand, EventKind, Nanos, Type};

use super::super::fault::{Faults, LATE, MALFORMED};
use super::super::replay::before;
use super::column::from_arrow;
use super::file::{Recording, guarded};
use super::losses;
use super::stored::Stored;
use crate::{EventCount, Tap, TapError, TapEvent};

/// A recording as a tap.
pub struct RecordingTap {
    recording: Recording,
    places: Places,
    mask: ProjectionMask,
    demands: Vec<Demand>,
    faults: Faults,
    group: usize,
    reader: Option<ParquetRecordBatchReader>,
    rows_in_group: i64,
    queued: VecDeque<TapEvent>,
    ended: bool,
    last_ts: Nanos,
    rows_read: i64,
}

/// The positions of columns in the batches that are read.
struct Places {
    /// Of each column of the stream.
    columns: Vec<Option<usize>>,
    instant: usize,
    /// Of the kinds of events, if the rows are requests and responses.
    kind: Option<usize>,
    /// Of the weights of a relation's rows.
    weight: Option<usize>,
}

/// A row that can be delivered.
struct Row {
    ts: Nanos,
    /// Whether it is a request and no response.
    is_request: bool,
    /// Its position in the batch that is read.
    at: u32,
}

impl Recording {
    /// A tap that serves `demands`.
    ///
    /// # Errors
    /// If the file lacks a column that a row of its stream must have.
    pub fn start(self, demands: &[Demand]) -> Result<RecordingTap, TapError> {
        let read = columns_to_read(&self.metadata, &self.stored, demands);
        let (places, mask) = read.map_err(|reason| TapError::Malformed {
            path: self.path.clone(),
            offset: 0,
            reason,
        })?;
        Ok(RecordingTap {
            places,
            mask,
            demands: demands.to_vec(),
            faults: Faults::new(&self.path, self.strict),
            recording: self,
            group: 0,
            reader: None,
            rows_in_group: 0,
            queued: VecDeque::new(),
            ended: false,
            last_ts: Nanos::MIN,
            rows_read: 0,
        })
    }
}

/// The column with the kind of an event.
const KIND: &str = "type";

/// The positions of columns, and the columns to read: those of the demands, and those that every
/// row has. Columns of NULLs only, as pandas writes them, are excluded: the Parquet library panics
/// at some.
fn columns_to_read(
    metadata: &ArrowReaderMetadata,
    stored: &Stored,
    demands: &[Demand],
) -> Result<(Places, ProjectionMask), String> {
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
    let place = |name: &str| read.iter().position(|&i| fields[i].name() == name);
    let needed = |name: &str| {
        place(name)
            .ok_or_else(|| format!("a Parquet file without column `{name}` is not a recording"))
    };
    let places = Places {
        columns: schema.fields.iter().map(|f| place(&f.name)).collect(),
        instant: needed(stored.instant())?,
        kind: kind.map(needed).transpose()?,
        weight: stored.weight().map(needed).transpose()?,
    };
    let mask = ProjectionMask::roots(metadata.parquet_schema(), read.iter().copied());
    Ok((places, mask))
}

impl RecordingTap {
    /// The next batch of the file, or `None` at its end. A row group that cannot be read is
    /// reported and skipped.
    fn read(&mut self) -> Result<Option<RecordBatch>, TapError> {
        loop {
            if self.group >= self.recording.metadata.metadata().num_row_groups() {
                return Ok(None);
            }
            let (reader, recording) = (&mut self.reader, &self.recording);
            let (mask, group) = (&self.mask, self.group);
            let next = guarded(|| {
                let reader = match reader {
                    Some(reader) => reader,
                    None => reader.insert(recording.reader(mask, group)?),
                };
                Ok(reader.next().transpose()?)
            });
            match next {
                Ok(Some(batch)) => {
                    self.rows_in_group += batch.num_rows() as i64;
                    return Ok(Some(batch));
                }
                Ok(None) => self.next_group(),
                Err(reason) => {
                    let group = self.recording.metadata.metadata().row_group(self.group);
                    let offset = group.columns().first().map_or(0, |c| c.data_page_offset());
                    let lost = group.num_rows().saturating_sub(self.rows_in_group).max(0);
                    let reason = format!("row group {}: {reason}", self.group);
                    self.faults
                        .bad(u64::try_from(offset).unwrap_or(0), reason)?;
                    self.faults.count("events_lost", MALFORMED, lost);
                    self.next_group();
                }
            }
        }
    }

    fn next_group(&mut self) {
        self.group += 1;
        self.reader = None;
        self.rows_in_group = 0;
    }

    /// Queues the rows of a batch for each demand.
    fn emit(&mut self, batch: &RecordBatch) -> Result<(), TapError> {
        let first_row = self.rows_read;
        self.rows_read += batch.num_rows() as i64;
        let (columns, rows) = match self.parsed(batch) {
            Ok(parsed) => parsed,
            Err(reason) => {
                let reason = format!("rows from {first_row} on: {reason}");
                self.faults
                    .count("events_lost", MALFORMED, batch.num_rows() as i64);
                return self.faults.bad(0, reason);
            }
        };
        let rows = self.usable(rows, first_row)?;
        let Some(last) = rows.last().map(|row| row.ts) else {
            return Ok(());
        };
        for demand in 0..self.demands.len() {
            if let Some(batch) = self.rows_of(demand, &rows, &columns) {
                self.queued.push_back(TapEvent::Rows { demand, batch });
            }
        }
        self.last_ts = last;
        self.queued.push_back(TapEvent::Heartbeat(before(last)));
        Ok(())
    }

    /// The columns of a batch, and the instants and kinds of its rows; for a column that cannot be
    /// read, a sentence with its name and the reason.
    fn parsed(&self, batch: &RecordBatch) -> Result<(Columns, Vec<Option<Row>>), String> {
        let stored = &self.recording.stored;
        let parse = |name: &str, place: Option<usize>, ty: Type| match place {
            Some(place) => from_arrow(batch.column(place), ty)
                .map_err(|reason| format!("column {name}: {reason}")),
            None => Ok(Column::Nulls(batch.num_rows())),
        };
        let fields = stored.declaration.schema.fields.iter();
        let own = self.places.columns.iter().zip(fields);
        let own = own.map(|(place, field)| parse(&field.name, *place, field.ty));
        let columns = Columns {
            own: own.collect::<Result<_, _>>()?,
            weights: match stored.weight() {
                Some(name) => Some(parse(name, self.places.weight, Type::Int)?),
                None => None,
            },
        };
        let ts = parse(stored.instant(), Some(self.places.instant), Type::Time)?;
        let kinds = match self.places.kind {
            Some(place) => Some(parse(KIND, Some(place), Type::Text)?),
            None => None,
        };
        let row = |at: usize| {
            let is_request = match &kinds {
                Some(kinds) => kind(kinds, at)? == EventKind::Request,
                None => false,
            };
            let has_weight = |weights: &Column| int(weights, at).is_some_and(|w| w != 0);
            let is_whole = columns.weights.as_ref().is_none_or(has_weight);
            let ts = int(&ts, at).filter(|_| is_whole)?;
            let at = at as u32;
            Some(Row { ts, is_request, at })
        };
        let rows = (0..batch.num_rows()).map(row).collect();
        Ok((columns, rows))
    }

    /// The rows that can be delivered and are not before the last one, in timestamp order. Those
    /// that cannot be are `None`.
    fn usable(&mut self, rows: Vec<Option<Row>>, first_row: i64) -> Result<Vec<Row>, TapError> {
        if let Some(bad) = rows.iter().position(Option::is_none) {
            let lost = rows.iter().filter(|row| row.is_none()).count();
            self.faults.count("events_lost", MALFORMED, lost as i64);
            let why = match (self.places.kind, self.places.weight) {
                (Some(_), _) => "no timestamp, or a type other than Q, R, E and N",
                (None, Some(_)) => "no timestamp, or no weight",
                (None, None) => "no timestamp",
            };
            let row = first_row + bad as i64;
            self.faults.bad(0, format!("row {row}: {why}"))?;
        }
        let last = self.last_ts;
        let (mut rows, late): (Vec<Row>, Vec<Row>) =
            rows.into_iter().flatten().partition(|row| row.ts >= last);
        self.faults.count("events_lost", LATE, late.len() as i64);
        if !rows.is_sorted_by_key(|row| row.ts) {
            rows.sort_by_key(|row| row.ts);
        }
        Ok(rows)
    }

    fn rows_of(&self, demand: usize, rows: &[Row], columns: &Columns) -> Option<Batch> {
        let demand = &self.demands[demand];
        let stored = &self.recording.stored;
        let of_requests = RequestRows::of(&demand.stream).filter(|_| stored.is_of_requests());
        let is_stored = demand.stream.eq_ignore_ascii_case(&stored.declaration.name);
        if of_requests.is_none() && !is_stored {
            return None;
        }
        let assumed = self.recording.responses_assumed();
        let wanted = |row: &&Row| match of_requests {
            Some(RequestRows::Finished) => !row.is_request,
            Some(RequestRows::Events) => row.is_request || !assumed,
            Some(RequestRows::All) | None => true,
        };
        let picked: Vec<&Row> = rows.iter().filter(wanted).collect();
        if picked.is_empty() {
            return None;
        }
        let whole = columns.own.first().map_or(rows.len(), Column::len);
        let in_place = picked.len() == whole
            && picked
                .iter()
                .enumerate()
                .all(|(i, row)| i == row.at as usize);
        let indices: UInt32Array = picked.iter().map(|row| row.at).collect();
        let width = match of_requests {
            Some(RequestRows::Events) => iostream_schema().len(),
            _ => columns.own.len(),
        };
        let of_demand = columns.own[..width].iter().enumerate().map(|(i, column)| {
            match (demand.columns.contains(&i), in_place) {
                (false, _) => Column::Nulls(picked.len()),
                (true, true) => column.clone(),
                (true, false) => taken(column, &indices),
            }
        });
        let of_demand = of_demand.collect();
        let ts: Vec<Nanos> = picked.iter().map(|row| row.ts).collect();
        Some(match &columns.weights {
            Some(weights) => {
                let weight = |row: &&Row| int(weights, row.at as usize).unwrap_or(1);
                let weights: Vec<i64> = picked.iter().map(weight).collect();
                Batch::deltas(ts, weights, of_demand)
            }
            None => Batch::stream(ts, of_demand),
        })
    }
}

/// The columns of a batch that is read.
struct Columns {
    /// Those of the stream.
    own: Vec<Column>,
    /// The weights of a relation's rows.
    weights: Option<Column>,
}

/// The integer in a row.
fn int(column: &Column, row: usize) -> Option<i64> {
    match column {
        Column::Int(values) if !column.is_null(row) => Some(values.value(row)),
        _ => None,
    }
}

/// The kind of event in a row.
fn kind(column: &Column, row: usize) -> Option<EventKind> {
    match column {
        Column::Text(ids) if !column.is_null(row) => EventKind::ALL
            .into_iter()
            .find(|k| k.symbol().id() == ids.value(row)),
        _ => None,
    }
}

/// The rows of a column at `indices`.
fn taken(column: &Column, indices: &UInt32Array) -> Column {
    use arrow_array::cast::AsArray;
    use arrow_select::take::take;
    let within = "indices are those of the column's rows";
    match column {
        Column::Int(a) => Column::Int(take(a, indices, None).expect(within).as_primitive().clone()),
        Column::Text(a) => {
            Column::Text(take(a, indices, None).expect(within).as_primitive().clone())
        }
        Column::Float(a) => {
            Column::Float(take(a, indices, None).expect(within).as_primitive().clone())
        }
        Column::Bool(a) => Column::Bool(take(a, indices, None).expect(within).as_boolean().clone()),
        Column::Nulls(_) | Column::Tally(_) | Column::Bytes(_) => {
            Column::Nulls(indices.values().len())
        }
    }
}

impl Tap for RecordingTap {
    fn next(&mut self, _timeout: Duration) -> Result<TapEvent, TapError> {
        while self.queued.is_empty() && !self.ended {
            match self.read()? {
                Some(batch) => self.emit(&batch)?,
                None => self.ended = true,
            }
        }
        Ok(self.queued.pop_front().unwrap_or(TapEvent::End))
    }

    fn counts(&mut self) -> Vec<EventCount> {
        let rows = EventCount::of("events_in", None, self.rows_read);
        let own = [vec![rows], self.faults.counts()].concat();
        losses::summed(own.into_iter().chain(self.recording.counts()))
    }

    fn progress(&self) -> Option<f64> {
        let rows = self.recording.rows();
        Some((self.rows_read as f64 / rows.max(1) as f64).clamp(0.0, 1.0))
    }

    fn describe(&self) -> Vec<String> {
        let columns = &self.places.columns;
        let read = columns.iter().flatten().count();
        let reads = format!("reads {read} of {} columns", columns.len());
        [vec![reads], self.recording.remarks()].concat()
    }

    fn messages(&self) -> Vec<String> {
        let path = self.recording.path.display();
        let remarks = self.recording.remarks().into_iter();
        let remarks = remarks.map(|remark| format!("{path}: {remark}"));
        remarks
            .chain(self.faults.messages().iter().cloned())
            .collect()
    }

    fn responses_assumed(&self) -> bool {
        self.recording.responses_assumed()
    }
}
