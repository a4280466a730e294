//! The certificates of a fleet: its authority, and those that the authority signs for the monitor,
//! agents and clients.
//!
//! The formats are X.509 (RFC 5280) in PEM files (RFC 7468), which OpenSSL reads and writes too. A
//! certificate contains its roles: `place` is the URI `weir:place` among the subject's alternative
//! names (see [`crate::access`]).

mod files;
mod read;

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType, SerialNumber,
};
use time::{Duration, OffsetDateTime};

use crate::{WireError, random};
use files::file_error;

pub use files::{Overwrite, pair};
pub use read::{CertificateInfo, all};

/// The name of the authority's files.
pub const AUTHORITY: &str = "authority";
/// The name of the monitor's files.
pub const MONITOR: &str = "monitor";
/// The longest validity of a certificate, in days.
pub const DAYS_MAX: u32 = 36_500;
/// Certificates are valid from a little earlier, for hosts whose clocks are behind.
const EARLIER: Duration = Duration::hours(1);

/// The purpose of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The monitor, with these names and IP addresses.
    Monitor(Vec<String>),
    /// The agent of this host.
    Agent(String),
    /// A client of the monitor, and its role: `read`, `place`, `act` or `vm:NAME`.
    Client(String, String),
}

impl Purpose {
    /// The name of its files, without `.crt` and `.key`.
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

/// Checks that `text` can be the name of a host or a client: a DNS name in a certificate and part
/// of the name of a file.
///
/// # Errors
/// The reason, for the user.
pub fn check_name(text: &str) -> Result<String, String> {
    let known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let label =
        |l: &str| !l.is_empty() && l.len() <= 63 && !l.starts_with('-') && !l.ends_with('-');
    if text.parse::<std::net::IpAddr>().is_ok() {
        return Err("an IP address is not a name; give a name".to_owned());
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

/// As [`check_name`], or an IP address: an address of a monitor.
///
/// # Errors
/// The reason, for the user.
pub fn check_address(text: &str) -> Result<String, String> {
    match text.parse::<std::net::IpAddr>() {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => check_name(text),
    }
}

/// Checks that `text` can be the role of a client: `read`, `place`, `act` or `vm:NAME`.
///
/// # Errors
/// The reason, for the user.
pub fn check_role(text: &str) -> Result<String, String> {
    let is_known = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    let is_vm = |vm: &str| !vm.is_empty() && vm.chars().all(is_known);
    match text {
        "read" | "place" | "act" => Ok(text.to_owned()),
        _ if text.strip_prefix("vm:").is_some_and(is_vm) => Ok(text.to_owned()),
        _ => Err(
            "a role is read, place, act or vm:NAME, where NAME has letters, digits, `-`, `_`, `.` \
             and `:`; use a token for other names"
                .to_owned(),
        ),
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
    /// Creates an authority in `directory`, and the directory if it does not exist.
    ///
    /// # Errors
    /// When one exists and may not be overwritten, or the files cannot be written.
    pub fn make(
        directory: &Path,
        title: &str,
        days: u32,
        overwrite: Overwrite,
    ) -> Result<CertificateInfo, WireError> {
        let params = authority_params(title, days)?;
        let unsigned = |error| unsigned(directory, error);
        let key = KeyPair::generate().map_err(unsigned)?;
        let certificate = params.self_signed(&key).map_err(unsigned)?;
        files::make_directory(directory)?;
        let path = files::write_pair(
            directory,
            AUTHORITY,
            &certificate.pem(),
            &key.serialize_pem(),
            overwrite,
        )?;
        CertificateInfo::read(&path)
    }

    /// The authority in `directory`.
    ///
    /// # Errors
    /// When there is none, others can read its key, or the key is not that of the certificate.
    pub fn open(directory: &Path) -> Result<Authority, WireError> {
        let (certificate, key) = pair(directory, AUTHORITY);
        if !certificate.exists() {
            return Err(file_error(
                directory,
                "there is no authority; `weir certificates authority` creates one, `-d` names \
                 another directory",
            ));
        }
        let info = CertificateInfo::read(&certificate)?;
        let key_pair = files::read_key(&key)?;
        info.goes_with(&key_pair, &key)?;
        let pem = files::read(&certificate)?;
        let issuer = Issuer::from_ca_cert_pem(&pem, key_pair)
            .map_err(|e| file_error(&certificate, format_args!("not of an authority: {e}")))?;
        Ok(Authority {
            directory: directory.to_owned(),
            issuer,
            until: info.until,
        })
    }

    /// Signs a certificate for a new key; both are files beside those of the authority.
    ///
    /// # Errors
    /// When they exist and may not be overwritten, or cannot be written.
    pub fn sign(
        &self,
        purpose: &Purpose,
        days: u32,
        overwrite: Overwrite,
    ) -> Result<CertificateInfo, WireError> {
        let unsigned = |error| unsigned(&self.directory, error);
        let key = KeyPair::generate().map_err(unsigned)?;
        let usages = vec![purpose.usage()];
        let params = self.leaf(&purpose.stem(), purpose.names(), usages, days)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(unsigned)?;
        let path = files::write_pair(
            &self.directory,
            &purpose.stem(),
            &certificate.pem(),
            &key.serialize_pem(),
            overwrite,
        )?;
        CertificateInfo::read(&path)
    }

    /// Signs the certificate in `old` again, with the same names, roles and key, so that only one
    /// file changes, atomically. The authority's own is renewed in the same way; certificates that
    /// it has signed stay valid.
    ///
    /// # Errors
    /// When its key does not exist or is another one, or the file cannot be written.
    pub fn renew(&self, old: &CertificateInfo, days: u32) -> Result<CertificateInfo, WireError> {
        let unsigned = |error| unsigned(&old.file, error);
        let key_file = old.file.with_extension("key");
        let key = files::read_key(&key_file)?;
        old.goes_with(&key, &key_file)?;
        let pem = match old.authority {
            true => authority_params(&old.subject, days)?
                .self_signed(&key)
                .map_err(unsigned)?
                .pem(),
            false => {
                let (names, usages) = (old.alternative_names(), old.usages());
                let params = self.leaf(&old.subject, names, usages, days)?;
                let signed = params.signed_by(&key, &self.issuer);
                signed.map_err(unsigned)?.pem()
            }
        };
        files::replace(&old.file, &pem, files::PUBLIC)?;
        CertificateInfo::read(&old.file)
    }

    /// The content of a certificate that signs no others. It is valid no longer than the
    /// authority's.
    fn leaf(
        &self,
        title: &str,
        names: Vec<SanType>,
        usages: Vec<ExtendedKeyUsagePurpose>,
        days: u32,
    ) -> Result<CertificateParams, WireError> {
        let mut params = params(title, days)?;
        params.subject_alt_names = names;
        params.extended_key_usages = usages;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        params.not_after = params.not_after.min(self.until);
        Ok(params)
    }
}

/// The error of a certificate that cannot be signed.
fn unsigned(path: &Path, error: rcgen::Error) -> WireError {
    file_error(path, format_args!("cannot sign a certificate: {error}"))
}

fn authority_params(title: &str, days: u32) -> Result<CertificateParams, WireError> {
    let mut params = params(title, days)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

/// The content that all certificates have.
fn params(title: &str, days: u32) -> Result<CertificateParams, WireError> {
    let now = OffsetDateTime::now_utc();
    let mut params = CertificateParams::default();
    params.not_before = now - EARLIER;
    params.not_after = now + Duration::days(days.into());
    params.serial_number = Some(serial()?);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, title);
    Ok(params)
}

/// A unique serial number: random, positive, below 2^127 (RFC 5280, 4.1.2.2).
fn serial() -> Result<SerialNumber, WireError> {
    let mut bytes = random::bytes::<16>().map_err(WireError::Random)?;
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
