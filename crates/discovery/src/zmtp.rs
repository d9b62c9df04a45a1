//! The receiving end of a ZeroMQ connection (ZMTP 3.0 without security, as a ROUTER or a PULL), as far as it is needed. No
//! library's: the peer's address has to be known before it is listened to, and a peer must not be able to make this process
//! reserve what it claims that it will send.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Longest frame that is taken. What workers say has about a hundred bytes.
const FRAME_LIMIT: u64 = 4096;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Version 3.0, no security.
const GREETING: [u8; 64] = {
    let mut greeting = [0; 64];
    let start = *b"\xff\0\0\0\0\0\0\0\0\x7f\x03\x00NULL";
    let mut at = 0;
    while at < start.len() {
        greeting[at] = start[at];
        at += 1;
    }
    greeting
};

/// What this end is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Socket {
    /// It hears DEALERs. It has no name of its own.
    Router,
    /// It hears PUSHes.
    Pull,
}

const ROUTER: &[u8] = b"\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER\x08Identity\x00\x00\x00\x00";
const PULL: &[u8] = b"\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x04PULL";

/// One peer.
pub struct Peer<S> {
    stream: S,
}

/// A message as far as it matters.
#[derive(Debug, PartialEq, Eq)]
pub enum Message {
    /// One frame.
    Single(Vec<u8>),
    /// Several, which nothing has that is waited for here.
    Several,
}

impl Socket {
    const fn ready(self) -> &'static [u8] {
        match self {
            Self::Router => ROUTER,
            Self::Pull => PULL,
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<S> {
    /// Greets, and hears the peer's greeting.
    ///
    /// # Errors
    /// The stream's, or `InvalidData` if the peer speaks something else.
    pub async fn greet(mut stream: S, socket: Socket) -> io::Result<Self> {
        stream.write_all(&GREETING).await?;
        stream.write_all(socket.ready()).await?;
        let mut theirs = [0; 64];
        // Whoever speaks something else has said so in the first bytes, and may never send more.
        stream.read_exact(&mut theirs[..11]).await?;
        if theirs[0] != 0xff || theirs[9] & 1 == 0 || theirs[10] < 3 {
            return Err(broken("it is no ZMTP 3"));
        }
        stream.read_exact(&mut theirs[11..]).await?;
        if theirs[12..32] != GREETING[12..32] {
            return Err(broken("it wants security, of which there is none here"));
        }
        Ok(Self { stream })
    }

    /// The next message; `None` if the peer has left.
    ///
    /// # Errors
    /// The stream's, or `InvalidData` if it is none.
    pub async fn message(&mut self) -> io::Result<Option<Message>> {
        let mut frames = 0_u32;
        loop {
            let flags = match self.stream.read_u8().await {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                flags => flags?,
            };
            if flags & !(MORE | LONG | COMMAND) != 0 {
                return Err(broken("a frame has flags that there are not"));
            }
            let frame = self.frame(flags).await?;
            if flags & COMMAND != 0 {
                continue;
            }
            frames = frames.saturating_add(1);
            if flags & MORE == 0 {
                return Ok(Some(if frames == 1 { Message::Single(frame) } else { Message::Several }));
            }
        }
    }

    async fn frame(&mut self, flags: u8) -> io::Result<Vec<u8>> {
        let length = match flags & LONG {
            0 => u64::from(self.stream.read_u8().await?),
            _ => self.stream.read_u64().await?,
        };
        if length > FRAME_LIMIT {
            return Err(broken("a frame is longer than anything that is waited for"));
        }
        let mut frame = vec![0; usize::try_from(length).unwrap_or(0)];
        self.stream.read_exact(&mut frame).await?;
        Ok(frame)
    }
}

fn broken(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

#[cfg(test)]
mod tests;
