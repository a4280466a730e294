//! [`RecordingTap`]: a recording as a tap. Only the columns that the demands name are read.

use std::collections::VecDeque;
use std::time::Duration;

use arrow_array::{RecordBatch, UInt32Array};
use arrow_schema::DataType;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ParquetRecordBatchReader};
use weir_model::event::{io_schema, iostream_schema};
use weir_model::{Batch, Column, Demand, EventKind, Nanos, Schema};

use super::super::fault::{Faults, LATE, MALFORMED};
use super::super::replay::before;
use super::column::from_arrow;
use super::file::{Recording, guarded};
use super::losses;
use crate::{Count, RECORDING, Said, Tap, TapError};

/// A recording as a tap.
pub struct RecordingTap {
    recording: Recording,
    schema: Schema,
    /// For each column of the schema, its position in the batches that are read.
    columns: Vec<Option<usize>>,
    mask: ProjectionMask,
    demands: Vec<Demand>,
    faults: Faults,
    group: usize,
    reader: Option<ParquetRecordBatchReader>,
    rows_in_group: i64,
    said: VecDeque<Said>,
    ended: bool,
    last_ts: Nanos,
    rows_read: i64,
}

impl Recording {
    /// A tap that serves `demands`.
    ///
    /// # Errors
    /// If the file lacks a column that every recording has.
    pub fn start(self, demands: &[Demand]) -> Result<RecordingTap, TapError> {
        let schema = io_schema();
        let read = columns_to_read(&self.metadata, &schema, demands);
        let (columns, mask) = read.map_err(|reason| TapError::Malformed {
            path: self.path.clone(),
            offset: 0,
            reason,
        })?;
        Ok(RecordingTap {
            columns,
            mask,
            schema,
            demands: demands.to_vec(),
            faults: Faults::new(&self.path, self.strict),
            recording: self,
            group: 0,
            reader: None,
            rows_in_group: 0,
            said: VecDeque::new(),
            ended: false,
            last_ts: Nanos::MIN,
            rows_read: 0,
        })
    }
}

