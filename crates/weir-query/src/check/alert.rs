//! CREATE ALERT → a plan: the columns of its query, then labels, annotations, conditions, and what
//! its action needs.

use std::sync::Arc;

use weir_model::{NANOS_PER_SECOND, Shape, Type};

use super::{Checker, NamedQuery, describe_type};
use crate::diagnostic::{Span, codes};
use crate::expr::Expr;
use crate::plan::{JoinKind, Node, Plan};
use crate::syntax::ast::{
    self, ActClause, AlertDefinition, BodyKind, ExprKind, FromItem, Grouping, Ident, Item, Named,
    Query, SelectBlock, Spanned, SpannedExpr, TableRef, TableSource, ViewDefinition,
};

/// A checked alert. Columns are positions in the plan's schema.
#[derive(Clone, Debug)]
pub struct CheckedAlert {
    /// What it computes, not optimized.
    pub plan: Arc<Plan>,
    /// The number of columns of the alert's own query, which are the first ones.
    pub own: usize,
    /// Names and columns of the labels.
    pub labels: Vec<(String, usize)>,
    /// Names and columns of the annotations, and whether the column is a template.
    pub annotations: Vec<(String, usize, bool)>,
    /// The column of the condition to fire.
    pub when: Option<usize>,
    /// The column of the condition to clear.
    pub until: Option<usize>,
    /// How long the condition to fire must hold, in instants.
    pub hold: i64,
    /// How long the condition to clear must hold, in instants.
    pub hold_clear: i64,
    /// What is done while an instance fires.
    pub act: Option<AlertAct>,
}

/// An action of an alert. Columns are positions in the plan's schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertAct {
    /// A name of [`ACTIONS`].
    pub verb: &'static str,
    /// The target and the setting: names of the action's parameters, and their columns.
    pub items: Vec<(String, usize)>,
    /// How long it lasts at most.
    pub hold_ns: i64,
    /// How long after its end it is not repeated for the same instance.
    pub cooldown_ns: i64,
    /// The column of a condition, and the time within which it must hold.
    pub witness: Option<(usize, i64)>,
}

/// The actions of ACT, and the names of their settings beside `vm` and `disk`.
pub const ACTIONS: [(&str, &[&str]); 2] = [
    ("limit", &["iops", "bytes_per_second"]),
    ("weight", &["weight"]),
];

/// The longest action.
const HOLD_NS_MAX: i64 = 24 * 3_600 * NANOS_PER_SECOND;

/// The output columns that are the keys of an aggregation.
enum Keys {
    /// All of them are selected.
    Columns(Vec<usize>),
    /// This one is not.
    NotSelected(String),
    /// The plan is not an aggregation.
    Missing,
}

