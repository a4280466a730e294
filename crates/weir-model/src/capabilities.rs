//! [`Capabilities`]: the capabilities of a source, as the source itself describes them before it is
//! started.
//!
//! The planner (`weir-query`) uses this description alone: it has no stream names and no limits of
//! a source. The source (`weir-tap`) derives the description from the tables that it uses itself.

mod group_limits;
mod own_streams;
mod request_rows;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::event::PairedStreams;
use crate::{
    Catalog, Declaration, Demand, Field, FoldCall, Nanos, PartialKind, Predicate, SECTOR_BYTES,
    packed,
};

pub use group_limits::GroupLimits;
pub use own_streams::OWN_STREAMS_MAX;
use request_rows::OF_REQUESTS;
pub use request_rows::{RECORDING, RequestRows, recording};

/// The maximum change of a host's estimate of the fleet's time during an interval of groups.
pub const FLEET_CLOCK_CHANGE_NS_MAX: Nanos = 10_000_000;

/// The shortest interval of groups on a host of a fleet: its clock differs from the others', and
/// the multiple of the interval that is nearest to the end of a group must be unambiguous.
pub const FLEET_INTERVAL_NS_MIN: Nanos = 10 * FLEET_CLOCK_CHANGE_NS_MAX;

/// Maximum number of nested lists and maps in encoded capabilities.
const DEPTH_MAX: usize = 24;

/// The capabilities of a source, stream by stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Its streams and relations.
    pub streams: Vec<StreamCapabilities>,
}

/// The capabilities of a source for one of its streams.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamCapabilities {
    /// Its name, and its columns with their types, units, aliases and meaning.
    pub declaration: Declaration,
    /// The capabilities for each of the columns, in their order.
    pub columns: Vec<ColumnCapabilities>,
    /// The limits of a selection that it tests.
    pub limits: SelectionLimits,
    /// The groups that it computes in place of rows, or why it computes none: a sentence without
    /// full stop.
    pub groups: Result<GroupLimits, String>,
    /// Whether its requests and responses are paired in another stream as in [`PairedStreams`], or
    /// why they are not, as a sentence without full stop.
    pub paired: Result<(), String>,
    /// Its number of rows.
    pub rate: Rate,
}

/// The capabilities of a source for a column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnCapabilities {
    /// Selection of rows by its value.
    pub select: Select,
    /// Rows can be sampled by it; see [`crate::spread`].
    pub sample: bool,
    /// Rows can be grouped by it.
    pub group: bool,
    /// The values kept for a group.
    pub measure: Measure,
    /// Its value is always that of another column, by position, times a positive constant.
    pub product: Option<(usize, i64)>,
}

/// How a source selects rows by a column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Select {
    /// Not at all.
    #[default]
    No,
    /// Rows that do not pass may be delivered too.
    AtLeast,
    /// Exactly the rows that pass are delivered.
    Exact,
}

/// The values of a column that a source keeps for a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Measure {
    /// Nothing.
    #[default]
    No,
    /// The column is NULL in every grouped row, so that there is no value.
    Null,
    /// All values of [`PartialKind`], within [`GroupLimits`].
    Kept,
}

/// Maximum size of a selection; the rest is tested by the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelectionLimits {
    /// Alternatives.
    pub clauses: usize,
    /// Tests in one alternative.
    pub tests: usize,
    /// Texts in one test.
    pub texts: usize,
}

/// The number of rows of a stream, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Rate {
    /// One for each polled object, each second.
    Polled,
    /// One for each event, whose number does not depend on requests.
    Events,
    /// This number for each request.
    PerRequest(u32),
}

impl SelectionLimits {
    /// The minimum for every source that selects rows.
    pub const LEAST: SelectionLimits = SelectionLimits {
        clauses: 1,
        tests: 1,
        texts: 1,
    };

    fn least(self, other: SelectionLimits) -> SelectionLimits {
        SelectionLimits {
            clauses: self.clauses.min(other.clauses),
            tests: self.tests.min(other.tests),
            texts: self.texts.min(other.texts),
        }
    }
}

