//! [`Facts`]: what stands in a certificate.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use rcgen::{ExtendedKeyUsagePurpose, KeyPair, PublicKeyData, SanType};
use time::OffsetDateTime;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::parse_x509_pem;
use x509_parser::x509::X509Name;

use super::{address_or_name, files, name, uri};

/// Most certificates of a directory that are looked at.
const FILES_MAX: usize = 10_000;

/// What stands in a certificate.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Where it is.
    pub file: PathBuf,
    /// The common name of whose it is.
    pub subject: String,
    /// The common name of who signed it.
    pub issuer: String,
    /// It may sign others.
    pub authority: bool,
    /// The DNS names and IP addresses in it.
    pub names: Vec<String>,
    /// The roles in it, as `place` or `agent:web1`.
    pub roles: Vec<String>,
    /// From when on it holds.
    pub from: OffsetDateTime,
    /// Until when.
    pub until: OffsetDateTime,
    server: bool,
    client: bool,
    public_key: Vec<u8>,
}

impl Facts {
    /// Reads the first certificate in a PEM file.
    ///
    /// # Errors
    /// When there is none, or it is damaged.
    pub fn read(path: &Path) -> Result<Facts> {
        let told = || format!("{}: contains no valid certificate", path.display());
        let text = files::read(path)?;
        let (_, pem) = parse_x509_pem(text.as_bytes()).with_context(told)?;
        let certificate = pem.parse_x509().with_context(told)?;
        let mut facts = Facts {
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
        if let Some(usage) = certificate.extended_key_usage().with_context(told)? {
            (facts.server, facts.client) = (usage.value.server_auth, usage.value.client_auth);
        }
        if let Some(names) = certificate.subject_alternative_name().with_context(told)? {
            for one in &names.value.general_names {
                facts.note(one);
            }
        }
        Ok(facts)
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

    /// How many days it still holds, rounded down; negative if it does not.
    pub fn days_left(&self) -> i64 {
        (self.until - OffsetDateTime::now_utc())
            .whole_seconds()
            .div_euclid(86_400)
    }

    /// Whether `key`, of file `path`, is this certificate's.
    pub(super) fn goes_with(&self, key: &KeyPair, path: &Path) -> Result<()> {
        match key.subject_public_key_info() == self.public_key {
            true => Ok(()),
            false => bail!(
                "{} is not the key of {}",
                path.display(),
                self.file.display()
            ),
        }
    }

    pub(super) fn alternative_names(&self) -> Vec<SanType> {
        // Who has a role is known by a name; a monitor may be dialled by addresses too.
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

/// The certificates in `directory` (files `*.crt`), the authority's first.
///
/// # Errors
/// When the directory or a certificate in it cannot be read.
pub fn all(directory: &Path) -> Result<Vec<Facts>> {
    let told = || directory.display().to_string();
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).with_context(told)? {
        let path = entry.with_context(told)?.path();
        if path.extension().is_some_and(|e| e == "crt") {
            files.push(path);
        }
    }
    if files.len() > FILES_MAX {
        return Err(anyhow!("{}: more than {FILES_MAX} certificates", told()));
    }
    files.sort();
    let mut facts: Vec<Facts> = files
        .iter()
        .map(|file| Facts::read(file))
        .collect::<Result<_>>()?;
    facts.sort_by_key(|f| !f.authority);
    Ok(facts)
}
