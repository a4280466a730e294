//! The certificates of a fleet: its authority, and what the authority signs for the monitor, agents
//! and clients.
//!
//! Nothing here is weir's own format: X.509 (RFC 5280) in PEM files (RFC 7468), which OpenSSL reads
//! and makes as well. What a certificate allows stands in it: who has the role `place` has the URI
//! `weir:place` among the subject's alternative names (see [`weir_wire::access`]).

mod files;
mod read;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType, SerialNumber,
};
use time::{Duration, OffsetDateTime};

pub use files::{Overwrite, pair};
pub use read::{Facts, all};

use weir_runtime::random;

/// The name of the authority's files.
pub const AUTHORITY: &str = "authority";
/// The name of the monitor's files.
pub const MONITOR: &str = "monitor";
/// The longest time for which a certificate can be made, in days.
pub const DAYS_MAX: u32 = 36_500;
/// Certificates hold from a little earlier on, for hosts whose clocks are behind.
const EARLIER: Duration = Duration::hours(1);

/// What a certificate is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To be known under these names and IP addresses: the monitor.
    Monitor(Vec<String>),
    /// To be the agent of this host.
    Agent(String),
    /// To ask the monitor, in a role: `read` or `place`.
    Client(String, String),
}

impl Purpose {
    /// What its files are called, without `.crt` and `.key`.
    pub fn stem(&self) -> String {
        match self {
            Purpose::Monitor(_) => MONITOR.to_owned(),
            Purpose::Agent(host) => format!("agent-{host}"),
            Purpose::Client(name, _) => format!("client-{name}"),
        }
    }

    fn names(&self) -> Vec<SanType> {
        match self {
            Purpose::Monitor(names) => names.iter().map(|n| address_or_name(n)).collect(),
            Purpose::Agent(host) => vec![name(host), uri(&format!("weir:agent:{host}"))],
            Purpose::Client(client, role) => vec![name(client), uri(&format!("weir:{role}"))],
        }
    }

    fn usage(&self) -> ExtendedKeyUsagePurpose {
        match self {
            Purpose::Monitor(_) => ExtendedKeyUsagePurpose::ServerAuth,
            _ => ExtendedKeyUsagePurpose::ClientAuth,
        }
    }
}

/// Whether `text` can be the name of a host or a client: what goes into a certificate as a DNS name
/// and into the name of a file.
///
/// # Errors
/// A message that names the error.
pub fn check_name(text: &str) -> Result<String, String> {
    let known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let label =
        |l: &str| !l.is_empty() && l.len() <= 63 && !l.starts_with('-') && !l.ends_with('-');
    if text.parse::<std::net::IpAddr>().is_ok() {
        return Err("an IP address is not permitted here; use a name".to_owned());
    }
    match text.len() <= 253 && text.chars().all(known) && text.split('.').all(label) {
        true => Ok(text.to_owned()),
        false => Err(
            "a name has letters, digits, `-`, `_` and dots, such as web1 or db-2.example.org \
             (RFC 1123)"
                .to_owned(),
        ),
    }
}

/// As [`check_name`], or an IP address: what a monitor is dialled by.
///
/// # Errors
/// A message that names the error.
pub fn check_address(text: &str) -> Result<String, String> {
    match text.parse::<std::net::IpAddr>() {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => check_name(text),
    }
}

fn address_or_name(text: &str) -> SanType {
    match text.parse() {
        Ok(ip) => SanType::IpAddress(ip),
        Err(_) => name(text),
    }
}

fn name(text: &str) -> SanType {
    SanType::DnsName(text.try_into().expect("a checked name is ASCII"))
}

fn uri(text: &str) -> SanType {
    SanType::URI(text.try_into().expect("a checked name is ASCII"))
}

/// The authority of a fleet, with its key.
pub struct Authority {
    directory: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    until: OffsetDateTime,
}

impl Authority {
    /// Makes an authority in `directory`, which is made if need be.
    ///
    /// # Errors
    /// When one is there and may not be overwritten, or the files cannot be written.
    pub fn make(directory: &Path, title: &str, days: u32, overwrite: Overwrite) -> Result<Facts> {
        let key = KeyPair::generate().context("a key could not be generated")?;
        let certificate = authority_params(title, days)?.self_signed(&key)?;
        files::make_directory(directory)?;
        let path = files::write_pair(
            directory,
            AUTHORITY,
            &certificate.pem(),
            &key.serialize_pem(),
            overwrite,
        )?;
        Facts::read(&path)
    }

