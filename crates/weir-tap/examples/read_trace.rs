//! The cost of reading a trace without a query: processor time per request.
//!
//! `cargo run --release -p weir-tap --example read_trace -- FILE [all]` reads a trace to its end
//! and prints nanoseconds of processor time per finished request: of a demand for the rows of `IO`
//! without a column, as that of `select count(*) from IO`, or with `all` of one for all rows and
//! columns, as that of `weir convert`.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use weir_model::Demand;
use weir_model::capabilities::recording;
use weir_tap::TapEvent;
use weir_tap::format::{TraceOptions, open};
use weir_testing::cpu_time;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().context("usage: read_trace FILE [all]")?;
    let whole = Demand::whole(&recording());
    let (demand, rows_per_request) = match arguments.next().as_deref() {
        Some("all") => (whole, 2),
        _ => {
            let finished = Demand {
                stream: "IO".into(),
                columns: Vec::new(),
                ..whole
            };
            (finished, 1)
        }
    };
    let begin = cpu_time();
    let mut tap = open(Path::new(&path), &[demand], &TraceOptions::default())?;
    let (mut rows, mut batches) = (0, 0);
    loop {
        match tap.next(Duration::MAX)? {
            TapEvent::Rows { batch, .. } => {
                rows += batch.len();
                batches += 1;
            }
            TapEvent::End => break,
            _ => {}
        }
    }
    let requests = (rows / rows_per_request).max(1);
    let time = (cpu_time() - begin).as_nanos() as f64 / requests as f64;
    println!("{requests} requests in {batches} batches, {time:.1} ns per request");
    Ok(())
}
