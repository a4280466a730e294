//! [`Characteriser`]: takes the events of all subjects in, online and in bounded memory, and gives
//! the [`Report`].

use std::collections::HashMap;

use weir_model::Nanos;

use crate::analysis::access::AccessTally;
use crate::analysis::arrivals::ArrivalTally;
use crate::analysis::bursts::BurstTally;
use crate::analysis::load::LoadTally;
use crate::analysis::mix::Mix;
use crate::analysis::order::OrderTally;
use crate::analysis::parallelism::ParallelismTally;
use crate::analysis::regions::RegionTally;
use crate::analysis::sizes::SizeTally;
use crate::analysis::timeline::TimeTally;
use crate::counter::Counter;
use crate::event::{Event, Subject};
use crate::profile::{Profile, Report, SubjectName};
use crate::verdict::verdict;

/// Most subjects that are followed; requests of others are counted only.
pub const SUBJECTS_MAX: usize = 256;

/// Distances are to the closest of so many requests, as `vscsiStats` has it.
const CLOSEST_OF: usize = 16;

/// Follows all subjects.
#[derive(Debug, Default)]
pub struct Characteriser {
    subjects: HashMap<Subject, Followed>,
    requests_left_out: u64,
    first: Option<Nanos>,
    last: Nanos,
}

/// One subject and all that is kept of it.
#[derive(Debug)]
struct Followed {
    first: Nanos,
    last: Nanos,
    counter: Counter,
    mix: Mix,
    sizes: SizeTally,
    order: OrderTally,
    arrivals: ArrivalTally,
    bursts: BurstTally,
    parallelism: ParallelismTally,
    load: LoadTally,
    regions: RegionTally,
    timeline: TimeTally,
    access: AccessTally,
}

impl Characteriser {
    /// Takes an event in. Those of a subject come in order of time.
    pub fn take(&mut self, subject: &Subject, event: &Event) {
        self.first.get_or_insert(event.ts());
        self.last = self.last.max(event.ts());
        if let Some(followed) = self.subjects.get_mut(subject) {
            followed.take(event);
        } else if self.subjects.len() < SUBJECTS_MAX {
            let mut followed = Followed::new(event.ts());
            followed.take(event);
            self.subjects.insert(*subject, followed);
        } else {
            self.requests_left_out += u64::from(matches!(event, Event::Issued(_)));
        }
    }

    /// What is known so far.
    pub fn report(&self) -> Report {
        let profiles = self.subjects.iter();
        let mut profiles: Vec<Profile> = profiles
            .map(|(subject, followed)| followed.profile(subject))
            .collect();
        profiles.sort_by(|a, b| {
            let busiest = b.requests.cmp(&a.requests);
            busiest.then_with(|| a.subject.cmp(&b.subject))
        });
        Report {
            began_ns: self.first,
            span_ns: self
                .first
                .map_or(0, |first| self.last.saturating_sub(first)),
            requests: profiles.iter().map(|p| p.requests).sum::<u64>() + self.requests_left_out,
            requests_left_out: self.requests_left_out,
            profiles,
            interference: Vec::new(),
            advice: Vec::new(),
            missing: Vec::new(),
        }
    }
}

impl Followed {
    fn new(first: Nanos) -> Followed {
        Followed {
            first,
            last: first,
            counter: Counter::new(CLOSEST_OF),
            mix: Mix::default(),
            sizes: SizeTally::default(),
            order: OrderTally::default(),
            arrivals: ArrivalTally::default(),
            bursts: BurstTally::default(),
            parallelism: ParallelismTally::default(),
            load: LoadTally::default(),
            regions: RegionTally::default(),
            timeline: TimeTally::default(),
            access: AccessTally::default(),
        }
    }

    fn take(&mut self, event: &Event) {
        self.last = self.last.max(event.ts());
        let step = &self.counter.take(event);
        self.mix.take(step);
        self.sizes.take(step);
        self.order.take(step);
        self.arrivals.take(step);
        self.bursts.take(step);
        self.parallelism.take(step);
        self.load.take(step);
        self.regions.take(step);
        self.timeline.take(step);
        self.access.take(step);
    }

    fn profile(&self, subject: &Subject) -> Profile {
        let (mix, order) = (self.mix.result(), self.order.result());
        let timeline = self.timeline.result();
        let parallelism = self.parallelism.result();
        let bursts = self.bursts.result();
        Profile {
            subject: SubjectName::from(subject),
            began_ns: self.first,
            span_ns: self.last.saturating_sub(self.first),
            requests: mix.requests(),
            verdict: verdict(&mix, &order),
            sizes: self.sizes.result(),
            arrivals: self.arrivals.result(&bursts, parallelism.as_ref()),
            load: self.load.result(&timeline),
            regions: self.regions.result(),
            access: self.access.result(),
            advice: Vec::new(),
            missing: Vec::new(),
            histograms: self.counter.histograms().clone(),
            mix,
            order,
            bursts,
            parallelism,
            timeline,
        }
    }
}
