//! [`TuneCandidate`]: settings to try.

use std::collections::BTreeSet;

use fastrand::Rng;
use serde::Serialize;

use crate::queue::{IOSCHED, NR_REQUESTS, QueueState, READ_AHEAD, SCHEDULER, WBT};

/// Settings that differ from the present ones.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TuneCandidate {
    /// Its name: as it was given.
    pub name: String,
    /// The settings.
    pub settings: QueueState,
    /// The settings of the guest's disk.
    pub guest: QueueState,
}

/// The largest number of candidates, with which all pairs of four schedulers each can be compared:
/// a round has a block for each of them and two more.
pub const CANDIDATES_MAX: usize = 16;

/// The prefix of settings of the guest.
pub const GUEST: &str = "guest:";

/// Parses `none,kyber,bfq+nr_requests=64,wbt_lat_usec=0`: candidates by `,`, their settings by `+`,
/// a scheduler by its name alone. Settings of the guest's disk begin with `guest:`.
///
/// # Errors
/// A message for the user.
pub fn parse(text: &str) -> Result<Vec<TuneCandidate>, String> {
    let candidates: Result<Vec<TuneCandidate>, String> = text.split(',').map(parse_one).collect();
    let candidates = candidates?;
    let names: BTreeSet<_> = candidates.iter().map(|c| &c.name).collect();
    match (names.len() == candidates.len(), candidates.len()) {
        (false, _) => Err("a candidate is given twice".to_owned()),
        (_, count) if count > CANDIDATES_MAX => Err(format!(
            "{count} candidates; the maximum is {CANDIDATES_MAX}"
        )),
        _ => Ok(candidates),
    }
}

fn parse_one(text: &str) -> Result<TuneCandidate, String> {
    let (mut settings, mut guest) = (QueueState::new(), QueueState::new());
    for part in text.split('+') {
        let (part, to) = match part.strip_prefix(GUEST) {
            Some(part) => (part, &mut guest),
            None => (part, &mut settings),
        };
        let (name, value) = part.split_once('=').unwrap_or((SCHEDULER, part));
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        let below = name.strip_prefix(IOSCHED).unwrap_or(name);
        if below.is_empty() || value.is_empty() || !below.chars().all(is_plain) {
            return Err(format!(
                "`{part}`: expected a scheduler or SETTING=VALUE, such as nr_requests=64"
            ));
        }
        if !value.chars().all(is_plain) || below.contains("..") {
            return Err(format!("`{part}`: unexpected character"));
        }
        if to.insert(name.to_owned(), value.to_owned()).is_some() {
            return Err(format!("`{text}`: {name} is given twice"));
        }
    }
    Ok(TuneCandidate {
        name: text.to_owned(),
        settings,
        guest,
    })
}

/// The candidates for settings that can matter.
pub fn usual(present: &QueueState, schedulers: &[String], relevant: &[&str]) -> Vec<TuneCandidate> {
    let is_relevant = |setting: &str| relevant.contains(&setting);
    let number = |setting: &str| present.get(setting)?.parse::<u64>().ok();
    let mut texts = Vec::new();
    if is_relevant(SCHEDULER) {
        let others = schedulers.iter();
        texts.extend(
            others
                .filter(|name| present.get(SCHEDULER) != Some(name))
                .cloned(),
        );
    }
    if let Some(now) = number(NR_REQUESTS).filter(|_| is_relevant(NR_REQUESTS)) {
        texts.extend([now / 2, now * 2].map(|value| format!("{NR_REQUESTS}={value}")));
    }
    if number(WBT).is_some_and(|now| now > 0) && is_relevant(WBT) {
        texts.push(format!("{WBT}=0"));
    }
    if let Some(now) = number(READ_AHEAD).filter(|_| is_relevant(READ_AHEAD)) {
        let more = if now == 0 { 128 } else { now * 4 };
        texts.push(format!("{READ_AHEAD}={more}"));
    }
    let parsed = texts.iter().map(|text| parse_one(text));
    parsed
        .map(|candidate| candidate.expect("it is well-formed"))
        .collect()
}

