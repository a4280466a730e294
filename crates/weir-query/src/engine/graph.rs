//! The graph of running operators, and how queries share them.
//!
//! - Nodes with equal plans that start at the same time are one node.
//! - A query shares, whenever it starts, operators without state (a stream source, and selections
//!   and projections that cannot fail) and the first-in-first-out windows over them. A [`Gate`] on
//!   the edge hides the rows from before its start.
//! - All other operators are created for each query, so that no result depends on other queries.

use std::collections::HashMap;
use std::sync::Arc;

use weir_model::{Batch, Folded};

use super::build::operator;
use crate::function::EvalError;
use crate::operator::{Operator, Span};
use crate::physical::{Operation, Physical, Sharing};
use crate::plan::Plan;
use crate::synopsis::gather::take_batch;

/// An operator in the graph.
pub(super) struct Node {
    /// What it computes.
    pub plan: Arc<Plan>,
    /// The epoch in which it started; `None` where that makes no difference.
    started: Option<u64>,
    /// The columns that are read, where the operator can omit the others.
    requested: Option<Vec<usize>>,
    kind: Kind,
    inputs: Vec<Edge>,
    /// Its deltas of the current step.
    pub out: Vec<Batch>,
    /// Of a source: the groups of the intervals that end in the current step.
    folded: Vec<Folded>,
    /// The error that stopped it.
    pub error: Option<EvalError>,
    /// How many edges and queries refer to it.
    users: usize,
    /// The position of the last operator that reads its deltas, or its own.
    last_reader: usize,
    /// Approximate size of its state in bytes.
    pub bytes: usize,
}

enum Kind {
    /// A source, by its position.
    Source(usize),
    Operator(Box<dyn Operator>),
}

/// The input of an operator or a query.
#[derive(Debug)]
pub(super) struct Edge {
    /// The position of the node.
    pub node: usize,
    gate: Gate,
}

/// What an edge hides, so that a query receives no row from before its start.
#[derive(Debug)]
enum Gate {
    /// Hides nothing.
    Open,
    /// Hides everything up to this instant.
    Closed { until: i64 },
    /// For a first-in-first-out window: hides the next `plus` insertions and the next `minus`
    /// retractions, which are of rows that arrived before.
    Skip { plus: usize, minus: usize },
    /// Hides nothing, and first inserts these rows, which the relation held before.
    Content(Batch),
}

/// What the graph needs of the engine's sources.
pub(super) trait Sources {
    /// Registers that a query reads a source. Returns its position, and the instant up to which
    /// rows are too old for the query.
    fn read(&mut self, declaration: &weir_model::Declaration) -> (usize, i64);
    /// The rows of the instants up to and including `upto`.
    fn take(&mut self, source: usize, upto: i64) -> Vec<Batch>;
    /// The groups of the intervals that end by `upto`.
    fn take_folded(&mut self, source: usize, upto: i64) -> Vec<Folded>;
    /// The content of a relation after all rows taken so far.
    fn content(&self, source: usize, ts: i64) -> Option<Batch>;
    /// Registers that no query reads the source any more.
    fn mark_unused(&mut self, source: usize);
}

/// When a query starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    /// The current instant.
    pub now: i64,
    /// Changes whenever a source has advanced.
    pub epoch: u64,
}

/// All running operators, inputs before those that read them.
#[derive(Default)]
pub(super) struct Graph {
    /// The operators.
    pub nodes: Vec<Node>,
    index: HashMap<Key, usize>,
}

/// What makes two nodes the same: the plan, when it started where that makes a difference, and the
/// columns that are read where the operator can omit the others.
type Key = (Arc<Plan>, Option<u64>, Option<Vec<usize>>);

/// The instant up to which rows of an operator's sources are too old for a query that starts then.
fn visible_after(physical: &Physical, start: Start, sources: &mut dyn Sources) -> i64 {
    let mut from = start.now;
    physical.visit_sources(&mut |declaration| from = from.max(sources.read(declaration).1));
    from
}

impl Graph {
    /// An edge to a node that runs `physical` from `start` on; creates the node if there is none.
    pub(super) fn connect(
        &mut self,
        physical: &Arc<Physical>,
        start: Start,
        sources: &mut dyn Sources,
    ) -> Edge {
        self.connect_columns(physical, None, start, sources)
    }

