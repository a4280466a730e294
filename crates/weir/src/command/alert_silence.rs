//! `weir alert silence`, `silences` and `unsilence`: withholds the messages of alerts for some
//! time.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use weir_alert::event::fingerprint;
use weir_alert::silence::{Silence, SilenceFile};
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::quantity;
use weir_runtime::run_loop::wall_clock;
use weir_sink::text::aligned;
use weir_sink::time;
use weir_tap::journal::ALERTS_DIRECTORY;

/// The directory of states.
#[derive(Args, Debug)]
struct DirectoryArgs {
    /// Directory of `weir alert watch --state`, or the directory alerts in the state directory of a
    /// monitor
    #[arg(long, value_name = "DIR", default_value = ALERTS_DIRECTORY)]
    state: PathBuf,
}

/// Withhold the messages of alerts for some time
///
/// A silence stops neither the states of alerts nor actions and their undoing. A firing that it
/// withholds is delivered when the silence ends, if it still lasts. Prints the id of the silence.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir alert silence --alert slow_disk --label vdisk=vda --for 2h --comment 'new firmware'\n  \
    weir alert silence --label host=node7 --for 30m --comment 'reboot'\n  \
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
    directory: DirectoryArgs,
}

/// List the silences
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  weir alert silences\n  weir alert silences --json")]
pub struct SilencesArgs {
    #[command(flatten)]
    directory: DirectoryArgs,
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
    directory: DirectoryArgs,
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.to_owned()))
        }
        _ => Err("expected NAME=VALUE, such as vdisk=vda".to_owned()),
    }
}

impl DirectoryArgs {
    fn open(&self) -> Result<SilenceFile, Failure> {
        SilenceFile::open(&self.state).map_err(|e| self.failure(&e))
    }

    fn failure(&self, error: &std::io::Error) -> Failure {
        Failure::world(format_args!("--state {}: {error}", self.state.display()))
    }
}

pub fn add(args: &SilenceArgs) -> Result<Ending, Failure> {
    let now = wall_clock();
    let text = format!("{now} {:?} {:?}", args.alert, args.label);
    let silence = Silence {
        id: fingerprint(&text).chars().take(12).collect(),
        alert: args.alert.clone(),
        labels: args.label.clone(),
        begins: now,
        ends: now.saturating_add(quantity::nanos(args.span)),
        comment: args.comment.clone().unwrap_or_default(),
    };
    let id = silence.id.clone();
    let added = args.directory.open()?.add(silence, now);
    added.map_err(|e| args.directory.failure(&e))?;
    output::print(&format!("{id}\n"))?;
    Ok(Ending::Done)
}

pub fn list(args: &SilencesArgs) -> Result<Ending, Failure> {
    let file = args.directory.open()?;
    let silences: Vec<&Silence> = file.present(wall_clock()).collect();
    if args.json {
        let silence = |silence: &&Silence| {
            let labels = silence
                .labels
                .iter()
                .map(|(name, value)| (name.clone(), json!(value)));
            json!({
                "id": silence.id,
                "alert": silence.alert,
                "labels": labels.collect::<serde_json::Map<_, _>>(),
                "begins": time::timestamp(silence.begins),
                "ends": time::timestamp(silence.ends),
                "comment": silence.comment,
            })
        };
        let silences: Vec<Value> = silences.iter().map(silence).collect();
        output::print(&format!("{}\n", json!(silences)))?;
        return Ok(Ending::Done);
    }
    if silences.is_empty() {
        output::print("no silences\n")?;
        return Ok(Ending::Done);
    }
    let head = ["ID", "ALERT", "LABELS", "ENDS", "COMMENT"].map(str::to_owned);
    let row = |silence: &&Silence| {
        let labels = silence
            .labels
            .iter()
            .map(|(name, value)| format!("{name}={value}"));
        let labels: Vec<String> = labels.collect();
        let alert = silence.alert.clone();
        vec![
            silence.id.clone(),
            alert.unwrap_or_else(|| "all".to_owned()),
            labels.join(" "),
            time::readable(silence.ends),
            silence.comment.clone(),
        ]
    };
    let rows = [head.to_vec()].into_iter().chain(silences.iter().map(row));
    output::print(&aligned(&rows.collect::<Vec<_>>()))?;
    Ok(Ending::Done)
}

pub fn remove(args: &UnsilenceArgs) -> Result<Ending, Failure> {
    let mut file = args.directory.open()?;
    for id in &args.ids {
        let removed = file.remove(id, wall_clock());
        if !removed.map_err(|e| args.directory.failure(&e))? {
            return Err(Failure::words(format_args!(
                "there is no silence {id}; `weir alert silences` lists them"
            )));
        }
    }
    Ok(Ending::Done)
}
