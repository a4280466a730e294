//! MATCH_RECOGNIZE by its definition: for each first row all ways to match are tried one after the
//! other, in the order of preference, by backtracking over all rows so far.

use std::cell::RefCell;
use std::cmp::Ordering;

use weir_model::{Symbol, Value};
use weir_query::plan::RowMatch;
use weir_query::plan::row_match::{AfterMatch, MatchEnd, MatchResult, Navigation, RowPattern};

use super::{aggregate, expr, relation};
use crate::support::Row;

/// The rows of a match: their positions in the partition, and their variables.
type Path = Vec<(usize, usize)>;

/// The result of trying ways in their order.
enum Tried {
    /// The first way that completes the pattern.
    Match(Path),
    /// A way that further rows or time may complete.
    Open,
    None,
}

type Outcome = Result<Tried, String>;

/// The rows of a partition so far, in order, and the time.
struct Rows<'a> {
    by: &'a RowMatch,
    rows: &'a [(i64, &'a Row)],
    now: i64,
}

/// The matches, as time passes.
pub struct Matches<'a> {
    by: &'a RowMatch,
    /// The matches of each partition that are known already.
    known: RefCell<Vec<(Row, Vec<Path>)>>,
}

impl Matches<'_> {
    pub fn new(by: &RowMatch) -> Matches<'_> {
        let known = RefCell::default();
        Matches { by, known }
    }

    /// The rows of the matches that are complete at `now` and were not before. Called at each
    /// instant in turn.
    pub fn at(&self, now: i64, instants: &[i64], rows: &[Vec<Row>]) -> Result<Vec<Row>, String> {
        let mut partitions: Vec<(Row, Vec<(i64, &Row)>)> = Vec::new();
        for (ts, row) in instants
            .iter()
            .zip(rows)
            .flat_map(|(ts, rows)| rows.iter().map(|row| (*ts, row)))
        {
            let key = expr::all(&self.by.keys, row)?;
            match partitions.iter_mut().find(|(known, _)| *known == key) {
                Some((_, rows)) => rows.push((ts, row)),
                None => partitions.push((key, vec![(ts, row)])),
            }
        }
        let mut emitted = Vec::new();
        for (key, rows) in partitions {
            let rows = self.ordered(rows)?;
            let partition = Rows {
                by: self.by,
                rows: &rows,
                now,
            };
            let found = partition.matches()?;
            let mut known = self.known.borrow_mut();
            let at = known
                .iter()
                .position(|(k, _)| *k == key)
                .unwrap_or_else(|| {
                    known.push((key.clone(), Vec::new()));
                    known.len() - 1
                });
            for path in found {
                if !known[at].1.contains(&path) {
                    known[at].1.push(path.clone());
                    let number = known[at].1.len() as i64;
                    let results = partition.results(&path, number)?;
                    emitted.push([key.clone(), results].concat());
                }
            }
        }
        Ok(emitted)
    }

    fn ordered<'r>(&self, rows: Vec<(i64, &'r Row)>) -> Result<Vec<(i64, &'r Row)>, String> {
        let mut keyed = Vec::new();
        for (ts, row) in rows {
            let keys = self.by.order.iter().map(|key| expr::value(&key.expr, row));
            keyed.push((ts, keys.collect::<Result<Row, String>>()?, row));
        }
        keyed.sort_by(|a, b| {
            let pairs = self.by.order.iter().zip(a.1.iter().zip(&b.1));
            let mut pairs = pairs.map(|(key, (a, b))| relation::order(key, a, b));
            let by_keys = pairs.find(|o| o.is_ne()).unwrap_or(Ordering::Equal);
            a.0.cmp(&b.0).then(by_keys).then_with(|| a.2.cmp(b.2))
        });
        Ok(keyed.into_iter().map(|(ts, _, row)| (ts, row)).collect())
    }
}

