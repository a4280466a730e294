//! Every diagnostic code: its title and its meaning. `weir explain CODE` and the reference page
//! read this list.
//!
//! Codes are stable. W00xx is syntax, W01xx names, W02xx the shape of a query, W03xx types and
//! units, W04xx time and windows, W05xx scripts, W06xx warnings, W07xx
//! alerts.

use super::{Diagnostic, Severity, Span};

/// A kind of diagnostic.
#[derive(Debug)]
pub struct Code {
    /// `W0103`
    pub code: &'static str,
    /// Error or warning.
    pub severity: Severity,
    /// A short title.
    pub title: &'static str,
    /// The cause and the remedy, in a paragraph.
    pub explanation: &'static str,
}

impl Code {
    /// A diagnostic of this kind.
    pub fn at(&self, span: Span, message: impl Into<String>) -> Diagnostic {
        Diagnostic {
            severity: self.severity,
            ..Diagnostic::error(self.code, span, message)
        }
    }
}

/// The code called `name`, without regard to case.
pub fn find(name: &str) -> Option<&'static Code> {
    CODES
        .iter()
        .copied()
        .find(|c| c.code.eq_ignore_ascii_case(name))
}

/// Declares the codes and their list in one place, so that both are complete.
macro_rules! codes {
    ($($name:ident = $severity:ident $code:literal $title:literal: $explanation:literal;)*) => {
        $(
            #[doc = concat!($code, ": ", $title)]
            pub static $name: Code = Code {
                code: $code,
                severity: Severity::$severity,
                title: $title,
                explanation: $explanation,
            };
        )*
        /// Every code, in order.
        pub static CODES: &[&Code] = &[$(&$name),*];
    };
}

