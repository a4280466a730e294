//! [`Characteriser`]: processes the events of all subjects, online and in bounded memory, and
//! returns the [`Report`].

use weir_model::{Nanos, SECTOR_BYTES};

use crate::advice::advise;
use crate::analysis::access::AccessTally;
use crate::analysis::addresses::AddressTally;
use crate::analysis::arrivals::ArrivalTally;
use crate::analysis::bursts::BurstTally;
use crate::analysis::load::LoadTally;
use crate::analysis::mix::Mix;
use crate::analysis::order::OrderTally;
use crate::analysis::pairs::PairTally;
use crate::analysis::parallelism::ParallelismTally;
use crate::analysis::regions::RegionTally;
use crate::analysis::reuse::{BLOCK_BYTES, MEMORY_BYTES, ReuseTally};
use crate::analysis::sizes::SizeTally;
use crate::analysis::timeline::TimeTally;
use crate::counter::Counter;
use crate::event::{RequestEvent, Subject};
use crate::id_map::IdMap;
use crate::interference;
use crate::profile::{Profile, Report, SubjectName};
use crate::verdict::verdict;

/// The largest number of subjects; requests of others are only counted.
pub const SUBJECTS_MAX: usize = 256;

/// The number of previous requests for closest distances, as in `vscsiStats`.
const CLOSEST_OF: usize = 16;

/// Bytes on a disk are counted in 64 bits.
const SECTORS_MAX: i64 = i64::MAX / SECTOR_BYTES;

/// The longest request: 2 TiB, since the kernel counts its bytes in 32 bits (`bi_size`). So sums of
/// lengths do not overflow.
const LENGTH_SECTORS_MAX: i64 = 1 << 32;

/// Timestamps are between 1933 and 2116, so that any two differ by less than 64 bits.
const INSTANTS_NS: [Nanos; 2] = [-(1 << 60), 1 << 62];

/// Tracks all subjects.
#[derive(Debug)]
pub struct Characteriser {
    reuse_memory_bytes: usize,
    subjects_max: usize,
    subjects: IdMap<Subject, Followed>,
    requests_omitted: u64,
    requests_impossible: u64,
    first: Option<Nanos>,
    last: Nanos,
}

/// The state of one subject.
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
    reuse: ReuseTally,
    pairs: PairTally,
    addresses: AddressTally,
}

impl Default for Characteriser {
    fn default() -> Characteriser {
        Characteriser::new(MEMORY_BYTES)
    }
}

impl Characteriser {
    /// Without subjects. Each gets this many bytes for its reuse distances, see
    /// [`ReuseTally::new`]; the other analyses of a subject take up to 2 MiB.
    pub fn new(reuse_memory_bytes: usize) -> Characteriser {
        Characteriser {
            reuse_memory_bytes,
            subjects_max: SUBJECTS_MAX,
            subjects: IdMap::default(),
            requests_omitted: 0,
            requests_impossible: 0,
            first: None,
            last: Nanos::MIN,
        }
    }

    /// With another limit of the number of subjects than [`SUBJECTS_MAX`].
    #[must_use]
    pub fn with_subjects_max(self, subjects_max: usize) -> Characteriser {
        Characteriser {
            subjects_max,
            ..self
        }
    }

    /// Adds the subjects of `other`, which has none of those here.
    pub fn append(&mut self, other: Characteriser) {
        self.subjects.extend(other.subjects);
        self.requests_omitted += other.requests_omitted;
        self.requests_impossible += other.requests_impossible;
        self.first = [self.first, other.first].into_iter().flatten().min();
        self.last = self.last.max(other.last);
    }

