//! The costs of a fragment for an agent, estimated from rates or measured.
//!
//! Every operator of the fragment is visited once, from the sources up: the number of rows (or
//! changes of a relation) that it emits per second, and the processor time for them. The figures
//! for operators are those of `docs/costs.md`, of one core of the machine named there; only their
//! ratios are relevant. Shares of rows that pass are estimated as in System R (Selinger 1979,
//! section 4): a tenth for an equality, a third for a range.
//!
//! **The rule.** A join of two sides that are local to a host runs there, and so do joins of a
//! host's own inventory relations. Among the placement strategies that do so, the cheapest is the
//! one with the lowest `processor time of an agent + bytes that it sends × 8 ns`, all per second. A
//! byte occupies a link of 1 Gbit/s for 8 ns, so both are times per second. If two strategies cost
//! the same, the one with less work on the agents is chosen.

use weir_model::capabilities::Rate;
use weir_model::{Capabilities, Declaration, PartialKind, Shape, Type};

use super::lifetime::{Lifetime, lifetime};
use super::{CutOptions, Rates, rates};
use crate::expr::{BinaryOp, Expr};
use crate::function::AggregateCall;
use crate::function::scalar::sample;
use crate::place::fold::Grouping;
use crate::place::kernel::{self, SourceStream};
use crate::plan::{Node, Plan, SetOp, ToStream, Window};
use crate::window::WindowContent;

/// The cost of a byte on the network, in nanoseconds of an agent's processor.
pub const BYTE_NS: f64 = 8.0;

/// A request observed by the tap's programs (docs/costs.md, "finished requests, counted").
const SEEN_NS: f64 = 57.0;
/// A row from the tap into the engine (docs/costs.md, consumer).
const TAPPED_NS: f64 = 47.0;
/// A request observed and added to a group in the kernel (docs/costs.md, "number and moments of
/// bytes, by op").
const FOLDED_NS: f64 = 97.0;
/// A row tested (docs/costs.md: 97 M rows/s).
const SELECT_NS: f64 = 10.0;
/// A value computed: a selection tests one and passes on the row.
const COMPUTE_NS: f64 = 5.0;
/// A row added to a group without retractions (docs/costs.md, running sum: 42 M rows/s).
const GROW_NS: f64 = 24.0;
/// A change of a group, or of a set of rows (docs/costs.md, group-by over 3 s: 8.7 M rows/s, each
/// of which is inserted and retracted).
const GROUP_NS: f64 = 57.0;
/// A change on a side of a join (docs/costs.md, join over 3 s: 3.9 M rows/s, each inserted and
/// retracted).
const JOIN_NS: f64 = 128.0;
/// A row inserted into a window and removed: the cost of the join above without its table.
const WINDOW_NS: f64 = 10.0;
/// A row encoded for the network, its columns included. Not in docs/costs.md: assumed equal to a
/// row from the tap, which is copied column by column as well.
const SENT_NS: f64 = 47.0;

/// The overhead of a message: about 200 bytes of schema and encoding.
const MESSAGE_BYTES: f64 = 200.0;
/// Maximum number of messages per second: an agent sends rows about every 10 ms.
const MESSAGES: f64 = 100.0;

/// Estimated size of a relation of the inventory, in rows.
const INVENTORY_ROWS: f64 = 100.0;
/// Estimated size of an unbounded window, in rows.
const UNBOUNDED_ROWS: f64 = 1e9;
/// Estimated rate of changes of a row of a relation of the inventory, per second.
const INVENTORY_RATE: f64 = 0.1;

/// Costs for one agent, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Events read.
    pub rows_in: f64,
    /// Rows sent.
    pub rows_out: f64,
    /// Bytes sent.
    pub bytes_out: f64,
    /// Processor time.
    pub cpu_ns: f64,
}

impl Cost {
    /// The value by which strategies are compared: processor time and bytes as one time.
    pub fn total_ns(&self) -> f64 {
        self.cpu_ns + self.bytes_out * BYTE_NS
    }

