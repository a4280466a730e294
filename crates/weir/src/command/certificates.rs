//! `weir certificates`: a fleet's authority, and the certificates it signs.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::json;
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;

use crate::certificates::{
    self, Authority, DAYS_MAX, Facts, Overwrite, Purpose, check_address, check_name,
};
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;

/// Make and renew the certificates of a fleet
///
/// An authority of the fleet's own vouches for the monitor, the agents and whoever asks; what each
/// may do stands in its certificate. Files that are there are never overwritten unless `--replace`
/// is given. Keys can be read by their owner alone. The authority's key is needed to sign and
/// nowhere else: keep it off the fleet's hosts.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir certificates authority -d fleet\n  \
    weir certificates monitor -d fleet monitor.example.org 10.0.0.5\n  \
    weir certificates agent -d fleet web1 web2 db1\n  \
    weir certificates client -d fleet grafana\n  \
    weir certificates client -d fleet alice --role place\n  \
    weir certificates show -d fleet\n  \
    weir certificates renew -d fleet --within 30\n\n\
    docs/security.md tells which file goes where.")]
pub struct CertificatesArgs {
    #[command(subcommand)]
    what: What,
}

/// What is to be made or done.
#[derive(Subcommand, Debug)]
enum What {
    /// Make the fleet's authority: authority.crt, authority.key
    Authority {
        #[command(flatten)]
        place: PlaceArgs,
        /// What it is called in certificates
        #[arg(long, value_name = "NAME", default_value = "weir fleet")]
        name: String,
        /// For how many days it holds
        #[arg(long, default_value = "3650", value_parser = days())]
        days: u32,
        #[command(flatten)]
        replace: ReplaceArgs,
    },
    /// Sign a certificate for the monitor: monitor.crt, monitor.key
    Monitor {
        #[command(flatten)]
        place: PlaceArgs,
        /// The names and IP addresses that agents and clients dial
        #[arg(value_name = "NAME", required = true, value_parser = check_address)]
        names: Vec<String>,
        #[command(flatten)]
        signing: SigningArgs,
    },
    /// Sign certificates for agents, each good for its own host: agent-HOST.crt, agent-HOST.key
    Agent {
        #[command(flatten)]
        place: PlaceArgs,
        /// The hosts' names, as the agents say them
        #[arg(value_name = "HOST", required = true, value_parser = check_name)]
        hosts: Vec<String>,
        #[command(flatten)]
        signing: SigningArgs,
    },
    /// Sign certificates for those who ask: client-NAME.crt, client-NAME.key
    Client {
        #[command(flatten)]
        place: PlaceArgs,
        /// Who
        #[arg(value_name = "NAME", required = true, value_parser = check_name)]
        names: Vec<String>,
        /// What they may do: look at queries, or also place and cancel them
        #[arg(long, default_value = "read", value_parser = ["read", "place"])]
        role: String,
        #[command(flatten)]
        signing: SigningArgs,
    },
    /// Say what the certificates in the directory are for and how long they hold
    Show {
        #[command(flatten)]
        place: PlaceArgs,
        /// One JSON array of objects
        #[arg(long)]
        json: bool,
    },
    /// Sign those anew that soon hold no longer, with the same names, roles and keys
    ///
    /// Only the files *.crt change. Copy them to where they are used, and reload agent or monitor
    /// (SIGHUP).
    Renew {
        #[command(flatten)]
        place: PlaceArgs,
        /// Those that end within so many days
        #[arg(long, value_name = "DAYS", default_value = "30", value_parser = days())]
        within: u32,
        /// For how many days they hold then; the authority's for ten times as long
        #[arg(long, default_value = "365", value_parser = days())]
        days: u32,
    },
}

/// Where the files are.
#[derive(Args, Debug)]
struct PlaceArgs {
    /// The directory with the authority and what it signed
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
}

/// Whether files may be overwritten.
#[derive(Args, Debug)]
struct ReplaceArgs {
    /// Overwrite the files that are there: what was signed for them is void
    #[arg(long)]
    replace: bool,
}

/// How a certificate is signed.
#[derive(Args, Debug)]
struct SigningArgs {
    /// For how many days it holds, at most as long as the authority
    #[arg(long, default_value = "365", value_parser = days())]
    days: u32,
    #[command(flatten)]
    replace: ReplaceArgs,
}

