//! [`tested`]: what a tap in the disk path tests of each column of `IO`, in one table, and its
//! planner's view of it, [`capabilities`].

use weir_model::capabilities::Select;
use weir_model::{Capabilities, ColumnCapabilities, Limits};

use super::words::{CLAUSES_MAX, FieldWord, TESTS_MAX};

/// How a column is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tested {
    /// By the letters of events.
    Kind,
    /// By the letters of operations.
    Op,
    /// By the names of disks.
    Pdisk,
    /// As a number.
    Number(FieldWord),
    /// It is NULL in every event, which passes no test.
    Null,
}

/// The columns that are tested. A sector of the virtual disk is one of the image.
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

/// How a column is tested; `None` if it is not.
pub fn tested(name: &str) -> Option<Tested> {
    let found = TESTED.iter().find(|(column, _)| *column == name);
    found.map(|(_, tested)| *tested)
}

/// What a tap in the disk path can do with `IO` and `IOstream`.
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