    /// The same, where only the columns in `needed` are read.
    fn connect_columns(
        &mut self,
        physical: &Arc<Physical>,
        needed: Option<Vec<usize>>,
        start: Start,
        sources: &mut dyn Sources,
    ) -> Edge {
        if physical.sharing != Sharing::SameStart {
            let mut from = start.now;
            let mut fresh = false;
            let node = self.shared(physical, start, sources, &mut from, &mut fresh);
            self.nodes[node].users += 1;
            let is_relation = physical.sharing == Sharing::Relation;
            let gate = if from > start.now {
                Gate::Closed { until: from }
            } else if fresh && !is_relation {
                Gate::Open
            } else {
                self.opened(node, start.now, sources)
            };
            return Edge { node, gate };
        }
        let needed = needed.filter(|_| physical.omits_columns());
        let key = (physical.logical.clone(), Some(start.epoch), needed);
        let node = match self.index.get(&key) {
            Some(&node) => node,
            None => {
                let read = physical.columns_read();
                let inputs = physical.inputs.iter();
                let inputs = inputs
                    .map(|input| self.connect_columns(input, read.clone(), start, sources))
                    .collect();
                let after = visible_after(physical, start, sources);
                let kind = Kind::Operator(operator(physical, key.2.as_deref(), after));
                self.insert(key, kind, inputs)
            }
        };
        self.nodes[node].users += 1;
        Edge {
            node,
            gate: Gate::Open,
        }
    }

    /// The one node of an operator that queries share whenever they start. `from` becomes the
    /// instant up to which rows are too old.
    fn shared(
        &mut self,
        physical: &Arc<Physical>,
        start: Start,
        sources: &mut dyn Sources,
        from: &mut i64,
        fresh: &mut bool,
    ) -> usize {
        let key = (physical.logical.clone(), None, None);
        if let Operation::Source(declaration) = &physical.operation {
            let (source, complete) = sources.read(declaration);
            *from = complete.max(start.now);
            // One node takes the rows of a source, also where declarations differ in their texts.
            let is_known = |node: &Node| matches!(node.kind, Kind::Source(of) if of == source);
            return self.nodes.iter().position(is_known).unwrap_or_else(|| {
                *fresh = true;
                self.insert(key, Kind::Source(source), Vec::new())
            });
        }
        let input = self.shared(&physical.inputs[0], start, sources, from, fresh);
        match self.index.get(&key) {
            Some(&node) => {
                *fresh = false;
                node
            }
            None => {
                *fresh = true;
                self.nodes[input].users += 1;
                let input = Edge {
                    node: input,
                    gate: Gate::Open,
                };
                let kind = Kind::Operator(operator(physical, None, *from));
                self.insert(key, kind, vec![input])
            }
        }
    }

    fn insert(&mut self, key: Key, kind: Kind, inputs: Vec<Edge>) -> usize {
        let node = self.nodes.len();
        self.index.insert(key.clone(), node);
        let (plan, started, requested) = key;
        for edge in &inputs {
            self.nodes[edge.node].last_reader = node;
        }
        self.nodes.push(Node {
            last_reader: node,
            plan,
            started,
            requested,
            kind,
            inputs,
            out: Vec::new(),
            folded: Vec::new(),
            error: None,
            users: 0,
            bytes: 0,
        });
        node
    }

    /// The gate of a query that reads what `node` emits from now on.
    fn opened(&self, node: usize, now: i64, sources: &dyn Sources) -> Gate {
        match &self.nodes[node].kind {
            Kind::Operator(operator) => {
                let held = operator.held();
                match held.pending + held.inside {
                    0 => Gate::Open,
                    minus => Gate::Skip {
                        plus: held.pending,
                        minus,
                    },
                }
            }
            Kind::Source(source) => sources
                .content(*source, now.saturating_add(1))
                .filter(|content| !content.is_empty())
                .map_or(Gate::Open, Gate::Content),
        }
    }

