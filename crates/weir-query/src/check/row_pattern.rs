//! MATCH_RECOGNIZE: a stream of the matches of a pattern in the rows of a stream.

use std::collections::BTreeSet;
use std::sync::Arc;

use weir_model::suggest::nearest;
use weir_model::{Field, Schema};

use super::Checker;
use super::expr::Names;
use super::from::FromPlan;
use super::navigation::{Clause, MatchNames, Reads};
use super::query::order_by;
use super::scope::Scope;
use crate::diagnostic::{Span, codes, counted, there_are};
use crate::expr::Expr;
use crate::plan::row_match::{
    POSITIONS_MAX, PatternVariable, RowPattern, TERMS_HEIGHT_MAX, VARIABLES_MAX,
};
use crate::plan::{OrderBy, Plan, RowMatch};
use crate::syntax::ast::{
    self, ExprKind, MatchClause, MatchSource, PatternTerm, Spanned, SpannedExpr, TableRef,
    TableSource, WindowSpec,
};

/// A pattern and its variables, in the order of their first use.
struct CheckedPattern {
    pattern: RowPattern,
    absent: Option<usize>,
    variables: Vec<String>,
}

impl Checker<'_> {
    /// The stream of matches, through its window.
    pub(super) fn match_table(&mut self, source: &MatchSource) -> FromPlan {
        let name = source.alias.as_ref().map_or("", |alias| &alias.value);
        let matches = self.without_subqueries(|checker| checker.matches(source));
        let Some(plan) = matches else {
            return FromPlan {
                plan: None,
                scope: Scope::unknown(name),
            };
        };
        let shown = if name.is_empty() { "the matches" } else { name };
        let schema = plan.schema.clone();
        let plan = self.windowed(plan, source.window.as_ref(), false, &[shown]);
        FromPlan {
            plan,
            scope: Scope::of(name, schema, None),
        }
    }

    fn matches(&mut self, source: &MatchSource) -> Option<Arc<Plan>> {
        let clause = &source.clause;
        let input = self.match_input(&source.input);
        let pattern = self.row_pattern(clause);
        let within = match &clause.within {
            Some(within) => Some(self.instants(within)?),
            None => None,
        };
        let (input, pattern) = (input?, pattern?);
        self.matches_of(clause, &input, pattern, within)
    }

    /// The stream in which rows are matched.
    fn match_input(&mut self, input: &TableRef) -> Option<Arc<Plan>> {
        let mut whole = input.value.clone();
        let window = match &mut whole {
            TableSource::Named(named) => named.window.take(),
            TableSource::Derived { window, .. } => window.take(),
            TableSource::Match(matches) => matches.window.take(),
            TableSource::Error => None,
        };
        // All rows pass through these windows, in their order.
        let passes = |window: &ast::WindowClause| {
            matches!(
                window.value,
                WindowSpec::Now | WindowSpec::Unbounded { slide: None } | WindowSpec::Error
            )
        };
        let table = self.table(&TableRef::new(whole, input.span));
        if let Some(window) = window.filter(|window| !passes(window)) {
            let message = "MATCH_RECOGNIZE reads a stream, not a window over it";
            let found = codes::ROW_PATTERN.at(window.span, message);
            let help = "remove the window; WITHIN limits the time of a match";
            self.diagnostics.push(found.help(help));
            return None;
        }
        let plan = table.plan?;
        let stream = plan.as_stream();
        if stream.is_none() {
            let message = "MATCH_RECOGNIZE reads a stream, this is a relation";
            let found = codes::ROW_PATTERN.at(input.span, message);
            let help = "Istream(..) makes a stream of its insertions";
            self.diagnostics.push(found.help(help));
        }
        stream
    }

    fn matches_of(
        &mut self,
        clause: &MatchClause,
        input: &Arc<Plan>,
        pattern: CheckedPattern,
        within: Option<i64>,
    ) -> Option<Arc<Plan>> {
        let schema = &input.schema;
        let names = MatchNames {
            schema,
            variables: &pattern.variables,
        };
        let keys = self.match_keys(&clause.partition, schema);
        let order = self.match_order(clause, schema);
        let mut reads = Reads::default();
        let conditions = self.definitions(clause, &names, &mut reads);
        let mut results = Reads::default();
        let measures = self.match_measures(clause, &names, &mut results);
        let (keys, order) = (keys?, order?);
        let (conditions, measures) = (conditions?, measures?);
        if keys.is_empty() && measures.is_empty() {
            let message = "a match has no columns";
            let found = codes::ROW_PATTERN.at(clause.pattern.span, message);
            let help = "add MEASURES, such as `measures first(a.ts) as begin`";
            self.diagnostics.push(found.help(help));
            return None;
        }
        let variables = pattern.variables.iter().zip(conditions);
        let variables = variables.map(|(name, condition)| PatternVariable {
            name: name.clone(),
            condition,
        });
        let by = RowMatch {
            keys: keys.iter().map(|key| key.0.clone()).collect(),
            order,
            pattern: pattern.pattern,
            absent: pattern.absent,
            variables: variables.collect(),
            previous: reads.previous(),
            navigations: reads.navigations(),
            results: results.results(),
            after: clause.after,
            within,
        };
        let key_fields: Vec<Field> = keys.into_iter().map(|key| key.1).collect();
        let fields = [&key_fields[..], &results.fields()[..]].concat();
        let matched = narrowed(input, by, fields);
        let exprs = matched.columns();
        let (mut exprs, mut fields) = (exprs[..key_fields.len()].to_vec(), key_fields);
        let keys = fields.len();
        for (expr, field) in measures {
            exprs.push(expr.map_columns(&|i| i + keys));
            fields.push(field);
        }
        Some(Plan::project(matched, exprs, fields))
    }

    /// PARTITION BY: columns.
    fn match_keys(
        &mut self,
        keys: &[SpannedExpr],
        schema: &Arc<Schema>,
    ) -> Option<Vec<(Expr, Field)>> {
        let scope = Scope::of("", schema.clone(), None);
        let keys: Vec<_> = keys
            .iter()
            .map(|key| {
                let checked = self.plain_expr(key, &scope, "PARTITION BY")?;
                let Expr::Column { index, .. } = checked else {
                    let message = "PARTITION BY of MATCH_RECOGNIZE takes columns";
                    let found = codes::ROW_PATTERN.at(key.span, message);
                    let help = "compute the expression in a subquery";
                    self.diagnostics.push(found.help(help));
                    return None;
                };
                Some((checked, schema[index].clone()))
            })
            .collect();
        keys.into_iter().collect()
    }

    /// ORDER BY: the timestamp of the stream, then the order of rows of one timestamp.
    fn match_order(&mut self, clause: &MatchClause, schema: &Arc<Schema>) -> Option<Vec<OrderBy>> {
        let Some((first, rest)) = clause.order_by.split_first() else {
            return Some(Vec::new());
        };
        let is_time = matches!(
            &first.expr.kind,
            ExprKind::Column { table: None, name } if name.value.eq_ignore_ascii_case("ts")
        );
        if !is_time || first.descending {
            let message = "rows are matched in the order of their timestamps";
            let found = codes::ROW_PATTERN.at(first.expr.span, message);
            let help = "write `order by ts`; further keys order rows of one timestamp";
            self.diagnostics.push(found.help(help));
            return None;
        }
        let scope = Scope::of("", schema.clone(), None);
        let rest: Vec<_> = rest
            .iter()
            .map(|item| {
                let key = self.plain_expr(&item.expr, &scope, "ORDER BY")?;
                Some(order_by(key, item))
            })
            .collect();
        rest.into_iter().collect()
    }

    /// The conditions of the variables, over the columns of the input and then what they read of
    /// other rows.
    fn definitions(
        &mut self,
        clause: &MatchClause,
        names: &MatchNames,
        reads: &mut Reads,
    ) -> Option<Vec<Option<Expr>>> {
        let mut defined: Vec<Option<SpannedExpr>> = vec![None; names.variables.len()];
        let mut sound = true;
        for (name, condition) in &clause.definitions {
            let Some(variable) = names.variable(&name.value) else {
                self.unknown_variable(name, names);
                sound = false;
                continue;
            };
            if defined[variable].is_some() {
                let message = format!("DEFINE has `{name}` twice");
                let found = codes::ROW_PATTERN.at(name.span, message);
                self.diagnostics
                    .push(found.help("join the conditions by AND"));
                sound = false;
            }
            let mut condition = condition.clone();
            let navigated = self.navigate(&mut condition, Clause::Define(variable), names, reads);
            sound &= navigated.is_some();
            defined[variable] = Some(condition);
        }
        if !sound {
            return None;
        }
        let mut conditions = Vec::new();
        for (condition, name) in defined.iter().zip(names.variables) {
            let scope = Scope::of(name, names.schema.clone(), None).concat(reads.scope());
            conditions.push(match condition {
                Some(condition) => self.condition(condition, &scope, "DEFINE").map(Some),
                None => Some(None),
            });
        }
        conditions.into_iter().collect()
    }

    /// The measures, over the results.
    fn match_measures(
        &mut self,
        clause: &MatchClause,
        names: &MatchNames,
        results: &mut Reads,
    ) -> Option<Vec<(Expr, Field)>> {
        let mut navigated = Vec::new();
        for (measure, name) in &clause.measures {
            let mut measure = measure.clone();
            let sound = self.navigate(&mut measure, Clause::Measures, names, results);
            navigated.push(sound.map(|()| (measure, name)));
        }
        let scope = results.scope();
        let checked: Vec<_> = navigated
            .into_iter()
            .map(|measure| {
                let (measure, name) = measure?;
                let mut resolved = Names::plain(&scope, "MEASURES");
                let expr = self.expr(&measure, &mut resolved)?;
                let field = match &expr {
                    Expr::Column { index, .. } => scope.field(*index).cloned(),
                    _ => None,
                };
                let nullable = |i: usize| scope.field(i).is_none_or(|field| field.nullable);
                let is_nullable = expr.is_nullable(&nullable);
                let computed = || Field::new("", expr.ty()).unit(expr.unit());
                let field = Field {
                    name: name.value.clone(),
                    nullable: is_nullable,
                    ..field.unwrap_or_else(computed)
                };
                Some((expr, field))
            })
            .collect();
        checked.into_iter().collect()
    }

    pub(super) fn unknown_variable(&mut self, name: &ast::Ident, names: &MatchNames) {
        let known: Vec<&str> = names.variables.iter().map(String::as_str).collect();
        let message = format!("the pattern has no variable `{}`", name.value);
        let help = match nearest(&name.value, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => there_are(&known),
        };
        self.diagnostics
            .push(codes::ROW_PATTERN.at(name.span, message).help(help));
    }

    /// PATTERN and WITHIN.
    fn row_pattern(&mut self, clause: &MatchClause) -> Option<CheckedPattern> {
        let mut variables = Vec::new();
        let term = &clause.pattern;
        let (terms, absent) = match &term.value {
            PatternTerm::Sequence(terms) => match &terms[terms.len() - 1].value {
                PatternTerm::Absent(name) => (&terms[..terms.len() - 1], Some(name)),
                _ => (&terms[..], None),
            },
            _ => (std::slice::from_ref(term), None),
        };
        let terms: Option<Vec<RowPattern>> = terms
            .iter()
            .map(|term| self.pattern_term(term, &mut variables))
            .collect();
        let mut terms = terms?;
        let pattern = match terms.len() {
            1 => terms.remove(0),
            _ => RowPattern::Sequence(terms),
        };
        let absent = absent.map(|name| numbered(&mut variables, &name.value));
        self.check_size(&pattern, &variables, term.span)?;
        let needs = match (absent, pattern.is_unlimited()) {
            (Some(_), _) => Some("NOT needs WITHIN, at the end of which the match is complete"),
            (None, true) => Some("a pattern with an unlimited quantifier needs WITHIN"),
            (None, false) => None,
        };
        if let (Some(message), None) = (needs, &clause.within) {
            let found = codes::ROW_PATTERN.at(term.span, message);
            let help = "write `pattern (..) within interval '1' second`";
            self.diagnostics.push(found.help(help));
            return None;
        }
        Some(CheckedPattern {
            pattern,
            absent,
            variables,
        })
    }

    fn check_size(&mut self, pattern: &RowPattern, variables: &[String], span: Span) -> Option<()> {
        let (positions, count) = (pattern.positions(), variables.len());
        let message = if count > VARIABLES_MAX {
            format!("the pattern has {count} variables, the maximum is {VARIABLES_MAX}")
        } else if positions > POSITIONS_MAX as u64 {
            let positions = usize::try_from(positions).unwrap_or(usize::MAX);
            let rows = counted(positions, "position");
            format!("with its quantifiers the pattern has {rows}, the maximum is {POSITIONS_MAX}")
        } else if pattern.rows_min() == 0 {
            "the pattern can match no row".to_owned()
        } else if !pattern.is_sound(count, TERMS_HEIGHT_MAX) {
            format!("the pattern is nested more than {TERMS_HEIGHT_MAX} deep")
        } else {
            return Some(());
        };
        let found = codes::ROW_PATTERN.at(span, message);
        self.diagnostics.push(match pattern.rows_min() {
            0 => found.help("one of its variables must be required: `a+` instead of `a*`"),
            _ => found,
        });
        None
    }

    fn pattern_term(
        &mut self,
        term: &Spanned<PatternTerm>,
        variables: &mut Vec<String>,
    ) -> Option<RowPattern> {
        let mut all = |checker: &mut Self, terms: &[Spanned<PatternTerm>]| {
            let terms = terms
                .iter()
                .map(|term| checker.pattern_term(term, variables));
            terms.collect::<Option<Vec<_>>>()
        };
        Some(match &term.value {
            PatternTerm::Variable(name) => RowPattern::Variable(numbered(variables, &name.value)),
            PatternTerm::Absent(_) => {
                let message = "NOT is only supported at the end of a pattern";
                let found = codes::ROW_PATTERN.at(term.span, message);
                let help = "between rows write a variable with the opposite condition: \
                            `pattern (a n* c) define n as not (..)`";
                self.diagnostics.push(found.help(help));
                return None;
            }
            PatternTerm::Sequence(terms) => RowPattern::Sequence(all(self, terms)?),
            PatternTerm::Alternatives(terms) => RowPattern::Alternatives(all(self, terms)?),
            PatternTerm::Repeated {
                term: repeated,
                min,
                max,
                reluctant,
            } => {
                let inner = self.pattern_term(repeated, variables)?;
                if max.is_some_and(|max| max < (*min).max(1)) {
                    // The parser has reported it.
                    return None;
                }
                if inner.rows_min() == 0 {
                    let message = "what is repeated can match no row";
                    let found = codes::ROW_PATTERN.at(repeated.span, message);
                    let help = "one of its variables must be required: `(a b?)*`";
                    self.diagnostics.push(found.help(help));
                    return None;
                }
                RowPattern::Repeated {
                    term: Box::new(inner),
                    min: *min,
                    max: *max,
                    reluctant: *reluctant,
                }
            }
        })
    }
}

