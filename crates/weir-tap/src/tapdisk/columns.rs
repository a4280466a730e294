//! [`tested`]: the test that a tapdisk applies to each column of `IO`, in one table, and the
//! planner's view of it, [`capabilities`].

use weir_model::capabilities::Select;
use weir_model::{Capabilities, ColumnCapabilities, Limits};

use super::words::{CLAUSES_MAX, FieldWord, TESTS_MAX};

/// The test of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tested {
    /// Compares the letters of events.
    Kind,
    /// Compares the letters of operations.
    Op,
    /// Compares the names of disks.
    Pdisk,
    /// Compares a number.
    Number(FieldWord),
    /// The column is NULL in every event, which passes no test.
    Null,
}

/// The columns that are tested. A sector of the virtual disk is a sector of the image.
const TESTED: &[(&str, Tested)] = &[
    ("type", Tested::Kind),
    ("op", Tested::Op),
    ("pdisk", Tested::Pdisk),
    ("sector", Tested::Number(FieldWord::Sector)),
    ("vsector", Tested::Number(FieldWord::Sector)),
    ("sectors", Tested::Number(FieldWord::Sectors)),
    ("wait", Tested::Number(FieldWord::Wait)),
    ("service", Tested::Number(FieldWord::Service)),
    ("latency", Tested::Number(FieldWord::Latency)),
    ("pid", Tested::Null),
    ("comm", Tested::Null),
    ("cgroup", Tested::Null),
    ("cpu", Tested::Null),
    ("merges", Tested::Null),
];

/// The test of a column; `None` if it is not tested.
pub fn tested(name: &str) -> Option<Tested> {
    let found = TESTED.iter().find(|(column, _)| *column == name);
    found.map(|(_, tested)| *tested)
}

/// The capabilities of a tapdisk for `IO` and `IOstream`.
pub fn capabilities() -> Capabilities {
    let limits = Limits {
        clauses: CLAUSES_MAX,
        tests: TESTS_MAX,
        texts: TESTS_MAX,
    };
    let of = |name: &str| {
        let tested = tested(name);
        ColumnCapabilities {
            select: match tested {
                Some(_) => Select::Exact,
                None => Select::No,
            },
            sample: tested == Some(Tested::Number(FieldWord::Sector)),
            ..ColumnCapabilities::default()
        }
    };
    Capabilities::of_io(
        limits,
        "a VM's own requests are delivered one by one",
        Ok(()),
        of,
    )
}
