//! `weir streams`: the streams and relations of queries, with columns, types and units.

use clap::Args;
use serde_json::json;
use weir_model::{Catalog, Declaration, Field};

use weir_runtime::failure::{Ending, Failure};
use weir_runtime::inspection;
use weir_runtime::output;
use weir_runtime::shipped::ShippedStream;
use weir_tap::live;

/// List the streams and relations that queries can read
///
/// Streams of probes are marked `probe`, with what this host lacks of them.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  weir streams\n  weir streams IO\n  weir streams run_queue")]
pub struct StreamsArgs {
    /// Print the columns of this stream or relation [default: a list of all]
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Print JSON, including all columns
    #[arg(short = 'j', long)]
    json: bool,
}

pub fn run(args: &StreamsArgs) -> Result<Ending, Failure> {
    let text = match &args.name {
        None => all(args.json),
        Some(name) => one(&declaration(name)?, args.json),
    };
    output::print(&text)?;
    Ok(Ending::Done)
}

/// The streams of this host's taps and the shipped ones.
fn all(json: bool) -> String {
    let catalog = live::capabilities().catalog();
    let shipped = ShippedStream::all();
    if json {
        let of_shipped = |stream: &ShippedStream| match stream.declaration() {
            Ok(declaration) => declaration_json(&declaration),
            Err(why) => {
                let why = why.message;
                json!({ "name": stream.name, "shape": "stream", "doc": stream.doc, "absent": why })
            }
        };
        let known = catalog.declarations.iter().map(declaration_json);
        let all: Vec<_> = known.chain(shipped.iter().map(of_shipped)).collect();
        return format!("{}\n", json!(all));
    }
    let row = |d: &Declaration| vec![d.name.clone(), d.shape.name().into(), d.doc.clone()];
    let of_shipped = |stream: &ShippedStream| {
        let doc = stream.doc_on_this_host();
        vec![stream.name.clone(), "probe".into(), doc]
    };
    let rows = catalog.declarations.iter().map(row);
    weir_sink::text::aligned(
        &rows
            .chain(shipped.iter().map(of_shipped))
            .collect::<Vec<_>>(),
    )
}

/// A stream with its columns.
fn one(declaration: &Declaration, json: bool) -> String {
    if json {
        return format!("{}\n", json!([declaration_json(declaration)]));
    }
    let (shape, columns) = (
        declaration.shape.name(),
        columns_text(&declaration.schema.fields),
    );
    format!(
        "{} ({shape}): {}\n\n{columns}",
        declaration.name, declaration.doc
    )
}

/// The stream called `name`.
fn declaration(name: &str) -> Result<Declaration, Failure> {
    let catalog = live::capabilities().catalog();
    if let Some(known) = catalog.find(name) {
        return Ok(known.clone());
    }
    let shipped = ShippedStream::find(name).ok_or_else(|| unknown(name, &catalog))?;
    let found = shipped.declaration();
    found.map_err(|why| Failure::world(format!("{} is absent: {}", shipped.name, why.message)))
}

fn unknown(name: &str, catalog: &Catalog) -> Failure {
    let shipped = ShippedStream::all().into_iter().map(|stream| stream.name);
    let known = catalog.declarations.iter().map(|d| d.name.clone());
    let known: Vec<String> = known.chain(shipped).collect();
    let known = known.join(", ");
    Failure::words(format!(
        "unknown stream or relation `{name}`; the known ones are {known}"
    ))
}

/// The header of a list of columns.
const HEADER: [&str; 5] = ["COLUMN", "TYPE", "UNIT", "ALIASES", "DESCRIPTION"];

/// Columns as lines below a header: name, type, unit, aliases, description.
pub fn columns_text(fields: &[Field]) -> String {
    let row = |field: &Field| {
        let aliases: Vec<String> = field.aliases.iter().map(inspection::alias).collect();
        vec![
            field.name.clone(),
            field.ty.name().into(),
            field.unit.symbol().into(),
            aliases.join(", "),
            field.doc.clone(),
        ]
    };
    let header = HEADER.map(str::to_owned).to_vec();
    weir_sink::text::aligned(
        &std::iter::once(header)
            .chain(fields.iter().map(row))
            .collect::<Vec<_>>(),
    )
}

fn declaration_json(declaration: &Declaration) -> serde_json::Value {
    let columns: Vec<_> = declaration.schema.fields.iter().map(column_json).collect();
    json!({
        "name": declaration.name,
        "shape": declaration.shape.name(),
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
