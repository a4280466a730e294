//! The rules that come with weir: a file of alerts each, in CQL, to be used as they are or copied
//! and changed.

/// A shipped rule.
#[derive(Clone, Copy, Debug)]
pub struct ShippedRule {
    /// Its name, which is that of its alert.
    pub name: &'static str,
    /// Its file.
    pub text: &'static str,
}

macro_rules! rules {
    ($($name:literal),* $(,)?) => {
        &[$(ShippedRule { name: $name, text: include_str!(concat!($name, ".cql")) }),*]
    };
}

/// Every shipped rule, in the order of the documentation.
pub static RULES: &[ShippedRule] = rules![
    "latency_over_baseline",
    "queue_saturated",
    "disk_errors",
    "stalled_disk",
    "noisy_neighbour",
    "flush_storm",
    "discard_storm",
    "cache_too_small",
    "lost_completeness",
    "agent_gone",
];

impl ShippedRule {
    /// The rule called `name`.
    pub fn find(name: &str) -> Option<&'static ShippedRule> {
        RULES
            .iter()
            .find(|rule| rule.name.eq_ignore_ascii_case(name))
    }

    /// Its meaning: the comment at the start of its file, in one line.
    pub fn doc(&self) -> String {
        let lines = self.text.lines().map_while(|line| line.strip_prefix("-- "));
        lines.collect::<Vec<_>>().join(" ")
    }
}
