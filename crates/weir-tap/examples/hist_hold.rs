//! Maintains histograms of a device, or attaches empty programs or those of the floor, until the
//! end of standard input; then prints the number of runs and the run time of each program. Used by
//! `cargo xtask bench hist`.
//!
//! `cargo run --release -p weir-tap --example hist_hold -- DEVICE empty|floor|histograms|rw|waits
//! [--stats]`
//!
//! `floor` counts latencies in bins of powers of two, the least that is a histogram. `rw` omits
//! flushes, which requires one program less; `waits` includes insertions. With `--stats` the
//! kernel measures the time of every program, which adds about 50 ns to each run.

use std::io::{self, Read};

use weir_tap::ebpf::DeviceChoice;
use weir_tap::ebpf::cost::{EmptyPrograms, FloorPrograms, RunTime, Statistics};
use weir_tap::hist::{By, HistOptions, HistTap};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [device, mode, ..] = &args[..] else {
        panic!("DEVICE and empty, floor, histograms, rw or waits are needed");
    };
    let statistics = args.iter().any(|a| a == "--stats").then(|| {
        Statistics::enable().unwrap_or_else(|e| panic!("the kernel's statistics are needed: {e}"))
    });
    let mut rest = Vec::new();
    let runs = if mode == "empty" {
        let programs = EmptyPrograms::attach().unwrap_or_else(|e| panic!("{e}"));
        println!("attached");
        io::stdin().read_to_end(&mut rest).expect("stdin ends");
        programs.run_times()
    } else if mode == "floor" {
        let programs = FloorPrograms::attach(false).unwrap_or_else(|e| panic!("{e}"));
        println!("attached");
        io::stdin().read_to_end(&mut rest).expect("stdin ends");
        programs.run_times()
    } else {
        let options = HistOptions {
            devices: DeviceChoice::Named(vec![device.clone()]),
            by: By::Device,
            waits: mode == "waits",
            flushes: mode != "rw",
            ..HistOptions::default()
        };
        let mut tap = HistTap::open(&options).unwrap_or_else(|e| panic!("{e}"));
        println!("attached");
        io::stdin().read_to_end(&mut rest).expect("stdin ends");
        let missing = tap.snapshot().not_entered.total();
        assert_eq!(missing, 0, "every request is entered");
        println!("bytes {}", tap.memory_bytes());
        tap.run_times()
    };
    drop(statistics);
    for RunTime {
        tracepoint,
        runs,
        time_ns,
        ..
    } in runs
    {
        println!("{tracepoint} {runs} {time_ns}");
    }
}
