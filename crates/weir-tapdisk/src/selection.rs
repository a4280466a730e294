//! [`RecordSelection`]: which events of one disk a consumer receives, evaluated in the I/O queue,
//! so that other records are not written.

use weir_model::spread::spread;
use weir_model::{EventKind, Op};
use weir_tap::tapdisk::layout::Record;
use weir_tap::tapdisk::words::{ClauseWord, FieldWord};

/// Clauses that can hold for events of one disk; an event is selected if any holds.
#[derive(Clone, Debug, Default)]
pub struct RecordSelection {
    clauses: Vec<Clause>,
    /// The kinds of events that any clause selects, a bit each.
    kinds: u8,
}

#[derive(Clone, Debug)]
struct Clause {
    kinds: u8,
    ops: u8,
    between: Vec<(FieldWord, i64, i64)>,
}

impl RecordSelection {
    /// The clauses for a disk that is called `pdisk` on the host: conditions on names are evaluated
    /// here.
    pub fn new(clauses: &[ClauseWord], pdisk: Option<&str>) -> RecordSelection {
        let of_disk = |clause: &&ClauseWord| match &clause.pdisks {
            None => true,
            Some(names) => pdisk.is_some_and(|own| names.iter().any(|name| name == own)),
        };
        let clauses = clauses.iter().filter(of_disk).map(Clause::new);
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
}

impl Clause {
    fn new(word: &ClauseWord) -> Clause {
        let kinds = EventKind::ALL
            .into_iter()
            .filter(|k| word.kinds.contains(k.as_str()));
        let ops = Op::ALL
            .into_iter()
            .filter(|o| word.ops.contains(o.as_str()));
        Clause {
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
