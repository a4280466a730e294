//! `weir alert`: alerts over live I/O and recordings.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;
use weir_alert::run::missing_sources;
use weir_alert::shipped::{RULES, ShippedRule};
use weir_model::suggest::nearest;
use weir_query::alert::{AlertFile, AlertRule, compile_alerts};
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::question::{self, QueryText};
use weir_runtime::source::SourceOptions;
use weir_sink::text::aligned;

use super::alert_place::{self, ListArgs, PlaceArgs, RemoveArgs};
use super::alert_silence::{self, SilenceArgs, SilencesArgs, UnsilenceArgs};
use super::alert_suggest::{self, SuggestArgs};
use super::alert_test::{self, TestArgs};
use super::alert_watch::{self, WatchArgs};
use crate::args::DefinitionArgs;

/// Alert on conditions of queries; test rules on recordings
///
/// A file of alerts has CREATE ALERT statements. `weir alert rules` lists the rules that come with
/// weir, and prints one to be copied and changed.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir alert watch\n  \
    weir alert watch -f alerts.cql --webhook https://example.org/hook --secret key.txt\n  \
    weir alert test -f alerts.cql --from recording.parquet\n  \
    weir alert rules stalled_disk > alerts.cql\n\n\
    `weir check -f FILE` checks a file of alerts without running it.")]
pub struct AlertCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    Watch(WatchArgs),
    Test(TestArgs),
    Suggest(SuggestArgs),
    Rules(RulesArgs),
    Place(PlaceArgs),
    List(ListArgs),
    Remove(RemoveArgs),
    Silence(SilenceArgs),
    Silences(SilencesArgs),
    Unsilence(UnsilenceArgs),
}

/// List the rules that come with weir, or print one
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir alert rules\n  \
    weir alert rules --json\n  \
    weir alert rules stalled_disk > alerts.cql")]
struct RulesArgs {
    /// Print the file of this rule
    #[arg(value_name = "RULE")]
    rule: Option<String>,
    /// Print a JSON array: name, meaning and file of each rule
    #[arg(short = 'j', long)]
    json: bool,
}

/// The alerts of a command.
#[derive(Args, Debug)]
pub struct AlertFileArgs {
    /// File of alerts; `-` is standard input [default: the rules that come with weir]
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Use this one of the rules that come with weir; may be repeated
    #[arg(long = "rule", value_name = "RULE", conflicts_with = "file")]
    pub rules: Vec<String>,
    #[command(flatten)]
    pub define: DefinitionArgs,
}

/// Checked alerts, and those of weir's rules that the sources cannot serve.
pub struct ReadAlerts {
    pub file: AlertFile,
    /// The names of the rules, and what the sources lack.
    pub left_out: Vec<(String, String)>,
}

impl AlertFileArgs {
    /// The checked alerts, for these sources.
    pub fn read(&self, source: &SourceOptions) -> Result<ReadAlerts, Failure> {
        let text = match &self.file {
            Some(path) => QueryText::read(path)?,
            None if self.rules.is_empty() => return self.read_all(source),
            None => {
                let rules = self
                    .rules
                    .iter()
                    .map(|name| rule(name).map(|rule| rule.text));
                let texts = rules.collect::<Result<Vec<_>, _>>()?;
                QueryText::new(texts.join("\n"))
            }
        };
        let text = self.define.before(text, source)?;
        let file = text.over(source, source.is_live(), compile_alerts)?;
        let file = file.map_err(|diagnostics| text.failure(&diagnostics))?;
        text.warn(&file.warnings);
        match lacking(&file.rules, source)?.first() {
            Some((rule, stream)) => Err(Failure::words(format_args!(
                "the alert `{rule}` reads `{stream}`, which the source does not have; `weir \
                 streams` and `weir info` list what sources have"
            ))),
            None => Ok(ReadAlerts {
                file,
                left_out: Vec::new(),
            }),
        }
    }

    /// The rules that come with weir, without those that the sources cannot serve.
    fn read_all(&self, source: &SourceOptions) -> Result<ReadAlerts, Failure> {
        let mut read = ReadAlerts {
            file: AlertFile {
                rules: Vec::new(),
                expectations: Vec::new(),
                warnings: Vec::new(),
            },
            left_out: Vec::new(),
        };
        for rule in RULES {
            let text = self.define.before(QueryText::new(rule.text), source)?;
            let lacks = match text.over(source, source.is_live(), compile_alerts)? {
                Ok(file) => {
                    let lacks = lacking(&file.rules, source)?;
                    if lacks.is_empty() {
                        read.file.rules.extend(file.rules);
                    }
                    lacks
                }
                Err(diagnostics) if question::is_foreign(&diagnostics) => {
                    let first = diagnostics.iter().find(|d| d.is_error());
                    let message = first.map_or(String::new(), |d| d.message.clone());
                    vec![(rule.name.to_owned(), message)]
                }
                Err(diagnostics) => return Err(text.failure(&diagnostics)),
            };
            read.left_out.extend(lacks);
        }
        Ok(read)
    }
}

/// The rules that read what the sources do not have.
fn lacking(rules: &[AlertRule], source: &SourceOptions) -> Result<Vec<(String, String)>, Failure> {
    let missing = missing_sources(rules, &source.capabilities()?).into_iter();
    let lacks = |(rule, name)| (rule, format!("unknown stream or relation `{name}`"));
    Ok(missing.map(lacks).collect())
}

pub fn run(args: &AlertCommand, verbose: bool) -> Result<Ending, Failure> {
    match &args.action {
        Action::Watch(args) => alert_watch::run(args, verbose),
        Action::Test(args) => alert_test::run(args, verbose),
        Action::Suggest(args) => alert_suggest::run(args, verbose),
        Action::Rules(args) => rules(args),
        Action::Place(args) => alert_place::place(args),
        Action::List(args) => alert_place::list(args),
        Action::Remove(args) => alert_place::remove(args),
        Action::Silence(args) => alert_silence::add(args),
        Action::Silences(args) => alert_silence::list(args),
        Action::Unsilence(args) => alert_silence::remove(args),
    }
}

/// The shipped rule with this name.
pub fn rule(name: &str) -> Result<&'static ShippedRule, Failure> {
    ShippedRule::find(name).ok_or_else(|| {
        let near = nearest(name, RULES.iter().map(|rule| rule.name));
        let near = near.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
        Failure::words(format_args!(
            "unknown rule `{name}`{near}; `weir alert rules` lists them"
        ))
    })
}

fn rules(args: &RulesArgs) -> Result<Ending, Failure> {
    if let Some(name) = &args.rule {
        output::print(rule(name)?.text)?;
        return Ok(Ending::Done);
    }
    if args.json {
        let rules = RULES.iter();
        let rules: Vec<_> = rules
            .map(|rule| json!({"name": rule.name, "doc": rule.doc(), "text": rule.text}))
            .collect();
        output::print(&format!("{}\n", json!(rules)))?;
        return Ok(Ending::Done);
    }
    let rows = RULES
        .iter()
        .map(|rule| vec![rule.name.to_owned(), rule.doc()]);
    output::print(&aligned(&rows.collect::<Vec<_>>()))?;
    Ok(Ending::Done)
}
