//! Whether a row passes a demand's predicate. What does not pass is not built; what passes, the
//! engine tests again.

use weir_model::{Clause, IoEvent, KernelField, Predicate, Symbol, Test};

/// True when the row passes.
pub fn passes(predicate: &Predicate, row: &IoEvent) -> bool {
    predicate.clauses.iter().any(|clause| holds(clause, row))
}

fn holds(clause: &Clause, row: &IoEvent) -> bool {
    clause.tests.iter().all(|test| match test {
        Test::Between { field, low, high } => {
            number(*field, row).is_some_and(|x| (*low..=*high).contains(&field.of(x)))
        }
        Test::In { field, texts } => text(*field, row).is_some_and(|x| texts.contains(&x)),
    })
}

fn number(field: KernelField, row: &IoEvent) -> Option<i64> {
    match field {
        KernelField::Sector | KernelField::SectorSpread => row.event.sector,
        KernelField::Sectors => Some(row.event.sectors),
        KernelField::Pid => row.event.pid,
        KernelField::Wait => row.wait_ns,
        KernelField::Service => row.service_ns,
        KernelField::Latency => row.latency_ns,
        KernelField::Kind
        | KernelField::Op
        | KernelField::Pdisk
        | KernelField::Comm
        | KernelField::Cgroup => None,
    }
}

fn text(field: KernelField, row: &IoEvent) -> Option<Symbol> {
    match field {
        KernelField::Kind => Some(row.event.kind.symbol()),
        KernelField::Op => Some(row.event.op.symbol()),
        KernelField::Pdisk => row.event.pdisk,
        KernelField::Comm => row.event.comm,
        KernelField::Cgroup => row.event.cgroup,
        KernelField::Sector
        | KernelField::Sectors
        | KernelField::Pid
        | KernelField::Wait
        | KernelField::Service
        | KernelField::Latency
        | KernelField::SectorSpread => None,
    }
}