impl Rows<'_> {
    /// All matches that are complete.
    fn matches(&self) -> Result<Vec<Path>, String> {
        let mut found = Vec::new();
        let mut start = 0;
        while start < self.rows.len() {
            let tried = self.way(&self.by.pattern, start, Vec::new(), &|path| {
                self.end(start, path)
            })?;
            start = match (tried, self.by.after) {
                (Tried::Match(path), AfterMatch::PastLastRow) => {
                    let last = path[path.len() - 1].0;
                    found.push(path);
                    last + 1
                }
                (Tried::Match(path), AfterMatch::ToNextRow) => {
                    found.push(path);
                    start + 1
                }
                (Tried::Open, AfterMatch::PastLastRow) => break,
                (Tried::Open | Tried::None, _) => start + 1,
            };
        }
        Ok(found)
    }

    /// Whether a row is too late for the match that begins at `start`; without a row, whether all
    /// rows to come are.
    fn is_late(&self, start: usize, row: Option<usize>) -> bool {
        let end = self.by.within.map(|within| self.rows[start].0 + within);
        let ts = row.map_or(self.now, |row| self.rows[row].0);
        end.is_some_and(|end| ts >= end)
    }

    /// The ways to match `pattern` after `path`, each followed by `then`.
    fn way(
        &self,
        pattern: &RowPattern,
        start: usize,
        path: Path,
        then: &dyn Fn(Path) -> Outcome,
    ) -> Outcome {
        match pattern {
            RowPattern::Variable(variable) => {
                let row = path.last().map_or(start, |last| last.0 + 1);
                if row == self.rows.len() {
                    return Ok(match self.is_late(start, None) {
                        true => Tried::None,
                        false => Tried::Open,
                    });
                }
                let taken = !self.is_late(start, Some(row)) && self.holds(*variable, &path, row)?;
                match taken {
                    true => then([path, vec![(row, *variable)]].concat()),
                    false => Ok(Tried::None),
                }
            }
            RowPattern::Sequence(terms) => match terms.split_first() {
                None => then(path),
                Some((first, rest)) => self.way(first, start, path, &|path| {
                    self.way(&RowPattern::Sequence(rest.to_vec()), start, path, then)
                }),
            },
            RowPattern::Alternatives(terms) => {
                for term in terms {
                    match self.way(term, start, path.clone(), then)? {
                        Tried::None => {}
                        decided => return Ok(decided),
                    }
                }
                Ok(Tried::None)
            }
            RowPattern::Repeated {
                term,
                min,
                max,
                reluctant,
            } => {
                let rest = RowPattern::Repeated {
                    term: term.clone(),
                    min: min.saturating_sub(1),
                    max: max.map(|max| max.saturating_sub(1)),
                    reluctant: *reluctant,
                };
                let more = |path: Path| match max {
                    Some(0) => Ok(Tried::None),
                    _ => self.way(term, start, path, &|path| {
                        self.way(&rest, start, path, then)
                    }),
                };
                if *min > 0 {
                    return more(path);
                }
                let first = match reluctant {
                    true => then(path.clone())?,
                    false => more(path.clone())?,
                };
                match (first, reluctant) {
                    (Tried::None, true) => more(path),
                    (Tried::None, false) => then(path),
                    (decided, _) => Ok(decided),
                }
            }
        }
    }

    /// The end of the pattern.
    fn end(&self, start: usize, path: Path) -> Outcome {
        let Some(absent) = self.by.absent else {
            return Ok(Tried::Match(path));
        };
        let next = path[path.len() - 1].0 + 1;
        for row in next..self.rows.len() {
            if !self.is_late(start, Some(row)) && self.holds(absent, &path, row)? {
                return Ok(Tried::None);
            }
        }
        Ok(match self.is_late(start, None) {
            true => Tried::Match(path),
            false => Tried::Open,
        })
    }

    /// Whether a row after `path` can be one of a variable.
    fn holds(&self, variable: usize, path: &Path, row: usize) -> Result<bool, String> {
        let Some(condition) = &self.by.variables[variable].condition else {
            return Ok(true);
        };
        let mut columns = self.rows[row].1.clone();
        for previous in &self.by.previous {
            let other = row.checked_sub(previous.rows as usize);
            columns.push(match other {
                Some(other) => expr::value(&previous.value, self.rows[other].1)?,
                None => Value::Null,
            });
        }
        let with_row = [path.clone(), vec![(row, variable)]].concat();
        for navigation in &self.by.navigations {
            columns.push(self.navigated(navigation, &with_row)?);
        }
        expr::is_true(condition, &columns)
    }

    /// The rows of a variable, or all rows.
    fn rows_of(&self, variable: Option<usize>, path: &Path) -> Vec<&Row> {
        let own = path
            .iter()
            .filter(|(_, v)| variable.is_none_or(|own| own == *v));
        own.map(|(row, _)| self.rows[*row].1).collect()
    }

    fn navigated(&self, navigation: &Navigation, path: &Path) -> Result<Value, String> {
        let rows = self.rows_of(navigation.variable, path);
        let row = match navigation.end {
            MatchEnd::First => rows.first(),
            MatchEnd::Last => rows.last(),
        };
        row.map_or(Ok(Value::Null), |row| expr::value(&navigation.value, row))
    }

    fn results(&self, path: &Path, number: i64) -> Result<Row, String> {
        let results = self.by.results.iter().map(|result| match result {
            MatchResult::Navigation(navigation) => self.navigated(navigation, path),
            MatchResult::Aggregate { variable, call } => {
                aggregate::result(call, &self.rows_of(*variable, path))
            }
            MatchResult::MatchNumber => Ok(Value::Int(number)),
            MatchResult::Classifier => {
                let name = &self.by.variables[path[path.len() - 1].1].name;
                Ok(Value::Text(Symbol::new(name)))
            }
        });
        results.collect()
    }
}
