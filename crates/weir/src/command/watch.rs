//! `weir watch`: waits for the first row of a query.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use weir_model::Batch;
use weir_sink::{Sink, SinkError};

use super::query::{self, HostQueryArgs, PlacingArgs, SinkWrap};
use crate::args::FleetArgs;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::run_loop::Stop;

/// Wait for the first row of a query
///
/// Prints the first row that the query has, and ends with exit status 0. If it has none until the
/// end of the recording or for the time of --for, the exit status is 1. An aggregate without GROUP
/// BY has a row at once: select it with HAVING. With --monitor, the query runs on the hosts of a
/// fleet.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir watch --for 60s \"select ts, comm, latency from IO where latency > 100 ms\"\n  \
    weir watch \"select count(*) from IO [range 1 s slide 1 s] having count(*) > 1000\" && \\\n    \
      weir record --for 10s -o busy.parquet\n  \
    weir watch --monitor monitor.example --for 1h \"select host, vm, latency from IO where latency > 1 s\"\n\n\
    Exit status: 0 with a row; 1 without, or after a runtime error; 2 after an error in the query or\n\
    the command line.")]
pub struct WatchArgs {
    #[command(flatten)]
    query: HostQueryArgs,
    #[command(flatten)]
    fleet: FleetArgs,
    #[command(flatten)]
    placing: PlacingArgs,
}

pub fn run(args: &WatchArgs, verbose: bool) -> Result<Ending, Failure> {
    let found = Arc::new(AtomicBool::new(false));
    let wrap = |sink, stop| -> Box<dyn Sink> {
        Box::new(FirstRow {
            sink,
            stop,
            found: found.clone(),
        })
    };
    let question = args.query.question.read()?;
    let ending = match args.fleet.monitor {
        Some(_) => {
            let wrap: SinkWrap = &wrap;
            query::on_fleet(
                &args.query,
                question,
                &args.fleet,
                &args.placing,
                false,
                Some(wrap),
            )
        }
        None => query::on_host(&args.query, question, verbose, Some(&wrap)),
    }?;
    Ok(match ending {
        Ending::Done if !found.load(Ordering::Relaxed) => {
            output::notice(format_args!("weir: the query has no row"));
            Ending::Failed
        }
        ending => ending,
    })
}

/// Passes the first inserted row to a sink and ends the run.
struct FirstRow {
    sink: Box<dyn Sink>,
    stop: Stop,
    found: Arc<AtomicBool>,
}

impl Sink for FirstRow {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let first = (0..batch.len()).find(|row| batch.weight(*row) > 0);
        let Some(first) = first.filter(|_| !self.found.load(Ordering::Relaxed)) else {
            return Ok(());
        };
        let row = Batch {
            weights: None,
            ..batch.slice(first, 1)
        };
        self.sink.write(&row)?;
        self.found.store(true, Ordering::Relaxed);
        self.stop.abandon();
        self.sink.flush()
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.sink.flush()
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.sink.finish()
    }

    fn remarks(&self) -> Vec<String> {
        self.sink.remarks()
    }
}
