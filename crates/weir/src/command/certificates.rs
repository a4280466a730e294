//! `weir certificates`: a fleet's certificate authority, and the certificates that it signs.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::json;
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;

use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_wire::certificates::{
    self, Authority, CertificateInfo, DAYS_MAX, Overwrite, Purpose, check_address, check_name,
    check_role,
};

/// Create and renew the certificates of a fleet
///
/// A certificate authority of the fleet signs the certificates of the monitor, the agents and the
/// clients. A certificate contains the role of its owner. Existing files are overwritten only with
/// --force. Private keys are readable by their owner only. The key of the authority is needed
/// only to sign: do not store it on the hosts of the fleet.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir certificates authority -d fleet\n  \
    weir certificates monitor -d fleet monitor.example.org 10.0.0.5\n  \
    weir certificates agent -d fleet web1 web2 db1\n  \
    weir certificates client -d fleet grafana\n  \
    weir certificates client -d fleet alice --role place\n  \
    weir certificates show -d fleet\n  \
    weir certificates renew -d fleet --within 30\n\n\
    docs/security.md describes where each file is installed.")]
pub struct CertificatesArgs {
    #[command(subcommand)]
    what: What,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
enum What {
    /// Create the certificate authority: authority.crt, authority.key
    #[command(after_help = "Examples:\n  weir certificates authority -d fleet")]
    Authority {
        #[command(flatten)]
        place: PlaceArgs,
        /// Name of the authority in certificates
        #[arg(long, value_name = "NAME", default_value = "weir fleet")]
        name: String,
        /// Validity in days
        #[arg(long, value_name = "DAYS", default_value = "3650", value_parser = days())]
        days: u32,
        #[command(flatten)]
        overwrite: OverwriteArgs,
    },
    /// Sign the certificate of the monitor: monitor.crt, monitor.key
    #[command(
        after_help = "Examples:\n  weir certificates monitor -d fleet monitor.example.org 10.0.0.5"
    )]
    Monitor {
        #[command(flatten)]
        place: PlaceArgs,
        /// Host names and IP addresses at which agents and clients connect to the monitor
        #[arg(value_name = "NAME", required = true, value_parser = check_address)]
        names: Vec<String>,
        #[command(flatten)]
        signing: SigningArgs,
    },
    /// Sign certificates of agents, each valid for one host: agent-HOST.crt, agent-HOST.key
    #[command(after_help = "Examples:\n  weir certificates agent -d fleet web1 web2 db1")]
    Agent {
        #[command(flatten)]
        place: PlaceArgs,
        /// Names of the hosts, as in `weir agent --host`
        #[arg(value_name = "HOST", required = true, value_parser = check_name)]
        hosts: Vec<String>,
        #[command(flatten)]
        signing: SigningArgs,
    },
    /// Sign certificates of clients: client-NAME.crt, client-NAME.key
    #[command(after_help = "Examples:\n  \
        weir certificates client -d fleet grafana\n  \
        weir certificates client -d fleet alice --role place")]
    Client {
        #[command(flatten)]
        place: PlaceArgs,
        /// Names of the clients
        #[arg(value_name = "NAME", required = true, value_parser = check_name)]
        names: Vec<String>,
        /// Role of the clients: read permits watching queries; place also permits submitting and
        /// cancelling them, and placing alerts; act also permits alerts that act; vm:NAME permits
        /// queries over the rows of that VM only
        #[arg(long, value_name = "ROLE", default_value = "read", value_parser = check_role)]
        role: String,
        #[command(flatten)]
        signing: SigningArgs,
    },
    /// List the certificates in the directory with their names, roles and expiry dates
    #[command(after_help = "Examples:\n  weir certificates show -d fleet")]
    Show {
        #[command(flatten)]
        place: PlaceArgs,
        /// Print a JSON array with one object per certificate
        #[arg(short = 'j', long)]
        json: bool,
    },
    /// Renew certificates that expire soon, with the same names, roles and keys
    ///
    /// Only the files *.crt change. Copy them to their hosts, and reload the agent or the monitor
    /// (SIGHUP).
    #[command(after_help = "Examples:\n  weir certificates renew -d fleet --within 30")]
    Renew {
        #[command(flatten)]
        place: PlaceArgs,
        /// Renew the certificates that expire within this number of days
        #[arg(long, value_name = "DAYS", default_value = "30", value_parser = days())]
        within: u32,
        /// Validity of the new certificates in days; for the authority, ten times this number
        #[arg(long, value_name = "DAYS", default_value = "365", value_parser = days())]
        days: u32,
    },
}

/// The location of the files.
#[derive(Args, Debug)]
struct PlaceArgs {
    /// Directory of the authority and the certificates
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
}

/// Whether files may be overwritten.
#[derive(Args, Debug)]
struct OverwriteArgs {
    /// Overwrite existing files; certificates that an overwritten authority signed become invalid
    #[arg(long, alias = "replace")]
    force: bool,
}

/// How a certificate is signed.
#[derive(Args, Debug)]
struct SigningArgs {
    /// Validity in days, at most that of the authority
    #[arg(long, value_name = "DAYS", default_value = "365", value_parser = days())]
    days: u32,
    #[command(flatten)]
    overwrite: OverwriteArgs,
}

impl OverwriteArgs {
    fn requested(&self) -> Overwrite {
        match self.force {
            true => Overwrite::Requested,
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
            overwrite,
        } => {
            let made = Authority::make(&place.directory, name, *days, overwrite.requested());
            print_files(&made?)
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
    let authority = Authority::open(&place.directory)?;
    for purpose in purposes {
        let overwrite = signing.overwrite.requested();
        let made = authority.sign(&purpose, signing.days, overwrite);
        print_files(&made?)?;
    }
    Ok(Ending::Done)
}

fn renew(directory: &Path, within: u32, days: u32) -> Result<Ending, Failure> {
    let mut renewed = 0;
    // The authority is renewed first, since it limits the validity of the others.
    for old in certificates::all(directory)? {
        if old.days_left() >= i64::from(within) {
            continue;
        }
        let days = match old.authority {
            true => days.saturating_mul(10).min(DAYS_MAX),
            false => days,
        };
        let renewed_one = Authority::open(directory).and_then(|a| a.renew(&old, days));
        print_files(&renewed_one?)?;
        renewed += 1;
    }
    if renewed == 0 {
        output::notice(format_args!(
            "weir: all certificates in {} are valid for {within} days or longer",
            directory.display()
        ));
    }
    Ok(Ending::Done)
}

/// Prints the names of the written files.
fn print_files(made: &CertificateInfo) -> Result<Ending, Failure> {
    let (certificate, key) = (&made.file, made.file.with_extension("key"));
    output::print(&format!(
        "{} {} until {}\n",
        certificate.display(),
        key.display(),
        day(made)
    ))?;
    Ok(Ending::Done)
}

fn day(facts: &CertificateInfo) -> String {
    let format = format_description!("[year]-[month]-[day]");
    facts
        .until
        .format(format)
        .expect("a certificate's time has a year, a month and a day")
}

fn show(directory: &Path, as_json: bool) -> Result<Ending, Failure> {
    let all = certificates::all(directory)?;
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
            true => "authority".to_owned(),
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

fn as_object(facts: &CertificateInfo) -> serde_json::Value {
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
