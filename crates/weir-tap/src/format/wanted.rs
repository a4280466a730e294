//! Tests a demand's predicate on a row. Rows that fail are not built; the engine tests the others
//! again.

use weir_model::capabilities::Select;
use weir_model::event::io_schema;
use weir_model::{
    Capabilities, Clause, ColumnCapabilities, IoEvent, Predicate, SelectionLimits, Test, Type,
};

/// Columns that are set after the source, or do not describe the request.
pub const NOT_TESTED: [&str; 3] = ["host", "agent_ts", "monitor_ts"];

/// The times of a request. Without the rows outside of a range of them, a run would not begin and
/// end at the times of the trace.
const TIMES: [&str; 2] = ["ts", "issue_ts"];

/// The size of a selection of a file's rows.
pub const LIMITS: SelectionLimits = SelectionLimits {
    clauses: 64,
    tests: 32,
    texts: 64,
};

/// The capabilities of sources that have complete requests: they test all columns.
pub fn capabilities(groups: &str, paired: Result<(), String>) -> Capabilities {
    let schema = io_schema();
    Capabilities::of_io(LIMITS, groups, paired, |name| ColumnCapabilities {
        select: match NOT_TESTED.contains(&name) || TIMES.contains(&name) {
            true => Select::No,
            false => Select::Exact,
        },
        sample: schema[schema.index(name)].ty == Type::Int,
        ..ColumnCapabilities::default()
    })
}

/// True when the row passes.
pub fn passes(predicate: &Predicate, row: &IoEvent) -> bool {
    predicate.clauses.iter().any(|clause| holds(clause, row))
}

fn holds(clause: &Clause, row: &IoEvent) -> bool {
    clause.tests.iter().all(|test| match test {
        Test::Between { operand, low, high } => {
            let number = row.number(operand.column());
            number.is_some_and(|x| (*low..=*high).contains(&operand.of(x)))
        }
        Test::In { operand, texts } => {
            let text = row.text(operand.column());
            text.is_some_and(|x| texts.contains(&x))
        }
    })
}
