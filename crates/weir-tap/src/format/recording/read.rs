//! [`RecordingTap`]: a recording as a tap. Only the columns that the demands name are read.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::UInt32Array;
use arrow_buffer::ScalarBuffer;
use arrow_select::take::take;
use weir_model::capabilities::RequestRows;
use weir_model::event::iostream_schema;
use weir_model::{Batch, Column, Demand, Nanos};

use super::super::fault::{Faults, LATE, MALFORMED};
use super::super::replay::before;
use super::ahead::{self, NextGroups, RowGroups};
use super::file::Recording;
use super::losses;
use super::rows::{Columns, Deliverable, Layout, Row, Rows, int, selected};
use super::selected::SkippedGroups;
use crate::{EventCount, Tap, TapError, TapEvent};

/// Rows of a batch that is delivered at most: those of a block are more than fit into a cache.
const EMITTED_ROWS_MAX: usize = 4096;

/// A recording as a tap.
pub struct RecordingTap {
    recording: Arc<Recording>,
    layout: Arc<Layout>,
    groups: RowGroups,
    demands: Vec<Demand>,
    faults: Faults,
    queued: VecDeque<TapEvent>,
    ended: bool,
    last_ts: Nanos,
    /// The number of events, or rows of another stream, so far.
    rows_read: i64,
    /// Those of row groups that were skipped.
    rows_skipped: i64,
}

impl Recording {
    /// A tap that serves `demands`.
    ///
    /// # Errors
    /// If the file lacks a column that a row of its stream must have.
    pub fn start(self, demands: &[Demand]) -> Result<RecordingTap, TapError> {
        let read = Layout::new(&self.metadata, &self.stored, demands);
        let layout = read.map_err(|reason| TapError::Malformed {
            path: self.path.clone(),
            offset: 0,
            reason,
        })?;
        let faults = Faults::new(&self.path, self.strict);
        let (recording, layout) = (Arc::new(self), Arc::new(layout));
        Ok(RecordingTap {
            groups: RowGroups::new(recording.clone(), layout.clone(), demands),
            layout,
            demands: demands.to_vec(),
            faults,
            recording,
            queued: VecDeque::new(),
            ended: false,
            last_ts: Nanos::MIN,
            rows_read: 0,
            rows_skipped: 0,
        })
    }
}

impl RecordingTap {
    /// Queues the rows of a batch for each demand.
    fn emit(&mut self, batch: ahead::Batch) -> Result<(), TapError> {
        let first_row = self.rows_read;
        self.rows_read = self.rows_read.saturating_add(batch.events as i64);
        let rows = match batch.rows {
            Ok(rows) => rows,
            Err(reason) => {
                let reason = format!("rows from {first_row} on: {reason}");
                self.faults
                    .count("events_lost", MALFORMED, batch.events as i64);
                return self.faults.bad(0, reason);
            }
        };
        if let Some(reason) = &rows.incomplete {
            let reason = format!("rows from {first_row} on: {reason}");
            self.faults.bad(0, reason)?;
        }
        let rows = match rows.deliverable {
            Deliverable::All {
                ts,
                span: Some([first, last]),
            } if first >= self.last_ts => {
                self.emit_all(&rows.columns.own, &ts);
                // The time of requests that no demand gets has passed as well.
                if self.last_ts < last {
                    self.last_ts = last;
                    self.queued.push_back(TapEvent::Heartbeat(before(last)));
                }
                return Ok(());
            }
            _ => rows,
        };
        let (columns, rows) = self.usable(rows, first_row)?;
        for rows in rows.chunks(EMITTED_ROWS_MAX) {
            for demand in 0..self.demands.len() {
                if let Some(batch) = self.rows_of(demand, rows, &columns) {
                    self.queued.push_back(TapEvent::Rows { demand, batch });
                }
            }
            self.last_ts = rows[rows.len() - 1].ts;
            self.queued
                .push_back(TapEvent::Heartbeat(before(self.last_ts)));
        }
        Ok(())
    }

    /// Queues all rows of a batch for each demand: no requests, in timestamp order, and none before
    /// the last one.
    fn emit_all(&mut self, own: &[Column], ts: &ScalarBuffer<Nanos>) {
        let assumed = self.recording.responses_assumed();
        for first in (0..ts.len()).step_by(EMITTED_ROWS_MAX) {
            let len = EMITTED_ROWS_MAX.min(ts.len() - first);
            for (number, demand) in self.demands.iter().enumerate() {
                let is_of_events = self.of_requests(demand) == Some(RequestRows::Events);
                let width = self.width_for(demand, own.len());
                let Some(width) = width.filter(|_| !(is_of_events && assumed)) else {
                    continue;
                };
                let column = |(at, column): (usize, &Column)| match demand.columns.contains(&at) {
                    true => column.slice(first, len),
                    false => Column::Nulls(len),
                };
                let columns = own[..width].iter().enumerate().map(column);
                let batch = Batch::stream(ts.slice(first, len), columns.collect());
                self.queued.push_back(TapEvent::Rows {
                    demand: number,
                    batch,
                });
            }
            self.last_ts = ts[first + len - 1];
            self.queued
                .push_back(TapEvent::Heartbeat(before(self.last_ts)));
        }
    }

    /// The rows that a demand gets of a recording of requests; `None` if that or the demand is of
    /// another stream.
    fn of_requests(&self, demand: &Demand) -> Option<RequestRows> {
        let is_of_requests = self.recording.stored.is_of_requests();
        RequestRows::of(&demand.stream).filter(|_| is_of_requests)
    }

