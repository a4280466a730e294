//! AST → text. The text parses to the same tree, and has parentheses only where they are required.

use std::fmt::{self, Display, Formatter};

use weir_model::{ProbeField, Shape, Unit};

use super::ast::*;
use super::level;
use super::parser::is_reserved;
use crate::diagnostic::Span;

/// `a, b, c`
pub(super) struct Commas<'a, T>(pub &'a [T]);

impl<T: Display> Display for Commas<'_, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (i, item) in self.0.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            write!(f, "{comma}{item}")?;
        }
        Ok(())
    }
}

impl Display for Ident {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let name = &self.value;
        let mut chars = name.chars();
        let plain = chars.next().is_some_and(|c| c.is_alphabetic() || c == '_')
            && chars.all(|c| c.is_alphanumeric() || c == '_')
            && !is_reserved(name);
        match plain {
            true => f.write_str(name),
            false => write!(f, "`{}`", name.replace('`', "``")),
        }
    }
}

impl Display for Statement {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Statement::View(view) => {
                write!(
                    f,
                    "CREATE {}VIEW {}{} AS {}",
                    if view.or_replace { "OR REPLACE " } else { "" },
                    view.name,
                    Columns(&view.columns),
                    view.query
                )
            }
            Statement::DropView(drop) => {
                let if_exists = if drop.if_exists { "IF EXISTS " } else { "" };
                write!(f, "DROP VIEW {if_exists}{}", drop.name)
            }
            Statement::Inspect(inspection) => write!(f, "{inspection}"),
            Statement::Stream(definition) => write!(f, "{definition}"),
            Statement::Alert(alert) => write!(f, "{alert}"),
            Statement::Expect(expected) => write!(f, "{expected}"),
            Statement::Query(query) => write!(f, "{query}"),
            Statement::Register(registration) => write!(f, "{registration}"),
        }
    }
}

impl Display for CatalogQuery {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            CatalogQuery::Describe {
                name: Some(name), ..
            } => write!(f, "DESCRIBE {name}"),
            CatalogQuery::Describe { query, .. } => write!(f, "DESCRIBE {query}"),
            CatalogQuery::Show { what, like } => {
                write!(f, "SHOW {}", what.word())?;
                match like {
                    Some(pattern) => write!(f, " LIKE '{}'", pattern.value.replace('\'', "''")),
                    None => Ok(()),
                }
            }
            CatalogQuery::ShowView(name) => write!(f, "SHOW CREATE VIEW {name}"),
        }
    }
}

impl Display for StreamDefinition {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "CREATE STREAM {} AS PROBE ", self.name)?;
        probe(f, &self.probe.value, &self.fields)?;
        if let Some(end) = &self.end {
            f.write_str(" TO ")?;
            probe(f, &end.probe.value, &end.fields)?;
            for (i, (begin, end)) in end.keys.iter().enumerate() {
                let before = if i > 0 { "AND" } else { "ON" };
                write!(f, " {before} {begin} = {end}")?;
            }
        }
        self.scope.fmt(f)?;
        if let Some(most) = &self.hits_max {
            write!(f, " LIMIT {}", most.value)?;
        }
        match &self.cpu_percent_max {
            Some(most) => write!(f, " CPU {} %", most.value),
            None => Ok(()),
        }
    }
}

/// `'probe' (path type AS name UNIT unit, ..)`
fn probe(f: &mut Formatter<'_>, probe: &str, fields: &[Spanned<ProbeField>]) -> fmt::Result {
    write!(f, "'{}'", probe.replace('\'', "''"))?;
    for (i, Spanned { value: field, .. }) in fields.iter().enumerate() {
        let before = if i > 0 { ", " } else { " (" };
        write!(f, "{before}{}", field.path)?;
        if let Some(ty) = field.ty {
            write!(f, " {ty}")?;
        }
        if let Some(name) = &field.name {
            write!(f, " AS {}", Ident::new(name.clone(), Span::default()))?;
        }
        if field.unit != Unit::None {
            write!(f, " UNIT {}", field.unit.symbol())?;
        }
    }
    match fields.is_empty() {
        true => Ok(()),
        false => f.write_str(")"),
    }
}