/// All pairs of a scheduler of the host and one of the guest, but the present pair.
pub fn pairs(
    (host, host_schedulers): (&QueueState, &[String]),
    (guest, guest_schedulers): (&QueueState, &[String]),
) -> Vec<TuneCandidate> {
    let other = |present: &QueueState, name: &String| {
        (present.get(SCHEDULER) != Some(name)).then(|| name.clone())
    };
    let mut texts = Vec::new();
    for of_host in host_schedulers {
        for of_guest in guest_schedulers {
            let of_guest = other(guest, of_guest).map(|name| format!("{GUEST}{name}"));
            let parts: Vec<String> = other(host, of_host).into_iter().chain(of_guest).collect();
            texts.push(parts.join("+"));
        }
    }
    texts.retain(|text| !text.is_empty());
    texts.truncate(CANDIDATES_MAX);
    let parsed = texts.iter().map(|text| parse_one(text));
    parsed
        .map(|candidate| candidate.expect("it is well-formed"))
        .collect()
}

/// What a block of a round measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TrialSlot {
    /// The present settings.
    Present,
    /// The present settings again, as the control.
    Control,
    /// A candidate, by its position.
    Candidate(usize),
}

/// The order of the blocks of a round: random, since the position in a round has an effect too.
pub fn order(candidates: usize, random: &mut Rng) -> Vec<TrialSlot> {
    let mut slots = vec![TrialSlot::Present, TrialSlot::Control];
    slots.extend((0..candidates).map(TrialSlot::Candidate));
    random.shuffle(&mut slots);
    slots
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_schedulers_and_settings() {
        let found = parse("none,bfq+nr_requests=64,iosched/fifo_batch=1").unwrap();
        let settings: Vec<_> = found.iter().map(|c| c.settings.clone()).collect();
        assert_eq!(settings[0][SCHEDULER], "none");
        assert_eq!(
            (&*settings[1][SCHEDULER], &*settings[1][NR_REQUESTS]),
            ("bfq", "64")
        );
        assert_eq!(settings[2]["iosched/fifo_batch"], "1");
        for bad in [
            "",
            "a,,b",
            "../x=1",
            "iosched/../x=1",
            "x=",
            "none,none",
            "a+b",
            "a b",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn pairs_are_all_but_the_present_one() {
        let state = |name: &str| QueueState::from([(SCHEDULER.to_owned(), name.to_owned())]);
        let names = ["none", "kyber"].map(str::to_owned);
        let found = pairs((&state("none"), &names), (&state("kyber"), &names));
        let names: Vec<&str> = found.iter().map(|c| &*c.name).collect();
        assert_eq!(names, ["guest:none", "kyber+guest:none", "kyber"]);
        assert_eq!(found[1].settings, state("kyber"));
        assert_eq!(found[1].guest, state("none"));
        assert!(found[2].guest.is_empty());
    }

    #[test]
    fn a_round_has_each_block_once_in_an_order_of_the_seed() {
        let orders = |seed| -> Vec<Vec<TrialSlot>> {
            let mut random = Rng::with_seed(seed);
            (0..8).map(|_| order(3, &mut random)).collect()
        };
        assert_eq!(orders(1), orders(1));
        assert_ne!(orders(1), orders(2));
        for round in orders(1) {
            let mut sorted: Vec<String> = round.iter().map(|slot| format!("{slot:?}")).collect();
            sorted.sort();
            let all = [
                "Candidate(0)",
                "Candidate(1)",
                "Candidate(2)",
                "Control",
                "Present",
            ];
            assert_eq!(sorted, all);
        }
    }

    #[test]
    fn usual_candidates_are_those_of_relevant_settings() {
        let present = [
            ("scheduler", "none"),
            ("nr_requests", "128"),
            ("wbt_lat_usec", "0"),
        ];
        let present = present.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let present = QueueState::from(present);
        let offered = ["none", "kyber"].map(str::to_owned);
        let names = |relevant: &[&str]| -> Vec<String> {
            let found = usual(&present, &offered, relevant);
            found.into_iter().map(|candidate| candidate.name).collect()
        };
        assert_eq!(names(&[SCHEDULER, WBT]), ["kyber"]);
        assert_eq!(names(&[NR_REQUESTS]), ["nr_requests=64", "nr_requests=256"]);
        assert_eq!(names(&[]), Vec::<String>::new());
    }
}
