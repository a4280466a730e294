//! The functions that are only called with `OVER`.

use std::ops::RangeInclusive;

use super::{Example, FunctionDoc};

/// A function that is only called with `OVER`.
#[derive(Debug)]
pub struct WindowFunction {
    /// Its description.
    pub doc: &'static FunctionDoc,
    /// How many arguments it has.
    pub arguments: RangeInclusive<usize>,
}

/// Every one of them, in the order of the reference.
pub static WINDOW_FUNCTIONS: &[WindowFunction] = &[
    WindowFunction {
        doc: &FunctionDoc {
            name: "row_number",
            aliases: &[],
            signature: "row_number() over (order by x)",
            summary: "the position of the row in its partition, from 1",
            details: "Rows with equal sort keys are in the order of the other columns that the query reads.",
            examples: &[Example::over(
                "row_number() over (order by x)",
                "5\n7\n7",
                "3",
            )],
        },
        arguments: 0..=0,
    },
    WindowFunction {
        doc: &FunctionDoc {
            name: "rank",
            aliases: &[],
            signature: "rank() over (order by x)",
            summary: "the position of the first row with the same sort key",
            details: "Equal rows share a rank, and the ranks after it are left out.",
            examples: &[Example::over("rank() over (order by x)", "5\n7\n7", "2")],
        },
        arguments: 0..=0,
    },
    WindowFunction {
        doc: &FunctionDoc {
            name: "dense_rank",
            aliases: &[],
            signature: "dense_rank() over (order by x)",
            summary: "the number of different sort keys up to that of the row",
            details: "",
            examples: &[Example::over(
                "dense_rank() over (order by x)",
                "5\n5\n7",
                "2",
            )],
        },
        arguments: 0..=0,
    },
    WindowFunction {
        doc: &FunctionDoc {
            name: "ntile",
            aliases: &[],
            signature: "ntile(n) over (order by x)",
            summary: "the number of the row's part, from 1, of `n` parts of equal size",
            details: "`n` is a constant. The first parts have one row more where the rows cannot be divided evenly.",
            examples: &[Example::over("ntile(2) over (order by x)", "5\n6\n7", "2")],
        },
        arguments: 1..=1,
    },
    WindowFunction {
        doc: &FunctionDoc {
            name: "percent_rank",
            aliases: &[],
            signature: "percent_rank() over (order by x)",
            summary: "the share of the other rows that are before the row, from 0 to 1",
            details: "`(rank() - 1) / (rows - 1)`; 0 in a partition of one row.",
            examples: &[Example::over(
                "percent_rank() over (order by x)",
                "5\n6\n7",
                "1",
            )],
        },
        arguments: 0..=0,
    },
    WindowFunction {
        doc: &FunctionDoc {
            name: "cume_dist",
            aliases: &[],
            signature: "cume_dist() over (order by x)",
            summary: "the share of the rows up to the row and those with the same sort key",
            details: "More than 0, at most 1.",
            examples: &[Example::over("cume_dist() over (order by x)", "5\n7", "1")],
        },
        arguments: 0..=0,
    },
    WindowFunction {
        doc: &FunctionDoc {
            name: "lag",
            aliases: &[],
            signature: "lag(x [, n [, default]]) over (order by y)",
            summary: "the value of the row that is `n` rows before",
            details: "The row before without `n`. Where there is no such row, `default` or NULL.",
            examples: &[
                Example::over("lag(x) over (order by y)", "5,1\n7,2", "5"),
                Example::over("lag(x, 2, 0) over (order by y)", "5,1\n7,2", "0"),
            ],
        },
        arguments: 1..=3,
    },
    WindowFunction {
        doc: &FunctionDoc {
            name: "lead",
            aliases: &[],
            signature: "lead(x [, n [, default]]) over (order by y)",
            summary: "the value of the row that is `n` rows after",
            details: "The next row without `n`. Where there is no such row, `default` or NULL.",
            examples: &[Example::over(
                "lead(x, 1, -1) over (order by y)",
                "5,1\n7,2",
                "-1",
            )],
        },
        arguments: 1..=3,
    },
    WindowFunction {
        doc: &FunctionDoc {
            name: "first_value",
            aliases: &[],
            signature: "first_value(x) over (order by y)",
            summary: "the value of the first row of the frame",
            details: "Of the partition without a frame. NULL in an empty frame. Without OVER it is the aggregate `first`, which ignores NULLs.",
            examples: &[Example::over(
                "first_value(x) over (order by y)",
                "5,1\n7,2",
                "5",
            )],
        },
        arguments: 1..=1,
    },
    WindowFunction {
        doc: &FunctionDoc {
            name: "last_value",
            aliases: &[],
            signature: "last_value(x) over (order by y)",
            summary: "the value of the last row of the frame",
            details: "The frame ends with the row and its equals, unless another one is given: `rows between unbounded preceding and unbounded following`.",
            examples: &[Example::over(
                "last_value(x) over (order by y rows between unbounded preceding and 1 preceding)",
                "5,1\n7,2",
                "5",
            )],
        },
        arguments: 1..=1,
    },
    WindowFunction {
        doc: &FunctionDoc {
            name: "nth_value",
            aliases: &[],
            signature: "nth_value(x, n) over (order by y)",
            summary: "the value of the row at position `n` of the frame, from 1",
            details: "`n` is a constant. NULL in a frame of fewer rows.",
            examples: &[Example::over(
                "nth_value(x, 2) over (order by y)",
                "5,1\n7,2",
                "7",
            )],
        },
        arguments: 2..=2,
    },
    WindowFunction {
        doc: &FunctionDoc {
            name: "delta",
            aliases: &[],
            signature: "delta(x) [over (order by y)]",
            summary: "the difference of `x` from the row before",
            details: "`x - lag(x) over (..)`. In the order of `ts` without OVER. NULL in the first row.",
            examples: &[Example::over("delta(x) over (order by y)", "5,1\n7,2", "2")],
        },
        arguments: 1..=1,
    },
    WindowFunction {
        doc: &FunctionDoc {
            name: "rate",
            aliases: &[],
            signature: "rate(x) [over (order by ts)]",
            summary: "the difference of `x` from the row before, divided by the seconds between the rows",
            details: "A float in the unit of `x`, per second. In the order of `ts` without OVER; OVER needs a timestamp as its first sort key. NULL in the first row and where no time has passed.",
            examples: &[Example::over(
                "rate(x) over (order by cast(y * 500000000 as timestamp))",
                "5,1\n7,2",
                "4",
            )],
        },
        arguments: 1..=1,
    },
];

/// The window function called `name`, without regard to case.
pub fn find(name: &str) -> Option<&'static WindowFunction> {
    let mut all = WINDOW_FUNCTIONS.iter();
    all.find(|function| function.doc.name.eq_ignore_ascii_case(name))
}
