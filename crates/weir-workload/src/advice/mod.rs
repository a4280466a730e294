//! What follows for storage from a profile: each rule in a file, in the order in which they are told.
//!
//! A rule says what to do with its evidence and confidence, or what is missing for it to say anything, or nothing
//! where there is nothing to do.

mod alignment;
mod cache;
mod medium;
mod separation;
mod stripe;

use crate::evidence::{Confidence, Evidence, REQUESTS_LOW};
use crate::profile::{Advice, Missing, Profile, Topic};

/// A rule.
pub struct Rule {
    /// What it is about.
    pub topic: Topic,
    /// What it says of a profile with [`REQUESTS_LOW`] reads and writes or more.
    pub says: fn(&Profile) -> Conclusion,
}

/// What a rule concludes.
pub enum Conclusion {
    /// To do this, because of that.
    Do(String, Confidence, Vec<Evidence>),
    /// That the data do not carry it: why, and what it would take.
    Untold(String),
    /// Nothing.
    Nothing,
}

/// Every rule, in the order in which advice is told.
pub static RULES: &[Rule] = &[
    Rule {
        topic: Topic::CacheSize,
        says: cache::says,
    },
    Rule {
        topic: Topic::Medium,
        says: medium::says,
    },
    Rule {
        topic: Topic::StripeUnit,
        says: stripe::says,
    },
    Rule {
        topic: Topic::Separation,
        says: separation::says,
    },
    Rule {
        topic: Topic::Alignment,
        says: alignment::says,
    },
];

/// Applies every rule to a profile.
pub fn advise(profile: &mut Profile) {
    for rule in RULES {
        let conclusion = match profile.order.all.requests {
            n if n >= REQUESTS_LOW => (rule.says)(profile),
            n => Conclusion::Untold(format!(
                "{n} reads and writes are too few; it takes {REQUESTS_LOW}"
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
            Conclusion::Untold(text) => profile.missing.push(Missing { topic, text }),
            Conclusion::Nothing => {}
        }
    }
}
