//! PEM files for TLS: reading, validation, and errors that name the file.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::WireError;
use crate::access::read_secret;

/// The longest accepted PEM file. A bundle of public authorities has 200 KiB.
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
            Ok(_) => Err(self.wrong(
                "it contains no certificate; a certificate begins with `-----BEGIN \
                 CERTIFICATE-----`",
            )),
            Err(e) => Err(self.wrong(format!("it contains an invalid certificate: {e}"))),
        }
    }

    /// The authorities in it, at least one.
    fn authorities(&self) -> Result<RootCertStore, WireError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates()? {
            roots
                .add(certificate)
                .map_err(|e| self.wrong(format!("not an authority's certificate: {e}")))?;
        }
        Ok(roots)
    }

    /// The private key in it.
    pub(crate) fn key(&self) -> Result<PrivateKeyDer<'static>, WireError> {
        PrivateKeyDer::from_pem_slice(&self.bytes).map_err(|e| {
            self.wrong(format!(
                "it contains no private key ({e}); encrypted keys are not supported"
            ))
        })
    }
}

/// A certificate and its key.
pub(crate) fn identity(certificate: &Path, key: &Path) -> Result<(Pem, Pem), WireError> {
    let certificate = Pem::read(certificate)?;
    certificate.certificates()?;
    let key = Pem {
        path: key.to_owned(),
        bytes: read_secret(key, PEM_BYTES_MAX)?.into_bytes(),
    };
    key.key()?;
    Ok((certificate, key))
}

/// TLS of a client of a server whose certificate is of one of the authorities in `authority`, with
/// a certificate of its own and its key, if any: PEM files.
///
/// # Errors
/// If a file cannot be used.
pub fn client_tls(
    authority: &Path,
    own: Option<(&Path, &Path)>,
) -> Result<Arc<ClientConfig>, WireError> {
    let roots = Pem::read(authority)?.authorities()?;
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring knows the versions that rustls thinks safe")
        .with_root_certificates(roots);
    let config = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let (certificate, key) = identity(certificate, key)?;
            builder
                .with_client_auth_cert(certificate.certificates()?, key.key()?)
                .map_err(|e| certificate.wrong(format!("does not match its key: {e}")))?
        }
    };
    Ok(Arc::new(config))
}

/// The TLS settings of the monitor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTls {
    /// PEM file of the monitor's certificate and its intermediates.
    pub certificate: PathBuf,
    /// PEM file of its key.
    pub key: PathBuf,
    /// PEM file of the authorities whose client certificates are accepted. If tokens are configured
    /// too, either suffices; otherwise a client certificate is required.
    pub authority: Option<PathBuf>,
}

/// The loaded TLS configuration.
#[derive(Debug)]
pub(crate) struct LoadedTls {
    /// The configuration for handshakes.
    pub(crate) config: Arc<ServerConfig>,
    /// Verifies client certificates; `None` if none are requested.
    clients: Option<Arc<dyn ClientCertVerifier>>,
}

impl LoadedTls {
    /// Whether this certificate chain, the peer's own first, would be accepted now.
    pub(crate) fn accepts(&self, chain: &[CertificateDer<'_>]) -> bool {
        let (Some(clients), Some((own, between))) = (&self.clients, chain.split_first()) else {
            return false;
        };
        let verified = clients.verify_client_cert(own, between, UnixTime::now());
        verified.is_ok()
    }
}

impl ServerTls {
    /// Reads the files. Client certificates are required unless `tokens` are accepted too.
    pub(crate) fn load(&self, tokens: bool) -> Result<LoadedTls, WireError> {
        let (certificate, key) = identity(&self.certificate, &self.key)?;
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .expect("ring knows the versions that rustls thinks safe");
        let mut clients = None;
        if let Some(authority) = &self.authority {
            let pem = Pem::read(authority)?;
            let roots = pem.authorities()?;
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = match tokens {
                true => verifier.allow_unauthenticated(),
                false => verifier,
            };
            clients = Some(verifier.build().map_err(|e| pem.wrong(e.to_string()))?);
        }
        let builder = match &clients {
            None => builder.with_no_client_auth(),
            Some(clients) => builder.with_client_cert_verifier(clients.clone()),
        };
        let mut config = builder
            .with_single_cert(certificate.certificates()?, key.key()?)
            .map_err(|e| {
                certificate.wrong(format!("does not match {}: {e}", self.key.display()))
            })?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(LoadedTls {
            config: Arc::new(config),
            clients,
        })
    }
}
