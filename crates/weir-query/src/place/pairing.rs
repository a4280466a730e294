//! [`pair`]: joins of requests with their responses, computed from pairs that a tap has formed
//! already.
//!
//! Thesis queries 4, 8 and 10 join a stream of events with itself:
//!
//! ```text
//! select r.ts - q.ts from IOstream [range 3 s] as q, IOstream [range 3 s] as r
//! where q.type = 'Q' and r.type = 'R' and q.req_id = r.req_id
//! ```
//!
//! A pair is in the join while both rows are in their windows. If each request has a number that
//! no other has, and another stream has a row for each pair, at the time of the response and with
//! the time of the request, that is a row of this other stream from its own time until the request
//! is too old: [`Since`]. Then no request needs to be transferred, stored or searched.
//!
//! A join for which this cannot be proven is not changed.

use std::sync::Arc;

use weir_model::event::PairedStreams;
use weir_model::{Catalog, Declaration, EventKind, Shape, Type, Unit, Value};

use crate::expr::{BinaryOp, Expr};
use crate::optimize::optimize;
use crate::plan::{JoinKind, Node, Plan, ToStream, Window};
use crate::window::{Range, Since, Unbounded};

/// The guarantees of a source for a stream of events.
#[derive(Clone, Debug)]
pub struct PairingGuarantee {
    /// The stream of events, by name.
    pub events: String,
    /// Its column with the kind of a row: `Q` a request, `R` its response.
    pub kind: usize,
    /// Its column with the request's number, the same in both rows, and used once.
    pub number: usize,
    /// The stream with a row for each response, at the response's instant.
    pub pairs: Declaration,
    /// For each column of the events, its value for the request in a row of `pairs`; `None` if
    /// unknown.
    pub request: Vec<Option<Expr>>,
    /// The same for the response.
    pub response: Vec<Option<Expr>>,
    /// The request's instant, which is not after the response's; NULL if the row is not a pair.
    /// Over `pairs`.
    pub origin: Expr,
    /// Whether the source gives the guarantee, or why not, as in "a file is read as it is".
    pub guarantee: Result<(), String>,
}

impl PairingGuarantee {
    /// The guarantees of a source for two built-in streams of the same requests. An instant has
    /// `instant_ns` nanoseconds.
    ///
    /// # Panics
    /// When the catalog does not have these streams and columns.
    pub fn new(
        of: &PairedStreams,
        instant_ns: i64,
        guarantee: Result<(), String>,
    ) -> PairingGuarantee {
        let catalog = Catalog::builtin();
        let source = |name| catalog.find(name).expect("it is built in").clone();
        let (events, pairs) = (source(of.events), source(of.finished));
        let column = |name: &str| {
            let at = pairs.schema.index(name);
            let field = &pairs.schema[at];
            Expr::column(at, field.ty, field.unit)
        };
        let of_request = |name: &str| match name {
            time if time == of.time => Some(column(of.request_time)),
            kind if kind == of.kind => Some(letter(EventKind::Request)),
            name if of.response_only.contains(&name) => None,
            other => Some(column(other)),
        };
        let fields = events.schema.fields.iter();
        let names: Vec<&str> = fields.map(|f| f.name.as_str()).collect();
        PairingGuarantee {
            events: events.name.clone(),
            kind: events.schema.index(of.kind),
            number: events.schema.index(of.number),
            request: names.iter().map(|name| of_request(name)).collect(),
            response: names.iter().map(|name| Some(column(name))).collect(),
            origin: instants(column(of.request_time), instant_ns),
            pairs: pairs.clone(),
            guarantee,
        }
    }
}

/// A time in nanoseconds, not before 1970, as an instant.
fn instants(time: Expr, instant_ns: i64) -> Expr {
    match instant_ns {
        1 => time,
        _ => Expr::Binary {
            op: BinaryOp::Divide,
            left: Box::new(Expr::Cast {
                expr: Box::new(time),
                ty: Type::Int,
                unit: Unit::Nanoseconds,
            }),
            right: Box::new(Expr::int(instant_ns)),
            unit: Unit::None,
        },
    }
}

/// A plan whose joins of requests with responses are computed from pairs where possible.
#[derive(Clone, Debug)]
pub struct Paired {
    /// The plan; its result is the same.
    pub plan: Arc<Plan>,
    /// The number of joins replaced.
    pub replaced: usize,
    /// The joins that were not, each with the reason, as a sentence without full stop.
    pub reasons: Vec<(Arc<Plan>, String)>,
}