    /// The sum of both.
    pub fn and(self, other: Cost) -> Cost {
        Cost {
            rows_in: self.rows_in + other.rows_in,
            rows_out: self.rows_out + other.rows_out,
            bytes_out: self.bytes_out + other.bytes_out,
            cpu_ns: self.cpu_ns + other.cpu_ns,
        }
    }
}

/// The costs of a fragment for an agent, estimated from rates.
pub fn estimated(fragment: &Plan, options: &CutOptions) -> Cost {
    let (meter, flow) = metered(fragment, options);
    Cost {
        rows_in: meter.rows_in,
        rows_out: flow.rows,
        bytes_out: flow.rows * row_bytes(fragment) + meter.messages(fragment, flow) * MESSAGE_BYTES,
        cpu_ns: meter.kernel_ns + process_ns(&meter, flow) * options.rates.cpu_factor,
    }
}

/// The part of [`Cost::cpu_ns`] in the agent's process, without programs in the kernel, on the
/// machine of docs/costs.md.
pub fn estimated_process_ns(fragment: &Plan, options: &CutOptions) -> f64 {
    let (meter, flow) = metered(fragment, options);
    process_ns(&meter, flow)
}

/// The other part: the time of programs in the kernel.
pub fn estimated_kernel_ns(fragment: &Plan, options: &CutOptions) -> f64 {
    metered(fragment, options).0.kernel_ns
}

fn metered<'a>(fragment: &Plan, options: &'a CutOptions) -> (CostEstimator<'a>, Flow) {
    let mut meter =
        CostEstimator::new(&options.rates, &options.capabilities, options.second as f64);
    let flow = meter.flow(fragment);
    (meter, flow)
}

fn process_ns(meter: &CostEstimator<'_>, flow: Flow) -> f64 {
    meter.cpu_ns + flow.rows * SENT_NS
}

/// The measured costs of a fragment, with an estimate of the processor time if that is unknown.
pub fn measured(fragment: &Plan, options: &CutOptions) -> Option<Cost> {
    let local_properties = options.rates.of(fragment)?;
    let cpu_ns = local_properties.cpu_ns;
    Some(Cost {
        rows_in: local_properties.rows_in,
        rows_out: local_properties.rows_out,
        bytes_out: local_properties.bytes_out,
        cpu_ns: cpu_ns.unwrap_or_else(|| estimated(fragment, options).cpu_ns),
    })
}

/// The approximate size of an encoded row in bytes: its instant and its values. Integers are
/// differences from the minimum of a batch, texts are numbers, and a value that is the same in all
/// rows needs no bytes.
fn row_bytes(plan: &Plan) -> f64 {
    let value = |ty: Type| match ty {
        Type::Bool | Type::Text => 1.0,
        Type::Int | Type::Time => 4.0,
        Type::Float => 8.0,
        Type::Tally => 200.0,
        Type::Partial => 0.0,
    };
    let values: f64 = plan.schema.fields.iter().map(|f| value(f.ty)).sum();
    let states: f64 = match &plan.node {
        // The number of requests in it is small, and encoded in one byte.
        Node::Partial { calls, .. } => calls.iter().map(state_bytes).sum::<f64>() - 3.0,
        _ => 0.0,
    };
    let weight = if plan.shape == Shape::Relation {
        1.0
    } else {
        0.0
    };
    4.0 + weight + values + states
}

/// The approximate size of the state of one group in bytes.
fn state_bytes(call: &AggregateCall) -> f64 {
    match call.function.keep(call) {
        Some(PartialKind::Moments) => 12.0,
        Some(PartialKind::Limits(limits)) => 4.0 * (limits.len() + 1) as f64,
        Some(PartialKind::LogLinear { .. }) => 300.0,
        None => 32.0,
    }
}

/// The output of an operator.
#[derive(Clone, Copy)]
struct Flow {
    /// Rows, or changes of a relation, per second.
    rows: f64,
    /// The number of rows of a relation.
    content: f64,
}