impl Checker<'_> {
    /// The plan of an alert.
    pub fn alert(&mut self, alert: &AlertDefinition) -> Option<CheckedAlert> {
        let own = self.alert_query(alert);
        let names = |items: &[Spanned<Item>], checker: &mut Self| -> Vec<Option<String>> {
            items.iter().map(|item| checker.field_name(item)).collect()
        };
        let labels = names(&alert.labels, self);
        let annotations = names(&alert.annotations, self);
        let hold = self.held(alert.hold.as_ref());
        let until = alert.until.as_ref();
        let hold_clear = self.held(until.and_then(|until| until.hold.as_ref()));
        let act = alert.act.as_ref().map(|act| self.act(act));
        let own = own?;
        let columns = own.schema.len();
        let plan = self.with_conditions(alert, own.clone())?;
        let mut at = columns;
        let mut next = || {
            at += 1;
            at - 1
        };
        let mut labels: Vec<(String, usize)> = labels
            .into_iter()
            .map(|name| name.map(|name| (name, next())))
            .collect::<Option<_>>()?;
        let annotations = annotations
            .into_iter()
            .zip(&alert.annotations)
            .map(|(name, item)| name.map(|name| (name, next(), is_text(&item.value))))
            .collect::<Option<_>>()?;
        let when = alert.when.as_ref().map(|when| (next(), when.span));
        let until = until.and_then(|until| until.condition.as_ref());
        let until = until.map(|until| (next(), until.span));
        let conditions = when.iter().chain(&until);
        let are_boolean: Vec<bool> = conditions
            .map(|(column, span)| self.must_be_boolean(&plan, *column, *span))
            .collect();
        if alert.labels.is_empty() {
            labels = self.default_labels(alert, &own)?;
        }
        let act = match (act, &alert.act) {
            (Some(checked), Some(clause)) => {
                Some(self.act_columns(checked?, clause, &plan, &mut next)?)
            }
            _ => None,
        };
        let names: Vec<&String> = labels.iter().map(|(name, _)| name).collect();
        if let Some(twice) = (1..names.len()).find(|i| names[..*i].contains(&names[*i])) {
            let message = format!("the label `{}` is stated twice", names[twice]);
            let span = alert.labels.get(twice).map_or(alert.name.span, |l| l.span);
            self.diagnostics.push(codes::ALERT_LABELS.at(span, message));
            return None;
        }
        if are_boolean.contains(&false) {
            return None;
        }
        Some(CheckedAlert {
            plan,
            own: columns,
            labels,
            annotations,
            when: when.map(|(column, _)| column),
            until: until.map(|(column, _)| column),
            hold: hold?,
            hold_clear: hold_clear?,
            act,
        })
    }

    /// The names and durations of ACT; the columns follow.
    fn act(&mut self, act: &ActClause) -> Option<AlertAct> {
        let names: Vec<Option<String>> = act.items.iter().map(|i| self.field_name(i)).collect();
        let known = |(verb, _): &&(&str, &[&str])| verb.eq_ignore_ascii_case(&act.verb.value);
        let Some((verb, settings)) = ACTIONS.iter().find(known) else {
            let message = format!("unknown action `{}`", act.verb.value);
            let found = codes::ALERT_ACT.at(act.verb.span, message);
            self.diagnostics
                .push(found.help("actions are LIMIT and WEIGHT"));
            return None;
        };
        let parameters: Vec<&str> = ["vm", "disk"].iter().chain(*settings).copied().collect();
        let mut items: Vec<(String, usize)> = Vec::new();
        for (name, item) in names.into_iter().zip(&act.items) {
            let name = name?.to_lowercase();
            let problem = match parameters.contains(&name.as_str()) {
                false => Some(format!("{verb} has no parameter `{name}`")),
                true => items
                    .iter()
                    .any(|(other, _)| *other == name)
                    .then(|| format!("the parameter `{name}` is stated twice")),
            };
            if let Some(message) = problem {
                let found = codes::ALERT_ACT.at(item.span, message);
                let help = format!("its parameters are {}", parameters.join(", "));
                self.diagnostics.push(found.help(help));
                return None;
            }
            items.push((name, 0));
        }
        let has = |name: &&str| items.iter().any(|(item, _)| item == name);
        if !has(&"vm") || !settings.iter().any(has) {
            let message = format!("{verb} needs `vm` and {}", settings.join(" or "));
            let found = codes::ALERT_ACT.at(act.verb.span, message);
            let help = format!(
                "write, for example, ACT {verb} vm, 500 AS {} FOR 10 m",
                settings[0]
            );
            self.diagnostics.push(found.help(help));
            return None;
        }
        let hold_ns = self.held(Some(&act.hold))?;
        let cooldown_ns = self.held(act.cooldown.as_ref())?;
        if hold_ns > HOLD_NS_MAX {
            let found = codes::ALERT_ACT.at(act.hold.span, "an action lasts at most 24 hours");
            self.diagnostics.push(found);
            return None;
        }
        let within = act
            .witness
            .as_ref()
            .map(|(_, within)| self.held(Some(within)));
        Some(AlertAct {
            verb,
            items,
            hold_ns,
            cooldown_ns,
            witness: match within {
                Some(within) => Some((0, within?)),
                None => None,
            },
        })
    }

    /// Sets the columns of ACT, and checks their types.
    fn act_columns(
        &mut self,
        mut act: AlertAct,
        clause: &ActClause,
        plan: &Plan,
        next: &mut impl FnMut() -> usize,
    ) -> Option<AlertAct> {
        for ((name, column), item) in act.items.iter_mut().zip(&clause.items) {
            *column = next();
            let field = &plan.schema.fields[*column];
            let (fits, expected) = match name.as_str() {
                "vm" | "disk" => (field.ty == Type::Text, "a text"),
                _ => (matches!(field.ty, Type::Int | Type::Float), "a number"),
            };
            if !fits {
                let given = describe_type(field.ty, field.unit);
                let message = format!("`{name}` is {given}, not {expected}");
                self.diagnostics
                    .push(codes::ALERT_ACT.at(item.span, message));
                return None;
            }
        }
        if let (Some((column, _)), Some((condition, _))) = (&mut act.witness, &clause.witness) {
            *column = next();
            if !self.must_be_boolean(plan, *column, condition.span) {
                return None;
            }
        }
        Some(act)
    }

    /// The plan of the alert's own query: a relation.
    fn alert_query(&mut self, alert: &AlertDefinition) -> Option<Arc<Plan>> {
        self.start();
        let view = ViewDefinition {
            or_replace: false,
            name: alert.name.clone(),
            columns: Vec::new(),
            query: alert.query.clone(),
        };
        let plan = self.named(&view).plan?;
        let span = alert.query.body.span;
        if plan.shape == Shape::Stream {
            let message = format!("the query of the alert `{}` is a stream", alert.name.value);
            let found = codes::ALERT_SHAPE.at(span, message);
            let help = "write a window, such as `IO [range 10 s]`, and no Istream";
            self.diagnostics.push(found.help(help));
            return None;
        }
        if plan.is_append_only() && alert.until.is_none() && alert.when.is_none() {
            let message = "no row ever leaves this relation, so the alert never clears";
            let found = codes::ALERT_NEVER_CLEARS.at(span, message);
            let help = "write a window, such as `IO [range 10 s]`";
            self.diagnostics.push(found.help(help));
        }
        Some(plan)
    }

    /// `SELECT *, labels, annotations, when, until FROM the query`.
    fn with_conditions(&mut self, alert: &AlertDefinition, own: Arc<Plan>) -> Option<Arc<Plan>> {
        fn exprs(items: &[Spanned<Item>]) -> impl Iterator<Item = &SpannedExpr> {
            items.iter().filter_map(|item| match &item.value {
                Item::Expr { expr, .. } => Some(expr),
                _ => None,
            })
        }
        let until = alert.until.as_ref().and_then(|u| u.condition.as_ref());
        let fields = exprs(&alert.labels).chain(exprs(&alert.annotations));
        let act = alert.act.iter().flat_map(|act| {
            let witness = act.witness.iter().map(|(condition, _)| condition);
            exprs(&act.items).chain(witness)
        });
        let added = fields.chain(&alert.when).chain(until).chain(act);
        let named = |(i, expr): (usize, &SpannedExpr)| {
            let alias = Some(Ident::new(format!("({i})"), expr.span));
            let expr = expr.clone();
            Spanned::new(Item::Expr { expr, alias }, Span::default())
        };
        let mut items = vec![Spanned::new(Item::Star, alert.query.body.span)];
        items.extend(added.enumerate().map(named));
        self.views
            .push(NamedQuery::new(&alert.name.value, Some(own), false));
        let query = select_from(&alert.name, items, alert.query.body.span);
        let plan = self.query(&query);
        self.views.pop();
        plan
    }

    /// The name of a label or annotation.
    fn field_name(&mut self, item: &Spanned<Item>) -> Option<String> {
        match &item.value {
            Item::Expr {
                alias: Some(alias), ..
            } => return Some(alias.value.clone()),
            Item::Expr { expr, alias: None } => {
                if let ExprKind::Column { name, .. } = &expr.kind {
                    return Some(name.value.clone());
                }
            }
            Item::Error => return None,
            Item::Star | Item::TableStar(_) => {}
        }
        let message = "a label or annotation without a name";
        let found = codes::ALERT_LABELS.at(item.span, message);
        let help = "write a column, or an expression with AS and a name";
        self.diagnostics.push(found.help(help));
        None
    }

    /// The duration of FOR; none is 0.
    fn held(&mut self, hold: Option<&Spanned<ast::Duration>>) -> Option<i64> {
        hold.map_or(Some(0), |hold| self.instants(hold))
    }

    /// A point in time of EXPECT, which may be 0.
    pub fn elapsed(&mut self, duration: &Spanned<ast::Duration>) -> Option<i64> {
        let is_zero = match duration.value.count {
            ast::Number::Int(count) => count == 0,
            ast::Number::Float(count) => count == 0.0,
        };
        if is_zero && self.options.second == NANOS_PER_SECOND {
            return Some(0);
        }
        self.instants(duration)
    }

    fn must_be_boolean(&mut self, plan: &Plan, column: usize, span: Span) -> bool {
        let field = &plan.schema.fields[column];
        if field.ty == Type::Bool {
            return true;
        }
        let given = describe_type(field.ty, field.unit);
        let message = format!("the condition is {given}, not boolean");
        self.diagnostics.push(codes::NOT_BOOLEAN.at(span, message));
        false
    }

    /// The keys of the query's GROUP BY.
    fn default_labels(
        &mut self,
        alert: &AlertDefinition,
        own: &Plan,
    ) -> Option<Vec<(String, usize)>> {
        let message = match keys(own) {
            Keys::Columns(columns) => {
                let name = |column: usize| (own.schema.fields[column].name.clone(), column);
                return Some(columns.into_iter().map(name).collect());
            }
            Keys::NotSelected(key) => format!("the key {key} of GROUP BY is not selected"),
            Keys::Missing => format!(
                "which columns identify an instance of `{}` is not stated",
                alert.name.value
            ),
        };
        let found = codes::ALERT_LABELS.at(alert.name.span, message);
        let help = "add LABELS and the columns that identify an instance";
        self.diagnostics.push(found.help(help));
        None
    }
}

