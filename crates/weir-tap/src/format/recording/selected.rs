//! [`Selected`]: the row groups that can have rows of the demands, by the statistics of their
//! columns.

use std::ops::Range;

use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use parquet::file::statistics::Statistics;
use weir_model::{Clause, Demand, Nanos, Operand, Test};

use super::file::Recording;
use super::folded::stored_as;
use super::rows::Layout;

/// The row groups of a recording by whether they are read.
#[derive(Debug)]
pub enum Selected {
    /// They are read.
    Read(Range<usize>),
    /// No demand has rows in them.
    Skipped(SkippedGroups),
}

/// Row groups that are not read.
#[derive(Clone, Copy, Debug)]
pub struct SkippedGroups {
    /// The number of their events, or rows of another stream.
    pub events: i64,
    /// Their last instant.
    pub last_ts: Nanos,
}

/// Selects among `parts`, each of some row groups, in the order of the file.
pub fn selected(
    recording: &Recording,
    layout: &Layout,
    demands: &[Demand],
    parts: impl IntoIterator<Item = Range<usize>>,
) -> Vec<Selected> {
    let is_selective = demands.iter().all(|demand| !demand.predicate.is_all());
    let can_skip = is_selective && recording.has_statistics() && layout.is_of_file();
    let mut reached = can_skip.then_some(Nanos::MIN);
    let mut all = Vec::new();
    for part in parts {
        let times = instants(recording, layout, part.clone());
        let is_in_order = |[first, _]: &[Nanos; 2]| reached.is_some_and(|last| last <= *first);
        // Rows before the last one of an earlier row group are late, and counted.
        let skipped = times.filter(is_in_order).filter(|_| {
            let groups = part.clone().map(|group| recording.group(group));
            groups
                .into_iter()
                .all(|group| !has_rows(group, recording, demands))
        });
        reached = reached.zip(times).map(|(last, [_, end])| last.max(end));
        all.push(match skipped {
            Some([_, last_ts]) => Selected::Skipped(SkippedGroups {
                events: part.map(|group| recording.events_of_group(group)).sum(),
                last_ts,
            }),
            None => Selected::Read(part),
        });
    }
    all
}

/// The first and the last instant of row groups, if each row has one.
fn instants(recording: &Recording, layout: &Layout, part: Range<usize>) -> Option<[Nanos; 2]> {
    let of_group = |group| {
        let chunk = recording.group(group).columns().get(layout.instant())?;
        let statistics = chunk.statistics()?;
        let (Some(0), Statistics::Int64(of_ts)) = (statistics.null_count_opt(), statistics) else {
            return None;
        };
        Some([*of_ts.min_opt()?, *of_ts.max_opt()?])
    };
    let each: Option<Vec<[Nanos; 2]>> = part.map(of_group).collect();
    let each = each?;
    let (first, last) = (
        each.iter().map(|t| t[0]).min()?,
        each.iter().map(|t| t[1]).max()?,
    );
    Some([first, last])
}

/// Whether a row group can have rows that a demand selects.
fn has_rows(group: &RowGroupMetaData, recording: &Recording, demands: &[Demand]) -> bool {
    let schema = &recording.stored.declaration.schema;
    let chunk = |test: &Test| -> Option<&ColumnChunkMetaData> {
        let Operand::Value(at) = test.operand() else {
            return None;
        };
        // The columns of a demand are those of its stream, which are the first of the file's.
        let name = &schema.fields.get(at)?.name;
        if stored_as(name).is_some() {
            return None;
        }
        group
            .columns()
            .iter()
            .find(|chunk| chunk.column_path().string() == *name)
    };
    let can_hold = |test: &Test| {
        let found = chunk(test).and_then(|chunk| Some((chunk, chunk.statistics()?)));
        found.is_none_or(|(chunk, statistics)| holds(test, statistics, chunk.num_values()))
    };
    let can_select = |clause: &Clause| clause.tests.iter().all(can_hold);
    let mut clauses = demands.iter().flat_map(|demand| &demand.predicate.clauses);
    clauses.any(can_select)
}

/// Whether a test can hold for one of `rows` values with these statistics. It holds for no NULL.
fn holds(test: &Test, statistics: &Statistics, rows: i64) -> bool {
    let nulls = statistics
        .null_count_opt()
        .and_then(|nulls| i64::try_from(nulls).ok());
    if nulls == Some(rows) {
        return false;
    }
    match (test, statistics) {
        (Test::Between { low, high, .. }, Statistics::Int64(numbers)) => {
            let (Some(min), Some(max)) = (numbers.min_opt(), numbers.max_opt()) else {
                return true;
            };
            low <= max && min <= high
        }
        // Of long texts the statistics have a lower and an upper bound.
        (Test::In { texts, .. }, Statistics::ByteArray(bounds)) => {
            let (Some(min), Some(max)) = (bounds.min_opt(), bounds.max_opt()) else {
                return true;
            };
            let is_within = |text: &[u8]| min.data() <= text && text <= max.data();
            texts.iter().any(|text| is_within(text.as_str().as_bytes()))
        }
        _ => true,
    }
}
