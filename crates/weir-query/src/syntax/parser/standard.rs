//! Constructs of SQL that CQL does not have, and what it has instead.

use super::dialect::Spelling;

/// Recognised in a text with an error, like the spellings of other systems.
pub(super) const CONSTRUCTS: &[Spelling] = &[
    Spelling(&["fetch", "first"], "write `limit 3`"),
    Spelling(&["fetch", "next"], "write `limit 3`"),
    Spelling(
        &["distinct", "on", "("],
        "the last row of each key is `[partition by op rows 1]`",
    ),
    Spelling(&["*", "exclude"], "list the columns"),
    Spelling(&["*", "replace", "("], "list the columns"),
    Spelling(&["group", "by", "all"], "list the keys"),
    Spelling(&["natural", "join"], "write `join .. using (req_id)`"),
    Spelling(&["natural", "left"], "write `left join .. using (req_id)`"),
    Spelling(
        &["asof", "join"],
        "the last row of each key is `[partition by op rows 1]`",
    ),
    Spelling(&["cross", "apply"], "write a subquery in the select list"),
    Spelling(&["outer", "apply"], "write a subquery in the select list"),
    Spelling(&["tablesample"], "write `where sample(req_id, 0.1)`"),
    Spelling(&["any", "(", "select"], "write `in (select ..)`"),
    Spelling(&["some", "(", "select"], "write `in (select ..)`"),
    Spelling(
        &["all", "(", "select"],
        "compare with `(select max(..) ..)`",
    ),
    Spelling(
        &["with", "recursive"],
        "a query cannot read its own result: write a query for each level",
    ),
    Spelling(&["minus", "select"], "write `except`"),
    Spelling(
        &["between", "symmetric"],
        "write `between least(x, y) and greatest(x, y)`",
    ),
    Spelling(&["escape"], "a backslash escapes `%` and `_` in a pattern"),
    Spelling(&["collate"], "texts are compared by their bytes"),
    Spelling(&["at", "time", "zone"], "timestamps are in UTC"),
    Spelling(
        &["qualify"],
        "select from the window function in a subquery",
    ),
    Spelling(
        &["create", "table"],
        "streams are read from taps, recordings and traces; `create view` names a query",
    ),
    Spelling(&["or", "replace", "view"], "write `create view`"),
];
