//! `weir streams`: the streams and relations of queries, with columns, types and units.

use clap::Args;
use serde_json::json;
use weir_model::{Catalog, Declaration, Field, Shape};

use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;

/// List the streams and relations that queries can read
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  weir streams\n  weir streams IO")]
pub struct StreamsArgs {
    /// Print the columns of this stream or relation [default: a list of all]
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Print JSON, including all columns
    #[arg(long)]
    json: bool,
}

pub fn run(args: &StreamsArgs) -> Result<Ending, Failure> {
    let catalog = Catalog::builtin();
    let wanted: Vec<&Declaration> = match &args.name {
        None => catalog.declarations.iter().collect(),
        Some(name) => vec![catalog.find(name).ok_or_else(|| unknown(name, &catalog))?],
    };
    let text = if args.json {
        let all: Vec<_> = wanted.into_iter().map(declaration_json).collect();
        format!("{}\n", json!(all))
    } else if args.name.is_some() {
        let declaration = wanted[0];
        let (shape, columns) = (shape(declaration), columns_text(&declaration.schema.fields));
        format!(
            "{} ({shape}): {}\n\n{columns}",
            declaration.name, declaration.doc
        )
    } else {
        let row = |d: &&Declaration| vec![d.name.clone(), shape(d).into(), d.doc.clone()];
        output::aligned(&wanted.iter().map(row).collect::<Vec<_>>())
    };
    output::print(&text)?;
    Ok(Ending::Done)
}

fn unknown(name: &str, catalog: &Catalog) -> Failure {
    let known: Vec<&str> = catalog
        .declarations
        .iter()
        .map(|d| d.name.as_str())
        .collect();
    let known = known.join(", ");
    Failure::words(format!(
        "unknown stream or relation `{name}`; the known ones are {known}"
    ))
}

fn shape(declaration: &Declaration) -> &'static str {
    match declaration.shape {
        Shape::Stream => "stream",
        Shape::Relation => "relation",
    }
}

/// The header of a list of columns.
const HEADER: [&str; 5] = ["COLUMN", "TYPE", "UNIT", "ALIASES", "DESCRIPTION"];

/// Columns as lines below a header: name, type, unit, aliases, description.
pub fn columns_text(fields: &[Field]) -> String {
    let row = |field: &Field| {
        let aliases: Vec<String> = field.aliases.iter().map(alias).collect();
        vec![
            field.name.clone(),
            field.ty.name().into(),
            field.unit.symbol().into(),
            aliases.join(", "),
            field.doc.clone(),
        ]
    };
    let header = HEADER.map(str::to_owned).to_vec();
    output::aligned(
        &std::iter::once(header)
            .chain(fields.iter().map(row))
            .collect::<Vec<_>>(),
    )
}

fn alias(alias: &weir_model::Alias) -> String {
    match alias.converted {
        Some(unit) => format!("{} ({unit})", alias.name),
        None => alias.name.to_owned(),
    }
}

fn declaration_json(declaration: &Declaration) -> serde_json::Value {
    let columns: Vec<_> = declaration.schema.fields.iter().map(column_json).collect();
    json!({
        "name": declaration.name,
        "shape": shape(declaration),
        "doc": declaration.doc,
        "columns": columns,
    })
}

/// A column as JSON.
pub fn column_json(field: &Field) -> serde_json::Value {
    let alias =
        |a: &weir_model::Alias| json!({ "name": a.name, "unit": a.converted.map(|u| u.symbol()) });
    json!({
        "name": field.name,
        "type": field.ty.name(),
        "unit": field.unit.symbol(),
        "nullable": field.nullable,
        "aliases": field.aliases.iter().map(alias).collect::<Vec<_>>(),
        "doc": field.doc,
    })
}
