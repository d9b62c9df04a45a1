//! Looks a worker's name up, tries one address after the other, and says whom TLS believes.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_workers::WorkerUrl;
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::stream::Stream;

/// Opens connections. A copy shares what was read of certificates.
#[derive(Clone, Default)]
pub struct Dialer {
    /// Made for the first worker that needs it, since most fleets have none.
    tls: Arc<OnceLock<Arc<ClientConfig>>>,
    /// Believed beside the system's own.
    extra: Arc<[CertificateDer<'static>]>,
}

/// Why a file of certificates cannot be used.
#[derive(Debug)]
pub struct CaError(String);

impl fmt::Display for CaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CaError {}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dialer({} more certificates)", self.extra.len())
    }
}

impl Dialer {
    /// Believes the certificates in this PEM file beside the system's own.
    ///
    /// # Errors
    /// The file cannot be read, or holds no certificate.
    pub fn with_ca_file(path: &Path) -> Result<Self, CaError> {
        let certificates = CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| CaError(format!("{}: {error}", path.display())))?;
        if certificates.is_empty() {
            return Err(CaError(format!("{}: there is no certificate in it", path.display())));
        }
        Ok(Self { extra: certificates.into(), ..Self::default() })
    }

    /// Connects to a worker, whose name is looked up each time, so that it may change its address. The time limit is for
    /// each address that the name has, and for the handshake behind it.
    ///
    /// # Errors
    /// As the socket or the handshake says.
    pub async fn open(&self, url: &WorkerUrl, limit: Duration) -> io::Result<Stream> {
        if let Some(path) = url.socket() {
            let opened = timeout(limit, UnixStream::connect(path)).await;
            return opened.map_err(|_| io::ErrorKind::TimedOut)?.map(Stream::Unix);
        }
        let stream = dial(url.host(), url.port(), limit).await?;
        stream.set_nodelay(true)?;
        if !url.is_tls() {
            return Ok(Stream::Tcp(stream));
        }
        let name = ServerName::try_from(url.host().to_owned()).map_err(io::Error::other)?;
        let shaken = timeout(limit, TlsConnector::from(self.config()?).connect(name, stream)).await;
        Ok(Stream::Tls(Box::new(shaken.map_err(|_| io::ErrorKind::TimedOut)??)))
    }

    fn config(&self) -> io::Result<Arc<ClientConfig>> {
        if let Some(config) = self.tls.get() {
            return Ok(Arc::clone(config));
        }
        let mut roots = RootCertStore::empty();
        // A system without certificates, or with odd ones, believes those it was given.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        for certificate in self.extra.iter() {
            roots.add(certificate.clone()).map_err(io::Error::other)?;
        }
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::clone(self.tls.get_or_init(|| Arc::new(config))))
    }
}

/// Connects to a host, whose name is looked up each time, so that it may change its address.
async fn dial(host: &str, port: u16, limit: Duration) -> io::Result<TcpStream> {
    let addresses =
        timeout(limit, lookup_host((host, port))).await.map_err(|_| io::ErrorKind::TimedOut)??;
    to_any_of(addresses, limit).await
}

/// The first address that answers. The limit is for each of them: a silent one must not use up the time of the next.
async fn to_any_of(addresses: impl Iterator<Item = SocketAddr>, limit: Duration) -> io::Result<TcpStream> {
    let mut failure = io::ErrorKind::NotFound.into();
    for address in addresses {
        failure = match timeout(limit, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => error,
            Err(_) => io::ErrorKind::TimedOut.into(),
        };
    }
    Err(failure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpSocket;

    #[tokio::test]
    async fn a_silent_first_address_leaves_the_second_its_time() {
        let limit = Duration::from_millis(200);
        let listen = |backlog| {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
            socket.listen(backlog).unwrap()
        };
        // Nobody accepts here: when the queue is full, the kernel answers no more.
        let silent = listen(1);
        let silent = (silent.local_addr().unwrap(), silent);
        let mut fill = Vec::new();
        while let Ok(Ok(stream)) = timeout(limit, TcpStream::connect(silent.0)).await {
            fill.push(stream);
        }
        let good = listen(16);
        let address = good.local_addr().unwrap();
        let stream = to_any_of([silent.0, address].into_iter(), limit).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), address);
        let failure = to_any_of([silent.0].into_iter(), limit).await.unwrap_err();
        assert_eq!(failure.kind(), io::ErrorKind::TimedOut);
    }
}