    /// The authority in `directory`.
    ///
    /// # Errors
    /// When there is none, others can read its key, or the two files do not go together.
    pub fn open(directory: &Path) -> Result<Authority> {
        let (certificate, key) = pair(directory, AUTHORITY);
        if !certificate.exists() {
            bail!(
                "there is no authority in {}: create one with `weir certificates authority`, or \
                 use another directory with `-d`",
                directory.display()
            );
        }
        let facts = Facts::read(&certificate)?;
        let key_pair = files::read_key(&key)?;
        facts.goes_with(&key_pair, &key)?;
        let pem = files::read(&certificate)?;
        let issuer = Issuer::from_ca_cert_pem(&pem, key_pair).with_context(|| {
            format!(
                "{}: not the certificate of an authority",
                certificate.display()
            )
        })?;
        Ok(Authority {
            directory: directory.to_owned(),
            issuer,
            until: facts.until,
        })
    }

    /// Signs a certificate for a new key, both in files beside the authority's.
    ///
    /// # Errors
    /// When they are there and may not be overwritten, or cannot be written.
    pub fn sign(&self, purpose: &Purpose, days: u32, overwrite: Overwrite) -> Result<Facts> {
        let key = KeyPair::generate().context("a key could not be generated")?;
        let usages = vec![purpose.usage()];
        let params = self.leaf(&purpose.stem(), purpose.names(), usages, days)?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let path = files::write_pair(
            &self.directory,
            &purpose.stem(),
            &certificate.pem(),
            &key.serialize_pem(),
            overwrite,
        )?;
        Facts::read(&path)
    }

    /// Renews the certificate in `old` with the same names, roles and key, so that only the one
    /// file changes, in one step. The authority's own is renewed likewise; what it signed stays good.
    ///
    /// # Errors
    /// When its key is not there or it is not of this authority, or it cannot be written.
    pub fn renew(&self, old: &Facts, days: u32) -> Result<Facts> {
        let key_file = old.file.with_extension("key");
        let key = files::read_key(&key_file)?;
        old.goes_with(&key, &key_file)?;
        let pem = match old.authority {
            true => authority_params(&old.subject, days)?
                .self_signed(&key)?
                .pem(),
            false => {
                let (names, usages) = (old.alternative_names(), old.usages());
                let params = self.leaf(&old.subject, names, usages, days)?;
                params.signed_by(&key, &self.issuer)?.pem()
            }
        };
        files::replace(&old.file, &pem, files::PUBLIC)?;
        Facts::read(&old.file)
    }

    /// What stands in a certificate that signs no others. It holds no longer than the authority's.
    fn leaf(
        &self,
        title: &str,
        names: Vec<SanType>,
        usages: Vec<ExtendedKeyUsagePurpose>,
        days: u32,
    ) -> Result<CertificateParams> {
        let mut params = params(title, days)?;
        params.subject_alt_names = names;
        params.extended_key_usages = usages;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        params.not_after = params.not_after.min(self.until);
        Ok(params)
    }
}

fn authority_params(title: &str, days: u32) -> Result<CertificateParams> {
    let mut params = params(title, days)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

/// What all certificates have.
fn params(title: &str, days: u32) -> Result<CertificateParams> {
    let now = OffsetDateTime::now_utc();
    let mut params = CertificateParams::default();
    params.not_before = now - EARLIER;
    params.not_after = now + Duration::days(days.into());
    params.serial_number = Some(serial()?);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, title);
    Ok(params)
}

/// A number that no other certificate has: random, positive, below 2^127 (RFC 5280, 4.1.2.2).
fn serial() -> Result<SerialNumber> {
    let mut bytes = random::bytes::<16>()?;
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_hosts() {
        for good in ["web1", "db-2.example.org", "a_b", "4711"] {
            assert_eq!(check_name(good).as_deref(), Ok(good));
        }
        for bad in ["", "a b", "../x", "-a", "a..b", "é", "10.0.0.1", "a/b"] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
        assert!(check_address("10.0.0.1").is_ok() && check_address("::1").is_ok());
        assert!(check_address("10.0.0.1:7733").is_err());
    }
}
