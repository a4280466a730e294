//! The expressions of MATCH_RECOGNIZE: calls and columns that read other rows than the current one
//! become columns of their own.

use std::sync::Arc;

use weir_model::{Field, Schema};

use super::Checker;
use super::call::{Written, named_aggregate};
use super::expr::Names;
use super::scope::Scope;
use crate::diagnostic::{Span, codes};
use crate::expr::Expr;
use crate::plan::row_match::{MatchEnd, MatchResult, Navigation, PREVIOUS_ROWS_MAX, PreviousValue};
use crate::syntax::ast::{ExprKind, Ident, Literal, Number, SpannedExpr};

/// The names that expressions of a MATCH_RECOGNIZE can use.
pub(super) struct MatchNames<'c> {
    /// The columns of the input.
    pub schema: &'c Arc<Schema>,
    /// The variables of the pattern.
    pub variables: &'c [String],
}

/// Where an expression is.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Clause {
    /// In MEASURES: the rows are those of the match.
    Measures,
    /// In the condition of a variable: there is a current row, which may be of that variable.
    Define(usize),
}

/// A column of its own.
struct Read {
    field: Field,
    value: ReadValue,
}

#[derive(PartialEq)]
enum ReadValue {
    Previous(PreviousValue),
    Result(MatchResult),
}

/// The columns that are read of other rows.
#[derive(Default)]
pub(super) struct Reads(Vec<Read>);

impl Reads {
    /// Those of previous rows.
    pub fn previous(&self) -> Vec<PreviousValue> {
        let previous = self.ordered().filter_map(|read| match &read.value {
            ReadValue::Previous(previous) => Some(previous.clone()),
            ReadValue::Result(_) => None,
        });
        previous.collect()
    }

    /// Those of rows of the match.
    pub fn navigations(&self) -> Vec<Navigation> {
        let navigations = self.ordered().filter_map(|read| match &read.value {
            ReadValue::Result(MatchResult::Navigation(navigation)) => Some(navigation.clone()),
            _ => None,
        });
        navigations.collect()
    }

    /// All results.
    pub fn results(&self) -> Vec<MatchResult> {
        let results = self.ordered().filter_map(|read| match &read.value {
            ReadValue::Result(result) => Some(result.clone()),
            ReadValue::Previous(_) => None,
        });
        results.collect()
    }

    /// The columns.
    pub fn fields(&self) -> Vec<Field> {
        self.ordered().map(|read| read.field.clone()).collect()
    }

    /// Their names.
    pub fn scope(&self) -> Scope {
        Scope::of("", Arc::new(Schema::new(self.fields())), None)
    }

    /// Those of previous rows first.
    fn ordered(&self) -> impl Iterator<Item = &Read> {
        let is_previous = |read: &&Read| matches!(read.value, ReadValue::Previous(_));
        let previous = self.0.iter().filter(is_previous);
        previous.chain(self.0.iter().filter(move |read| !is_previous(read)))
    }

    /// The name of the column with a value; `expr` is its text.
    fn name(&mut self, expr: &SpannedExpr, field: Field, value: ReadValue) -> String {
        if let Some(known) = self.0.iter().find(|read| read.value == value) {
            return known.field.name.clone();
        }
        let name = expr.to_string();
        let field = Field {
            name: name.clone(),
            aliases: Vec::new(),
            doc: String::new(),
            ..field
        };
        self.0.push(Read { field, value });
        name
    }
}

impl MatchNames<'_> {
    /// The variable of a name.
    pub fn variable(&self, name: &str) -> Option<usize> {
        let mut all = self.variables.iter();
        all.position(|variable| variable.eq_ignore_ascii_case(name))
    }

    fn scope(&self) -> Scope {
        Scope::of("", self.schema.clone(), None)
    }

    /// The field of a value over the columns of the input.
    fn field(&self, value: &Expr) -> Field {
        let field = match value {
            Expr::Column { index, .. } => self.schema[*index].clone(),
            value => Field::new("", value.ty()).unit(value.unit()),
        };
        field.nullable()
    }
}

