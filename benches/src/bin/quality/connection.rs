//! A client's connection that measures when the first byte of a body comes. It reads as much HTTP as that needs.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) struct Connection {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, read: Vec::with_capacity(64 * 1024) })
    }

    /// Sends a request and reads its answer, which has to be a 200; gives when the first byte of its body came.
    pub(crate) async fn ask(&mut self, request: &[u8]) -> io::Result<Instant> {
        self.stream.write_all(request).await?;
        self.read.clear();
        let mut first = None;
        loop {
            if self.stream.read_buf(&mut self.read).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let Some(head) = memmem::find(&self.read, b"\r\n\r\n").map(|at| at + 4) else { continue };
            if !self.read.starts_with(b"HTTP/1.1 200") {
                return Err(io::Error::other(String::from_utf8_lossy(&self.read[..head]).into_owned()));
            }
            if self.read.len() > head {
                first.get_or_insert_with(Instant::now);
            }
            if is_whole(&self.read[..head], &self.read[head..]) {
                return first.ok_or_else(|| io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// The body of an answer that has a length.
    pub(crate) async fn get(addr: SocketAddr, path: &str) -> io::Result<String> {
        let mut connection = Self::open(addr).await?;
        connection.ask(format!("GET {path} HTTP/1.1\r\nhost: {addr}\r\n\r\n").as_bytes()).await?;
        Ok(String::from_utf8_lossy(&connection.read).into_owned())
    }
}

fn is_whole(head: &[u8], body: &[u8]) -> bool {
    let length = String::from_utf8_lossy(head).lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    length.map_or_else(|| body.ends_with(b"0\r\n\r\n"), |length| body.len() >= length)
}