impl Display for Registration {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let shape = match self.shape {
            Shape::Stream => "STREAM",
            Shape::Relation => "RELATION",
        };
        write!(f, "REGISTER {shape} {} (", self.name)?;
        for (i, (name, ty)) in self.columns.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            write!(f, "{comma}{name} {}", ty.value)?;
        }
        f.write_str(")")
    }
}

/// ` (a, b)`, or nothing
struct Columns<'a>(&'a [Ident]);

impl Display for Columns<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0.is_empty() {
            true => Ok(()),
            false => write!(f, " ({})", Commas(self.0)),
        }
    }
}

impl Display for Query {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (i, view) in self.views.iter().enumerate() {
            let word = if i > 0 { ", " } else { "WITH " };
            write!(
                f,
                "{word}{}{} AS ({})",
                view.name,
                Columns(&view.columns),
                view.query
            )?;
        }
        if !self.views.is_empty() {
            f.write_str(" ")?;
        }
        write!(f, "{}", self.body)?;
        if !self.order_by.is_empty() {
            write!(f, " ORDER BY {}", Commas(&self.order_by))?;
        }
        if let Some(limit) = &self.limit {
            write!(f, " LIMIT {}", limit.value)?;
        }
        if let Some(offset) = &self.offset {
            write!(f, " OFFSET {}", offset.value)?;
        }
        Ok(())
    }
}

impl Display for OrderItem {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let direction = if self.descending { " DESC" } else { "" };
        let nulls = match self.nulls_first {
            None => "",
            Some(true) => " NULLS FIRST",
            Some(false) => " NULLS LAST",
        };
        write!(f, "{}{direction}{nulls}", self.expr)
    }
}

impl BodyKind {
    /// The precedence: UNION and EXCEPT 1, INTERSECT 2, the rest 3.
    fn precedence(&self) -> u8 {
        match self {
            BodyKind::SetOp {
                op: SetOp::Intersect,
                ..
            } => 2,
            BodyKind::SetOp { .. } => 1,
            _ => 3,
        }
    }
}

impl Display for QueryBody {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.value {
            BodyKind::Select(select) => write!(f, "{select}"),
            BodyKind::Named(named) => write!(f, "{named}"),
            BodyKind::Nested(query) => write!(f, "({query})"),
            BodyKind::ToStream { kind, query, every } => {
                let word = match kind {
                    StreamOp::Istream => "Istream",
                    StreamOp::Dstream => "Dstream",
                    StreamOp::Rstream => "Rstream",
                };
                write!(f, "{word}({query})")?;
                match every {
                    Some(every) => write!(f, " EVERY {}", every.value),
                    None => Ok(()),
                }
            }
            BodyKind::SetOp {
                op,
                all,
                left,
                right,
            } => {
                let word = match op {
                    SetOp::Union => "UNION",
                    SetOp::Intersect => "INTERSECT",
                    SetOp::Except => "EXCEPT",
                };
                let all = if *all { " ALL" } else { "" };
                // The parser keeps parentheses as `Nested`, so a parsed tree never needs any here.
                debug_assert!(left.value.precedence() >= self.value.precedence());
                debug_assert!(right.value.precedence() > self.value.precedence());
                write!(f, "{left} {word}{all} {right}")
            }
            BodyKind::Error => f.write_str("<error>"),
        }
    }
}

impl Display for SelectBlock {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let distinct = if self.distinct { "DISTINCT " } else { "" };
        write!(f, "SELECT {distinct}{}", Commas(&self.items))?;
        if !self.from.is_empty() {
            write!(f, " FROM {}", Commas(&self.from))?;
        }
        if let Some(filter) = &self.filter {
            write!(f, " WHERE {filter}")?;
        }
        let keys = Commas(&self.group_by);
        match &self.grouping {
            Grouping::All if self.group_by.is_empty() => {}
            Grouping::All => write!(f, " GROUP BY {keys}")?,
            Grouping::Rollup => write!(f, " GROUP BY ROLLUP ({keys})")?,
            Grouping::Cube => write!(f, " GROUP BY CUBE ({keys})")?,
            Grouping::Sets(sets) => {
                let sets = sets.iter().map(|set| {
                    let keys = set.iter().map(|i| self.group_by[*i].to_string());
                    format!("({})", keys.collect::<Vec<_>>().join(", "))
                });
                let sets = sets.collect::<Vec<_>>();
                write!(f, " GROUP BY GROUPING SETS ({})", sets.join(", "))?;
            }
        }
        if let Some(having) = &self.having {
            write!(f, " HAVING {having}")?;
        }
        if !self.windows.is_empty() {
            write!(f, " WINDOW {}", Commas(&self.windows))?;
        }
        Ok(())
    }
}

