//! `string_agg(t, separator)`: the texts of a group, joined.

use super::list::List;
use crate::function::{Example, FunctionDoc};

/// `string_agg(t [, separator])`
pub static STRING_AGG: List = List {
    doc: &FunctionDoc {
        name: "string_agg",
        aliases: &["listagg", "group_concat"],
        signature: "string_agg(t [, separator])",
        summary: "the texts in their order, joined by `separator`",
        details: "A comma without `separator`. NULLs are ignored; `string_agg(distinct t, ', ')` has each text once. A list ends with `..` instead of the text that would make it longer than 1000 bytes. It stores every distinct text.",
        examples: &[
            Example::over(
                "string_agg(x, ', ')",
                "sdb\nsda\nsdb\nNULL",
                "sda, sdb, sdb",
            ),
            Example::over("string_agg(x)", "b\na", "a,b"),
        ],
    },
    is_array: false,
};
