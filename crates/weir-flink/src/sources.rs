//! [`SourceTopics`]: what a job reads, by the options of its tables.

use std::collections::BTreeSet;

use weir_forward::{description_key, fleet_topic};
use weir_model::Nanos;
use weir_query::flink::{FlinkQuery, FlinkTable, TopicContent};

/// The option of a source with its topics, and the one with a pattern of their names.
pub const TOPIC: &str = "topic";
/// See [`TOPIC`].
pub const TOPIC_PATTERN: &str = "topic-pattern";

/// What stands for the topic of a table in these options.
pub const STREAM: &str = "{stream}";

/// The topics that a job reads.
#[derive(Debug, PartialEq, Eq)]
pub enum SourceTopics {
    /// These.
    Named(BTreeSet<String>),
    /// Those of hosts: all whose names begin with one of these.
    Beginning(BTreeSet<String>),
}

/// What a job reads with these options of its tables: topics, and the names of rows in topics of
/// all queries.
pub fn source_names(flink: &FlinkQuery, options: &[(String, String)]) -> BTreeSet<String> {
    let topics = match SourceTopics::of_query(flink, options) {
        SourceTopics::Named(topics) => topics,
        SourceTopics::Beginning(topics) => {
            let of_fleet = topics.iter().map(|topic| topic.trim_end_matches('.'));
            of_fleet.map(str::to_owned).collect()
        }
    };
    if !shares_topics(flink) {
        return topics;
    }
    let names = |topic: &String| {
        let key = |table: &FlinkTable| description_key(topic, &table.stream);
        flink.tables.iter().map(key).collect::<Vec<_>>()
    };
    topics.iter().flat_map(names).collect()
}

/// Whether the topics of a query have rows of others.
pub fn shares_topics(flink: &FlinkQuery) -> bool {
    let mut tables = flink.tables.iter();
    tables.any(|table| table.topic_content() == TopicContent::Several)
}

impl SourceTopics {
    /// Those of a query.
    pub fn of_query(flink: &FlinkQuery, options: &[(String, String)]) -> SourceTopics {
        let streams = flink.tables.iter().map(|table| table.stream.as_str());
        SourceTopics::of(options, streams)
    }

    /// Those that the options of the tables state, for the topics of `streams`.
    fn of<'a>(
        options: &[(String, String)],
        streams: impl Iterator<Item = &'a str>,
    ) -> SourceTopics {
        let stated = |option: &str| {
            let mut stated = options.iter().rev();
            let found = stated.find(|(key, _)| key == option);
            found.map(|(_, topics)| topics.as_str())
        };
        if let Some(pattern) = stated(TOPIC_PATTERN) {
            let beginning = |stream: &str| {
                let of_fleet = fleet_topic(pattern).unwrap_or(STREAM);
                format!("{}.", of_fleet.replace(STREAM, stream))
            };
            return SourceTopics::Beginning(streams.map(beginning).collect());
        }
        let all = stated(TOPIC).unwrap_or_default();
        let lists = streams.map(|stream| all.replace(STREAM, stream));
        let lists: BTreeSet<String> = lists.collect();
        let topics = lists.iter().flat_map(|list| list.split(';'));
        let topics = topics.filter(|topic| !topic.is_empty());
        SourceTopics::Named(topics.map(str::to_owned).collect())
    }
}

/// Whether partitions have all rows since `since`, of which each has kept the messages from its
/// first one in `kept` on (its number and its instant). The first result was that of `first`: a
/// topic that begins later is another one than that of the job before. A topic of a host may begin
/// later, but not those of all hosts.
pub fn has_all_rows(kept: &[(i64, Nanos)], of_hosts: bool, first: Nanos, since: Nanos) -> bool {
    let is_early = |instant: Nanos| instant <= since || instant <= first;
    let is_whole = |&(offset, instant): &(i64, Nanos)| {
        instant <= since || offset == 0 && (of_hosts || instant <= first)
    };
    let is_another = of_hosts && !kept.is_empty() && !kept.iter().any(|(_, at)| is_early(*at));
    !is_another && kept.iter().all(is_whole)
}

#[cfg(test)]
mod tests {
    use weir_forward::host_topics;

    use super::*;

    #[test]
    fn the_topics_of_a_job_are_those_of_its_options() {
        let of = |options: &[(&str, &str)]| {
            let options = options
                .iter()
                .map(|(key, value)| ((*key).into(), (*value).into()));
            SourceTopics::of(&options.collect::<Vec<_>>(), ["w.a.1", "w.b.2"].into_iter())
        };
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let named = SourceTopics::Named(set(&["w.a.1", "w.b.2"]));
        assert_eq!(of(&[("topic", "{stream}")]), named);
        let listed = SourceTopics::Named(set(&["x.1", "y.1"]));
        assert_eq!(of(&[("topic", "{stream}"), ("topic", "x.1;y.1")]), listed);
        let of_hosts = host_topics(STREAM);
        let beginning = SourceTopics::Beginning(set(&["w.a.1.", "w.b.2."]));
        assert_eq!(of(&[("topic-pattern", &of_hosts)]), beginning);
        assert_eq!(of(&[("topic-pattern", "w\\.[ab].*")]), beginning);
        let shared = SourceTopics::Named(set(&["w.all.rows"]));
        assert_eq!(of(&[("topic", "w.all.rows")]), shared);
        let of_hosts = host_topics("w.all.rows");
        let beginning = SourceTopics::Beginning(set(&["w.all.rows."]));
        assert_eq!(of(&[("topic-pattern", &of_hosts)]), beginning);
    }

    #[test]
    fn rows_are_missing_where_kafka_has_deleted_them_or_another_topic_has_them() {
        // The first result is that of 100; the rows since 500 are needed.
        let has_all = |kept: &[(i64, Nanos)], of_hosts| has_all_rows(kept, of_hosts, 100, 500);
        for of_hosts in [false, true] {
            assert!(has_all(&[], of_hosts));
            assert!(has_all(&[(0, 99), (7, 500)], of_hosts));
            assert!(!has_all(&[(0, 99), (7, 501)], of_hosts), "deleted");
            assert!(!has_all(&[(0, 501), (0, 502)], of_hosts), "another topic");
        }
        assert!(!has_all(&[(0, 99), (0, 501)], false));
        assert!(
            has_all(&[(0, 99), (0, 501)], true),
            "a host that has joined"
        );
    }
}
