//! The physical plan as text, for `weir explain` and for tests.

use std::fmt::{self, Display, Formatter};

use super::{Operation, Physical, Sharing};

impl Physical {
    /// The operator in one line; `interval` formats intervals of time.
    pub fn title_in(&self, interval: &dyn Fn(i64) -> String) -> String {
        let logical = self.logical.title_in(interval);
        match &self.operation {
            Operation::Source(source) if source.fold.is_some() => {
                format!("groups and rows of {}", source.name)
            }
            Operation::Join { windows, .. } => {
                let kept = ["left", "right"].into_iter().zip(windows);
                let kept = kept.filter_map(|(side, size)| {
                    let size = interval((*size)?);
                    Some(format!("{side} rows for {size}"))
                });
                let kept: Vec<String> = kept.collect();
                match kept.is_empty() {
                    true => format!("hash {logical}"),
                    false => format!("hash {logical}, stores {}", kept.join(", ")),
                }
            }
            Operation::Group { append_only, .. } => match append_only {
                true => format!("append-only {logical}"),
                false => logical,
            },
            Operation::FinalGroup { .. } => format!("final {logical}"),
            Operation::TumblingGroup {
                interval: every,
                preaggregated,
                ..
            } => {
                let every = interval(*every);
                match preaggregated {
                    Some(reading) if reading.panes > 1 => format!(
                        "{logical} of preaggregated groups, {} times {every}",
                        reading.panes
                    ),
                    Some(_) => format!("{logical} of preaggregated groups, every {every}"),
                    None => format!("tumbling {logical}, every {every}"),
                }
            }
            _ => logical,
        }
    }

    /// The operators of the tree, the result first, each with its depth. `interval` formats
    /// intervals of time.
    pub fn operators(&self, interval: &dyn Fn(i64) -> String) -> Vec<(usize, String)> {
        let shared = match self.sharing {
            Sharing::FifoWindow => " (shared)",
            Sharing::Stateless | Sharing::Relation | Sharing::SameStart => "",
        };
        let mut operators = vec![(0, format!("{}{shared}", self.title_in(interval)))];
        for input in &self.inputs {
            let below = input.operators(interval).into_iter();
            operators.extend(below.map(|(depth, title)| (depth + 1, title)));
        }
        operators
    }
}

impl Display for Physical {
    /// A tree, the result first, inputs two blanks further in; closed by a line feed.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let operators = self.operators(&|instants| instants.to_string());
        operators
            .iter()
            .try_for_each(|(depth, title)| writeln!(f, "{:1$}{title}", "", 2 * depth))
    }
}
