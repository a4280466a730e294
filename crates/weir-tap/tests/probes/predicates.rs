//! Selections in the kernel pass exactly the records that the same selections pass here: random
//! predicates over numbers of all sizes, texts in the event and texts elsewhere.

use std::net::UdpSocket;

use fastrand::Rng;
use weir_model::capabilities::Select;
use weir_model::spread::{SPREADS, spread};
use weir_model::{Clause, Operand, Predicate, Schema, Symbol, Test, Type, Value};

use super::{definition, watch};

/// Rounds, each with its own predicates: a program is loaded for each.
const ROUNDS: u64 = 8;

/// Predicates of a round.
const PREDICATES: usize = 3;

/// The values of a column that predicates compare with, from records of an earlier round.
fn constants(rows: &[Vec<Value>], column: usize) -> Vec<Value> {
    let mut values: Vec<Value> = rows.iter().map(|row| row[column].clone()).collect();
    values.retain(|value| !value.is_null());
    values.truncate(64);
    values
}

/// A test of a column that the kernel tests.
fn test(rng: &mut Rng, schema: &Schema, rows: &[Vec<Value>]) -> Option<Test> {
    // After the time.
    let column = rng.usize(1..schema.len() - 1);
    let constants = constants(rows, column);
    let operand = Operand::Value(column);
    match schema[column].ty {
        Type::Int if rng.u8(..4) == 0 && column > 1 => Some(Test::Between {
            operand: Operand::Sample(column),
            low: rng.i64(0..SPREADS / 2),
            high: rng.i64(0..SPREADS),
        }),
        Type::Int => {
            let number = |rng: &mut Rng| match rng.choice(&constants) {
                Some(Value::Int(number)) => number + rng.i64(-1..=1),
                _ => rng.i64(-5..5),
            };
            let (low, high) = (number(rng), number(rng));
            let (low, high) = match rng.u8(..4) {
                0 => (low, low),
                1 => (i64::MIN, high),
                2 => (low, i64::MAX),
                _ => (low.min(high), low.max(high)),
            };
            Some(Test::Between { operand, low, high })
        }
        // The path of a cgroup is not known to the kernel.
        Type::Text if schema[column].name != "cgroup" => {
            let mut texts = vec![Symbol::new("none of them")];
            texts.extend(constants.iter().take(3).filter_map(|value| match value {
                Value::Text(text) => Some(*text),
                _ => None,
            }));
            Some(Test::In { operand, texts })
        }
        _ => None,
    }
}

fn predicate(rng: &mut Rng, schema: &Schema, rows: &[Vec<Value>]) -> Predicate {
    let clauses = (0..rng.usize(1..=2)).map(|_| {
        let tests = (0..rng.usize(1..=3)).filter_map(|_| test(rng, schema, rows));
        Clause {
            tests: tests.collect(),
        }
    });
    Predicate {
        clauses: clauses.collect(),
    }
}

/// Whether a row passes, by the definition of a predicate.
fn passes(predicate: &Predicate, row: &[Value]) -> bool {
    let passes = |test: &Test| match (test, &row[test.operand().column()]) {
        (Test::Between { operand, low, high }, Value::Int(number)) => {
            let number = match operand {
                Operand::Value(_) => *number,
                Operand::Sample(_) => spread(*number),
            };
            (*low..=*high).contains(&number)
        }
        (Test::In { texts, .. }, Value::Text(text)) => texts.contains(text),
        _ => false,
    };
    predicate
        .clauses
        .iter()
        .any(|clause| clause.tests.iter().all(passes))
}

/// Sends packets over the loopback interface: hits of `net:netif_rx_entry`, and of everything else
/// that a system call does.
fn packets() {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a loopback interface");
    let to = socket.local_addr().expect("it is bound");
    for bytes in 1..200_usize {
        socket
            .send_to(&vec![7; bytes * 7 % 1400], to)
            .expect("it is sent");
    }
}

fn law(probe: &str, seed: u64, work: fn()) {
    let mut rng = Rng::with_seed(seed);
    let mut known = Vec::new();
    for round in 0..ROUNDS {
        let watched = watch("predicates", &definition(probe), |schema| {
            let random = (0..PREDICATES).map(|_| predicate(&mut rng, schema, &known));
            std::iter::once(Predicate::all()).chain(random).collect()
        });
        let Some(watched) = watched else {
            return;
        };
        let predicates = watched.predicates.clone();
        let is_exact =
            |test: &Test| watched.columns[test.operand().column()].select == Select::Exact;
        let is_exact = |predicate: &Predicate| {
            let mut tests = predicate.clauses.iter().flat_map(|clause| &clause.tests);
            tests.all(is_exact)
        };
        let exact: Vec<bool> = predicates.iter().map(is_exact).collect();
        work();
        let seen = watched.seen();
        assert!(!seen.rows[0].is_empty(), "{probe}: the work hits it");
        for (number, predicate) in predicates.iter().enumerate() {
            let passing = |row: &&Vec<Value>| passes(predicate, row);
            let expected: Vec<_> = seen.rows[0].iter().filter(passing).collect();
            // The engine tests again what the kernel does not test exactly; it leaves out nothing.
            let rows = seen.rows[number].iter();
            let rows: Vec<_> = rows.filter(|row| exact[number] || passing(row)).collect();
            assert_eq!(
                rows, expected,
                "{probe}, seed {seed}, round {round}: {predicate:?}"
            );
        }
        known = seen.rows.into_iter().next().unwrap_or_default();
    }
}

#[test]
fn selections_of_packets_are_those_of_the_engine() {
    law("tp:net:netif_rx_entry", 1, packets);
}

#[test]
fn selections_of_switches_are_those_of_the_engine() {
    law("tp:sched:sched_switch", 2, packets);
}

#[test]
fn selections_of_opened_files_are_those_of_the_engine() {
    law("tp:syscalls:sys_enter_openat", 3, || {
        for name in [
            "/proc/self/status",
            "/proc/self/stat",
            "/proc/self/stat of no process",
        ] {
            (0..50).for_each(|_| drop(std::fs::File::open(name)));
        }
    });
}