/// For each column of the schema, its position in the batches; and the columns to read: those of
/// the demands, time and type. Columns of NULLs only, as pandas writes them, are excluded: the
/// Parquet library panics at some.
fn columns_to_read(
    metadata: &ArrowReaderMetadata,
    schema: &Schema,
    demands: &[Demand],
) -> Result<(Vec<Option<usize>>, ProjectionMask), String> {
    let fields = metadata.schema().fields();
    let needed = |name: &str| name == "ts" || name == "type";
    let wanted = |name: &str| {
        let at = schema.fields.iter().position(|f| f.name == name);
        at.is_some_and(|at| needed(name) || demands.iter().any(|d| d.columns.contains(&at)))
    };
    let all_null = |ty: &DataType| match ty {
        DataType::Dictionary(_, values) => **values == DataType::Null,
        ty => *ty == DataType::Null,
    };
    let read: Vec<usize> = (0..fields.len())
        .filter(|&i| wanted(fields[i].name()) && !all_null(fields[i].data_type()))
        .collect();
    let place = |name: &str| read.iter().position(|&i| fields[i].name() == name);
    if let Some(missing) = ["ts", "type"]
        .into_iter()
        .find(|name| place(name).is_none())
    {
        return Err(format!(
            "a Parquet file without column `{missing}` is not a recording"
        ));
    }
    let columns = schema
        .fields
        .iter()
        .map(|field| place(&field.name))
        .collect();
    let mask = ProjectionMask::roots(metadata.parquet_schema(), read.iter().copied());
    Ok((columns, mask))
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
    fn say(&mut self, batch: &RecordBatch) -> Result<(), TapError> {
        let first_row = self.rows_read;
        self.rows_read += batch.num_rows() as i64;
        let mut columns = Vec::with_capacity(self.columns.len());
        for (place, field) in self.columns.iter().zip(&self.schema.fields) {
            let column = match place {
                Some(place) => from_arrow(batch.column(*place), field.ty),
                None => Ok(Column::Nulls(batch.num_rows())),
            };
            match column {
                Ok(column) => columns.push(column),
                Err(reason) => {
                    let reason =
                        format!("rows from {first_row} on: column {}: {reason}", field.name);
                    self.faults
                        .count("events_lost", MALFORMED, batch.num_rows() as i64);
                    return self.faults.bad(0, reason);
                }
            }
        }
        let (ts, kinds) = (self.schema.index("ts"), self.schema.index("type"));
        let rows = self.usable(&columns[ts], &columns[kinds], first_row)?;
        let Some(&(last, _, _)) = rows.last() else {
            return Ok(());
        };
        for demand in 0..self.demands.len() {
            if let Some(batch) = self.rows_of(demand, &rows, &columns) {
                self.said.push_back(Said::Rows { demand, batch });
            }
        }
        self.last_ts = last;
        self.said.push_back(Said::Heartbeat(before(last)));
        Ok(())
    }

    /// The rows that have a timestamp, not before the last one, and a type: timestamp, type and
    /// position, in timestamp order.
    fn usable(
        &mut self,
        ts: &Column,
        kinds: &Column,
        first_row: i64,
    ) -> Result<Vec<(Nanos, EventKind, u32)>, TapError> {
        let mut rows = Vec::with_capacity(ts.len());
        let (mut bad, mut late) = (None, 0);
        for row in 0..ts.len() {
            let kind = match kinds {
                Column::Text(ids) if !kinds.is_null(row) => EventKind::ALL
                    .into_iter()
                    .find(|k| k.symbol().id() == ids.value(row)),
                _ => None,
            };
            match (ts, kind) {
                (Column::Int(times), Some(kind)) if !ts.is_null(row) => {
                    let time = times.value(row);
                    match time < self.last_ts {
                        true => late += 1,
                        false => rows.push((time, kind, row as u32)),
                    }
                }
                _ => {
                    bad.get_or_insert(row);
                    self.faults.count("events_lost", MALFORMED, 1);
                }
            }
        }
        if let Some(row) = bad {
            let row = first_row + row as i64;
            self.faults.bad(
                0,
                format!("row {row}: no timestamp, or a type other than Q, R, E and N"),
            )?;
        }
        self.faults.count("events_lost", LATE, late);
        if !rows.is_sorted_by_key(|r| r.0) {
            rows.sort_by_key(|r| r.0);
        }
        Ok(rows)
    }

    fn rows_of(
        &self,
        demand: usize,
        rows: &[(Nanos, EventKind, u32)],
        columns: &[Column],
    ) -> Option<Batch> {
        let demand = &self.demands[demand];
        let is = |name: &str| demand.stream.eq_ignore_ascii_case(name);
        let (io, iostream) = (is("IO"), is("IOstream"));
        let wanted = |kind: EventKind| match kind {
            EventKind::Request => !io,
            _ => !(iostream && self.recording.responses_assumed()),
        };
        if !io && !iostream && !is(RECORDING) {
            return None;
        }
        let picked: Vec<_> = rows.iter().filter(|(_, kind, _)| wanted(*kind)).collect();
        if picked.is_empty() {
            return None;
        }
        let in_place = picked.len() == columns[0].len()
            && picked
                .iter()
                .enumerate()
                .all(|(i, (_, _, row))| i == *row as usize);
        let indices: UInt32Array = picked.iter().map(|(_, _, row)| *row).collect();
        let width = match iostream {
            true => iostream_schema().len(),
            false => self.schema.len(),
        };
        let columns = columns[..width].iter().enumerate().map(|(i, column)| {
            match (demand.columns.contains(&i), in_place) {
                (false, _) => Column::Nulls(picked.len()),
                (true, true) => column.clone(),
                (true, false) => taken(column, &indices),
            }
        });
        let ts: Vec<Nanos> = picked.iter().map(|(ts, _, _)| *ts).collect();
        Some(Batch::stream(ts, columns.collect()))
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
    fn next(&mut self, _patience: Duration) -> Result<Said, TapError> {
        while self.said.is_empty() && !self.ended {
            match self.read()? {
                Some(batch) => self.say(&batch)?,
                None => self.ended = true,
            }
        }
        Ok(self.said.pop_front().unwrap_or(Said::End))
    }

    fn counts(&mut self) -> Vec<Count> {
        let rows = Count {
            counter: "events_in",
            cause: None,
            device: None,
            total: self.rows_read,
        };
        let own = [vec![rows], self.faults.counts()].concat();
        losses::summed(own.into_iter().chain(self.recording.counts()))
    }

    fn progress(&self) -> Option<f64> {
        let rows = self.recording.rows();
        Some((self.rows_read as f64 / rows.max(1) as f64).clamp(0.0, 1.0))
    }

    fn describe(&self) -> Vec<String> {
        let read = self.columns.iter().flatten().count();
        let reads = format!("reads {read} of {} columns", self.columns.len());
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
