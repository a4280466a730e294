//! `weir exporter`: serves metrics to Prometheus.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Args;
use tracing::info;
use weir_sink::metrics::Buckets;
use weir_sink::metrics::serve::Bound;
use weir_tap::ebpf::Files;

use crate::args::LimitArgs;
use crate::args::LogArgs;
use crate::args::SourceArgs;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::names;
use weir_runtime::output;
use weir_runtime::quantity;
use weir_runtime::run_loop::Stop;
use weir_runtime::run_loop::conclude;
use weir_view::disk_totals::{self, CounterSelection, Devices, Questions, SLIDES_MS, Totals};
use weir_view::exporter::{Exporter, Keeper};

/// The interval at which the server checks for a signal after the end of a recording.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Serve counters and histograms of each disk to Prometheus
///
/// GET /metrics returns the format that the scraper requests: the text format of Prometheus,
/// OpenMetrics, or protocol buffers, which contain native histograms in addition to classic ones.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir exporter\n  \
    curl -s http://127.0.0.1:19347/metrics\n  \
    weir exporter --listen 192.0.2.7:19347 --open\n\n\
    Labels are host, vm, vdisk and op; pdisk, the device of the host, replaces vdisk where the virtual \
    disk is unknown. Native histograms require `prometheus --enable-feature=native-histograms`.")]
pub struct ExporterArgs {
    /// Address at which metrics are served: IP:PORT
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:19347")]
    listen: SocketAddr,
    /// Permit an address that other hosts can reach: they can read all metrics, without encryption
    /// or password
    #[arg(long)]
    open: bool,
    /// Maximum number of disks with their own series, 1 to 100000; further disks are counted together
    /// as vm="(other)"
    #[arg(long, value_name = "COUNT", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    disks_max: u32,
    /// Remove the series of a disk after this time without I/O
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = quantity::span)]
    forget: Duration,
    /// Export only this VM
    #[arg(short = 'w', long = "only-vm", value_name = "VM")]
    only_vm: Option<String>,
    /// Print the queries of this command and exit
    #[arg(long)]
    show_query: bool,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    log: LogArgs,
}

pub fn run(args: &ExporterArgs, verbose: bool) -> Result<Ending, Failure> {
    let buckets = Buckets::new();
    let wanted = CounterSelection {
        live: args.source.is_live(),
        slide_ms: SLIDES_MS[1],
        vm: args.only_vm.clone(),
        busy: true,
        limits_ns: buckets.limits_ns().to_vec(),
        devices: Devices::AsReported,
    };
    if args.show_query {
        output::print(&Questions::new(&wanted).text())?;
        return Ok(Ending::Done);
    }
    if !args.listen.ip().is_loopback() && !args.open {
        return Err(Failure::words(format_args!(
            "--listen {}: other hosts can reach this address and read all metrics; --open permits it",
            args.listen
        )));
    }
    args.log.open(verbose)?;
    names::find(&mut args.source.clone(), args.only_vm.as_deref(), &mut None)?;
    let stop = Stop::on_signals()?;
    let disks_max = args.disks_max as usize;
    let totals = Arc::new(Mutex::new(Totals::new(disks_max)));
    let exporter = Arc::new(Exporter::new(totals.clone(), buckets, disks_max));
    let collect = exporter.clone();
    let bound = Bound::at(args.listen)?;
    let forget_ns = quantity::nanos(args.forget);
    let opened = disk_totals::open(
        &args.source,
        args.limits.engine(),
        &wanted,
        totals,
        Box::new(Keeper::new(exporter.clone(), forget_ns)),
        exporter.counts(),
        &stop,
    )?;
    opened.drop_privileges(&args.source, Files::Open)?;
    let health = exporter.clone();
    let server = bound.serve(
        Arc::new(move |format| collect.families(format)),
        Arc::new(move |check| health.check(check)),
    )?;
    let url = format!("http://{}/metrics", server.address());
    info!(%url, "serving metrics");
    let report = opened.run(&stop)?;
    // After the end of a recording, its metrics can be scraped until a signal arrives.
    while !args.source.is_live() && stop.signal().is_none() {
        std::thread::sleep(POLL_INTERVAL);
    }
    drop(server);
    let signal = stop.signal();
    conclude(
        weir_runtime::run_loop::RunReport { signal, ..report },
        verbose,
    )
}