impl Capabilities {
    /// Built-in streams and relations of which a source delivers every row; `groups` is the reason
    /// why it computes no groups.
    pub fn of_rows(names: &[&str], rate: Rate, groups: &str) -> Capabilities {
        let catalog = Catalog::builtin();
        let found = names.iter().filter_map(|name| catalog.find(name));
        Capabilities {
            streams: found
                .map(|declaration| StreamCapabilities::of_rows(declaration.clone(), rate, groups))
                .collect(),
        }
    }

    /// The streams of a source of requests with the capabilities that `of` returns for the name of
    /// each column, and without groups; `groups` is the reason.
    pub fn of_io(
        limits: SelectionLimits,
        groups: &str,
        paired: Result<(), String>,
        of: impl Fn(&str) -> ColumnCapabilities,
    ) -> Capabilities {
        let catalog = Catalog::builtin();
        let stream = |(name, rows): (&str, RequestRows)| {
            let declaration = catalog.find(name).cloned().unwrap_or_else(recording);
            let rate = Rate::PerRequest(rows.per_request());
            let mut stream = StreamCapabilities::of_rows(declaration, rate, groups);
            let schema = &stream.declaration.schema;
            stream.columns = schema.fields.iter().map(|f| of(&f.name)).collect();
            let sectors = schema.index("sectors");
            stream.columns[schema.index("bytes")].product = Some((sectors, SECTOR_BYTES));
            stream.limits = limits;
            stream.paired.clone_from(&paired);
            stream
        };
        Capabilities {
            streams: OF_REQUESTS.into_iter().map(stream).collect(),
        }
    }

    /// Whether the events of `pairs` are paired.
    ///
    /// # Errors
    /// Why not, as a sentence without full stop.
    pub fn pairs(&self, pairs: &PairedStreams) -> Result<(), String> {
        match self.stream(pairs.events) {
            Some(stream) => stream.paired.clone(),
            None => Err(format!("the source has no stream `{}`", pairs.events)),
        }
    }

    /// The capabilities for a stream; names are compared without regard to case.
    pub fn stream(&self, name: &str) -> Option<&StreamCapabilities> {
        let mut streams = self.streams.iter();
        streams.find(|s| s.declaration.name.eq_ignore_ascii_case(name))
    }

    /// The limits of a selection of a stream's rows.
    pub fn limits(&self, name: &str) -> SelectionLimits {
        self.stream(name)
            .map_or(SelectionLimits::LEAST, |s| s.limits)
    }

    /// The capabilities for column `index` of `source`, if it is a stream of the source with that
    /// column at this position: a script may declare another under the same name.
    pub fn column(&self, source: &Declaration, index: usize) -> ColumnCapabilities {
        let known = self.stream(&source.name).and_then(|stream| {
            let field = stream.declaration.schema.fields.get(index)?;
            let same = field.name == source.schema[index].name;
            same.then_some(stream.columns[index])
        });
        known.unwrap_or_default()
    }

    /// Whether the stream called `name` has a fixed number of rows for each request.
    pub fn is_of_requests(&self, name: &str) -> bool {
        let stream = self.stream(name);
        stream.is_some_and(|stream| matches!(stream.rate, Rate::PerRequest(_)))
    }

    /// Whether the stream called `name` has a row for each event, rather than polled ones.
    pub fn is_of_events(&self, name: &str) -> bool {
        self.stream(name).is_some_and(|s| s.rate != Rate::Polled)
    }

    /// Whether single rows of `source` are selected at the source. A file only skips parts without
    /// selected rows.
    pub fn selects(&self, source: &Declaration) -> bool {
        self.stream(&source.name).is_some_and(|stream| {
            let mut columns = stream.columns.iter();
            columns.any(|column| column.select == Select::Exact)
        })
    }

    /// Whether the groups of `demand` are computed.
    ///
    /// # Errors
    /// Why not, as a sentence without full stop.
    pub fn folds(&self, demand: &Demand) -> Result<(), String> {
        match self.stream(&demand.stream) {
            Some(stream) => stream.folds(demand),
            None => Err(format!("the source has no stream `{}`", demand.stream)),
        }
    }

