//! `weir explain --flink`: a query in Flink SQL.

use serde_json::json;
use weir_flink::sources::{STREAM, TOPIC, TOPIC_PATTERN};
use weir_forward::{KafkaUrl, TopicUse, host_topics};
use weir_query::Plan;
use weir_query::flink::{
    FlinkQuery, FlinkTable, TopicContent, Untranslatable, ZONE, translate, translate_published,
};
use weir_query::place::fleet::published::cut_published;
use weir_runtime::failure::Failure;

/// Options of the tables: rows from a topic of Kafka for each stream.
const OPTIONS: [(&str, &str); 5] = [
    ("connector", "kafka"),
    ("topic", "weir.{stream}"),
    ("properties.bootstrap.servers", "localhost:9092"),
    ("scan.startup.mode", "latest-offset"),
    ("format", "json"),
];

/// Those of the topics of hosts. New hosts are found after 10 s. A host that has sent nothing for 2
/// minutes no longer delays the others; in a shorter time the brokers may not be back after a
/// restart.
const OF_HOSTS: [(&str, &str); 2] = [
    ("scan.topic-partition-discovery.interval", "10 s"),
    ("scan.watermark.idle-timeout", "2 min"),
];

/// An argument `KEY=VALUE`.
pub fn option(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("an option is KEY=VALUE, such as topic=disks.{stream}".into()),
    }
}

/// Who forwards what agents send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardedBy {
    /// A monitor, to topics for all hosts (`weir monitor --forward`).
    Monitor,
    /// Each agent, to topics of its host (`weir agent --forward`).
    Agents,
}

impl ForwardedBy {
    /// As the option `--agents` states it.
    pub fn agents(is_given: bool) -> ForwardedBy {
        match is_given {
            true => ForwardedBy::Agents,
            false => ForwardedBy::Monitor,
        }
    }
}

/// A query in Flink SQL, and the options of its tables.
pub struct Translation {
    flink: FlinkQuery,
    defaults: Vec<(String, String)>,
}

/// The translation of a plan over the rows of streams.
pub fn of_streams(plan: &Plan) -> Result<Translation, Failure> {
    Ok(Translation {
        flink: translate(plan).map_err(refused)?,
        defaults: owned(&OPTIONS),
    })
}

/// The translation of a plan over what agents send for the standing query `name`, and `by` forwards
/// to `url`.
pub fn of_forwarded(
    plan: &Plan,
    url: &KafkaUrl,
    name: &str,
    place: Option<&str>,
    by: ForwardedBy,
) -> Result<Translation, Failure> {
    let strategy = place.map(str::parse).transpose().map_err(Failure::words)?;
    let cut = cut_published(plan, strategy).map_err(Failure::words)?;
    if by == ForwardedBy::Agents {
        let checked = cut.comes_from_agents();
        checked.map_err(|why| refused(Untranslatable(why)))?;
    }
    let numbers = 0..cut.published_count();
    let names = numbers.map(|number| url.topics.rows(&url.prefix, name, &cut, number));
    let names: Vec<String> = names.collect();
    let of_fleet = url.topics.topic(&url.prefix, STREAM);
    let of_hosts = host_topics(&of_fleet);
    let (content, format) = match url.topics {
        TopicUse::PerQuery => (TopicContent::OneFragment, "avro"),
        TopicUse::Shared => (TopicContent::Several, "json"),
    };
    // From the first message that is kept.
    let (of_tables, more) = match by {
        ForwardedBy::Monitor => ((TOPIC, &*of_fleet), &[][..]),
        ForwardedBy::Agents => ((TOPIC_PATTERN, &*of_hosts), &OF_HOSTS[..]),
    };
    let brokers = url.brokers.join(",");
    let first = [
        ("connector", "kafka"),
        of_tables,
        ("scan.startup.mode", "earliest-offset"),
    ];
    let last = [
        ("format", format),
        ("properties.bootstrap.servers", brokers.as_str()),
    ];
    let defaults = owned(&[&first[..], more, &last].concat());
    Ok(Translation {
        flink: translate_published(&cut, &names, content).map_err(refused)?,
        defaults,
    })
}

/// As a failure of a command.
pub fn refused(why: Untranslatable) -> Failure {
    Failure::words(format_args!("Flink cannot answer this query: {why}"))
}

fn owned(options: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    options.iter().map(owned).collect()
}

/// A translation with these options of the tables and functions of this jar, as text or as JSON.
pub fn text(
    translation: &Translation,
    options: &[(String, String)],
    jar: Option<&str>,
    as_json: bool,
) -> String {
    let options = translation.with_defaults(options);
    let flink = &translation.flink;
    match as_json {
        true => format!("{}\n", json_of(flink, &options, jar)),
        false => text_of(flink, &options, jar),
    }
}

impl Translation {
    /// The query, and the options of the tables that it reads.
    pub fn parts(self, options: &[(String, String)]) -> (FlinkQuery, Vec<(String, String)>) {
        let options = self.with_defaults(options);
        (self.flink, options)
    }

    /// The defaults, replaced by options of the same key; none beside another connector.
    fn with_defaults(&self, options: &[(String, String)]) -> Vec<(String, String)> {
        const TOPICS: [&str; 2] = [TOPIC, TOPIC_PATTERN];
        let is_given = |key: &str| {
            // One of these replaces the other.
            let is_same =
                |given: &str| given == key || [given, key].iter().all(|k| TOPICS.contains(k));
            options.iter().any(|(given, _)| is_same(given))
        };
        let defaults = self.defaults.iter();
        let defaults = defaults.filter(|(key, _)| !is_given("connector") && !is_given(key));
        defaults.chain(options).cloned().collect()
    }
}

fn text_of(flink: &FlinkQuery, options: &[(String, String)], jar: Option<&str>) -> String {
    let mut text = format!("{ZONE};\n\n");
    for function in &flink.functions {
        text += &format!("{};\n\n", function.definition(jar));
    }
    for table in &flink.tables {
        let definition = table.definition(options);
        if let Some(producer) = producer(table) {
            text += &format!("-- rows: {producer}\n");
        }
        text += &format!("{definition};\n\n");
        if let Some(view) = table.view() {
            text += &format!("{};\n\n", view.definition());
        }
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
            "view": table.view().map(|view| view.definition()),
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

/// The command that prints the rows of a table of a stream.
fn producer(table: &FlinkTable) -> Option<String> {
    let query = table.source()?;
    Some(format!("weir query --format json \"{query}\""))
}
