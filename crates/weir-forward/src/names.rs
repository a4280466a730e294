//! The names of topics.

use weir_query::place::fleet::Cut;
use weir_query::place::fleet::published::PublishedRows;

/// The longest name of a topic in Kafka.
const NAME_MAX: usize = 249;

/// The part of it that is left for the name of a host.
const HOST_MAX: usize = 64;

/// What begins a text in a pattern, and what ends it before the name of a host.
const LITERAL: &str = r"\Q";
/// See [`LITERAL`].
const OF_ANY_HOST: &str = r".\E.+";

/// The longest name of rows in a topic of all queries. It does not depend on the prefix: monitors
/// with different prefixes have the same names.
const ROWS_NAME_MAX: usize = 80;

/// Which topics have the rows of queries (`?topics=query`, `?topics=shared`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopicUse {
    /// Each query has its own.
    #[default]
    PerQuery,
    /// All queries have the same.
    Shared,
}

impl TopicUse {
    /// The name of the rows with this number of `query`, which was cut. It depends on their plan
    /// and on its columns: a changed query has another one, because its rows are others. A topic of
    /// their own has this name.
    pub fn rows(self, prefix: &str, query: &str, cut: &Cut, number: usize) -> String {
        let identity = identity(query, cut, number);
        match self {
            TopicUse::PerQuery => topic_of(prefix, query, &identity),
            TopicUse::Shared => named(query, &identity, ROWS_NAME_MAX),
        }
    }

    /// The topic of the rows with this name, where the names of all topics begin with `prefix`.
    pub fn topic(self, prefix: &str, rows: &str) -> String {
        match self {
            TopicUse::PerQuery => rows.to_owned(),
            TopicUse::Shared => shared_topic(prefix),
        }
    }
}

/// The name of the topic for the rows of all queries. No topic of a query has this name: the names
/// of these end differently.
pub fn shared_topic(prefix: &str) -> String {
    format!("{prefix}.all.rows")
}

/// The end of the name of rows, a number of what they are.
fn identity(query: &str, cut: &Cut, number: usize) -> String {
    let fragment = cut.published(number);
    let mut identity = format!("{query}\n{number}\n{fragment}");
    for field in &fragment.schema.fields {
        identity += &format!("\n{} {}", field.name, field.ty);
    }
    let published = PublishedRows::of(cut, number).ok();
    if let Some(ends) = published.and_then(|rows| rows.content_at) {
        identity += &format!("\nevery {}", ends.slide);
    }
    format!(".{:08x}", crc32fast::hash(identity.as_bytes()))
}

/// The key of the description of rows. A description of the same rows in another topic is another
/// one.
pub fn description_key(topic: &str, rows: &str) -> String {
    match topic == rows {
        true => rows.to_owned(),
        false => format!("{topic}/{rows}"),
    }
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
    let room = NAME_MAX - HOST_MAX - prefix.len() - 1;
    format!("{prefix}.{}", named(query, end, room))
}

/// The name of a query in the characters of topics, shortened, with this end.
fn named(query: &str, end: &str, length_max: usize) -> String {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    let plain = |c: char| if is_valid(c) { c } else { '_' };
    let mut name: String = query.chars().map(plain).collect();
    name.truncate(length_max - end.len());
    name + end
}