/// Replaces joins by pairs as guaranteed by `pairings`.
pub fn pair(plan: &Arc<Plan>, pairings: &[PairingGuarantee]) -> Paired {
    let mut paired = Paired {
        plan: plan.clone(),
        replaced: 0,
        reasons: Vec::new(),
    };
    let rewritten = paired.walk(plan, pairings);
    if paired.replaced > 0 {
        paired.plan = optimize(&rewritten);
    }
    paired
}

impl Paired {
    fn walk(&mut self, plan: &Arc<Plan>, pairings: &[PairingGuarantee]) -> Arc<Plan> {
        // It also emits when a row arrives, and a request without response is such a row.
        if let Node::ToStream {
            kind: ToStream::Rstream { every: None },
            ..
        } = plan.node
        {
            self.note(
                plan,
                pairings,
                "Rstream emits at each row, also at requests",
            );
            return plan.clone();
        }
        match answer(plan, pairings) {
            Some(Ok(pairs)) => {
                self.replaced += 1;
                return pairs;
            }
            Some(Err(why)) => self.reasons.push((plan.clone(), why)),
            None => {}
        }
        let inputs = plan.inputs();
        let walked: Vec<_> = inputs.iter().map(|p| self.walk(p, pairings)).collect();
        match inputs.iter().zip(&walked).all(|(a, b)| Arc::ptr_eq(a, b)) {
            true => plan.clone(),
            false => plan.with_inputs(walked),
        }
    }

    /// Records for all joins below that they are not replaced.
    fn note(&mut self, plan: &Arc<Plan>, pairings: &[PairingGuarantee], why: &str) {
        match answer(plan, pairings) {
            Some(_) => self.reasons.push((plan.clone(), why.into())),
            None => {
                for input in plan.inputs() {
                    self.note(input, pairings, why);
                }
            }
        }
    }
}

/// The plan over pairs for a join of requests with their responses, or why there is none; `None` if
/// it is no such join.
fn answer(plan: &Arc<Plan>, pairings: &[PairingGuarantee]) -> Option<Result<Arc<Plan>, String>> {
    pairings.iter().find_map(|pairing| {
        let found = SelfJoin::find(plan, pairing)?;
        let promised = pairing.guarantee.clone();
        Some(promised.and_then(|()| found.of_pairs(plan)))
    })
}

/// One side of the join: a window over selections and projections of the events.
struct Side<'a> {
    source: &'a Declaration,
    window: &'a Window,
    /// Its columns, over those of the events.
    exprs: Vec<Expr>,
    /// The conditions on its rows, over the same; without the kind.
    conditions: Vec<Expr>,
}

/// A join of requests with their responses.
struct SelfJoin<'a> {
    pairing: &'a PairingGuarantee,
    request: Side<'a>,
    response: Side<'a>,
    /// Whether the request is on the left.
    request_first: bool,
    on: &'a [(Expr, Expr)],
    residual: Option<&'a Expr>,
}

