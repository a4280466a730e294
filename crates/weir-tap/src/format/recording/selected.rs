//! [`Selected`]: the row groups that can have rows of the demands, by the statistics of their
//! columns.

use std::ops::Range;

use parquet::file::metadata::RowGroupMetaData;
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

/// Selects among `parts`, each of some row groups, in the order of the file. The first and the last
/// one are read in any case: with them a run begins and ends at the times of the recording.
pub fn selected(
    recording: &Recording,
    layout: &Layout,
    demands: &[Demand],
    parts: impl IntoIterator<Item = Range<usize>>,
) -> Vec<Selected> {
    let parts: Vec<Range<usize>> = parts.into_iter().collect();
    let is_selective = demands.iter().all(|demand| !demand.predicate.is_all());
    let mut clauses = demands.iter().flat_map(|d| &d.predicate.clauses).peekable();
    // Without a clause, the counts of all events are of interest. With `strict`, each row is.
    let can_skip = is_selective
        && clauses.peek().is_some()
        && recording.has_statistics()
        && !recording.strict
        && layout.is_of_file();
    if !can_skip {
        return parts.into_iter().map(Selected::Read).collect();
    }
    let clauses: Vec<&Clause> = clauses.collect();
    let chunks = chunks_of(recording);
    let (mut reached, last) = (Some(Nanos::MIN), parts.len().saturating_sub(1));
    let mut all: Vec<Selected> = Vec::new();
    for (number, part) in parts.into_iter().enumerate() {
        let times = instants(recording, layout, part.clone());
        // Rows before the last one of an earlier row group are late, and counted.
        let is_in_order = |[first, _]: &[Nanos; 2]| reached.is_some_and(|last| last <= *first);
        let can_skip = number != 0 && number != last;
        let skipped = times.filter(is_in_order).filter(|_| {
            let mut groups = part.clone();
            can_skip && groups.all(|group| !has_rows(recording.group(group), &chunks, &clauses))
        });
        reached = reached.zip(times).map(|(last, [_, end])| last.max(end));
        let Some([_, last_ts]) = skipped else {
            all.push(Selected::Read(part));
            continue;
        };
        let events = part.map(|group| recording.events_of_group(group).max(0));
        let events = events.fold(0, i64::saturating_add);
        match all.last_mut() {
            Some(Selected::Skipped(before)) => {
                before.events = before.events.saturating_add(events);
                before.last_ts = last_ts;
            }
            _ => all.push(Selected::Skipped(SkippedGroups { events, last_ts })),
        }
    }
    all
}

/// The position of the column chunk of each column of the stream; `None` for those that are not in
/// the file, or in another form.
fn chunks_of(recording: &Recording) -> Vec<Option<usize>> {
    let columns = recording.metadata.metadata().file_metadata().schema_descr();
    let named = |name: &str| {
        let mut columns = columns.columns().iter();
        columns.position(|column| column.name() == name)
    };
    let fields = recording.stored.declaration.schema.fields.iter();
    fields
        .map(|field| match stored_as(&field.name) {
            Some(_) => None,
            None => named(&field.name),
        })
        .collect()
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

/// Whether a row group can have rows that pass one of the clauses.
fn has_rows(group: &RowGroupMetaData, chunks: &[Option<usize>], clauses: &[&Clause]) -> bool {
    // The columns of a demand are those of its stream, which are the first of the recording's.
    let chunk = |test: &Test| match test.operand() {
        Operand::Value(at) => group.columns().get((*chunks.get(at)?)?),
        Operand::Sample(_) => None,
    };
    let can_hold = |test: &Test| {
        let found = chunk(test).and_then(|chunk| Some((chunk, chunk.statistics()?)));
        found.is_none_or(|(chunk, statistics)| holds(test, statistics, chunk.num_values()))
    };
    let mut clauses = clauses.iter();
    clauses.any(|clause| clause.tests.iter().all(can_hold))
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