impl Display for Spanned<Item> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.value {
            Item::Star => f.write_str("*"),
            Item::TableStar(table) => write!(f, "{table}.*"),
            Item::Expr { expr, alias } => write!(f, "{expr}{}", Alias(alias)),
            Item::Error => f.write_str("<error>"),
        }
    }
}

/// ` AS x`, or nothing
struct Alias<'a>(&'a Option<Ident>);

impl Display for Alias<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(alias) => write!(f, " AS {alias}"),
            None => Ok(()),
        }
    }
}

/// ` [window]`, or nothing
struct Windowed<'a>(&'a Option<WindowClause>);

impl Display for Windowed<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(window) => write!(f, " [{}]", window.value),
            None => Ok(()),
        }
    }
}

impl Display for FromItem {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.table)?;
        for join in &self.joins {
            let word = match join.kind.value {
                JoinOp::Inner => "JOIN",
                JoinOp::Left => "LEFT JOIN",
                JoinOp::Right => "RIGHT JOIN",
                JoinOp::Full => "FULL JOIN",
                JoinOp::Cross => "CROSS JOIN",
            };
            write!(f, " {word} {}", join.table)?;
            match &join.condition {
                Condition::None => {}
                Condition::On(expr) => write!(f, " ON {expr}")?,
                Condition::Using(columns) => write!(f, " USING ({})", Commas(columns))?,
            }
        }
        Ok(())
    }
}

impl Display for TableRef {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.value {
            TableSource::Named(named) => write!(f, "{named}"),
            TableSource::Derived {
                query,
                window,
                alias,
            } => {
                write!(f, "({query}){}{}", Windowed(window), Alias(alias))
            }
            TableSource::Match(matches) => {
                let (window, alias) = (Windowed(&matches.window), Alias(&matches.alias));
                write!(f, "{} {}{window}{alias}", matches.input, matches.clause)
            }
            TableSource::Error => f.write_str("<error>"),
        }
    }
}

impl Display for Named {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}{}{}",
            self.name,
            Windowed(&self.window),
            Alias(&self.alias)
        )
    }
}

impl Display for WindowSpec {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            WindowSpec::Now => f.write_str("Now"),
            WindowSpec::Range { size, slide, delay } => {
                write!(f, "Range {}{}", size.value, Slide(slide))?;
                match delay {
                    Some(delay) => write!(f, " Delay {}", delay.value),
                    None => Ok(()),
                }
            }
            WindowSpec::Session { gap, keys } => {
                write!(f, "Session {}", gap.value)?;
                match keys.is_empty() {
                    true => Ok(()),
                    false => write!(f, " By {}", Commas(keys)),
                }
            }
            WindowSpec::Rows(rows) => write!(f, "Rows {}", rows.value),
            WindowSpec::Partition { keys, rows } => {
                write!(f, "Partition By {} Rows {}", Commas(keys), rows.value)
            }
            WindowSpec::Unbounded { slide } => write!(f, "Range Unbounded{}", Slide(slide)),
            WindowSpec::Error => f.write_str("<error>"),
        }
    }
}

/// ` Slide 1 s`, or nothing
struct Slide<'a>(&'a Option<Spanned<Duration>>);

impl Display for Slide<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(slide) => write!(f, " Slide {}", slide.value),
            None => Ok(()),
        }
    }
}

impl Display for Duration {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.measure {
            Some(measure) => write!(f, "{} {}", self.count, measure.name),
            None => write!(f, "{}", self.count),
        }
    }
}

impl Display for Number {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Number::Int(x) => write!(f, "{x}"),
            // The debug form has the point or exponent by which the parser recognises a float.
            Number::Float(x) => write!(f, "{x:?}"),
        }
    }
}