    /// How many of `all` columns the rows of a demand have; `None` if it is of another stream than
    /// the recording.
    fn width_for(&self, demand: &Demand, all: usize) -> Option<usize> {
        match self.of_requests(demand) {
            Some(RequestRows::Events) => Some(iostream_schema().len()),
            Some(RequestRows::Finished | RequestRows::All) => Some(all),
            None => {
                let name = &self.recording.stored.declaration.name;
                demand.stream.eq_ignore_ascii_case(name).then_some(all)
            }
        }
    }

    /// The columns of a batch, and those of its rows that can be delivered and are not before the
    /// last one, in timestamp order.
    fn usable(&mut self, batch: Rows, first_row: i64) -> Result<(Columns, Vec<Row>), TapError> {
        if let Some(bad) = batch.bad {
            self.faults
                .count("events_lost", MALFORMED, batch.lost as i64);
            let (row, why) = (first_row + bad as i64, self.layout.needs());
            self.faults.bad(0, format!("row {row}: {why}"))?;
        }
        let mut rows = match batch.deliverable {
            Deliverable::Some(rows) => rows,
            Deliverable::All { ts, .. } => {
                let row = |(at, &ts): (u32, &Nanos)| Row {
                    ts,
                    at,
                    is_request: false,
                    is_in_response: false,
                };
                (0..).zip(ts.iter()).map(row).collect()
            }
        };
        let all = rows.len();
        let last = self.last_ts;
        rows.retain(|row| row.ts >= last);
        self.faults
            .count("events_lost", LATE, (all - rows.len()) as i64);
        if !rows.is_sorted_by_key(|row| row.ts) {
            rows.sort_by_key(|row| row.ts);
        }
        Ok((batch.columns, rows))
    }

    fn rows_of(&self, demand: usize, rows: &[Row], columns: &Columns) -> Option<Batch> {
        let demand = &self.demands[demand];
        let width = self.width_for(demand, columns.own.len())?;
        let of_requests = self.of_requests(demand);
        let assumed = self.recording.responses_assumed();
        let wanted = |row: &&Row| match of_requests {
            Some(RequestRows::Finished) => !row.is_request,
            Some(RequestRows::Events) => row.is_request || !assumed,
            Some(RequestRows::All) | None => true,
        };
        let picked: Vec<Row> = rows.iter().filter(wanted).copied().collect();
        let first = picked.first()?.at;
        let ts: Vec<Nanos> = picked.iter().map(|row| row.ts).collect();
        let in_place = (first..).zip(&picked).all(|(at, row)| at == row.at);
        let indices: UInt32Array = picked.iter().map(|row| row.at).collect::<Vec<u32>>().into();
        let requests = columns.requests.as_ref();
        let requests = requests.filter(|_| picked.iter().any(|row| row.is_in_response));
        let requests = requests.map(|requests| (requests, requests.valid(&picked)));
        let of_demand = columns.own[..width].iter().enumerate().map(|(i, column)| {
            if !demand.columns.contains(&i) {
                return Column::Nulls(ts.len());
            }
            let column = match in_place {
                true => column.slice(first as usize, picked.len()),
                false => taken(column, &indices),
            };
            match &requests {
                Some((requests, valid)) => requests.of_rows(i, column, &picked, valid),
                None => column,
            }
        });
        let of_demand = of_demand.collect();
        Some(match &columns.weights {
            Some(weights) => {
                let weight = |row: &u32| int(weights, *row as usize).unwrap_or(1);
                let weights: Vec<i64> = indices.values().iter().map(weight).collect();
                Batch::deltas(ts, weights, of_demand)
            }
            None => Batch::stream(ts, of_demand),
        })
    }
}

/// The rows of a column at `indices`.
pub(super) fn taken(column: &Column, indices: &UInt32Array) -> Column {
    selected(column, indices.values().len(), |array| {
        take(array, indices, None).expect("indices are those of the column's rows")
    })
}

impl Tap for RecordingTap {
    fn next(&mut self, _timeout: Duration) -> Result<TapEvent, TapError> {
        while self.queued.is_empty() && !self.ended {
            match self.groups.next() {
                Some(NextGroups::Batch(batch)) => self.emit(batch)?,
                Some(NextGroups::Unreadable(group)) => {
                    self.faults.bad(group.offset, group.reason)?;
                    self.faults
                        .count("events_lost", MALFORMED, group.events_lost);
                }
                Some(NextGroups::Skipped(SkippedGroups { events, last_ts })) => {
                    self.rows_read = self.rows_read.saturating_add(events);
                    self.rows_skipped = self.rows_skipped.saturating_add(events);
                    self.last_ts = self.last_ts.max(last_ts);
                    self.queued
                        .push_back(TapEvent::Heartbeat(before(self.last_ts)));
                }
                None => self.ended = true,
            }
        }
        Ok(self.queued.pop_front().unwrap_or(TapEvent::End))
    }

    fn counts(&mut self) -> Vec<EventCount> {
        let rows = EventCount::of("events_in", None, self.rows_read);
        let skipped = EventCount::of("events_avoided", None, self.rows_skipped);
        let skipped = Some(skipped).filter(|count| count.total > 0);
        let own = [rows].into_iter().chain(skipped);
        let own = own.chain(self.faults.counts());
        losses::summed(own.chain(self.recording.counts()))
    }

    fn progress(&self) -> Option<f64> {
        let rows = self.recording.rows();
        Some((self.rows_read as f64 / rows.max(1) as f64).clamp(0.0, 1.0))
    }

    fn describe(&self) -> Vec<String> {
        let (read, all) = (self.layout.named, self.layout.columns.len());
        let reads = format!("reads {read} of {all} columns");
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
