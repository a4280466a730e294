//! The reference pages, in Markdown: functions, streams and diagnostics, from the descriptions that
//! the checker uses.

use std::fmt::Write;

use weir_model::{Catalog, Field, Shape, Type, Unit};

use crate::diagnostic::{Severity, codes::CODES};
use crate::function::aggregate::AGGREGATES;
use crate::function::over::WINDOW_FUNCTIONS;
use crate::function::scalar::SCALARS;
use crate::function::{Example, FunctionDoc};

/// The page of functions: aggregates, window functions, scalar functions.
pub fn functions() -> String {
    let mut page = String::from(
        "# Functions\n\n## Aggregates\n\nAn aggregate computes one value from the rows of a group.\n",
    );
    for aggregate in AGGREGATES {
        function(&mut page, aggregate.doc());
    }
    page.push_str("\n## Window functions\n\nA window function computes a value for each row, from the rows of its partition. Aggregates can be called with OVER as well.\n");
    for window in WINDOW_FUNCTIONS {
        function(&mut page, window.doc);
    }
    page.push_str("\n## Scalar functions\n\nA scalar function computes one value from its arguments in a row.\n");
    for scalar in SCALARS {
        function(&mut page, scalar.doc());
    }
    page
}

fn function(page: &mut String, doc: &FunctionDoc) {
    let summary = sentence(doc.summary);
    write(page, format_args!("\n### `{}`\n\n{summary}", doc.signature));
    if !doc.details.is_empty() {
        write(page, format_args!(" {}", doc.details));
    }
    page.push('\n');
    if !doc.aliases.is_empty() {
        let aliases: Vec<String> = doc.aliases.iter().map(|a| format!("`{a}`")).collect();
        write(page, format_args!("\nAliases: {}.\n", aliases.join(", ")));
    }
    if !doc.examples.is_empty() {
        page.push_str("\n| call | rows | result |\n| --- | --- | --- |\n");
    }
    for Example { call, rows, result } in doc.examples {
        // A row is a line; values in it are separated by commas.
        let rows = match rows.is_empty() {
            true => String::new(),
            false => format!("`{}`", rows.replace('\n', "; ")),
        };
        write(
            page,
            format_args!(
                "| {} | {} | {} |\n",
                cell(&format!("`{call}`")),
                cell(&rows),
                cell(&format!("`{result}`"))
            ),
        );
    }
}

/// The page of the streams and relations of a catalog.
pub fn streams(catalog: &Catalog) -> String {
    let mut page = String::from("# Streams\n");
    for declaration in &catalog.declarations {
        let shape = match declaration.shape {
            Shape::Stream => "Stream",
            Shape::Relation => "Relation",
        };
        let doc = sentence(&declaration.doc);
        write(
            &mut page,
            format_args!("\n## `{}`\n\n{shape}. {doc}\n\n", declaration.name),
        );
        page.push_str(
            "| column | type | unit | aliases | description |\n| --- | --- | --- | --- | --- |\n",
        );
        for field in &declaration.schema.fields {
            column(&mut page, field);
        }
    }
    page
}

fn column(page: &mut String, field: &Field) {
    let unit = if field.ty == Type::Time {
        Unit::None
    } else {
        field.unit
    };
    let aliases = field.aliases.iter().map(|alias| match alias.converted {
        Some(unit) => format!("`{}` (integer, {unit})", alias.name),
        None => format!("`{}`", alias.name),
    });
    let aliases = aliases.collect::<Vec<_>>().join(", ");
    let (name, ty, doc) = (&field.name, field.ty, cell(&field.doc));
    write(
        page,
        format_args!("| `{name}` | {ty} | {unit} | {aliases} | {doc} |\n"),
    );
}

/// The page of diagnostics.
pub fn diagnostics() -> String {
    let mut page =
        String::from("# Diagnostics\n\n`weir explain W0103` prints the description of one code.\n");
    for code in CODES {
        let severity = match code.severity {
            Severity::Error => "",
            Severity::Warning => " (warning)",
        };
        write(
            &mut page,
            format_args!(
                "\n## {}: {}{severity}\n\n{}\n",
                code.code, code.title, code.explanation
            ),
        );
    }
    page
}

fn write(page: &mut String, text: std::fmt::Arguments<'_>) {
    page.write_fmt(text)
        .expect("writing to a text does not fail");
}

/// A phrase as a sentence.
fn sentence(phrase: &str) -> String {
    let mut chars = phrase.chars();
    let first = chars
        .next()
        .map_or(String::new(), |c| c.to_uppercase().collect());
    format!("{first}{}.", chars.as_str().trim_end_matches('.'))
}

/// The text of a table cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_contain_every_description() {
        let page = functions();
        for name in AGGREGATES
            .iter()
            .map(|f| f.doc())
            .chain(SCALARS.iter().map(|f| f.doc()))
            .chain(WINDOW_FUNCTIONS.iter().map(|f| f.doc))
        {
            assert!(
                page.contains(&format!("### `{}`", name.signature)),
                "{}",
                name.name
            );
        }
        let page = streams(&Catalog::builtin());
        assert!(page.contains("| `latency` | integer | ns |"), "{page}");
        assert!(page.contains("`BlktapTS` (integer, us)"), "{page}");
        assert!(diagnostics().contains("## W0103: unknown function\n"));
    }

    #[test]
    fn pipes_in_cells_are_escaped() {
        let pages = [functions(), streams(&Catalog::thesis())];
        for line in pages
            .iter()
            .flat_map(|p| p.lines())
            .filter(|l| l.starts_with('|'))
        {
            let bars = line.replace("\\|", "").matches('|').count();
            assert!(bars == 4 || bars == 6, "{line}");
        }
    }
}
