//! `weir functions`: the reference of aggregates, window functions and scalar functions, from the
//! descriptions that the checker uses.

use clap::Args;
use serde_json::json;
use weir_model::suggest;
use weir_query::function::{Example, FunctionDoc, documented};

use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;

/// List the functions that queries can call
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  weir functions\n  weir functions quantile")]
pub struct FunctionsArgs {
    /// Print the description and examples of this function [default: a list of all]
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Print JSON, including descriptions and examples
    #[arg(short = 'j', long)]
    json: bool,
}

/// A function as the reference shows it.
struct Entry {
    kind: &'static str,
    doc: &'static FunctionDoc,
}

pub fn run(args: &FunctionsArgs) -> Result<Ending, Failure> {
    let entries = documented().map(|(kind, doc)| Entry { kind, doc });
    let mut entries: Vec<Entry> = entries.collect();
    if let Some(name) = &args.name {
        let names: Vec<&str> = entries.iter().map(|e| e.doc.name).collect();
        let unknown = unknown(name, &names);
        entries.retain(|e| answers(e.doc, name));
        if entries.is_empty() {
            return Err(unknown);
        }
    }
    let text = if args.json {
        format!(
            "{}\n",
            json!(entries.iter().map(entry_json).collect::<Vec<_>>())
        )
    } else if args.name.is_some() {
        entries.iter().map(page).collect::<Vec<_>>().join("\n")
    } else {
        let row = |e: &Entry| {
            vec![
                e.doc.signature.to_owned(),
                e.kind.to_owned(),
                e.doc.summary.to_owned(),
            ]
        };
        weir_sink::text::aligned(&entries.iter().map(row).collect::<Vec<_>>())
    };
    output::print(&text)?;
    Ok(Ending::Done)
}

fn answers(doc: &FunctionDoc, name: &str) -> bool {
    let mut names = std::iter::once(&doc.name).chain(doc.aliases);
    names.any(|n| n.eq_ignore_ascii_case(name))
}

fn unknown(name: &str, names: &[&str]) -> Failure {
    let remedy = match suggest::nearest(name, names.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "`weir functions` lists them".to_owned(),
    };
    Failure::words(format!("unknown function `{name}`; {remedy}"))
}

fn page(entry: &Entry) -> String {
    let doc = entry.doc;
    let mut text = format!("{}  ({})\n  {}\n", doc.signature, entry.kind, doc.summary);
    if !doc.aliases.is_empty() {
        text += &format!("  Aliases: {}\n", doc.aliases.join(", "));
    }
    if !doc.details.is_empty() {
        text += &format!("\n  {}\n", doc.details.replace('\n', "\n  "));
    }
    if !doc.examples.is_empty() {
        text += "\n";
    }
    for Example { call, rows, result } in doc.examples {
        let over = match rows.is_empty() {
            true => String::new(),
            false => format!(" over {}", rows.replace('\n', "; ")),
        };
        text += &format!("  {call}{over} = {result}\n");
    }
    text
}

fn entry_json(entry: &Entry) -> serde_json::Value {
    let doc = entry.doc;
    let example = |e: &Example| json!({ "call": e.call, "rows": e.rows, "result": e.result });
    json!({
        "name": doc.name,
        "kind": entry.kind,
        "signature": doc.signature,
        "aliases": doc.aliases,
        "summary": doc.summary,
        "details": doc.details,
        "examples": doc.examples.iter().map(example).collect::<Vec<_>>(),
    })
}
