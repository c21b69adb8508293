//! TLS for `https`: whose certificate is accepted, and why another is not.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};
use tokio::sync::OnceCell;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{Failure, Target, failure::quoted, target::Connection};

/// How `https` checks of a service do TLS.
pub struct Tls {
    /// In the certificate and in SNI; the backend's address unless given.
    name: Option<String>,
    trust: Trust,
    /// Made by the first check, and by the next one while that fails.
    config: OnceCell<Arc<ClientConfig>>,
}

#[derive(Clone)]
enum Trust {
    /// Any certificate.
    Any,
    System,
    File(PathBuf),
}

/// Ready for one handshake.
pub struct Ready {
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
}

impl Tls {
    /// `name` may have a port, as in `Host`.
    pub fn new(name: Option<&str>, verify: bool, ca_file: Option<&Path>) -> Self {
        let trust = match ca_file {
            _ if !verify => Trust::Any,
            Some(file) => Trust::File(file.to_owned()),
            None => Trust::System,
        };
        Self {
            name: name.map(|name| without_port(name).to_owned()),
            trust,
            config: OnceCell::new(),
        }
    }

    pub async fn ready(&self, target: &Target) -> Result<Ready, Failure> {
        let name = match &self.name {
            Some(name) => ServerName::try_from(name.clone()).map_err(|error| {
                Failure::Ours(format!("{name:?} cannot be the name of a TLS server: {error}"))
            })?,
            None => ServerName::IpAddress(target.address.ip().into()),
        };
        let config = self.config.get_or_try_init(|| async {
            let trust = self.trust.clone();
            // Reading files and hundreds of certificates would hold up the other checks.
            let made = tokio::task::spawn_blocking(move || config(&trust)).await;
            made.unwrap_or_else(|error| Err(error.to_string()))
                .map(Arc::new)
                .map_err(Failure::Ours)
        });
        let config = Arc::clone(config.await?);
        Ok(Ready { name, config })
    }
}

impl Ready {
    pub async fn handshake(self, stream: Connection) -> Result<TlsStream<Connection>, Failure> {
        let connector = TlsConnector::from(self.config);
        let shaken = connector.connect(self.name, stream).await;
        shaken.map_err(|error| failure(&error))
    }
}

fn without_port(host: &str) -> &str {
    if let Some((inside, _)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return inside;
    }
    match host.split_once(':') {
        // More than one colon: a bare IPv6 address.
        Some((name, port)) if !port.contains(':') => name,
        _ => host,
    }
}

fn config(trust: &Trust) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS cannot be had: {error}"))?;
    let builder = match trust {
        Trust::Any => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider))),
        Trust::System => builder.with_root_certificates(system_roots()?),
        Trust::File(file) => builder.with_root_certificates(file_roots(file)?),
    };
    let mut config = builder.with_no_client_auth();
    // A resumed session shows no certificate, and each check must see it.
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn system_roots() -> Result<RootCertStore, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, ignored) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        let why = found.errors.first().map(|error| format!(": {error}"));
        return Err(format!(
            "the system has no certificates to trust{}; install ca-certificates or set ca_file",
            why.unwrap_or_default()
        ));
    }
    for error in &found.errors {
        tracing::warn!(%error, "some of the system's certificates cannot be read");
    }
    if ignored > 0 {
        tracing::debug!(ignored, "some of the system's certificates cannot be used");
    }
    Ok(roots)
}

fn file_roots(file: &Path) -> Result<RootCertStore, String> {
    let wrong = |why: &dyn std::fmt::Display| format!("ca_file {}: {why}", file.display());
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(file).map_err(|error| wrong(&error))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| wrong(&error))?;
        roots.add(certificate).map_err(|error| wrong(&error))?;
    }
    if roots.is_empty() {
        return Err(wrong(&"there is no certificate in it"));
    }
    Ok(roots)
}

fn failure(error: &io::Error) -> Failure {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref());
    let Some(tls) = tls else {
        return match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                Failure::backend("the connection was closed during the TLS handshake")
            }
            _ => Failure::from_io(error),
        };
    };
    Failure::Backend(match tls {
        rustls::Error::InvalidCertificate(why) => certificate(why),
        rustls::Error::InvalidMessage(_) => "the answer is not TLS".to_owned(),
        rustls::Error::AlertReceived(alert) => format!("the server refused the TLS handshake: {alert:?}"),
        other => format!("TLS: {}", quoted(other.to_string().as_bytes())),
    })
}

fn certificate(why: &CertificateError) -> String {
    match why {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "certificate has expired".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "certificate is not valid yet".to_owned()
        }
        CertificateError::UnknownIssuer => "certificate is of an issuer that is not trusted".to_owned(),
        CertificateError::NotValidForName => "certificate is for another name".to_owned(),
        CertificateError::NotValidForNameContext { expected, presented } => format!(
            "certificate is not for {}, but for {}",
            expected.to_str(),
            quoted(presented.join(", ").as_bytes())
        ),
        CertificateError::Revoked => "certificate is revoked".to_owned(),
        // What has no variant of its own, as that a CA's certificate is used by a server.
        CertificateError::Other(other) => format!("certificate is not accepted: {other}"),
        other => format!(
            "certificate is not accepted: {}",
            quoted(other.to_string().as_bytes())
        ),
    }
}

/// Accepts any certificate, from anybody; only that the server has its key is checked.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_their_port() {
        for (host, name) in [
            ("example.org", "example.org"),
            ("example.org:8443", "example.org"),
            ("192.0.2.1:443", "192.0.2.1"),
            ("[2001:db8::1]:443", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("2001:db8::1", "2001:db8::1"),
        ] {
            assert_eq!(without_port(host), name);
            assert!(ServerName::try_from(name).is_ok());
        }
    }

    #[test]
    fn a_file_without_certificates_is_refused_by_name() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let name = file.path().display().to_string();
        let refused = |path: &Path| config(&Trust::File(path.to_owned())).map(drop).unwrap_err();
        assert_eq!(
            refused(file.path()),
            format!("ca_file {name}: there is no certificate in it")
        );
        let missing = Path::new("/nonexistent/ca.pem");
        assert!(refused(missing).starts_with("ca_file /nonexistent/ca.pem: "));
    }
}
