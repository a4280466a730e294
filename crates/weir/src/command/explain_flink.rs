//! `weir explain --flink`: a query in Flink SQL.

use serde_json::json;
use weir_query::Plan;
use weir_query::flink::{FlinkQuery, FlinkTable, ZONE, translate};
use weir_runtime::failure::Failure;

/// Options of the tables: rows from a topic of Kafka for each stream.
const OPTIONS: [(&str, &str); 5] = [
    ("connector", "kafka"),
    ("topic", "weir.{stream}"),
    ("properties.bootstrap.servers", "localhost:9092"),
    ("scan.startup.mode", "latest-offset"),
    ("format", "json"),
];

/// An argument `KEY=VALUE`.
pub fn option(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("an option is KEY=VALUE, such as topic=disks.{stream}".into()),
    }
}

/// The translation of a plan, with these options of the tables and functions of this jar.
pub fn explain(
    plan: &Plan,
    options: &[(String, String)],
    jar: Option<&str>,
    as_json: bool,
) -> Result<String, Failure> {
    let flink = translate(plan)
        .map_err(|why| Failure::words(format_args!("Flink cannot answer this query: {why}")))?;
    let options = with_defaults(options);
    Ok(match as_json {
        true => format!("{}\n", json_of(&flink, &options, jar)),
        false => text_of(&flink, &options, jar),
    })
}

/// The defaults, replaced by options of the same key; none beside another connector.
fn with_defaults(options: &[(String, String)]) -> Vec<(String, String)> {
    let is_given = |key: &str| options.iter().any(|(given, _)| given == key);
    let defaults = OPTIONS
        .iter()
        .filter(|(key, _)| !is_given("connector") && !is_given(key));
    let defaults = defaults.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    defaults.chain(options.iter().cloned()).collect()
}

fn text_of(flink: &FlinkQuery, options: &[(String, String)], jar: Option<&str>) -> String {
    let mut text = format!("{ZONE};\n\n");
    for function in &flink.functions {
        text += &format!("{};\n\n", function.definition(jar));
    }
    for table in &flink.tables {
        let definition = table.definition(options);
        text += &format!("-- rows: {}\n{definition};\n\n", producer(table));
    }
    text + &format!("{};\n", flink.select)
}

fn json_of(
    flink: &FlinkQuery,
    options: &[(String, String)],
    jar: Option<&str>,
) -> serde_json::Value {
    let functions = flink.functions.iter().map(|f| f.definition(jar));
    let tables = flink.tables.iter().map(|table| {
        json!({
            "stream": table.stream,
            "rows": producer(table),
            "definition": table.definition(options),
        })
    });
    json!({
        "settings": [ZONE],
        "functions": functions.collect::<Vec<_>>(),
        "tables": tables.collect::<Vec<_>>(),
        "select": flink.select,
        "windowed": flink.is_windowed,
    })
}

/// The command that prints the rows of a table.
fn producer(table: &FlinkTable) -> String {
    format!("weir query --format json \"{}\"", table.source())
}