impl<'a> Side<'a> {
    /// The side in `plan`, if its rows are of `kind`.
    fn find(plan: &'a Arc<Plan>, pairing: &PairingGuarantee, kind: EventKind) -> Option<Side<'a>> {
        let mut window = None;
        let mut steps = Vec::new();
        let mut below = plan;
        let source = loop {
            match &below.node {
                Node::Source(declaration) => break declaration,
                Node::Window { input, window: own } if window.is_none() => {
                    window = Some(own);
                    below = input;
                }
                Node::Select { input, .. } | Node::Project { input, .. } => {
                    steps.push(&below.node);
                    below = input;
                }
                _ => return None,
            }
        };
        let is_it = source.shape == Shape::Stream
            && source.fold.is_none()
            && source.name.eq_ignore_ascii_case(&pairing.events);
        if !is_it {
            return None;
        }
        let mut side = Side {
            source,
            window: window?,
            exprs: below.columns(),
            conditions: Vec::new(),
        };
        for step in steps.into_iter().rev() {
            match step {
                Node::Select { predicate, .. } => {
                    let conditions = predicate.clone().conjuncts().into_iter();
                    let conditions: Vec<Expr> = conditions.map(|c| side.over(&c)).collect();
                    side.conditions.extend(conditions);
                }
                Node::Project { exprs, .. } => {
                    side.exprs = exprs.iter().map(|e| side.over(e)).collect();
                }
                _ => unreachable!("only these are steps"),
            }
        }
        let before = side.conditions.len();
        side.conditions
            .retain(|c| !is_of_kind(c, pairing.kind, kind));
        (side.conditions.len() < before).then_some(side)
    }

    /// An expression over the side's columns, rewritten over those of the events.
    fn over(&self, expr: &Expr) -> Expr {
        super::substituted(expr, &self.exprs)
    }

    /// How long its rows stay, `None` for ever, and the slide.
    fn span(&self) -> Option<(Option<i64>, Option<i64>)> {
        match self.window {
            Window::Range(Range { size, slide }) => Some((Some(*size), *slide)),
            Window::Unbounded(Unbounded { slide }) => Some((None, *slide)),
            _ => None,
        }
    }
}

/// Whether a condition requires that column `at` is the letter of `kind`.
fn is_of_kind(condition: &Expr, at: usize, kind: EventKind) -> bool {
    let letter = Value::Text(kind.symbol());
    let is_column = |e: &Expr| matches!(e, Expr::Column { index, .. } if *index == at);
    let is_letter = |e: &Expr| matches!(e, Expr::Literal { value, .. } if *value == letter);
    match condition {
        Expr::Binary {
            op: BinaryOp::Equal,
            left,
            right,
            ..
        } => (is_column(left) && is_letter(right)) || (is_column(right) && is_letter(left)),
        Expr::InList {
            expr,
            list,
            negated: false,
            ..
        } => is_column(expr) && *list == [letter],
        _ => false,
    }
}

impl<'a> SelfJoin<'a> {
    fn find(plan: &'a Plan, pairing: &'a PairingGuarantee) -> Option<SelfJoin<'a>> {
        let join = plan.as_join().filter(|join| join.kind == JoinKind::Inner)?;
        let side = |plan, kind| Side::find(plan, pairing, kind);
        let (request, response, request_first) = match side(&join.left, EventKind::Request) {
            Some(request) => (request, side(&join.right, EventKind::Response)?, true),
            None => {
                let response = side(&join.left, EventKind::Response)?;
                (side(&join.right, EventKind::Request)?, response, false)
            }
        };
        let found = SelfJoin {
            pairing,
            request,
            response,
            request_first,
            on: &join.on,
            residual: join.residual.as_ref(),
        };
        let is_number =
            |e: &Expr| matches!(e, Expr::Column { index, .. } if *index == pairing.number);
        let by_number = |pair: &(Expr, Expr)| {
            let (request, response) = found.pair_over_events(pair);
            is_number(&request) && is_number(&response)
        };
        join.on.iter().any(by_number).then_some(found)
    }

    /// Two sides of an equality over the columns of the events, the request's first.
    fn pair_over_events(&self, (left, right): &(Expr, Expr)) -> (Expr, Expr) {
        let (request, response) = match self.request_first {
            true => (left, right),
            false => (right, left),
        };
        (self.request.over(request), self.response.over(response))
    }

    /// The rows of the join as rows of pairs.
    fn of_pairs(&self, join: &Plan) -> Result<Arc<Plan>, String> {
        let window = self.window()?;
        self.never_fails()?;
        let pairing = self.pairing;
        let mut conditions = Vec::new();
        let kind = pairing.response[pairing.kind].as_ref();
        let kind = kind.ok_or("the pairs do not contain the outcome of a request")?;
        conditions.push(equal(kind.clone(), letter(EventKind::Response)));
        for condition in &self.request.conditions {
            conditions.push(self.over_pairs(condition, &pairing.request)?);
        }
        for condition in &self.response.conditions {
            conditions.push(self.over_pairs(condition, &pairing.response)?);
        }
        conditions.extend(self.equalities()?);
        let source = Plan::source(pairing.pairs.clone());
        let mut pairs = Plan::window(Plan::select_all(source, conditions), window);
        let columns = self.columns();
        if let Some(residual) = self.residual {
            let known = |index: usize| columns[index].clone();
            let residual = substituted(residual, &known);
            let residual = residual
                .ok_or("it compares columns that the pairs do not contain for both rows")?;
            pairs = Plan::select(pairs, residual);
        }
        let exprs = columns.into_iter().enumerate().map(|(i, column)| {
            let name = &join.schema[i].name;
            column.ok_or_else(|| format!("the pairs do not contain `{name}` of both rows"))
        });
        let exprs = exprs.collect::<Result<Vec<_>, _>>()?;
        Ok(Plan::project(pairs, exprs, join.schema.fields.clone()))
    }