impl Display for Literal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Literal::Null => f.write_str("NULL"),
            Literal::Bool(true) => f.write_str("TRUE"),
            Literal::Bool(false) => f.write_str("FALSE"),
            Literal::Number(number) => write!(f, "{number}"),
            Literal::Text(text) => write!(f, "'{}'", text.replace('\'', "''")),
            Literal::Quantity(number, measure) => write!(f, "{number} {}", measure.name),
        }
    }
}

/// `f(DISTINCT a, b) FILTER (WHERE c)`
/// At the start of a key, these words begin sets of keys; as the name of a function they are quoted.
const GROUPING_SETS: &[&str] = &["rollup", "cube"];

fn call(
    f: &mut Formatter<'_>,
    name: &Ident,
    distinct: bool,
    args: &[SpannedExpr],
    star: bool,
    filter: Option<&SpannedExpr>,
) -> fmt::Result {
    let distinct = if distinct { "DISTINCT " } else { "" };
    match GROUPING_SETS
        .iter()
        .any(|word| name.value.eq_ignore_ascii_case(word))
    {
        true => write!(f, "`{}`", name.value)?,
        false => write!(f, "{name}")?,
    }
    match star {
        true => write!(f, "({distinct}*)")?,
        false => write!(f, "({distinct}{})", Commas(args))?,
    }
    match filter {
        Some(filter) => write!(f, " FILTER (WHERE {filter})"),
        None => Ok(()),
    }
}

impl Display for OverClause {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let filter = self.filter.as_deref();
        call(f, &self.name, self.distinct, &self.args, self.star, filter)?;
        write!(f, " OVER {}", self.window)
    }
}

impl Display for WindowDefinition {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} AS {}", self.name, self.window)
    }
}

/// The words with which a clause of a window begins; as a name they are quoted.
pub(super) const CLAUSES_OF_WINDOWS: &[&str] = &["partition", "order", "rows", "range", "groups"];

impl Display for RowWindow {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let (Some(base), true) = (&self.base, self.is_bare) {
            return write!(f, "{base}");
        }
        let mut parts = Vec::new();
        parts.extend(self.base.as_ref().map(|base| {
            let mut words = CLAUSES_OF_WINDOWS.iter();
            match words.any(|word| base.value.eq_ignore_ascii_case(word)) {
                true => format!("`{}`", base.value),
                false => base.to_string(),
            }
        }));
        if !self.partition.is_empty() {
            parts.push(format!("PARTITION BY {}", Commas(&self.partition)));
        }
        if !self.order_by.is_empty() {
            parts.push(format!("ORDER BY {}", Commas(&self.order_by)));
        }
        parts.extend(self.frame.as_ref().map(|frame| frame.value.to_string()));
        write!(f, "({})", parts.join(" "))
    }
}

impl Display for FrameClause {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let unit = match self.unit {
            FrameUnit::Rows => "ROWS",
            FrameUnit::Range => "RANGE",
            FrameUnit::Groups => "GROUPS",
        };
        // A distance is followed by a word, not by an operator.
        let bound = |bound: &FrameBound, all: &str| match bound {
            FrameBound::Unbounded => format!("UNBOUNDED {all}"),
            FrameBound::CurrentRow => "CURRENT ROW".to_owned(),
            FrameBound::Preceding(by) => format!("{} PRECEDING", At(by, level::COMPARISON + 1)),
            FrameBound::Following(by) => format!("{} FOLLOWING", At(by, level::COMPARISON + 1)),
        };
        let (start, end) = (
            bound(&self.start, "PRECEDING"),
            bound(&self.end, "FOLLOWING"),
        );
        write!(f, "{unit} BETWEEN {start} AND {end}")
    }
}

fn precedence(kind: &ExprKind) -> u8 {
    match kind {
        ExprKind::Binary { op, .. } => level::of(*op),
        ExprKind::Unary {
            op: UnaryOp::Not, ..
        } => level::NOT,
        ExprKind::Unary {
            op: UnaryOp::Negate,
            ..
        } => level::SIGN,
        ExprKind::IsNull { .. }
        | ExprKind::Between { .. }
        | ExprKind::InList { .. }
        | ExprKind::InQuery { .. }
        | ExprKind::Like { .. } => level::COMPARISON,
        // A sign before a number belongs to it, with the precedence of a sign.
        ExprKind::Literal(Literal::Number(n) | Literal::Quantity(n, _)) if is_negative(*n) => {
            level::SIGN
        }
        _ => level::PRIMARY,
    }
}

