//! [`ClosedSet`]: the values of a column with a fixed set of values.

use crate::event::{EventKind, Level, Op};

/// A set of texts, each with its full name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClosedSet {
    /// [`EventKind`]: `Q` or `request`, and so on.
    EventKind,
    /// [`Op`]: `r` or `read`, and so on.
    Op,
    /// [`Level`]: `vdisk`, `vfs`, `block`, `guest`.
    Level,
}

impl ClosedSet {
    /// All sets.
    pub const ALL: [ClosedSet; 3] = [ClosedSet::EventKind, ClosedSet::Op, ClosedSet::Level];

    /// Each value as in the column, and its name.
    pub fn values(self) -> Vec<(&'static str, &'static str)> {
        match self {
            ClosedSet::EventKind => EventKind::ALL.map(|k| (k.as_str(), k.name())).into(),
            ClosedSet::Op => Op::ALL.map(|op| (op.as_str(), op.name())).into(),
            ClosedSet::Level => Level::ALL.map(|l| (l.as_str(), l.as_str())).into(),
        }
    }

    /// Whether a text is one of the values, as in the column.
    pub fn has(self, text: &str) -> bool {
        self.values().iter().any(|(value, _)| *value == text)
    }

    /// The value of a text: the value itself or its name, without regard to case.
    pub fn find(self, text: &str) -> Option<&'static str> {
        let mut values = self.values().into_iter();
        let found = values.find(|(value, name)| {
            value.eq_ignore_ascii_case(text) || name.eq_ignore_ascii_case(text)
        });
        found.map(|(value, _)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_by_itself_and_by_its_name() {
        for set in ClosedSet::ALL {
            for (value, name) in set.values() {
                for text in [value, name, &name.to_uppercase()] {
                    assert_eq!(set.find(text), Some(value), "{text}");
                }
            }
            assert_eq!(set.find("nosuch"), None);
        }
        assert_eq!(ClosedSet::Op.find("write_zeroes"), Some("z"));
    }
}