    /// How long a pair is in the join, if that depends on its request alone.
    fn window(&self) -> Result<Window, String> {
        let spans = self.request.span().zip(self.response.span());
        let ((size, slide), (other, other_slide)) =
            spans.ok_or("one of its windows is not a time range")?;
        let within = match (size, other) {
            (_, None) => true,
            (Some(request), Some(response)) => request <= response,
            (None, Some(_)) => false,
        };
        if slide != other_slide || !within {
            return Err("its windows differ: the response may expire before the request".into());
        }
        let origin = self.pairing.origin.clone();
        Ok(Window::Since(Since {
            origin,
            size,
            slide,
        }))
    }

    /// Checks that no expression can fail: the join also evaluates requests without response and
    /// responses without request, which are not in the pairs.
    fn never_fails(&self) -> Result<(), String> {
        let sides = [&self.request, &self.response].into_iter();
        let mut evaluated = sides.flat_map(|side| side.exprs.iter().chain(&side.conditions));
        let keys = self.on.iter().flat_map(|(left, right)| [left, right]);
        match evaluated.any(Expr::may_fail) || keys.into_iter().any(Expr::may_fail) {
            true => Err("an expression below the join may fail".into()),
            false => Ok(()),
        }
    }

    /// The equalities besides that of the number.
    fn equalities(&self) -> Result<Vec<Expr>, String> {
        let pairing = self.pairing;
        let mut conditions = Vec::new();
        for pair in self.on {
            let (request, response) = self.pair_over_events(pair);
            let is_number =
                |e: &Expr| matches!(e, Expr::Column { index, .. } if *index == pairing.number);
            if is_number(&request) && is_number(&response) {
                continue;
            }
            let request = self.over_pairs(&request, &pairing.request)?;
            let response = self.over_pairs(&response, &pairing.response)?;
            conditions.push(match request == response {
                // NULL is not equal to anything, itself included.
                true => Expr::IsNull {
                    expr: Box::new(request),
                    negated: true,
                },
                false => equal(request, response),
            });
        }
        Ok(conditions)
    }

    /// The columns of the join over those of the pairs, as far as these contain them.
    fn columns(&self) -> Vec<Option<Expr>> {
        let pairing = self.pairing;
        let of = |side: &Side<'_>, over_pairs: &[Option<Expr>]| {
            let known = |index: usize| over_pairs[index].clone();
            let exprs = side.exprs.iter();
            exprs
                .map(|e| substituted(e, &known))
                .collect::<Vec<Option<Expr>>>()
        };
        let request = of(&self.request, &pairing.request);
        let response = of(&self.response, &pairing.response);
        match self.request_first {
            true => [request, response].concat(),
            false => [response, request].concat(),
        }
    }

    /// An expression over the events' columns, rewritten over those of the pairs.
    fn over_pairs(&self, expr: &Expr, over_pairs: &[Option<Expr>]) -> Result<Expr, String> {
        substituted(expr, &|index| over_pairs[index].clone()).ok_or_else(|| {
            let mut missing = None;
            expr.visit_columns(&mut |index| {
                if over_pairs[index].is_none() {
                    missing = Some(self.request.source.schema[index].name.as_str());
                }
            });
            let column = missing.expect("only a missing column prevents it");
            format!("the pairs do not contain `{column}` of both rows")
        })
    }
}

/// `expr` with each column replaced, if all are known.
fn substituted(expr: &Expr, known: &impl Fn(usize) -> Option<Expr>) -> Option<Expr> {
    let mut all = true;
    expr.visit_columns(&mut |index| all &= known(index).is_some());
    all.then(|| {
        expr.map(&|e| match e {
            Expr::Column { index, .. } => known(index).unwrap_or(e),
            other => other,
        })
    })
}

fn equal(left: Expr, right: Expr) -> Expr {
    Expr::boolean(BinaryOp::Equal, left, right)
}

fn letter(kind: EventKind) -> Expr {
    Expr::Literal {
        value: Value::Text(kind.symbol()),
        ty: Type::Text,
        unit: Unit::None,
    }
}
