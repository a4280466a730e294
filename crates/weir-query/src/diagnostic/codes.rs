//! Every diagnostic code: its title and what it means. `weir explain CODE` and the reference page
//! read this list.
//!
//! Codes are stable. W00xx is syntax, W01xx names, W02xx the shape of a query, W03xx types and
//! units, W04xx time and windows, W05xx scripts, W06xx warnings.

use super::{Diagnostic, Severity, Span};

/// A kind of finding.
#[derive(Debug)]
pub struct Code {
    /// `W0103`
    pub code: &'static str,
    /// Error or warning.
    pub severity: Severity,
    /// What it is about, in a few words.
    pub title: &'static str,
    /// What it means and what to do, in a paragraph.
    pub explanation: &'static str,
}

impl Code {
    /// A finding of this kind.
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

/// Declares the codes and the list of them in one place, so that neither can lack one.
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
    "The text cannot be read as CQL at this place. The message says what was expected; a missing comma, a missing keyword or a misspelt one are the usual causes.";
UNKNOWN_CHARACTER = Error "W0002" "character without meaning":
    "CQL has no use for this character outside of a text. Names that are not plain words stand between backticks: `count(*)`.";
UNTERMINATED_TEXT = Error "W0003" "text without closing quote":
    "A text begins with ' or \" and ends with the same quote, on the same line. A quote inside is written twice.";
BAD_NUMBER = Error "W0004" "number out of range":
    "Integers have 64 bits with a sign, floats 64 bits. The number does not fit.";
TOO_DEEP = Error "W0005" "query too deep":
    "Expressions may be nested 128 deep, queries 32 deep, and a text may have 256 query blocks and 256 sources. A long chain of OR over one column is better written with IN.";
TOO_LONG = Error "W0006" "query too long":
    "The text of a query or script may have 1 MiB.";
UNKNOWN_UNIT = Error "W0007" "unknown unit":
    "Spans are counted in ns, us, ms, s, minutes, hours or days; amounts of data in B, KB, KiB, MB, MiB, GB, GiB, TB, TiB or sectors of 512 bytes.";
UNKNOWN_TYPE = Error "W0008" "unknown type":
    "The types are integer, float, text (also char(n) and byte), boolean and timestamp.";
NO_QUERY = Error "W0009" "nothing to run":
    "The text holds no query. Several statements are separated by `;`; the last one is the query, those before it are CREATE VIEW.";
NOT_A_STATEMENT = Error "W0010" "statement out of place":
    "A text is any number of CREATE VIEW statements and then one query. REGISTER belongs in scripts, behind `table :` or `vtable :`.";
TOO_MANY = Error "W0011" "too many mistakes":
    "Only the first hundred mistakes of a text are shown.";
UNKNOWN_SOURCE = Error "W0101" "unknown stream or relation":
    "Nothing of this name is in the catalog, in WITH or in CREATE VIEW. `weir streams` lists what there is.";
UNKNOWN_COLUMN = Error "W0102" "unknown column":
    "None of the sources in FROM has a column of this name. `weir streams` lists the columns of each stream with their other names.";
UNKNOWN_FUNCTION = Error "W0103" "unknown function":
    "There is no aggregate or scalar function of this name. `weir functions` lists them.";
AMBIGUOUS_COLUMN = Error "W0104" "ambiguous column":
    "Several sources have a column of this name. Say which one is meant: `Q.req_id`.";
DUPLICATE_SOURCE = Error "W0105" "name used twice":
    "Two sources in one FROM, or two views, have the same name. Give one of them another with AS.";
UNKNOWN_TABLE = Error "W0106" "unknown name before the dot":
    "What stands before the dot must be the name or alias of a source in this FROM. Once a source has an alias, only the alias names it.";
ALIAS_IN_WHERE = Error "W0107" "alias of SELECT used too early":
    "WHERE and ON are decided before SELECT is computed, so they do not see its aliases. Write the expression again, or put the query into a subquery. GROUP BY, HAVING and ORDER BY do see them.";
BAD_ARGUMENTS = Error "W0108" "arguments that a function does not take":
    "The number, the types or the units of the arguments do not fit the function. `weir functions NAME` shows how it is called.";
NOT_GROUPED = Error "W0201" "column neither grouped nor aggregated":
    "In a query with GROUP BY or with aggregates, a row of the result stands for many rows of the input. A column can be used there if it is one of the groups' keys, or inside an aggregate.";
AGGREGATE_MISPLACED = Error "W0202" "aggregate out of place":
    "Aggregates can stand in SELECT, HAVING and ORDER BY. WHERE, ON, GROUP BY and the inside of another aggregate are computed row by row, before any aggregate. Use HAVING, or a subquery in FROM.";
BAD_ORDINAL = Error "W0203" "position out of range":
    "GROUP BY 2 and ORDER BY 2 mean the second column of SELECT, counted from 1.";
COLUMN_COUNT = Error "W0204" "numbers of columns differ":
    "UNION, INTERSECT and EXCEPT combine queries with equally many columns; IN takes a subquery with one; a list of column names has one for each column.";
ORDER_ON_STREAM = Error "W0205" "order on a stream":
    "ORDER BY and LIMIT apply to a relation, whose rows are there at the same time. Put them inside Istream(..), Dstream(..) or Rstream(..).";
SUBQUERY_UNSUPPORTED = Error "W0206" "subquery that cannot be rewritten as a join":
    "EXISTS and IN are answered as joins. They must stand alone or be joined by AND in WHERE; and what refers to the outer query must stand in the WHERE of a plain SELECT .. FROM .. WHERE. Subqueries elsewhere belong in FROM.";
STREAM_EXPECTED = Error "W0207" "stream where a relation is needed, or the reverse":
    "Istream, Dstream and Rstream turn a relation into a stream; a window turns a stream into a relation. Applying either twice has no meaning.";
DISTINCT_ORDER = Error "W0208" "order by what DISTINCT has dropped":
    "With SELECT DISTINCT, ORDER BY can only use what is selected.";
BAD_STAR = Error "W0209" "star out of place":
    "`*` stands for columns in SELECT and for rows in count(*). Nowhere else.";
BAD_JOIN = Error "W0210" "join condition missing or out of place":
    "JOIN, LEFT JOIN, RIGHT JOIN and FULL JOIN need ON or USING; CROSS JOIN takes neither. FULL JOIN takes ON only.";
UNIT_MISMATCH = Error "W0301" "units do not fit":
    "A span of time, an amount of data and a point in time cannot be added, compared or mixed. Divide one by a literal of its own unit to get a plain number: `latency / 1 ms`.";
TYPE_MISMATCH = Error "W0302" "types do not fit":
    "The operator does not take values of these types. CAST(x AS type) converts.";
NOT_BOOLEAN = Error "W0303" "condition that is not a condition":
    "WHERE, HAVING, ON, AND, OR, NOT and WHEN take something that is true or false: a comparison, for instance.";
BAD_PATTERN = Error "W0304" "pattern that is not a literal":
    "LIKE takes a text literal as its pattern: % stands for any text, _ for any character, a backslash takes the next one literally.";
BAD_TIMESTAMP = Error "W0305" "text that is no timestamp":
    "A text compared with a timestamp is read as one: '2026-01-31 12:00:00', with a fraction of a second if need be, in UTC.";
WINDOW_ON_RELATION = Error "W0401" "window on a relation":
    "A window turns a stream into a relation. This is a relation already; Istream(..) makes a stream of its changes.";
BAD_WINDOW = Error "W0402" "window without extent":
    "A window holds at least one row, or lasts at least one instant, and its slide as well. The size must be a whole number of instants: in a script an instant is a tick, which is also called a second.";
NO_UNIT = Error "W0403" "span without unit":
    "How long? Write `[Range 5 seconds]`, `[Range 250 ms]`. Only scripts may leave the unit out; there it is a tick.";
RSTREAM_PACE = Error "W0404" "Rstream without a pace":
    "Rstream emits the whole relation at every instant. Live time has no instants of its own, so the query must give the pace: a window [Now], a Slide, or `Rstream(..) EVERY 1 s`.";
BAD_EVERY = Error "W0405" "EVERY out of place":
    "EVERY sets the pace of Rstream(..). Istream and Dstream emit changes when they happen.";
SCRIPT_SECTION = Error "W0501" "script section out of place":
    "A script consists of `table :` and then `source :`, `vquery :` and then `vtable :`, `query :` and then perhaps `dest :`.";
SCRIPT_EMPTY = Error "W0502" "script section without content":
    "Behind the colon stands what the section is about: a REGISTER statement, a query or a path.";
SCRIPT_SHAPE = Error "W0503" "stream registered as a relation":
    "The query before `vtable :` is a stream, so it is registered with `register stream`.";
TYPE_DIFFERS = Warning "W0601" "declared type differs":
    "The type that `vtable :` declares is not the type that the query gives. Numbers are converted; otherwise the query's own type stands.";
ORDER_UNSEEN = Warning "W0602" "order that nobody sees":
    "Without LIMIT, ORDER BY only says how to show the rows. The rows shown do not have the column they are ordered by, so the order is lost. Select it too.";
NO_SUCH_VALUE = Warning "W0603" "value that the column never has":
    "The column has few values, which are known (`weir streams` lists them), and this is none of them, so the comparison is never true. The long names are understood as well: `op = 'read'` is `op = 'r'`.";
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