    /// Adds an event. The events of a subject must be in timestamp order.
    pub fn take(&mut self, subject: &Subject, event: &RequestEvent) {
        let event = &self.possible(*event);
        self.first.get_or_insert(event.ts());
        self.last = self.last.max(event.ts());
        if let Some(followed) = self.subjects.get_mut(subject) {
            followed.take(event);
        } else if self.subjects.len() < self.subjects_max {
            let mut followed = Followed::new(event.ts(), self.reuse_memory_bytes);
            followed.take(event);
            self.subjects.insert(*subject, followed);
        } else {
            self.requests_omitted += u64::from(matches!(event, RequestEvent::Issued(_)));
        }
    }

    /// The event without impossible values, so that no analysis overflows.
    fn possible(&mut self, event: RequestEvent) -> RequestEvent {
        match event {
            RequestEvent::Issued(mut request) => {
                request.ts = possible_instant(request.ts);
                let end = request.sector.unwrap_or(0).checked_add(request.sectors);
                let possible = |sector| (0..=SECTORS_MAX).contains(&sector);
                let places = [Some(request.sectors), request.sector.or(Some(0)), end];
                let too_long = request.sectors > LENGTH_SECTORS_MAX;
                if too_long || !places.into_iter().all(|place| place.is_some_and(possible)) {
                    self.requests_impossible += 1;
                    request.sector = None;
                    request.sectors = 0;
                }
                RequestEvent::Issued(request)
            }
            RequestEvent::Finished(mut response) => {
                response.ts = possible_instant(response.ts);
                let possible =
                    |time: Option<Nanos>| time.filter(|t| (0..=INSTANTS_NS[1]).contains(t));
                response.wait_ns = possible(response.wait_ns);
                response.service_ns = possible(response.service_ns);
                response.latency_ns = possible(response.latency_ns);
                RequestEvent::Finished(response)
            }
            RequestEvent::Lost { ts, id } => RequestEvent::Lost {
                ts: possible_instant(ts),
                id,
            },
        }
    }

    /// The report so far.
    pub fn report(&self) -> Report {
        let profiles = self.subjects.iter();
        let mut profiles: Vec<Profile> = profiles
            .map(|(subject, followed)| followed.profile(subject))
            .collect();
        profiles.sort_by(|a, b| {
            let busiest = b.requests.cmp(&a.requests);
            busiest.then_with(|| a.subject.cmp(&b.subject))
        });
        let found = interference::find(&profiles);
        Report {
            began_ns: self.first,
            span_ns: self
                .first
                .map_or(0, |first| self.last.saturating_sub(first)),
            requests: profiles.iter().map(|p| p.requests).sum::<u64>() + self.requests_omitted,
            requests_omitted: self.requests_omitted,
            requests_impossible: self.requests_impossible,
            profiles,
            interference: found.interference,
            pairs_tested: found.pairs_tested,
            missing: found.missing,
        }
    }
}

fn possible_instant(ts: Nanos) -> Nanos {
    ts.clamp(INSTANTS_NS[0], INSTANTS_NS[1])
}

impl Followed {
    fn new(first: Nanos, reuse_memory_bytes: usize) -> Followed {
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
            reuse: ReuseTally::new(BLOCK_BYTES, reuse_memory_bytes),
            pairs: PairTally::default(),
            addresses: AddressTally::default(),
        }
    }

    fn take(&mut self, event: &RequestEvent) {
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
        self.reuse.take(step);
        self.pairs.take(step);
        self.addresses.take(step);
    }

    fn profile(&self, subject: &Subject) -> Profile {
        let (mix, order) = (self.mix.result(), self.order.result());
        let timeline = self.timeline.result();
        let parallelism = self.parallelism.result(self.counter.little_ratio());
        let bursts = self.bursts.result();
        let mut profile = Profile {
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
            addresses: self.addresses.clone(),
            pairs: self.pairs.clone(),
            reuse: self.reuse.result(),
            advice: Vec::new(),
            missing: Vec::new(),
            histograms: self.counter.histograms().clone(),
            mix,
            order,
            bursts,
            parallelism,
            timeline,
        };
        profile.leave_out_unreliable();
        advise(&mut profile);
        profile
    }
}