    /// Its bytes, for [`Capabilities::decode`].
    pub fn encode(&self) -> Vec<u8> {
        packed::encode(self).expect("capabilities are plain data")
    }

    /// The capabilities of another host, from untrusted bytes: those for the streams and relations
    /// of `catalog`, and at most [`OWN_STREAMS_MAX`] others, such as those of probes. A stream with
    /// other columns there is left out.
    ///
    /// # Errors
    /// If the bytes are no capabilities, with the reason.
    pub fn decode(bytes: &[u8], catalog: &Catalog) -> Result<Capabilities, String> {
        let mut all: Capabilities = packed::decode(bytes, DEPTH_MAX)?;
        let mut streams: Vec<StreamCapabilities> = Vec::new();
        let mut others = 0;
        for mut stream in all.streams.drain(..) {
            let is_new = |name: &str| {
                let mut names = streams.iter().map(|s| &s.declaration.name);
                !names.any(|known| known.eq_ignore_ascii_case(name))
            };
            let Some(known) = catalog.find(&stream.declaration.name) else {
                if others < OWN_STREAMS_MAX
                    && stream.is_of_host()
                    && is_new(&stream.declaration.name)
                {
                    others += 1;
                    streams.push(stream);
                }
                continue;
            };
            let columns = stream.columns.len();
            let mut products = stream.columns.iter().filter_map(|column| column.product);
            let is_twice = streams.iter().any(|s| s.declaration.name == known.name);
            let fits = stream.declaration.has_columns_of(known)
                && columns == known.schema.len()
                && products.all(|(at, factor)| at < columns && factor > 0);
            if fits && !is_twice {
                stream.declaration = known.clone();
                streams.push(stream);
            }
        }
        Ok(Capabilities { streams })
    }

    /// The same for a host of a fleet: its groups are of intervals that are long enough although
    /// the clocks of hosts differ.
    pub fn in_a_fleet(mut self) -> Capabilities {
        for stream in &mut self.streams {
            if let Ok(limits) = &mut stream.groups {
                limits.interval_min_ns = limits.interval_min_ns.max(FLEET_INTERVAL_NS_MIN);
            }
        }
        self
    }

    /// The same without groups by those columns, for rows in which the receiver replaces them.
    pub fn ungrouped(mut self, columns: &[&str]) -> Capabilities {
        for stream in &mut self.streams {
            let fields = stream.declaration.schema.fields.iter();
            for (field, column) in fields.zip(&mut stream.columns) {
                column.group &= !columns.contains(&&*field.name);
            }
        }
        self
    }

    /// The capabilities of each of two hosts, for the streams of both: a plan for both may use
    /// them.
    pub fn on_both(self, other: &Capabilities) -> Capabilities {
        let both = self.streams.into_iter().filter_map(|stream| {
            let second = other.stream(&stream.declaration.name)?.clone();
            // Each host pairs its own requests.
            let paired = stream.paired.clone().and(second.paired.clone());
            Some(StreamCapabilities {
                paired,
                ..stream.and(second)
            })
        });
        Capabilities {
            streams: both.collect(),
        }
    }

    /// The declarations of its streams, with those of the catalog that it does not have.
    pub fn catalog(&self) -> Catalog {
        let mut catalog = Catalog::builtin();
        let queryable = self
            .streams
            .iter()
            .filter(|s| s.declaration.name != RECORDING);
        for stream in queryable {
            if catalog.find(&stream.declaration.name).is_none() {
                catalog.declarations.push(stream.declaration.clone());
            }
        }
        catalog
    }

    /// The capabilities of two merged sources. Of a stream that both have, those that both have for
    /// it; a stream that only one of them has comes from that one alone and keeps its capabilities.
    pub fn and(self, other: Capabilities) -> Capabilities {
        let mut others = other.streams;
        let mut streams: Vec<StreamCapabilities> = Vec::new();
        for stream in self.streams {
            let name = &stream.declaration.name;
            let same = |s: &StreamCapabilities| s.declaration.name.eq_ignore_ascii_case(name);
            streams.push(match others.iter().position(same) {
                Some(at) => stream.and(others.remove(at)),
                None => stream,
            });
        }
        streams.extend(others);
        Capabilities { streams }
    }

