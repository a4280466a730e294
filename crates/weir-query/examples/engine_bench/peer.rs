//! The events as a file that other engines read, and one measurement of one query beside them.

use std::fs::File;
use std::io::{BufWriter, Write};

use weir_model::{Event, EventKind, Op};

use super::floor::floor;
use super::generator::Generator;
use super::{QUERIES, compiled, of_floor, run};

/// Writes the events: 40 bytes each, little-endian, times in microseconds, which are exact because
/// all times are multiples of 5 us.
pub fn write(path: &str, events: usize) {
    let written = write_to(path, events);
    written.unwrap_or_else(|e| panic!("cannot write {path}: {e}"));
}

fn write_to(path: &str, events: usize) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let mut generator = Generator::new();
    for _ in 0..events {
        file.write_all(&record(&generator.event()))?;
    }
    file.flush()
}

fn record(event: &Event) -> [u8; 40] {
    let micros = |ns: i64| ns / 1_000;
    let number = |name: Option<weir_model::Symbol>| {
        let name = name.expect("each event has a VM and a disk").to_string();
        let last = name.bytes().next_back().expect("a name is not empty");
        if last.is_ascii_digit() {
            last - b'0'
        } else {
            last - b'a'
        }
    };
    let mut record = [0; 40];
    let words = [
        micros(event.ts),
        event.req_id,
        event.sector.unwrap_or(0),
        event.agent_ts.map_or(0, micros),
    ];
    for (field, word) in record.chunks_exact_mut(8).zip(words) {
        field.copy_from_slice(&word.to_le_bytes());
    }
    let sectors = i32::try_from(event.sectors).expect("a request is small");
    record[32..36].copy_from_slice(&sectors.to_le_bytes());
    record[36] = match event.kind {
        EventKind::Request => b'Q',
        _ => b'R',
    };
    record[37] = match event.op {
        Op::Read => b'R',
        _ => b'W',
    };
    record[38] = number(event.vm);
    record[39] = number(event.vdisk);
    record
}

/// Measures engine and floor once and prints a line: the rows of the result, and the processor time
/// of both in nanoseconds.
pub fn measure_once(name: &str, events: usize) {
    let found = QUERIES.iter().find(|query| query.name == name);
    let query = found.unwrap_or_else(|| panic!("{name} is no query of this benchmark"));
    let ours = run(&[compiled(query.text)], events);
    let least = of_floor(floor(query.name), events, &mut |_| ());
    println!(
        "RESULT {} {} {}",
        ours.rows_out,
        ours.time.as_nanos(),
        least.time.as_nanos()
    );
}
