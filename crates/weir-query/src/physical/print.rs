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
                    false => format!("hash {logical}, keeps {}", kept.join(", ")),
                }
            }
            Operation::Group { append_only, .. } => match append_only {
                true => format!("append-only {logical}"),
                false => logical,
            },
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

    fn lines(
        &self,
        depth: usize,
        line: &mut impl FnMut(&Physical, usize) -> fmt::Result,
    ) -> fmt::Result {
        line(self, depth)?;
        let mut inputs = self.inputs.iter();
        inputs.try_for_each(|input| input.lines(depth + 1, line))
    }
}

impl Display for Physical {
    /// A tree, the result first, inputs two blanks further in; closed by a line feed.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let instants = |instants: i64| instants.to_string();
        self.lines(0, &mut |operator, depth| {
            let shared = match operator.sharing {
                Sharing::FifoWindow => " (shared)",
                Sharing::Stateless | Sharing::Relation | Sharing::SameStart => "",
            };
            let title = operator.title_in(&instants);
            writeln!(f, "{:1$}{title}{shared}", "", 2 * depth)
        })
    }
}