    /// Removes an edge and the nodes that have no other user. Positions change: every edge kept by
    /// the caller must be in `kept`.
    pub(super) fn release(&mut self, edge: Edge, kept: Vec<&mut Edge>, sources: &mut dyn Sources) {
        let mut open = vec![edge.node];
        while let Some(node) = open.pop() {
            self.nodes[node].users -= 1;
            if self.nodes[node].users == 0 {
                open.extend(self.nodes[node].inputs.iter().map(|e| e.node));
            }
        }
        let mut positions = Vec::with_capacity(self.nodes.len());
        let mut next = 0;
        for node in &self.nodes {
            positions.push(next);
            next += usize::from(node.users > 0);
        }
        for node in self.nodes.iter().filter(|n| n.users == 0) {
            if let Kind::Source(source) = node.kind {
                sources.mark_unused(source);
            }
        }
        self.nodes.retain(|n| n.users > 0);
        let inputs = self.nodes.iter_mut().flat_map(|n| n.inputs.iter_mut());
        for edge in inputs.chain(kept) {
            edge.node = positions[edge.node];
        }
        for i in 0..self.nodes.len() {
            self.nodes[i].last_reader = i;
            for input in 0..self.nodes[i].inputs.len() {
                let read = self.nodes[i].inputs[input].node;
                self.nodes[read].last_reader = i;
            }
        }
        let positions = self.nodes.iter().enumerate();
        self.index = positions
            .map(|(i, n)| ((n.plan.clone(), n.started, n.requested.clone()), i))
            .collect();
    }

    /// The last instant of a step from `span.after`: before the next gate that opens, and after
    /// about `rows_max` rows that expire. `edges` are those of the queries.
    pub(super) fn bound_span<'a>(
        &'a self,
        span: Span,
        rows_max: usize,
        edges: impl Iterator<Item = &'a Edge>,
    ) -> i64 {
        let gates = self
            .nodes
            .iter()
            .flat_map(|n| &n.inputs)
            .chain(edges)
            .map(|e| match e.gate {
                Gate::Closed { until } if until > span.after => until,
                _ => i64::MAX,
            });
        let operators = self.nodes.iter().map(|n| match &n.kind {
            Kind::Operator(operator) => operator.bound_span(span, rows_max),
            Kind::Source(_) => i64::MAX,
        });
        gates.chain(operators).fold(span.upto, i64::min)
    }

    /// Opens the gates whose instant is reached.
    pub(super) fn open_gates<'a>(
        &mut self,
        now: i64,
        edges: impl Iterator<Item = &'a mut Edge>,
        sources: &dyn Sources,
    ) {
        let due = |edge: &Edge| matches!(edge.gate, Gate::Closed { until } if until <= now);
        for node in 0..self.nodes.len() {
            for input in 0..self.nodes[node].inputs.len() {
                if due(&self.nodes[node].inputs[input]) {
                    let from = self.nodes[node].inputs[input].node;
                    self.nodes[node].inputs[input].gate = self.opened(from, now, sources);
                }
            }
        }
        for edge in edges.filter(|e| due(e)) {
            edge.gate = self.opened(edge.node, now, sources);
        }
    }

    /// Steps one operator, after its inputs, over the instants of `span`; its deltas are then in
    /// [`Node::out`].
    pub(super) fn step(&mut self, position: usize, span: Span, sources: &mut dyn Sources) {
        let (before, rest) = self.nodes.split_at_mut(position);
        let node = &mut rest[0];
        let operator = match &mut node.kind {
            Kind::Source(source) => {
                node.out = sources.take(*source, span.upto);
                node.folded = sources.take_folded(*source, span.upto);
                return;
            }
            Kind::Operator(operator) => operator,
        };
        let failed = |e: &Edge| before[e.node].error.clone();
        if let Some(error) = node.inputs.iter().find_map(failed) {
            node.error = Some(error);
            return;
        }
        for (input, edge) in node.inputs.iter().enumerate() {
            let folded = &before[edge.node].folded;
            if !folded.is_empty() && !matches!(edge.gate, Gate::Closed { .. }) {
                operator.take_folded(input, folded);
            }
        }
        let seen = node.inputs.iter_mut().map(|e| e.hide(&before[e.node].out));
        let seen: Vec<Option<Vec<Batch>>> = seen.collect();
        let inputs = node.inputs.iter().zip(&seen);
        let inputs = inputs.map(|(e, seen)| seen.as_deref().unwrap_or(&before[e.node].out));
        match operator.step(&inputs.collect::<Vec<_>>(), span) {
            Ok(out) => node.out = out,
            Err(error) => node.error = Some(error),
        }
        node.bytes = operator.bytes();
    }

    /// Ends one operator, after its inputs: emits what it emits after the last instant, `now`, and
    /// what follows from the rows that its inputs emit then.
    pub(super) fn finish(&mut self, position: usize, span: Span) {
        let (before, rest) = self.nodes.split_at_mut(position);
        let node = &mut rest[0];
        let Kind::Operator(operator) = &mut node.kind else {
            return;
        };
        let failed = |e: &Edge| before[e.node].error.clone();
        if let Some(error) = node.inputs.iter().find_map(failed) {
            node.error = Some(error);
            return;
        }
        let inputs: Vec<&[Batch]> = node
            .inputs
            .iter()
            .map(|e| before[e.node].out.as_slice())
            .collect();
        let out = match inputs.iter().any(|rows| !rows.is_empty()) {
            true => operator.step(&inputs, span),
            false => operator.finish().map(|last| last.into_iter().collect()),
        };
        match out {
            Ok(out) => node.out = out,
            Err(error) => node.error = Some(error),
        }
        node.bytes = operator.bytes();
    }

    /// Discards deltas that no operator after `position` reads, so that the next operators reuse
    /// memory that is still in the cache.
    pub(super) fn discard_output(&mut self, position: usize) {
        let (before, rest) = self.nodes.split_at_mut(position);
        if rest[0].last_reader == position {
            rest[0].clear();
        }
        for edge in &rest[0].inputs {
            if before[edge.node].last_reader == position {
                before[edge.node].clear();
            }
        }
    }

    /// The positions of a node and of all its direct and indirect inputs.
    pub(super) fn below(&self, node: usize) -> Vec<usize> {
        let mut found = vec![node];
        let mut at = 0;
        while at < found.len() {
            for edge in &self.nodes[found[at]].inputs {
                if !found.contains(&edge.node) {
                    found.push(edge.node);
                }
            }
            at += 1;
        }
        found
    }
}