    /// These capabilities, and those of `other` for the streams that these lack.
    pub fn or(mut self, other: Capabilities) -> Capabilities {
        let lacks = |s: &StreamCapabilities| self.stream(&s.declaration.name).is_none();
        let others: Vec<_> = other.streams.into_iter().filter(lacks).collect();
        self.streams.extend(others);
        self
    }
}

impl StreamCapabilities {
    /// The capabilities of a source that delivers every row of a stream or relation; `groups` is
    /// the reason why it computes no groups.
    pub fn of_rows(declaration: Declaration, rate: Rate, groups: &str) -> StreamCapabilities {
        StreamCapabilities {
            columns: vec![ColumnCapabilities::default(); declaration.schema.len()],
            declaration,
            limits: SelectionLimits::LEAST,
            groups: Err(groups.into()),
            paired: Err("its rows are not requests and responses".into()),
            rate,
        }
    }

    /// Whether the groups of `demand` are computed.
    ///
    /// # Errors
    /// Why not, as a sentence without full stop.
    pub fn folds(&self, demand: &Demand) -> Result<(), String> {
        let limits = self.groups.as_ref().map_err(String::clone)?;
        let fold = demand.fold.as_ref().ok_or("no groups are requested")?;
        if fold.interval < limits.interval_min_ns {
            let least = Duration::from_nanos(limits.interval_min_ns as u64);
            return Err(format!("an interval shorter than {least:?}"));
        }
        if fold.interval > limits.interval_max_ns {
            let most = limits.interval_max_ns / crate::NANOS_PER_SECOND;
            return Err(format!("an interval of more than {most} s"));
        }
        let name = |at: usize| &self.declaration.schema[at].name;
        if let Some(at) = self.loose_test(&demand.predicate) {
            let name = name(at);
            return Err(format!(
                "the source does not select rows by `{name}` exactly"
            ));
        }
        if let Some(at) = fold.keys.iter().find(|at| !self.columns[**at].group) {
            return Err(format!("`{}` is not a key of groups", name(*at)));
        }
        let mut kept: Vec<&FoldCall> = Vec::new();
        for call in &fold.calls {
            let measure = call.column.map(|at| self.columns[at].measure);
            match (measure, &call.keep, call.column) {
                (None | Some(Measure::Null), PartialKind::Moments, _) => continue,
                (None, ..) => return Err("rows have no values".into()),
                (Some(Measure::No | Measure::Null), _, Some(at)) => {
                    return Err(format!("`{}` is not aggregated", name(at)));
                }
                (_, PartialKind::Limits(own), _) if own.len() > limits.limits_max => {
                    let most = limits.limits_max;
                    return Err(format!("a histogram of more than {most} limits"));
                }
                (_, PartialKind::LogLinear { bits }, _)
                    if limits.log_linear_bits.is_some_and(|own| own != *bits) =>
                {
                    return Err("bins of another width".into());
                }
                _ if kept.contains(&call) => continue,
                _ => kept.push(call),
            }
        }
        match kept.len() > limits.kept_max {
            true => Err(format!("more than {} values per group", limits.kept_max)),
            false => Ok(()),
        }
    }

    /// A column that is tested, but not exactly.
    fn loose_test(&self, predicate: &Predicate) -> Option<usize> {
        let mut tests = predicate.clauses.iter().flat_map(|c| &c.tests);
        tests.find_map(|test| {
            let at = test.operand().column();
            (self.columns[at].select == Select::AtLeast).then_some(at)
        })
    }

    fn and(self, other: StreamCapabilities) -> StreamCapabilities {
        let schemas = (&self.declaration.schema, &other.declaration.schema);
        let both = |(at, field): (usize, &Field)| {
            let second = schemas.1.fields.iter().position(|f| f.name == field.name);
            match second.map(|second| other.columns[second]) {
                Some(second) => self.columns[at].and(second),
                None => ColumnCapabilities::default(),
            }
        };
        StreamCapabilities {
            columns: schemas.0.fields.iter().enumerate().map(both).collect(),
            limits: self.limits.least(other.limits),
            groups: self.groups.and_then(|own| own.and(other.groups?)),
            paired: Err("several sources assign request ids independently".into()),
            rate: self.rate.max(other.rate),
            declaration: self.declaration,
        }
    }
}

