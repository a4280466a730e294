//! PEM files for TLS: read, checked, and complained about by name.

use std::fs;
use std::path::{Path, PathBuf};

use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::WireError;

/// The longest PEM file that is read. A bundle of public authorities has 200 KiB.
const PEM_BYTES_MAX: u64 = 4 << 20;

/// A PEM file's contents.
#[derive(Clone, Debug)]
pub(crate) struct Pem {
    path: PathBuf,
    pub(crate) bytes: Vec<u8>,
}

impl Pem {
    /// Reads `path`.
    pub(crate) fn read(path: &Path) -> Result<Pem, WireError> {
        let wrong = |why: String| WireError::File {
            path: path.to_owned(),
            why,
        };
        let length = fs::metadata(path).map_err(|e| wrong(e.to_string()))?.len();
        if length > PEM_BYTES_MAX {
            return Err(wrong(format!("{length} bytes are too many for a PEM file")));
        }
        let bytes = fs::read(path).map_err(|e| wrong(e.to_string()))?;
        Ok(Pem {
            path: path.to_owned(),
            bytes,
        })
    }

    fn wrong(&self, why: impl Into<String>) -> WireError {
        WireError::File {
            path: self.path.clone(),
            why: why.into(),
        }
    }

    /// The certificates in it, at least one.
    pub(crate) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, WireError> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.bytes).collect();
        match found {
            Ok(found) if !found.is_empty() => Ok(found),
            Ok(_) => {
                Err(self.wrong("no certificate in it; it begins `-----BEGIN CERTIFICATE-----`"))
            }
            Err(e) => Err(self.wrong(format!("a certificate in it is damaged: {e}"))),
        }
    }

    /// The private key in it.
    pub(crate) fn key(&self) -> Result<PrivateKeyDer<'static>, WireError> {
        PrivateKeyDer::from_pem_slice(&self.bytes).map_err(|e| {
            self.wrong(format!(
                "no private key in it ({e}); encrypted keys are not understood"
            ))
        })
    }
}

/// A certificate and its key.
pub(crate) fn identity(certificate: &Path, key: &Path) -> Result<(Pem, Pem), WireError> {
    let certificate = Pem::read(certificate)?;
    certificate.certificates()?;
    let key = Pem::read(key)?;
    key.key()?;
    Ok((certificate, key))
}