impl Node {
    /// See [`Operator::open_requests`].
    pub(super) fn open_requests(&self) -> u64 {
        match &self.kind {
            Kind::Operator(operator) => operator.open_requests(),
            Kind::Source(_) => 0,
        }
    }

    fn clear(&mut self) {
        self.out = Vec::new();
        self.folded = Vec::new();
    }
}

impl Edge {
    /// The rows of `rows` that pass the gate; `None` when all do.
    pub(super) fn hide(&mut self, rows: &[Batch]) -> Option<Vec<Batch>> {
        match &mut self.gate {
            Gate::Open => None,
            Gate::Closed { .. } => Some(Vec::new()),
            Gate::Skip { plus, minus } => {
                let left = rows
                    .iter()
                    .map(|b| skip(b, plus, minus))
                    .filter(|b| !b.is_empty())
                    .collect();
                if *plus == 0 && *minus == 0 {
                    self.gate = Gate::Open;
                }
                Some(left)
            }
            Gate::Content(_) => {
                let Gate::Content(content) = std::mem::replace(&mut self.gate, Gate::Open) else {
                    unreachable!("the gate was looked at above");
                };
                Some(
                    std::iter::once(content)
                        .chain(rows.iter().cloned())
                        .collect(),
                )
            }
        }
    }
}

/// The batch without its first `plus` insertions and its first `minus` retractions; both are
/// decremented.
fn skip(batch: &Batch, plus: &mut usize, minus: &mut usize) -> Batch {
    let keep = |&row: &u32| {
        let left = if batch.weight(row as usize) > 0 {
            &mut *plus
        } else {
            &mut *minus
        };
        let keep = *left == 0;
        *left = left.saturating_sub(1);
        keep
    };
    let kept: Vec<u32> = (0..batch.len() as u32).filter(keep).collect();
    take_batch(batch, &kept)
}
