//! [`CertificateInfo`]: the content of a certificate.

use std::fmt::Display;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use rcgen::{ExtendedKeyUsagePurpose, KeyPair, PublicKeyData, SanType};
use time::OffsetDateTime;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::parse_x509_pem;
use x509_parser::x509::X509Name;

use super::files::{self, file_error};
use super::{address_or_name, name, uri};
use crate::WireError;

/// The maximum number of certificates in a directory.
const FILES_MAX: usize = 10_000;

/// The content of a certificate.
#[derive(Clone, Debug)]
pub struct CertificateInfo {
    /// Its file.
    pub file: PathBuf,
    /// The common name of its owner.
    pub subject: String,
    /// The common name of its issuer.
    pub issuer: String,
    /// Whether it may sign others.
    pub authority: bool,
    /// The DNS names and IP addresses in it.
    pub names: Vec<String>,
    /// The roles in it, as `place` or `agent:web1`.
    pub roles: Vec<String>,
    /// The begin of its validity.
    pub from: OffsetDateTime,
    /// The end of its validity.
    pub until: OffsetDateTime,
    server: bool,
    client: bool,
    public_key: Vec<u8>,
}

impl CertificateInfo {
    /// Reads the first certificate in a PEM file.
    ///
    /// # Errors
    /// When there is none, or it is damaged.
    pub fn read(path: &Path) -> Result<CertificateInfo, WireError> {
        let text = files::read(path)?;
        let (_, pem) = parse_x509_pem(text.as_bytes()).map_err(|e| invalid(path, e))?;
        let certificate = pem.parse_x509().map_err(|e| invalid(path, e))?;
        let mut info = CertificateInfo {
            file: path.to_owned(),
            subject: common_name(certificate.subject()),
            issuer: common_name(certificate.issuer()),
            authority: certificate.is_ca(),
            names: Vec::new(),
            roles: Vec::new(),
            from: certificate.validity().not_before.to_datetime(),
            until: certificate.validity().not_after.to_datetime(),
            server: false,
            client: false,
            public_key: certificate.public_key().raw.to_vec(),
        };
        if let Some(usage) = certificate
            .extended_key_usage()
            .map_err(|e| invalid(path, e))?
        {
            (info.server, info.client) = (usage.value.server_auth, usage.value.client_auth);
        }
        if let Some(names) = certificate
            .subject_alternative_name()
            .map_err(|e| invalid(path, e))?
        {
            for one in &names.value.general_names {
                info.note(one);
            }
        }
        Ok(info)
    }

    fn note(&mut self, name: &GeneralName<'_>) {
        match name {
            GeneralName::DNSName(name) => self.names.push((*name).to_owned()),
            GeneralName::IPAddress(bytes) => self.names.extend(address(bytes)),
            GeneralName::URI(uri) => {
                self.roles
                    .extend(uri.strip_prefix("weir:").map(str::to_owned));
            }
            _ => {}
        }
    }

    /// The days until its validity ends, rounded down; negative afterwards.
    pub fn days_left(&self) -> i64 {
        (self.until - OffsetDateTime::now_utc())
            .whole_seconds()
            .div_euclid(86_400)
    }

    /// Checks that `key`, of file `path`, is the key of this certificate.
    pub(super) fn goes_with(&self, key: &KeyPair, path: &Path) -> Result<(), WireError> {
        match key.subject_public_key_info() == self.public_key {
            true => Ok(()),
            false => Err(file_error(
                path,
                format_args!("not the key of {}", self.file.display()),
            )),
        }
    }

    pub(super) fn alternative_names(&self) -> Vec<SanType> {
        // The owner of a role has a name; a monitor may have addresses too.
        let names = self.names.iter().map(|n| match self.roles.is_empty() {
            true => address_or_name(n),
            false => name(n),
        });
        let roles = self.roles.iter().map(|role| uri(&format!("weir:{role}")));
        names.chain(roles).collect()
    }

    pub(super) fn usages(&self) -> Vec<ExtendedKeyUsagePurpose> {
        let server = self.server.then_some(ExtendedKeyUsagePurpose::ServerAuth);
        let client = self.client.then_some(ExtendedKeyUsagePurpose::ClientAuth);
        server.into_iter().chain(client).collect()
    }
}

/// The error of a certificate that cannot be parsed.
fn invalid(path: &Path, error: impl Display) -> WireError {
    file_error(path, format_args!("no valid certificate: {error}"))
}

fn common_name(name: &X509Name<'_>) -> String {
    let mut names = name.iter_common_name();
    let text = names.next().and_then(|n| n.as_str().ok());
    text.unwrap_or("?").to_owned()
}

fn address(bytes: &[u8]) -> Option<String> {
    let ip: Option<IpAddr> = match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    };
    ip.map(|ip| ip.to_string())
}

/// The certificates in `directory` (files `*.crt`), that of the authority first.
///
/// # Errors
/// When the directory or a certificate in it cannot be read.
pub fn all(directory: &Path) -> Result<Vec<CertificateInfo>, WireError> {
    let failed = |error| file_error(directory, error);
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|e| e == "crt") {
            files.push(path);
        }
    }
    if files.len() > FILES_MAX {
        let why = format_args!("more than {FILES_MAX} certificates");
        return Err(file_error(directory, why));
    }
    files.sort();
    let mut info: Vec<CertificateInfo> = files
        .iter()
        .map(|file| CertificateInfo::read(file))
        .collect::<Result<_, _>>()?;
    info.sort_by_key(|f| !f.authority);
    Ok(info)
}