fn is_negative(number: Number) -> bool {
    match number {
        Number::Int(x) => x < 0,
        Number::Float(x) => x.is_sign_negative(),
    }
}

/// An expression in a position that requires at least this precedence.
struct At<'a>(&'a SpannedExpr, u8);

impl Display for At<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match precedence(&self.0.kind) < self.1 {
            true => write!(f, "({})", self.0),
            false => write!(f, "{}", self.0),
        }
    }
}

impl Display for SpannedExpr {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let not = |negated: &bool| if *negated { " NOT" } else { "" };
        let above = level::COMPARISON + 1;
        match &self.kind {
            ExprKind::Column {
                table: Some(table),
                name,
            } => write!(f, "{table}.{name}"),
            ExprKind::Column { table: None, name } => write!(f, "{name}"),
            ExprKind::Rows(variable) => write!(f, "{variable}.*"),
            ExprKind::Literal(literal) => write!(f, "{literal}"),
            ExprKind::Unary {
                op: UnaryOp::Not,
                expr,
            } => write!(f, "NOT {}", At(expr, level::NOT)),
            // A number needs parentheses here: with a sign before it, it would be a negative
            // number.
            ExprKind::Unary {
                op: UnaryOp::Negate,
                expr,
            } => match &expr.kind {
                ExprKind::Literal(_) => write!(f, "-({expr})"),
                _ => write!(f, "-{}", At(expr, level::PRIMARY)),
            },
            ExprKind::Binary { op, left, right } => {
                let own = level::of(*op);
                // Comparisons do not chain, all other operators are left-associative.
                let left = At(
                    left,
                    if own == level::COMPARISON {
                        own + 1
                    } else {
                        own
                    },
                );
                write!(f, "{left} {} {}", op.symbol(), At(right, own + 1))
            }
            ExprKind::IsNull { expr, negated } => {
                write!(f, "{} IS{} NULL", At(expr, above), not(negated))
            }
            ExprKind::Between {
                expr,
                low,
                high,
                negated,
            } => {
                let (expr, low, high) = (At(expr, above), At(low, above), At(high, above));
                write!(f, "{expr}{} BETWEEN {low} AND {high}", not(negated))
            }
            ExprKind::InList {
                expr,
                list,
                negated,
            } => {
                write!(
                    f,
                    "{}{} IN ({})",
                    At(expr, above),
                    not(negated),
                    Commas(list)
                )
            }
            ExprKind::InQuery {
                expr,
                query,
                negated,
            } => {
                write!(f, "{}{} IN ({query})", At(expr, above), not(negated))
            }
            ExprKind::Exists { query } => write!(f, "EXISTS ({query})"),
            ExprKind::Scalar { query } => write!(f, "({query})"),
            ExprKind::Like {
                expr,
                pattern,
                ignore_case,
                negated,
            } => {
                let word = if *ignore_case { "ILIKE" } else { "LIKE" };
                write!(
                    f,
                    "{}{} {word} {}",
                    At(expr, above),
                    not(negated),
                    At(pattern, above)
                )
            }
            ExprKind::Case {
                operand,
                branches,
                otherwise,
            } => {
                f.write_str("CASE")?;
                if let Some(operand) = operand {
                    write!(f, " {operand}")?;
                }
                for (when, then) in branches {
                    write!(f, " WHEN {when} THEN {then}")?;
                }
                if let Some(otherwise) = otherwise {
                    write!(f, " ELSE {otherwise}")?;
                }
                f.write_str(" END")
            }
            ExprKind::Cast { expr, ty } => write!(f, "CAST({expr} AS {})", ty.value),
            ExprKind::Call {
                name,
                distinct,
                args,
                star,
                filter,
            } => call(f, name, *distinct, args, *star, filter.as_deref()),
            ExprKind::Over(over) => write!(f, "{over}"),
            ExprKind::Error => f.write_str("<error>"),
        }
    }
}