impl Checker<'_> {
    /// Replaces the parts of an expression that read other rows by columns of `reads`; `None` where
    /// it has an error, which is then reported.
    pub(super) fn navigate(
        &mut self,
        expr: &mut SpannedExpr,
        clause: Clause,
        names: &MatchNames,
        reads: &mut Reads,
    ) -> Option<()> {
        match &expr.kind {
            ExprKind::Column { table, .. } => {
                let variable = self.variable_of(table.as_ref(), names)?;
                let is_current = match clause {
                    Clause::Measures => false,
                    Clause::Define(own) => variable.is_none_or(|variable| variable == own),
                };
                if is_current {
                    return Some(());
                }
                let value = self.over_input(expr, names)?;
                let navigation = Navigation {
                    end: MatchEnd::Last,
                    variable,
                    value,
                };
                self.read_navigation(expr, navigation, names, reads);
                Some(())
            }
            ExprKind::Call { name, .. } => {
                let name = name.value.to_ascii_lowercase();
                self.navigate_call(&name, expr, clause, names, reads)
            }
            _ => self.navigate_operands(expr, clause, names, reads),
        }
    }

    fn navigate_operands(
        &mut self,
        expr: &mut SpannedExpr,
        clause: Clause,
        names: &MatchNames,
        reads: &mut Reads,
    ) -> Option<()> {
        let mut sound = Some(());
        expr.kind.change(&mut |operand| {
            let navigated = self.navigate(operand, clause, names, reads);
            sound = sound.and(navigated);
        });
        sound
    }

    fn navigate_call(
        &mut self,
        name: &str,
        expr: &mut SpannedExpr,
        clause: Clause,
        names: &MatchNames,
        reads: &mut Reads,
    ) -> Option<()> {
        let ExprKind::Call {
            name: ident,
            distinct,
            args,
            star,
            filter,
        } = &expr.kind
        else {
            unreachable!("only calls come here");
        };
        let call = Written {
            span: expr.span,
            name: ident,
            distinct: *distinct,
            args,
            star: *star,
            filter: filter.as_deref(),
        };
        let in_measures = clause == Clause::Measures;
        match name {
            "first" | "last" => self.navigate_end(name == "first", expr, clause, names, reads),
            "prev" if !in_measures => self.navigate_previous(expr, clause, names, reads),
            "prev" | "next" => {
                let message = match name {
                    "prev" => "PREV is only supported in DEFINE",
                    _ => "MATCH_RECOGNIZE does not support NEXT",
                };
                let help = match name {
                    "prev" => "name the row before by a variable of the pattern",
                    _ => "compare the next row with this one in its own condition, by PREV",
                };
                self.refused(expr.span, message, help)
            }
            "match_number" | "classifier" if args.is_empty() => {
                if !in_measures {
                    let message = format!("`{name}()` is only supported in MEASURES");
                    return self.refused(expr.span, &message, "test it in an outer WHERE");
                }
                let result = match name {
                    "classifier" => MatchResult::Classifier,
                    _ => MatchResult::MatchNumber,
                };
                self.read_result(expr, result, reads);
                Some(())
            }
            _ if named_aggregate(call).is_none() => {
                self.navigate_operands(expr, clause, names, reads)
            }
            _ if !in_measures => {
                let message = format!("the aggregate `{}` is not supported in DEFINE", ident.value);
                let help = "count by a quantifier, `b{3,}`, or test a measure in an outer WHERE";
                self.refused(expr.span, &message, help)
            }
            _ => self.navigate_aggregate(expr, names, reads),
        }
    }

    /// `FIRST(A.x)`, `LAST(A.x)`
    fn navigate_end(
        &mut self,
        is_first: bool,
        expr: &mut SpannedExpr,
        clause: Clause,
        names: &MatchNames,
        reads: &mut Reads,
    ) -> Option<()> {
        let ExprKind::Call {
            args,
            filter: None,
            distinct: false,
            star: false,
            ..
        } = &expr.kind
        else {
            return self.refused(expr.span, ONE_VALUE, "write `first(a.ts)`, `last(a.ts)`");
        };
        let [arg] = &args[..] else {
            return self.refused(expr.span, ONE_VALUE, "write `first(a.ts)`, `last(a.ts)`");
        };
        let arg = arg.clone();
        let variable = self.one_variable(&arg, expr.span, names)?;
        if let (Clause::Define(own), false) = (clause, is_first)
            && variable.is_none_or(|variable| variable == own)
        {
            // The last row of these is the current one.
            *expr = arg;
            expr.kind.change_qualifiers();
            return Some(());
        }
        let value = self.over_input(&arg, names)?;
        let end = match is_first {
            true => MatchEnd::First,
            false => MatchEnd::Last,
        };
        let navigation = Navigation {
            end,
            variable,
            value,
        };
        self.read_navigation(expr, navigation, names, reads);
        Some(())
    }

    /// `PREV(x, n)`
    fn navigate_previous(
        &mut self,
        expr: &mut SpannedExpr,
        clause: Clause,
        names: &MatchNames,
        reads: &mut Reads,
    ) -> Option<()> {
        let ExprKind::Call { args, .. } = &expr.kind else {
            unreachable!("only calls come here");
        };
        let rows = match args.get(1).map(|rows| &rows.kind) {
            None => Some(1),
            Some(ExprKind::Literal(Literal::Number(Number::Int(rows)))) => {
                let rows = u32::try_from(*rows).ok();
                rows.filter(|rows| (1..=PREVIOUS_ROWS_MAX).contains(rows))
            }
            Some(_) => None,
        };
        let (Some(arg), Some(rows), ..=2) = (args.first().cloned(), rows, args.len()) else {
            let message = "PREV takes a value and a constant number of rows";
            let help =
                format!("write `prev(x)`, or `prev(x, n)` with n from 1 to {PREVIOUS_ROWS_MAX}");
            return self.refused(expr.span, message, &help);
        };
        let variable = self.one_variable(&arg, expr.span, names)?;
        if variable.is_some_and(|variable| clause != Clause::Define(variable)) {
            let message = "PREV is only supported relative to the current row";
            let help = "remove the variable, or write `last(..)` for its last row";
            return self.refused(arg.span, message, help);
        }
        let value = self.over_input(&arg, names)?;
        let field = names.field(&value);
        let previous = ReadValue::Previous(PreviousValue { value, rows });
        let name = reads.name(expr, field, previous);
        become_column(expr, name);
        Some(())
    }

    /// `count(A.*)`, `sum(A.x)`
    fn navigate_aggregate(
        &mut self,
        expr: &mut SpannedExpr,
        names: &MatchNames,
        reads: &mut Reads,
    ) -> Option<()> {
        let variable = self.one_variable(expr, expr.span, names)?;
        let mut plain = expr.kind.clone();
        plain.change_qualifiers();
        let ExprKind::Call {
            name,
            distinct,
            mut args,
            mut star,
            filter,
        } = plain
        else {
            unreachable!("only calls come here");
        };
        if matches!(&args[..], [only] if matches!(only.kind, ExprKind::Rows(_))) {
            args.clear();
            star = true;
        }
        let written = Written {
            span: expr.span,
            name: &name,
            distinct,
            args: &args,
            star,
            filter: filter.as_deref(),
        };
        let (function, args) = named_aggregate(written)?;
        let written = Written {
            args: &args,
            star: star && args.is_empty(),
            ..written
        };
        let scope = names.scope();
        let mut resolved = Names::plain(&scope, "another aggregate");
        let operands = self.operands(written.args, &mut resolved)?;
        let call = self.aggregate_call(written, function, operands)?;
        self.read_result(expr, MatchResult::Aggregate { variable, call }, reads);
        Some(())
    }

    /// The value of an expression for the row that it reads.
    fn over_input(&mut self, expr: &SpannedExpr, names: &MatchNames) -> Option<Expr> {
        let mut plain = expr.clone();
        plain.kind.change_qualifiers();
        self.plain_expr(&plain, &names.scope(), "FIRST, LAST and PREV")
    }

    fn read_navigation(
        &mut self,
        expr: &mut SpannedExpr,
        navigation: Navigation,
        names: &MatchNames,
        reads: &mut Reads,
    ) {
        let field = names.field(&navigation.value);
        let value = ReadValue::Result(MatchResult::Navigation(navigation));
        let name = reads.name(expr, field, value);
        become_column(expr, name);
    }

    fn read_result(&mut self, expr: &mut SpannedExpr, result: MatchResult, reads: &mut Reads) {
        let (ty, unit) = result.returns();
        let field = Field::new("", ty).unit(unit);
        let field = match result.is_nullable() {
            true => field.nullable(),
            false => field,
        };
        let name = reads.name(expr, field, ReadValue::Result(result));
        become_column(expr, name);
    }

    /// The variable of a qualifier; `None` in it for all rows.
    fn variable_of(&mut self, table: Option<&Ident>, names: &MatchNames) -> Option<Option<usize>> {
        let Some(table) = table else {
            return Some(None);
        };
        let variable = names.variable(&table.value);
        if variable.is_none() {
            self.unknown_variable(table, names);
        }
        variable.map(Some)
    }

    /// The variable that all columns of an expression are of; `None` in it for all rows.
    fn one_variable(
        &mut self,
        expr: &SpannedExpr,
        span: Span,
        names: &MatchNames,
    ) -> Option<Option<usize>> {
        let mut found = Vec::new();
        self.variables_in(expr, names, &mut found)?;
        found.sort_unstable();
        found.dedup();
        match found[..] {
            [] => Some(None),
            [variable] => Some(variable),
            _ => {
                let message = "FIRST, LAST, PREV and aggregates read the rows of one variable";
                let help = "write a call for each variable, `last(a.ts) - first(b.ts)`";
                self.refused(span, message, help)?;
                None
            }
        }
    }

    fn variables_in(
        &mut self,
        expr: &SpannedExpr,
        names: &MatchNames,
        found: &mut Vec<Option<usize>>,
    ) -> Option<()> {
        match &expr.kind {
            ExprKind::Column { table, .. } => {
                found.push(self.variable_of(table.as_ref(), names)?);
                Some(())
            }
            ExprKind::Rows(variable) => {
                found.push(self.variable_of(Some(variable), names)?);
                Some(())
            }
            kind => {
                let mut sound = Some(());
                kind.visit(&mut |operand| {
                    sound = sound.and_then(|()| self.variables_in(operand, names, found));
                });
                sound
            }
        }
    }

    fn refused(&mut self, span: Span, message: &str, help: &str) -> Option<()> {
        let found = codes::ROW_PATTERN.at(span, message);
        self.diagnostics.push(found.help(help));
        None
    }
}

const ONE_VALUE: &str = "FIRST and LAST of a match take one value";

/// Makes `expr` a reference to a column that only these expressions can name.
fn become_column(expr: &mut SpannedExpr, name: String) {
    let name = Ident::new(name, expr.span);
    *expr = SpannedExpr::new(ExprKind::Column { table: None, name }, expr.span);
}

impl ExprKind {
    /// Removes the qualifiers of all columns.
    fn change_qualifiers(&mut self) {
        if let ExprKind::Column { table, .. } = self {
            *table = None;
        }
        self.change(&mut |operand| operand.kind.change_qualifiers());
    }
}
