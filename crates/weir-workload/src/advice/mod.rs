//! Storage advice from a profile: one rule per file, in the order of the report.
//!
//! A rule returns advice with evidence and confidence, or what data is missing, or nothing if there
//! is no need for action.

mod alignment;
mod cache;
mod medium;
mod separation;
mod stripe;

use crate::evidence::{Confidence, Evidence, REQUESTS_LOW};
use crate::profile::{Advice, Missing, Profile, Topic};

/// A rule.
pub struct Rule {
    /// The topic.
    pub topic: Topic,
    /// Applies the rule to a profile with at least [`REQUESTS_LOW`] reads and writes.
    pub statement: fn(&Profile) -> Conclusion,
}

/// The conclusion of a rule.
pub enum Conclusion {
    /// Advice with its reasons.
    Do(String, Confidence, Vec<Evidence>),
    /// The data is insufficient: why, and what would be needed.
    Unknown(String),
    /// No advice.
    Nothing,
}

/// Every rule, in the order of the report.
pub static RULES: &[Rule] = &[
    Rule {
        topic: Topic::CacheSize,
        statement: cache::statement,
    },
    Rule {
        topic: Topic::Medium,
        statement: medium::statement,
    },
    Rule {
        topic: Topic::StripeUnit,
        statement: stripe::statement,
    },
    Rule {
        topic: Topic::Separation,
        statement: separation::statement,
    },
    Rule {
        topic: Topic::Alignment,
        statement: alignment::statement,
    },
];

/// Applies every rule to a profile.
pub fn advise(profile: &mut Profile) {
    for rule in RULES {
        let conclusion = match profile.order.all.requests {
            n if n >= REQUESTS_LOW => (rule.statement)(profile),
            n => Conclusion::Unknown(format!(
                "{n} reads and writes are too few; {REQUESTS_LOW} are needed"
            )),
        };
        let topic = rule.topic;
        match conclusion {
            Conclusion::Do(text, confidence, evidence) => profile.advice.push(Advice {
                topic,
                text,
                confidence,
                evidence,
            }),
            Conclusion::Unknown(text) => profile.missing.push(Missing { topic, text }),
            Conclusion::Nothing => {}
        }
    }
}
