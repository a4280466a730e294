//! `weir exporter`: metrics for Prometheus.

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
use weir_view::disk_totals::{self, Devices, Questions, Totals, Wanted};
use weir_view::exporter::{Exporter, Keeper};

/// How often a server that has nothing more to count looks whether it is to end.
const NAP: Duration = Duration::from_millis(100);

/// Serve metrics to Prometheus: counters and histograms of every VM's disks
///
/// GET /metrics answers in Prometheus' text format, in OpenMetrics, or as protocol buffers, which
/// carry native histograms beside the classic ones, whichever the scraper prefers.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir exporter\n  \
    curl -s http://127.0.0.1:19347/metrics\n  \
    weir exporter --listen 192.0.2.7:19347 --open\n\n\
    Labels: host, vm, vdisk, op; pdisk, the host's device, where the virtual disk is not known. \
    Native histograms need `prometheus --enable-feature=native-histograms`.")]
pub struct ExporterArgs {
    /// Where to listen
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:19347")]
    listen: SocketAddr,
    /// Listen at an address that others reach: they may read all metrics, unencrypted and without
    /// a password
    #[arg(long)]
    open: bool,
    /// Disks with series of their own; those beyond are counted together as vm="(other)"
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    disks_max: u32,
    /// Leave out a disk that has done nothing for so long
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = quantity::span)]
    forget: Duration,
    /// Watch this VM only
    #[arg(short = 'w', long = "only-vm", value_name = "VM")]
    only_vm: Option<String>,
    /// Print the queries and do nothing else
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
    let wanted = Wanted {
        live: args.source.is_live(),
        vm: args.only_vm.clone(),
        busy: true,
        limits_ns: buckets.limits_ns().to_vec(),
        devices: Devices::AsTold,
    };
    if args.show_query {
        output::print(&Questions::new(&wanted).text())?;
        return Ok(Ending::Done);
    }
    if !args.listen.ip().is_loopback() && !args.open {
        return Err(Failure::words(format_args!(
            "--listen {}: others reach this address and could read all metrics; --open allows it",
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
    let server = bound.serve(Arc::new(move |format| collect.families(format)))?;
    let url = format!("http://{}/metrics", server.address());
    info!(%url, "serving metrics");
    let report = opened.run(&stop)?;
    // A recording has ended; what it held can be scraped until somebody says stop.
    while !args.source.is_live() && stop.signal().is_none() {
        std::thread::sleep(NAP);
    }
    drop(server);
    let signal = stop.signal();
    conclude(weir_runtime::run_loop::Report { signal, ..report }, verbose)
}