/// Whether an annotation is a literal text, in which `{column}` stands for a value.
fn is_text(item: &Item) -> bool {
    let literal =
        |expr: &SpannedExpr| matches!(&expr.kind, ExprKind::Literal(ast::Literal::Text(_)));
    matches!(item, Item::Expr { expr, .. } if literal(expr))
}

fn select_from(name: &Ident, items: Vec<Spanned<Item>>, span: Span) -> Query {
    let named = Named {
        name: name.clone(),
        window: None,
        alias: None,
    };
    let table: TableRef = Spanned::new(TableSource::Named(named), name.span);
    let block = SelectBlock {
        distinct: false,
        items,
        from: vec![FromItem {
            table,
            joins: Vec::new(),
        }],
        filter: None,
        group_by: Vec::new(),
        grouping: Grouping::All,
        having: None,
        windows: Vec::new(),
    };
    Query {
        views: Vec::new(),
        body: Spanned::new(BodyKind::Select(Box::new(block)), span),
        order_by: Vec::new(),
        limit: None,
        offset: None,
    }
}

/// The keys of the aggregation whose rows are the plan's.
fn keys(plan: &Plan) -> Keys {
    match &plan.node {
        Node::Aggregate { keys, .. } => Keys::Columns((0..keys.len()).collect()),
        Node::Select { input, .. }
        | Node::Order { input, .. }
        | Node::Over { input, .. }
        | Node::Distinct { input } => keys(input),
        Node::Join(join)
            if matches!(join.kind, JoinKind::Left | JoinKind::Semi | JoinKind::Anti) =>
        {
            keys(&join.left)
        }
        Node::Project { input, exprs } => match keys(input) {
            Keys::Columns(columns) => selected(&columns, exprs, input),
            other => other,
        },
        _ => Keys::Missing,
    }
}

fn selected(columns: &[usize], exprs: &[Expr], input: &Plan) -> Keys {
    let mut found = Vec::new();
    for key in columns {
        let is_it = |expr: &Expr| matches!(expr, Expr::Column { index, .. } if index == key);
        match exprs.iter().position(is_it) {
            Some(column) => found.push(column),
            None => return Keys::NotSelected(format!("`{}`", input.schema.fields[*key].name)),
        }
    }
    Keys::Columns(found)
}