/// The number of a variable, which is added if it is new.
fn numbered(variables: &mut Vec<String>, name: &str) -> usize {
    let known = variables.iter().position(|v| v.eq_ignore_ascii_case(name));
    known.unwrap_or_else(|| {
        variables.push(name.to_owned());
        variables.len() - 1
    })
}

/// The matches in the columns of `input` that `by` reads, by which rows of one timestamp are
/// ordered.
fn narrowed(input: &Arc<Plan>, mut by: RowMatch, fields: Vec<Field>) -> Arc<Plan> {
    let width = input.schema.len();
    let mut read = BTreeSet::new();
    for expr in by.exprs() {
        expr.visit_columns(&mut |i| read.extend(Some(i).filter(|i| *i < width)));
    }
    let read: Vec<usize> = read.into_iter().collect();
    let position = |i: usize| match i.checked_sub(width) {
        Some(further) => read.len() + further,
        None => read.binary_search(&i).expect("it was found to be read"),
    };
    by.exprs_mut()
        .for_each(|expr| *expr = expr.map_columns(&position));
    let columns = input.columns();
    let exprs = read.iter().map(|i| columns[*i].clone()).collect();
    let named = read.iter().map(|i| input.schema[*i].clone()).collect();
    Plan::row_match(Plan::project(input.clone(), exprs, named), by, fields)
}
