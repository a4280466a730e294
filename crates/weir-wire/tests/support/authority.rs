//! An authority that signs certificates for tests, in its own directory.
#![allow(dead_code)] // Each test file uses its own part of this.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use weir_testing::Scratch;
use weir_wire::ServerTls;

/// A temporary folder with files that only their owner can read.
pub struct Directory(Scratch);

impl Directory {
    pub fn new() -> Directory {
        Directory(Scratch::new())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file that only the owner can read.
    pub fn secret(&self, name: &str, text: &str) -> PathBuf {
        let path = PathBuf::from(self.0.write(name, text));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }
}

/// An authority with its certificate in a file.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    pub certificate: PathBuf,
}

impl Authority {
    pub fn new(directory: &Directory, name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let certificate = directory.secret(&format!("{name}.pem"), &issuer.pem());
        Authority {
            issuer,
            certificate,
        }
    }

    /// A certificate for `name` with the roles `uris`, and its key.
    pub fn sign(&self, directory: &Directory, name: &str, uris: &[&str]) -> (PathBuf, PathBuf) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let uris = uris.iter().map(|u| SanType::URI((*u).try_into().unwrap()));
        params.subject_alt_names.extend(uris);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (
            directory.secret(&format!("{name}.crt"), &certificate.pem()),
            directory.secret(&format!("{name}.key"), &key.serialize_pem()),
        )
    }

    /// The monitor's side: a certificate for `localhost`, and the authority of its peers.
    pub fn server(&self, directory: &Directory, clients: Option<&Path>) -> ServerTls {
        let (certificate, key) = self.sign(directory, "localhost", &[]);
        ServerTls {
            certificate,
            key,
            authority: clients.map(Path::to_owned),
        }
    }
}