/// Sums the costs of operators.
struct CostEstimator<'a> {
    rates: &'a Rates,
    /// The capabilities of the agent's sources.
    capabilities: &'a Capabilities,
    /// The number of instants per second.
    second: f64,
    rows_in: f64,
    /// Time of programs in the kernel.
    kernel_ns: f64,
    /// Time of the agent's process.
    cpu_ns: f64,
}

impl<'a> CostEstimator<'a> {
    fn new(rates: &'a Rates, capabilities: &'a Capabilities, second: f64) -> CostEstimator<'a> {
        CostEstimator {
            rates,
            capabilities,
            second,
            rows_in: 0.0,
            kernel_ns: 0.0,
            cpu_ns: 0.0,
        }
    }

    fn flow(&mut self, plan: &Plan) -> Flow {
        let flow = self.guessed(plan);
        match self.rates.rows_of(plan) {
            Some(rows) => Flow { rows, ..flow },
            None => flow,
        }
    }

    fn guessed(&mut self, plan: &Plan) -> Flow {
        if let Some(flow) = self.folded(plan) {
            return flow;
        }
        if let Some(flow) = self.tapped(plan) {
            return flow;
        }
        match &plan.node {
            Node::Source(declaration) => self.source(declaration),
            Node::Select { input, predicate } => {
                let below = self.flow(input);
                self.cpu_ns += below.rows * SELECT_NS;
                let share = self.share(predicate, input);
                Flow {
                    rows: below.rows * share,
                    content: below.content * share,
                }
            }
            Node::Project { input, exprs } => {
                let below = self.flow(input);
                let computed = exprs.iter().filter(|e| !matches!(e, Expr::Column { .. }));
                self.cpu_ns += below.rows * COMPUTE_NS * computed.count() as f64;
                below
            }
            Node::Window { input, window } => self.window(input, window),
            Node::Aggregate { input, keys, .. } => self.aggregate(input, keys),
            Node::Partial {
                input, slide, keys, ..
            } => {
                let below = self.flow(input);
                self.cpu_ns += below.rows * GROW_NS;
                self.groups_each(*slide, below.rows, (input, keys))
            }
            Node::Merge { input, .. }
            | Node::Correlate { input, .. }
            | Node::Order { input, .. } => self.flow(input),
            Node::Distinct { input } | Node::Over { input, .. } | Node::Match { input, .. } => {
                let below = self.flow(input);
                self.cpu_ns += below.rows * GROUP_NS;
                below
            }
            Node::Join(join) => {
                let (left, right) = (self.flow(&join.left), self.flow(&join.right));
                self.cpu_ns += (left.rows + right.rows) * JOIN_NS;
                let pairs = match join.on.is_empty() {
                    true => left.content * right.rows + right.content * left.rows,
                    false => left.rows.max(right.rows),
                };
                Flow {
                    rows: pairs,
                    content: left.content.max(right.content),
                }
            }
            Node::SetOp {
                left,
                right,
                op,
                all,
            } => {
                let (left, right) = (self.flow(left), self.flow(right));
                let rows = left.rows + right.rows;
                if *op != SetOp::Union || !all {
                    self.cpu_ns += rows * GROUP_NS;
                }
                Flow {
                    rows,
                    content: left.content + right.content,
                }
            }
            Node::ToStream { input, kind } => self.changes(input, *kind),
        }
    }

    /// An aggregation that the kernel can compute, where the rows are observed.
    fn folded(&mut self, plan: &Plan) -> Option<Flow> {
        let (Node::Partial { input, keys, .. } | Node::Aggregate { input, keys, .. }) = &plan.node
        else {
            return None;
        };
        let grouping = Grouping::of(plan).ok()?;
        let stream = self.capabilities.stream(&grouping.source.name)?;
        stream.groups.as_ref().ok()?;
        grouping.demand(false, self.capabilities).ok()?;
        let requests = self.rates.requests_per_second;
        let mut below = CostEstimator::new(self.rates, self.capabilities, self.second);
        let rows = below.flow(&rates::without_windows(input)).rows;
        self.rows_in += requests;
        self.kernel_ns += requests * SEEN_NS + rows * (FOLDED_NS - SEEN_NS);
        let flow = self.groups_each(grouping.slide, rows, (input, keys));
        let changes = if plan.shape == Shape::Relation {
            2.0
        } else {
            1.0
        };
        Some(Flow {
            rows: flow.rows * changes,
            ..flow
        })
    }

    /// A selection in the kernel: a row that does not pass costs only its observation.
    fn tapped(&mut self, plan: &Plan) -> Option<Flow> {
        let Node::Select { input, predicate } = &plan.node else {
            return None;
        };
        let Node::Source(source) = &input.node else {
            return None;
        };
        let tested = SourceStream::new(source, self.capabilities);
        if !self.capabilities.selects(source) || kernel::superset(predicate, tested).is_all() {
            return None;
        }
        let events = self.events(source);
        let local_properties = self.rates.rows_of(plan);
        let rows = local_properties.unwrap_or_else(|| events * self.share(predicate, input));
        self.rows_in += events;
        self.kernel_ns += events * SEEN_NS;
        self.cpu_ns += rows * (TAPPED_NS + SELECT_NS);
        Some(Flow { rows, content: 0.0 })
    }

    fn source(&mut self, source: &Declaration) -> Flow {
        if source.shape == Shape::Relation {
            return Flow {
                rows: INVENTORY_RATE,
                content: INVENTORY_ROWS,
            };
        }
        let events = self.events(source);
        let seen = if self.capabilities.selects(source) {
            SEEN_NS
        } else {
            0.0
        };
        self.rows_in += events;
        self.kernel_ns += events * seen;
        self.cpu_ns += events * TAPPED_NS;
        Flow {
            rows: events,
            content: 0.0,
        }
    }

    /// Rows of a stream per second.
    fn events(&self, source: &Declaration) -> f64 {
        let stream = self.capabilities.stream(&source.name);
        match stream.map_or(Rate::PerRequest(1), |s| s.rate) {
            Rate::PerRequest(rows) => f64::from(rows) * self.rates.requests_per_second,
            // No measured rate is known: as one for each request.
            Rate::Events => self.rates.requests_per_second,
            Rate::Polled => self.rates.groups,
        }
    }

    fn window(&mut self, input: &Plan, window: &Window) -> Flow {
        let below = self.flow(input);
        if input.shape == Shape::Relation {
            return below;
        }
        self.cpu_ns += below.rows * WINDOW_NS;
        let content = match window.kind().content() {
            WindowContent::Instant => below.rows,
            WindowContent::Instants(size) => below.rows * self.seconds(size),
            WindowContent::Rows(rows) => rows as f64,
            WindowContent::All => {
                return Flow {
                    content: UNBOUNDED_ROWS,
                    ..below
                };
            }
        };
        // Each row is inserted, and retracted later.
        Flow {
            rows: 2.0 * below.rows,
            content,
        }
    }

    fn aggregate(&mut self, input: &Plan, keys: &[Expr]) -> Flow {
        let below = self.flow(input);
        self.cpu_ns += below.rows * GROUP_NS;
        match slide(input) {
            Some(slide) => {
                let groups = self.groups_each(slide, below.rows, (input, keys));
                Flow {
                    rows: 2.0 * groups.rows,
                    ..groups
                }
            }
            // Each change retracts a result and inserts another.
            None => Flow {
                rows: 2.0 * below.rows,
                content: self.groups(input, keys),
            },
        }
    }

    fn changes(&mut self, input: &Plan, kind: ToStream) -> Flow {
        let below = self.flow(input);
        let rows = match kind {
            ToStream::Istream if input.is_append_only() => below.rows,
            ToStream::Dstream if input.is_append_only() => 0.0,
            // Half of the changes are insertions.
            ToStream::Istream | ToStream::Dstream => below.rows / 2.0,
            ToStream::Rstream { every: Some(every) } => below.content / self.seconds(every),
            // Half of the changes are insertions, and at most instants there is only one.
            ToStream::Rstream { every: None } if lasts_an_instant(input) => below.rows / 2.0,
            ToStream::Rstream { every: None } => below.content * below.rows,
        };
        Flow { rows, content: 0.0 }
    }

    fn groups(&self, input: &Plan, keys: &[Expr]) -> f64 {
        if keys.is_empty() {
            return 1.0;
        }
        let local_properties = self.rates.groups_of(input, keys, self.second);
        local_properties.unwrap_or(self.rates.groups)
    }

    /// A row for each group at each multiple of a slide: at most the number of input rows.
    fn groups_each(&self, slide: i64, rows: f64, (input, keys): (&Plan, &[Expr])) -> Flow {
        let groups = self.groups(input, keys).min(rows * self.seconds(slide));
        Flow {
            rows: groups / self.seconds(slide),
            content: groups,
        }
    }

    /// The number of messages per second for its rows.
    fn messages(&self, plan: &Plan, flow: Flow) -> f64 {
        let most = slide(plan).map_or(MESSAGES, |slide| 1.0 / self.seconds(slide));
        most.min(MESSAGES).min(flow.rows)
    }

    fn seconds(&self, instants: i64) -> f64 {
        instants as f64 / self.second
    }

    /// The share of rows that pass.
    fn share(&self, predicate: &Expr, input: &Plan) -> f64 {
        let conditions = predicate.clone().conjuncts();
        conditions.iter().map(|c| self.share_of(c, input)).product()
    }

    fn share_of(&self, condition: &Expr, input: &Plan) -> f64 {
        let equal = |column: &Expr, constants: usize| {
            let name = match column {
                Expr::Column { index, .. } => input.schema[*index].name.as_str(),
                _ => "",
            };
            let one = match name {
                "host" => 1.0 / self.rates.hosts.max(1.0),
                // Requests and responses; reads and writes.
                "type" | "op" => 0.5,
                _ => 0.1,
            };
            (one * constants as f64).min(1.0)
        };
        match condition {
            Expr::Binary {
                op, left, right, ..
            } => match op {
                BinaryOp::Or => {
                    let (l, r) = (self.share(left, input), self.share(right, input));
                    l + r - l * r
                }
                BinaryOp::Equal => match (&**left, &**right) {
                    (column, Expr::Literal { .. }) | (Expr::Literal { .. }, column) => {
                        equal(column, 1)
                    }
                    _ => 0.1,
                },
                BinaryOp::NotEqual => 0.9,
                _ => 1.0 / 3.0,
            },
            Expr::InList {
                expr,
                list,
                negated: false,
                ..
            } => equal(expr, list.len()),
            Expr::Call(call) => sample::of(call).map_or(0.5, |(_, share)| share),
            Expr::Like { negated: false, .. } => 0.1,
            Expr::IsNull { negated: false, .. } => 0.1,
            _ => 0.5,
        }
    }
}

/// Whether a relation exists at the instants of its rows only.
fn lasts_an_instant(plan: &Plan) -> bool {
    lifetime(plan) == Ok(Lifetime::Instant)
}

/// The interval between outputs, if all windows have slides.
fn slide(plan: &Plan) -> Option<i64> {
    match &plan.node {
        Node::Window { window, input } if input.shape == Shape::Stream => window.kind().slide(),
        Node::Partial { slide, .. } => Some(*slide),
        Node::ToStream {
            kind: ToStream::Rstream { every: Some(every) },
            ..
        } => Some(*every),
        Node::Select { input, .. }
        | Node::Project { input, .. }
        | Node::Aggregate { input, .. } => slide(input),
        _ => None,
    }
}
