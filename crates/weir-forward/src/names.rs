//! The names of topics.

use weir_query::plan::Plan;

/// The longest name of a topic in Kafka.
const NAME_MAX: usize = 249;

/// The part of it that is left for the name of a host.
const HOST_MAX: usize = 64;

/// What begins a text in a pattern, and what ends it before the name of a host.
const LITERAL: &str = r"\Q";
/// See [`LITERAL`].
const OF_ANY_HOST: &str = r".\E.+";

/// The name of the topic for the rows of fragment `number` of `query`. It depends on the fragment
/// and on its columns: a changed query has another topic, because its rows are others.
pub fn topic_name(prefix: &str, query: &str, number: usize, fragment: &Plan) -> String {
    let mut identity = format!("{query}\n{number}\n{fragment}");
    for field in &fragment.schema.fields {
        identity += &format!("\n{} {}", field.name, field.ty);
    }
    let end = format!(".{:08x}", crc32fast::hash(identity.as_bytes()));
    topic_of(prefix, query, &end)
}

/// The name of the topic for the rows of all queries, where they share one. No topic of a query has
/// it: the names of these end differently.
pub fn shared_topic(prefix: &str) -> String {
    format!("{prefix}.all.rows")
}

/// The name of the topic for the rows of one host, where hosts have topics of their own; `topic` is
/// that of all hosts.
pub fn host_topic(topic: &str, host: &str) -> String {
    // Kafka takes two topics for the same if they differ in dots and underscores only.
    let is_valid = |c: char| c.is_ascii_alphanumeric() || ".-".contains(c);
    let mut name: String = host
        .chars()
        .map(|c| if is_valid(c) { c } else { '-' })
        .collect();
    let room = NAME_MAX - topic.len() - 1;
    if name != host || name.len() > room {
        // Hosts that differ in other characters have other topics.
        let sum = format!(".{:08x}", crc32fast::hash(host.as_bytes()));
        name.truncate(room - sum.len());
        name += &sum;
    }
    format!("{topic}.{name}")
}

/// A pattern of the names of the topics of all hosts, as `java.util.regex` reads it; `topic` is that
/// of all hosts.
pub fn host_topics(topic: &str) -> String {
    format!("{LITERAL}{topic}{OF_ANY_HOST}")
}

/// The topic of all hosts in a pattern of [`host_topics`].
pub fn fleet_topic(pattern: &str) -> Option<&str> {
    pattern.strip_prefix(LITERAL)?.strip_suffix(OF_ANY_HOST)
}

/// The name of the topic with what the other topics contain.
pub fn descriptions_topic(prefix: &str) -> String {
    format!("{prefix}.queries")
}

/// The name of the topic for the result of `query`, where another engine computes it.
pub fn results_topic(prefix: &str, query: &str) -> String {
    const END: &str = ".results";
    let topic = topic_of(prefix, query, END);
    // Names that differ in other characters have other topics.
    match topic == format!("{prefix}.{query}{END}") {
        true => topic,
        false => {
            let sum = crc32fast::hash(query.as_bytes());
            topic_of(prefix, query, &format!(".{sum:08x}{END}"))
        }
    }
}

fn topic_of(prefix: &str, query: &str, end: &str) -> String {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    let plain = |c: char| if is_valid(c) { c } else { '_' };
    let mut name: String = query.chars().map(plain).collect();
    name.truncate(NAME_MAX - HOST_MAX - prefix.len() - 1 - end.len());
    format!("{prefix}.{name}{end}")
}
