//! `weir alert silence`, `silences` and `unsilence`: withholds the messages of alerts for some
//! time.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use weir_alert::silence::{Silence, SilenceFile};
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::quantity;
use weir_runtime::run_loop::wall_clock;
use weir_sink::text::{aligned, shown};
use weir_tap::journal::ALERTS_DIRECTORY;
use weir_wire::{Client, SilenceRequest};

use crate::args::FleetArgs;

/// Where the alerts run.
#[derive(Args, Debug)]
struct PlaceArgs {
    /// Directory of `weir alert watch --state`, for alerts of this host
    #[arg(long, value_name = "DIR", default_value = ALERTS_DIRECTORY, conflicts_with = "monitor")]
    state: PathBuf,
    #[command(flatten)]
    fleet: FleetArgs,
}

/// Withhold the messages of alerts for some time
///
/// A silence stops neither the states of alerts nor actions and their undoing. A firing that it
/// withholds is delivered when the silence ends, if it still lasts. Prints the id of the silence.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir alert silence --alert slow_disk --label vdisk=vda --for 2h --comment 'new firmware'\n  \
    weir alert silence --label host=node7 --for 30m --comment 'reboot' --monitor monitor.example\n  \
    weir alert silence --all --for 10m --comment 'exercise'")]
pub struct SilenceArgs {
    /// Name of the alert [default: all alerts with the labels]
    #[arg(long, value_name = "NAME", required_unless_present_any = ["label", "all"])]
    alert: Option<String>,
    /// Value of a label that an instance must have; may be repeated [default: any]
    #[arg(long, value_name = "NAME=VALUE", value_parser = label)]
    label: Vec<(String, String)>,
    /// Withhold the messages of all alerts
    #[arg(long, conflicts_with_all = ["alert", "label"])]
    all: bool,
    /// Length of the silence
    #[arg(long = "for", value_name = "DURATION", default_value = "1h", value_parser = quantity::span)]
    span: Duration,
    /// Why, for other users [default: no comment]
    #[arg(long, value_name = "TEXT")]
    comment: Option<String>,
    #[command(flatten)]
    place: PlaceArgs,
}

/// List the silences
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  weir alert silences\n  weir alert silences --json")]
pub struct SilencesArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// Print a JSON array
    #[arg(short = 'j', long)]
    json: bool,
}

/// End silences
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  weir alert unsilence 3f2a91c07b44")]
pub struct UnsilenceArgs {
    /// Ids of the silences, as listed by `weir alert silences`
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    #[command(flatten)]
    place: PlaceArgs,
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.to_owned()))
        }
        _ => Err("expected NAME=VALUE, such as vdisk=vda".to_owned()),
    }
}

impl PlaceArgs {
    /// The client of the monitor at which the alerts run, if one is given.
    fn client(&self) -> Result<Option<Client>, Failure> {
        self.fleet.given_client()
    }

    fn open(&self) -> Result<SilenceFile, Failure> {
        SilenceFile::open(&self.state).map_err(|e| self.failure(&e))
    }

    fn failure(&self, error: &std::io::Error) -> Failure {
        Failure::world(format_args!("--state {}: {error}", self.state.display()))
    }
}

pub fn add(args: &SilenceArgs) -> Result<Ending, Failure> {
    let request = SilenceRequest {
        alert: args.alert.clone(),
        labels: args.label.clone(),
        for_ns: quantity::nanos(args.span),
        comment: args.comment.clone().unwrap_or_default(),
    };
    let id = match args.place.client()? {
        Some(mut client) => {
            let added = client.silence(&request)?;
            added["id"].as_str().unwrap_or_default().to_owned()
        }
        None => {
            let now = wall_clock();
            let silence = Silence::new(&request, now);
            let id = silence.id.clone();
            let added = args.place.open()?.add(silence, now);
            added.map_err(|e| args.place.failure(&e))?;
            id
        }
    };
    output::print(&format!("{id}\n"))?;
    Ok(Ending::Done)
}

pub fn list(args: &SilencesArgs) -> Result<Ending, Failure> {
    let silences: Value = match args.place.client()? {
        Some(mut client) => client.silences()?,
        None => {
            let file = args.place.open()?;
            file.present(wall_clock()).map(Silence::json).collect()
        }
    };
    if args.json {
        output::print(&format!("{silences}\n"))?;
        return Ok(Ending::Done);
    }
    let silences = silences.as_array().cloned().unwrap_or_default();
    if silences.is_empty() {
        output::print("no silences\n")?;
        return Ok(Ending::Done);
    }
    let head = ["ID", "ALERT", "LABELS", "ENDS", "COMMENT"].map(str::to_owned);
    let rows = [head.to_vec()].into_iter().chain(silences.iter().map(row));
    output::print(&aligned(&rows.collect::<Vec<_>>()))?;
    Ok(Ending::Done)
}

/// A silence as a row of the table.
fn row(silence: &Value) -> Vec<String> {
    let value = |name: &str| shown(silence[name].as_str().unwrap_or_default()).into_owned();
    let labels = silence["labels"].as_object().into_iter().flatten();
    let labels: Vec<String> = labels
        .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()))
        .collect();
    let alert = match silence["alert"].is_null() {
        true => "all".to_owned(),
        false => value("alert"),
    };
    let labels = shown(&labels.join(" ")).into_owned();
    vec![value("id"), alert, labels, value("ends"), value("comment")]
}

pub fn remove(args: &UnsilenceArgs) -> Result<Ending, Failure> {
    if let Some(mut client) = args.place.client()? {
        for id in &args.ids {
            client.unsilence(id)?;
        }
        return Ok(Ending::Done);
    }
    let mut file = args.place.open()?;
    for id in &args.ids {
        let removed = file.remove(id, wall_clock());
        if !removed.map_err(|e| args.place.failure(&e))? {
            return Err(Failure::words(format_args!(
                "there is no silence {id}; `weir alert silences` lists them"
            )));
        }
    }
    Ok(Ending::Done)
}