impl ReplaceArgs {
    fn overwrite(&self) -> Overwrite {
        match self.replace {
            true => Overwrite::Wanted,
            false => Overwrite::Never,
        }
    }
}

fn days() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(DAYS_MAX))
}

pub fn run(args: &CertificatesArgs) -> Result<Ending, Failure> {
    match &args.what {
        What::Authority {
            place,
            name,
            days,
            replace,
        } => {
            let made = Authority::make(&place.directory, name, *days, replace.overwrite());
            told(&made.map_err(Failure::World)?)
        }
        What::Monitor {
            place,
            names,
            signing,
        } => sign(place, signing, [Purpose::Monitor(names.clone())]),
        What::Agent {
            place,
            hosts,
            signing,
        } => sign(place, signing, hosts.iter().cloned().map(Purpose::Agent)),
        What::Client {
            place,
            names,
            role,
            signing,
        } => {
            let purpose = |name: &String| Purpose::Client(name.clone(), role.clone());
            sign(place, signing, names.iter().map(purpose))
        }
        What::Show { place, json } => show(&place.directory, *json),
        What::Renew {
            place,
            within,
            days,
        } => renew(&place.directory, *within, *days),
    }
}

fn sign(
    place: &PlaceArgs,
    signing: &SigningArgs,
    purposes: impl IntoIterator<Item = Purpose>,
) -> Result<Ending, Failure> {
    let authority = Authority::open(&place.directory).map_err(Failure::World)?;
    for purpose in purposes {
        let overwrite = signing.replace.overwrite();
        let made = authority.sign(&purpose, signing.days, overwrite);
        told(&made.map_err(Failure::World)?)?;
    }
    Ok(Ending::Done)
}

fn renew(directory: &Path, within: u32, days: u32) -> Result<Ending, Failure> {
    let mut renewed = 0;
    // The authority's comes first, so that what it signs can hold as long.
    for old in certificates::all(directory).map_err(Failure::World)? {
        if old.days_left() >= i64::from(within) {
            continue;
        }
        let days = match old.authority {
            true => days.saturating_mul(10).min(DAYS_MAX),
            false => days,
        };
        let renewed_one = Authority::open(directory).and_then(|a| a.renew(&old, days));
        told(&renewed_one.map_err(Failure::World)?)?;
        renewed += 1;
    }
    if renewed == 0 {
        output::say(format_args!(
            "weir: all certificates in {} hold for {within} days or longer",
            directory.display()
        ));
    }
    Ok(Ending::Done)
}

/// Says which files were written.
fn told(made: &Facts) -> Result<Ending, Failure> {
    let (certificate, key) = (&made.file, made.file.with_extension("key"));
    output::print(&format!(
        "{} {} until {}\n",
        certificate.display(),
        key.display(),
        day(made)
    ))?;
    Ok(Ending::Done)
}

fn day(facts: &Facts) -> String {
    let format = format_description!("[year]-[month]-[day]");
    facts
        .until
        .format(format)
        .expect("a certificate's time has a year, a month and a day")
}

fn show(directory: &Path, as_json: bool) -> Result<Ending, Failure> {
    let all = certificates::all(directory).map_err(Failure::World)?;
    if as_json {
        let all: Vec<_> = all.iter().map(as_object).collect();
        output::print(&format!("{}\n", json!(all)))?;
        return Ok(Ending::Done);
    }
    let mut text = format!(
        "{:28} {:24} {:20} {:10} {:>9}\n",
        "file", "names", "roles", "until", "days left"
    );
    for facts in &all {
        let file = facts.file.file_name().unwrap_or_default().to_string_lossy();
        let roles = match facts.authority {
            true => "signs others".to_owned(),
            false => facts.roles.join(","),
        };
        text += &format!(
            "{file:28} {:24} {roles:20} {:10} {:>9}\n",
            facts.names.join(","),
            day(facts),
            facts.days_left()
        );
    }
    output::print(&text)?;
    Ok(Ending::Done)
}

fn as_object(facts: &Facts) -> serde_json::Value {
    let instant = |at: time::OffsetDateTime| at.format(&Rfc3339).ok();
    json!({
        "file": facts.file.display().to_string(),
        "subject": facts.subject,
        "issuer": facts.issuer,
        "authority": facts.authority,
        "names": facts.names,
        "roles": facts.roles,
        "from": instant(facts.from),
        "until": instant(facts.until),
        "days_left": facts.days_left(),
    })
}
