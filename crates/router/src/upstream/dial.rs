//! The way to an open connection: look the name up, try one address after the other. It knows nothing of HTTP.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

/// Connects to a host, whose name is looked up each time, so that it may change its address.
pub(super) async fn dial(host: &str, port: u16, limit: Duration) -> io::Result<TcpStream> {
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
