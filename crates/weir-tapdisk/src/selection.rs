//! [`RecordSelection`]: which events of one disk a consumer receives, evaluated in the I/O queue,
//! so that other records are not written.

use weir_model::spread::spread;
use weir_model::{EventKind, Op};
use weir_tap::tapdisk::layout::Record;
use weir_tap::tapdisk::words::{ClauseWord, DiskWord, FieldWord};

/// Clauses that can hold for events of one disk; an event is selected if any holds.
#[derive(Clone, Debug, Default)]
pub struct RecordSelection {
    clauses: Vec<Clause>,
    /// The kinds of events that any clause selects, a bit each.
    kinds: u8,
}

#[derive(Clone, Debug)]
struct Clause {
    /// Its bit, by its position in the request.
    own: u64,
    kinds: u8,
    ops: u8,
    between: Vec<(FieldWord, i64, i64)>,
}

impl RecordSelection {
    /// The clauses for a disk with these names: conditions on names are evaluated here.
    pub fn new(clauses: &[ClauseWord], disk: &DiskWord) -> RecordSelection {
        let own = [&disk.pdisk, &disk.vm, &disk.vdisk];
        let of_disk = |clause: &ClauseWord| {
            clause
                .names()
                .into_iter()
                .zip(own)
                .all(|(names, own)| match (names, own) {
                    (None, _) => true,
                    (Some(names), Some(own)) => names.contains(own),
                    (Some(_), None) => false,
                })
        };
        let clauses = clauses.iter().enumerate();
        let clauses = clauses.filter(|(_, clause)| of_disk(clause));
        let clauses = clauses.map(|(number, clause)| Clause::new(number, clause));
        let clauses: Vec<Clause> = clauses.filter(|c| c.kinds != 0 && c.ops != 0).collect();
        RecordSelection {
            kinds: clauses.iter().fold(0, |kinds, c| kinds | c.kinds),
            clauses,
        }
    }

    /// Whether any event of this kind can be selected.
    pub fn is_of(&self, kind: EventKind) -> bool {
        self.kinds & bit(kind as u8) != 0
    }

    /// Whether an event is selected. The conditions are those of the engine: an unknown field
    /// satisfies none.
    #[inline]
    pub fn holds(&self, record: &Record) -> bool {
        self.clauses.iter().any(|clause| clause.holds(record))
    }

    /// The clauses that select an event, a bit each.
    #[inline]
    pub fn held(&self, record: &Record) -> u64 {
        let held = self.clauses.iter().filter(|clause| clause.holds(record));
        held.fold(0, |all, clause| all | clause.own)
    }
}

impl Clause {
    fn new(number: usize, word: &ClauseWord) -> Clause {
        let kinds = EventKind::ALL
            .into_iter()
            .filter(|k| word.kinds.contains(k.as_str()));
        let ops = Op::ALL
            .into_iter()
            .filter(|o| word.ops.contains(o.as_str()));
        Clause {
            own: 1 << number,
            kinds: kinds.fold(0, |all, kind| all | bit(kind as u8)),
            ops: ops.fold(0, |all, op| all | bit(op as u8)),
            between: word.between.clone(),
        }
    }

    #[inline]
    fn holds(&self, record: &Record) -> bool {
        let named =
            self.kinds & bit(record.kind as u8) != 0 && self.ops & bit(record.op as u8) != 0;
        named
            && self.between.iter().all(|(field, low, high)| {
                number(*field, record).is_some_and(|x| (*low..=*high).contains(&x))
            })
    }
}

fn bit(number: u8) -> u8 {
    1 << number
}

fn number(field: FieldWord, record: &Record) -> Option<i64> {
    match field {
        FieldWord::Sector => record.sector(),
        FieldWord::SectorSpread => record.sector().map(spread),
        FieldWord::Sectors => Some(i64::from(record.sectors)),
        FieldWord::Wait => record.wait_ns(),
        FieldWord::Service => record.service_ns(),
        FieldWord::Latency => record.latency_ns(),
    }
}
