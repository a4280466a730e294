//! Random windows, and their rows at an instant as DuckDB computes them from all rows.

use fastrand::Rng;

const SECOND_NS: i64 = 1_000_000_000;

/// A window over a stream.
pub struct Window {
    stream: &'static str,
    kind: Kind,
}

enum Kind {
    /// Rows of the last `size`, or all without one; a delayed window ends earlier.
    Range {
        size_ns: Option<i64>,
        slide_ns: Option<i64>,
        delay_ns: i64,
    },
    /// The last rows, of each group of equal keys.
    Rows { count: i64, keys: &'static str },
    /// The rows since the last pause, of each group of equal keys.
    Session { gap_ns: i64, keys: &'static str },
}

impl Window {
    /// A window over `stream`.
    pub fn random(stream: &'static str, rng: &mut Rng) -> Window {
        let mut one = |of: &[i64]| of[rng.usize(0..of.len())];
        let sizes = [
            1_000,
            20_000,
            1_000_000,
            SECOND_NS / 2,
            3 * SECOND_NS,
            10 * SECOND_NS,
        ];
        let slides = [7_000, 1_000_000, SECOND_NS / 10, SECOND_NS, 5 * SECOND_NS];
        let slide_ns = (one(&[0, 1, 1]) == 1).then(|| one(&slides));
        let range = |size_ns, slide_ns, delay_ns| Kind::Range {
            size_ns,
            slide_ns,
            delay_ns,
        };
        let kind = match one(&[0, 1, 2, 3, 4, 5, 6, 7]) {
            7 => Kind::Session {
                gap_ns: one(&sizes),
                keys: ["", "vm", "pid, comm"][one(&[0, 1, 2]) as usize],
            },
            0 => Kind::Rows {
                count: one(&[1, 2, 5]),
                keys: "",
            },
            1 => Kind::Rows {
                count: one(&[1, 3]),
                keys: ["vm", "op", "pid, comm"][one(&[0, 1, 2]) as usize],
            },
            2 => range(None, slide_ns, 0),
            // [Now] holds the rows of one instant.
            3 => range(Some(1), None, 0),
            4 => range(Some(one(&sizes)), slide_ns, one(&[SECOND_NS, 3_000])),
            _ => range(Some(one(&sizes)), slide_ns, 0),
        };
        Window { stream, kind }
    }

    /// The text in CQL.
    pub fn cql(&self) -> String {
        let Window { stream, kind } = self;
        match kind {
            Kind::Session { gap_ns, keys: "" } => format!("{stream} [Session {gap_ns} ns]"),
            Kind::Session { gap_ns, keys } => format!("{stream} [Session {gap_ns} ns By {keys}]"),
            Kind::Rows { count, keys: "" } => format!("{stream} [Rows {count}]"),
            Kind::Rows { count, keys } => format!("{stream} [Partition By {keys} Rows {count}]"),
            Kind::Range {
                size_ns: Some(1), ..
            } => format!("{stream} [Now]"),
            Kind::Range {
                size_ns,
                slide_ns,
                delay_ns,
            } => {
                let size = size_ns.map_or("Unbounded".to_owned(), |ns| format!("{ns} ns"));
                let slide = slide_ns
                    .map(|ns| format!(" Slide {ns} ns"))
                    .unwrap_or_default();
                let delay = match delay_ns {
                    0 => String::new(),
                    ns => format!(" Delay {ns} ns"),
                };
                format!("{stream} [Range {size}{slide}{delay}]")
            }
        }
    }

    /// The rows at the instant `at`, as a table of DuckDB's SQL.
    pub fn sql(&self, at: i64) -> String {
        let Window { stream, kind } = self;
        match kind {
            Kind::Session { gap_ns, keys } => {
                let partition = partition(keys);
                format!(
                    "(SELECT * FROM (SELECT *, max(ns) OVER ({partition}) AS last_ns, \
                     max(CASE WHEN before IS NULL OR ns - before >= {gap_ns} THEN number END) \
                     OVER ({partition}) AS first_number FROM (SELECT *, lag(ns) OVER \
                     ({partition} ORDER BY number) AS before FROM {stream} WHERE ns <= {at})) \
                     WHERE number >= first_number AND last_ns > {at} - {gap_ns})"
                )
            }
            Kind::Rows { count, keys } => {
                let partition = partition(keys);
                format!(
                    "(SELECT * FROM {stream} WHERE ns <= {at} QUALIFY row_number() OVER \
                     ({partition} ORDER BY number DESC) <= {count})"
                )
            }
            Kind::Range {
                size_ns,
                slide_ns,
                delay_ns,
            } => {
                let end = at - slide_ns.map_or(0, |slide| at % slide) - delay_ns;
                let start = size_ns.map_or(0, |size| end - size);
                format!("(SELECT * FROM {stream} WHERE ns > {start} AND ns <= {end})")
            }
        }
    }

    /// The instants at which the window may change because of a row at `ts`.
    pub fn instants(&self, ts: i64) -> Vec<i64> {
        match self.kind {
            Kind::Rows { .. } => vec![ts],
            Kind::Session { gap_ns, .. } => vec![ts, ts + gap_ns],
            Kind::Range {
                size_ns,
                slide_ns,
                delay_ns,
            } => {
                let begin = ts + delay_ns;
                let ends = [Some(begin), size_ns.map(|size| begin + size)];
                let up = |at: i64| {
                    slide_ns.map_or(at, |s| {
                        at.div_euclid(s) * s + if at % s == 0 { 0 } else { s }
                    })
                };
                ends.into_iter().flatten().map(up).collect()
            }
        }
    }

    /// The instant at which the input ends, for a query that reads only this window: an incomplete
    /// slide is shown at its own end.
    pub fn end(&self, last: i64) -> i64 {
        match self.kind {
            Kind::Range {
                slide_ns: Some(slide),
                ..
            } => (last + slide - 1).div_euclid(slide) * slide,
            _ => last,
        }
    }
}

/// PARTITION BY these keys, if there are any.
fn partition(keys: &str) -> String {
    match keys {
        "" => String::new(),
        keys => format!("PARTITION BY {keys}"),
    }
}