codes! {
UNEXPECTED = Error "W0001" "syntax":
    "The text is not valid CQL at this position. The message lists what was expected; the usual causes are a missing comma and a missing or misspelt keyword.";
UNKNOWN_CHARACTER = Error "W0002" "invalid character":
    "The character is not allowed outside of a text literal. Names that are not plain identifiers are quoted with backticks: `count(*)`.";
UNTERMINATED_TEXT = Error "W0003" "unterminated text literal":
    "A text literal begins with ' or \" and ends with the same quote, on the same line. A quote inside is written twice.";
BAD_NUMBER = Error "W0004" "number out of range":
    "Integers are signed and have 64 bits, floats have 64 bits. The number does not fit.";
TOO_DEEP = Error "W0005" "query nested too deeply":
    "Expressions may be nested 128 deep, queries 32 deep, and a text may have 256 query blocks and 256 sources. Write a long chain of OR over one column with IN.";
TOO_LONG = Error "W0006" "query too long":
    "The maximum length of a query or script is 1 MiB.";
UNKNOWN_UNIT = Error "W0007" "unknown unit":
    "Durations are in ns, us, ms, s, minutes, hours or days; amounts of data are in B, KB, KiB, MB, MiB, GB, GiB, TB, TiB or sectors of 512 bytes.";
UNKNOWN_TYPE = Error "W0008" "unknown type":
    "The types are integer, float, text (also char(n) and byte), boolean and timestamp.";
NO_QUERY = Error "W0009" "no query":
    "The text contains no query. Several statements are separated by `;`; the last one is the query, those before it are CREATE VIEW or CREATE STREAM.";
NOT_A_STATEMENT = Error "W0010" "misplaced statement":
    "A text consists of any number of CREATE VIEW and CREATE STREAM statements and one query at the end. REGISTER is only allowed in scripts, after `table :` or `vtable :`.";
TOO_MANY = Error "W0011" "too many errors":
    "Only the first hundred diagnostics of a text are shown.";
UNKNOWN_SOURCE = Error "W0101" "unknown stream or relation":
    "The catalog, WITH, CREATE VIEW and CREATE STREAM define no stream or relation of this name. `weir streams` lists the catalog.";
UNKNOWN_COLUMN = Error "W0102" "unknown column":
    "None of the sources in FROM has a column of this name. `weir streams` lists the columns of each stream with their aliases.";
UNKNOWN_FUNCTION = Error "W0103" "unknown function":
    "There is no aggregate or scalar function of this name. `weir functions` lists them.";
AMBIGUOUS_COLUMN = Error "W0104" "ambiguous column":
    "Several sources have a column of this name. Qualify the name: `Q.req_id`.";
DUPLICATE_SOURCE = Error "W0105" "name used twice":
    "Two sources in one FROM, or two views, have the same name. Give one of them another with AS.";
UNKNOWN_TABLE = Error "W0106" "unknown qualifier":
    "The qualifier of a column must be the name or alias of a source in this FROM. A source with an alias can only be referred to by the alias.";
ALIAS_IN_WHERE = Error "W0107" "alias of SELECT used too early":
    "WHERE and ON are evaluated before SELECT, so they cannot use its aliases. Repeat the expression, or use a subquery. GROUP BY, HAVING and ORDER BY can use aliases.";
BAD_ARGUMENTS = Error "W0108" "invalid function arguments":
    "The number, the types or the units of the arguments do not match the function. `weir functions NAME` shows its signature.";
PROBE_UNAVAILABLE = Error "W0109" "probe not available":
    "The probe of CREATE STREAM is not available on this host, or one of its fields is not. `weir probes PATTERN` lists probes with their fields.";
STORED_VIEW = Error "W0110" "invalid stored view":
    "A view of the library is not valid any more: what it reads was removed or has other columns, or its text was edited. `SHOW CREATE VIEW name` prints it, CREATE OR REPLACE VIEW replaces it, DROP VIEW removes it. A view that others read cannot be removed.";
NOT_GROUPED = Error "W0201" "column neither grouped nor aggregated":
    "In a query with GROUP BY or with aggregates, a row of the result represents many rows of the input. A column can be used there only if it is a grouping key, or inside an aggregate.";
AGGREGATE_MISPLACED = Error "W0202" "misplaced aggregate":
    "Aggregates are allowed in SELECT, HAVING and ORDER BY. WHERE, ON, GROUP BY and the arguments of an aggregate are evaluated for each row, before any aggregate. Use HAVING, or a subquery in FROM.";
BAD_ORDINAL = Error "W0203" "position out of range":
    "GROUP BY 2 and ORDER BY 2 refer to the second column of SELECT, counted from 1.";
COLUMN_COUNT = Error "W0204" "numbers of columns differ":
    "UNION, INTERSECT and EXCEPT combine queries with the same number of columns; IN requires a subquery with one column; a list of column names has one name for each column.";
ORDER_ON_STREAM = Error "W0205" "order on a stream":
    "ORDER BY and LIMIT apply to a relation. Put them inside Istream(..), Dstream(..) or Rstream(..).";
SUBQUERY_UNSUPPORTED = Error "W0206" "subquery that cannot be rewritten as a join":
    "A subquery is a condition or a value of at most one row: an aggregate without GROUP BY, or LIMIT 1. It is not allowed inside an aggregate, in GROUP BY and in ON. Its WHERE may refer to the outer query; outside of the conditions of the outer WHERE that are joined by AND, only by equalities.";
STREAM_EXPECTED = Error "W0207" "stream where a relation is needed, or the reverse":
    "Istream, Dstream and Rstream turn a relation into a stream; a window turns a stream into a relation. Applying either twice has no meaning.";
DISTINCT_ORDER = Error "W0208" "ORDER BY column not in SELECT DISTINCT":
    "With SELECT DISTINCT, ORDER BY can only use columns of the select list.";
BAD_STAR = Error "W0209" "misplaced star":
    "`*` is only allowed in SELECT, for all columns, and in count(*), for rows.";
BAD_JOIN = Error "W0210" "join condition missing or misplaced":
    "JOIN, LEFT JOIN, RIGHT JOIN and FULL JOIN need ON or USING; CROSS JOIN has neither. FULL JOIN supports ON only.";
WINDOW_FUNCTION = Error "W0211" "misplaced or incomplete window function":
    "A window function such as `rank() over (partition by op order by latency)` is called in SELECT or ORDER BY. To select rows by its result, write it in a subquery: `select * from (select *, rank() over (..) as place from ..) where place = 1`. lag and lead need ORDER BY; a frame is `rows between 2 preceding and current row`, or `range between 5 s preceding and current row` in the order of one integer or timestamp.";
ROW_PATTERN = Error "W0212" "row pattern that cannot be matched":
    "MATCH_RECOGNIZE reads a stream in the order of its timestamps and emits one row per match. A pattern with an unlimited quantifier, or with NOT at its end, needs WITHIN, which bounds the rows that are kept. Each condition of DEFINE and each measure names variables of the pattern; an aggregate, FIRST and LAST read the rows of one of them.";
UNIT_MISMATCH = Error "W0301" "units do not match":
    "A duration, an amount of data and a timestamp cannot be added, compared or mixed. Divide one by a literal of its own unit to get a plain number: `latency / 1 ms`.";
TYPE_MISMATCH = Error "W0302" "types do not match":
    "The operator does not support values of these types. CAST(x AS type) converts.";
NOT_BOOLEAN = Error "W0303" "condition is not a boolean":
    "WHERE, HAVING, ON, AND, OR, NOT and WHEN require a boolean: a comparison, for instance.";
BAD_PATTERN = Error "W0304" "pattern is not a literal":
    "The pattern of LIKE must be a text literal: % matches any text, _ any character, a backslash escapes the next character.";
BAD_TIMESTAMP = Error "W0305" "invalid timestamp":
    "A text literal compared with a timestamp must be a timestamp in UTC: '2026-01-31 12:00:00', optionally with a fraction of a second.";
WINDOW_ON_RELATION = Error "W0401" "window on a relation":
    "A window turns a stream into a relation. This is already a relation; Istream(..) makes a stream of its insertions.";
BAD_WINDOW = Error "W0402" "invalid window size":
    "A window and its slide have at least one row, or at least one instant. The size must be a whole number of instants: in a script an instant is a tick, also called second.";
NO_UNIT = Error "W0403" "duration without unit":
    "Write `[Range 5 seconds]`, `[Range 250 ms]`. The unit is optional in scripts only; there it is a tick.";
RSTREAM_PACE = Error "W0404" "Rstream without an interval":
    "Rstream emits the whole relation at every instant. In live time the query must specify at which instants: with a window [Now], a Slide, or `Rstream(..) EVERY 1 s`.";
BAD_EVERY = Error "W0405" "misplaced EVERY":
    "EVERY sets the interval of Rstream(..). Istream and Dstream emit changes when they happen.";
CORRELATIONS_WINDOW = Error "W0406" "invalid window of correlations":
    "Relation `correlations` compares the load of disks over a window of steps: [range 5 min slide 1 s] is a window of 300 steps. A window has 16 to 4096 steps, and without a slide a step is 1 s long.";
SCRIPT_SECTION = Error "W0501" "misplaced script section":
    "In a script `table :` is followed by `source :`, `vquery :` by `vtable :`, and `query :` optionally by `dest :`.";
SCRIPT_EMPTY = Error "W0502" "script section without content":
    "The colon must be followed by the content of the section: a REGISTER statement, a query or a path.";
SCRIPT_SHAPE = Error "W0503" "stream registered as a relation":
    "The query before `vtable :` is a stream, so it is registered with `register stream`.";
TYPE_DIFFERS = Warning "W0601" "declared type differs":
    "The type that `vtable :` declares is not the type of the query's column. Numbers are converted; otherwise the query's type is kept.";
ORDER_UNSEEN = Warning "W0602" "ORDER BY column not selected":
    "Without LIMIT, ORDER BY only affects the order in which rows are shown. The rows do not contain the column by which they are ordered, so it has no effect. Select the column too.";
NO_SUCH_VALUE = Warning "W0603" "value that the column never has":
    "The column has a fixed set of values (`weir streams` lists them), and this is not one of them, so the comparison is never true. The long names are accepted as well: `op = 'read'` is `op = 'r'`.";
WINDOW_IN_COMMENT = Warning "W0604" "window in a comment":
    "`#` begins a comment, so that `IO#time(5 sec)` of Esper reads IO without a window. Write `IO [range 5 s]`.";
NULL_COMPARED = Warning "W0605" "comparison with NULL":
    "`x = NULL` and `x <> NULL` are NULL for every row, never true. Write `x IS NULL` or `x IS NOT NULL`; `x IS NOT DISTINCT FROM y` compares two values either of which may be NULL.";
BARE_DURATION = Warning "W0606" "duration compared with a number without unit":
    "A number without unit is in the unit of the column, and durations are in nanoseconds: `latency > 20` is 20 ns, which every request exceeds. Write the unit: `latency > 20 ms`, `latency > 20 us`; `20 ns` if that is intended.";
ALERT_SHAPE = Error "W0701" "alert over a stream":
    "An instance of an alert fires while its row is in a relation, and rows never leave a stream. Give the stream a window, such as `IO [range 10 s]`, and omit Istream, Dstream and Rstream.";
ALERT_LABELS = Error "W0702" "instances of an alert not identified":
    "LABELS lists the columns whose values identify an instance. Without LABELS these are the keys of GROUP BY, which must then be selected. Labels and annotations are columns, or expressions with a name after AS.";
ALERT_NAME = Error "W0703" "unknown alert or state":
    "EXPECT names an alert of the same text, one of its labels, and one of the states pending, firing, clear and unknown.";
ALERT_NEVER_CLEARS = Warning "W0704" "alert that never clears":
    "No row ever leaves the relation of the alert, so an instance that fires remains. Give the stream a window with an end, such as `[range 10 s]`, or state UNTIL.";
NO_ALERT = Error "W0705" "no alert":
    "A file of rules has at least one CREATE ALERT, beside CREATE VIEW, CREATE STREAM and EXPECT statements, and no query.";
ALERT_ACT = Error "W0706" "invalid action of an alert":
    "ACT states the action LIMIT or WEIGHT, its parameters as columns or expressions with a name after AS (`vm` and a setting are required), and after FOR how long it lasts at most: `ACT LIMIT vm, 500 AS iops FOR 10 m`.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_ascending_and_explained() {
        assert!(CODES.windows(2).all(|w| w[0].code < w[1].code));
        for code in CODES {
            assert!(code.explanation.ends_with('.'), "{}", code.code);
            assert!(!code.title.ends_with('.'), "{}", code.code);
        }
        assert_eq!(find("w0103").map(|c| c.title), Some("unknown function"));
    }
}