impl ColumnCapabilities {
    /// Those that both columns have.
    fn and(self, other: ColumnCapabilities) -> ColumnCapabilities {
        ColumnCapabilities {
            select: self.select.min(other.select),
            sample: self.sample && other.sample,
            group: self.group && other.group,
            // The values of a source must not be taken for the NULLs of the other.
            measure: match self.measure == other.measure {
                true => self.measure,
                false => Measure::No,
            },
            product: self.product.filter(|_| self.product == other.product),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::IO_PAIRS;
    use crate::{Clause, Fold, Schema, Shape, Test, event};

    fn all_columns(select: Select) -> Capabilities {
        let limits = SelectionLimits {
            clauses: 2,
            tests: 3,
            texts: 4,
        };
        Capabilities::of_io(limits, "it makes none", Ok(()), |_| ColumnCapabilities {
            select,
            group: true,
            measure: Measure::Kept,
            ..ColumnCapabilities::default()
        })
    }

    #[test]
    fn merged_sources_can_do_what_both_can() {
        let narrow = Capabilities::of_io(SelectionLimits::LEAST, "rows", Ok(()), |name| {
            ColumnCapabilities {
                select: match name {
                    "op" => Select::Exact,
                    _ => Select::No,
                },
                ..ColumnCapabilities::default()
            }
        });
        let relations = Capabilities::of_rows(&["vms"], Rate::Polled, "a relation");
        let both = all_columns(Select::AtLeast).and(narrow).and(relations);
        let io = both.stream("io").expect("both have it");
        let select = |name| {
            both.column(&io.declaration, io.declaration.schema.index(name))
                .select
        };
        assert_eq!((select("op"), select("pid")), (Select::AtLeast, Select::No));
        assert_eq!((io.limits, both.streams.len()), (SelectionLimits::LEAST, 4));
        let why = both.pairs(&IO_PAIRS).expect_err("there are two");
        assert!(why.contains("several sources"), "{why}");
    }

    #[test]
    fn a_plan_for_two_hosts_may_use_what_both_have() {
        let catalog = Catalog::builtin();
        let sent = |all: Capabilities| Capabilities::decode(&all.encode(), &catalog).unwrap();
        let exact = sent(all_columns(Select::Exact));
        let mut named = all_columns(Select::Exact);
        let is_known = |s: &StreamCapabilities| catalog.find(&s.declaration.name).is_some();
        named.streams.retain(is_known);
        assert_eq!(exact, named, "what queries cannot name is left out");
        let both = exact.clone().on_both(&sent(all_columns(Select::AtLeast)));
        let io = both.stream("io").expect("both have it");
        assert_eq!(io.columns[0].select, Select::AtLeast);
        assert_eq!(both.pairs(&IO_PAIRS), Ok(()), "each host pairs its own");
        let relations = Capabilities::of_rows(&["vms"], Rate::Polled, "a relation");
        assert_eq!(exact.on_both(&sent(relations)), Capabilities::default());
    }

    #[test]
    fn what_another_version_describes_otherwise_is_ignored() {
        let catalog = Catalog::builtin();
        let mut other = all_columns(Select::Exact);
        other.streams[0].columns.pop();
        let vms = catalog.find("vms").expect("it is built in").clone();
        other.streams[1].declaration.schema = vms.schema;
        let known = Capabilities::decode(&other.encode(), &catalog).unwrap();
        assert_eq!(known, Capabilities::default());
        let mut other = all_columns(Select::Exact);
        other.streams[0].columns[0].product = Some((1_000, 1));
        let known = Capabilities::decode(&other.encode(), &catalog).unwrap();
        assert_eq!(known.streams.len(), 1);
        let bytes = other.encode();
        for end in 0..bytes.len() {
            assert!(Capabilities::decode(&bytes[..end], &catalog).is_err());
        }
    }

    #[test]
    fn merging_reduces_either_source_to_the_other() {
        let kept = |measure, exact: bool| {
            let mut all = all_columns(match exact {
                true => Select::Exact,
                false => Select::AtLeast,
            });
            for stream in &mut all.streams {
                stream.columns.iter_mut().for_each(|c| c.measure = measure);
            }
            all
        };
        let grouped = |limits_max| {
            let mut all = kept(Measure::Kept, true);
            all.streams[0].groups = Ok(GroupLimits {
                interval_min_ns: 1,
                interval_max_ns: 2,
                kept_max: 1,
                limits_max,
                log_linear_bits: None,
            });
            all
        };
        let mut narrow = all_columns(Select::Exact);
        let fields = narrow.streams[0].declaration.schema.fields[..3].to_vec();
        narrow.streams[0].declaration.schema = Schema::new(fields).into();
        narrow.streams[0].columns.truncate(3);
        let all = [
            kept(Measure::Null, true),
            kept(Measure::Kept, false),
            grouped(1),
            grouped(2),
        ];
        for (one, other) in all.iter().flat_map(|a| all.iter().map(move |b| (a, b))) {
            let merged = one.clone().and(other.clone());
            assert_eq!(merged, other.clone().and(one.clone()));
            for (stream, parts) in merged
                .streams
                .iter()
                .zip(one.streams.iter().zip(&other.streams))
            {
                for (at, column) in stream.columns.iter().enumerate() {
                    for part in [parts.0.columns[at], parts.1.columns[at]] {
                        assert!(column.select <= part.select);
                        assert!(column.measure == part.measure || column.measure == Measure::No);
                    }
                }
                for part in [parts.0, parts.1] {
                    if let Ok(groups) = &stream.groups {
                        let part = part.groups.clone().expect("both compute groups");
                        assert_eq!(groups.and(part), stream.groups, "no more than each");
                    }
                }
            }
        }
        let first = |c: Capabilities, at: usize| c.streams[0].columns.get(at).copied();
        let wide = || all_columns(Select::Exact);
        assert_eq!(
            first(wide().and(narrow.clone()), 3),
            Some(ColumnCapabilities::default())
        );
        assert_eq!(first(narrow.and(wide()), 3), None);
    }

    #[test]
    fn a_stream_that_is_declared_otherwise_is_not_the_sources() {
        let known = all_columns(Select::Exact);
        let fields = known.streams[0].declaration.schema.fields[2..4].to_vec();
        let own = Declaration::new("IO", Shape::Stream, Schema::new(fields));
        assert_eq!(known.column(&own, 0), ColumnCapabilities::default());
        let io = &known.streams[0].declaration;
        assert_eq!(known.column(io, 2).select, Select::Exact);
    }

    #[test]
    fn groups_are_made_within_the_limits_and_of_exact_rows() {
        let folds = |select, tests: Vec<Test>, interval, limits: i64| {
            let mut all = all_columns(select);
            all.streams[0].groups = Ok(GroupLimits {
                interval_min_ns: 10,
                interval_max_ns: 20,
                kept_max: 1,
                limits_max: 2,
                log_linear_bits: None,
            });
            let column = Some(event::value("latency").column());
            let keep = PartialKind::Limits((0..limits).collect());
            let calls = vec![FoldCall { column, keep }];
            let keys = vec![event::value("op").column()];
            all.folds(&Demand {
                stream: "io".into(),
                columns: Vec::new(),
                predicate: Predicate {
                    clauses: vec![Clause { tests }],
                },
                fold: Some(Fold {
                    interval,
                    keys,
                    calls,
                }),
            })
        };
        let test = || Test::Between {
            operand: event::value("pid"),
            low: 1,
            high: 2,
        };
        assert_eq!(folds(Select::Exact, vec![test()], 10, 2), Ok(()));
        let refused = [
            (folds(Select::AtLeast, vec![test()], 10, 2), "`pid`"),
            (folds(Select::Exact, Vec::new(), 9, 2), "shorter than 10ns"),
            (folds(Select::Exact, Vec::new(), 21, 2), "more than"),
            (folds(Select::Exact, Vec::new(), 15, 3), "2 limits"),
        ];
        for (result, why) in refused {
            let error = result.expect_err(why);
            assert!(error.contains(why), "{error}");
        }
    }
}
