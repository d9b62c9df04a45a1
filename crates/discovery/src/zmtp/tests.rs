use super::*;

/// All that a DEALER of libzmq 4.3.5 (pyzmq) with an identity sends, with two messages of `msgpack.dumps`, as recorded.
const DEALER: &[u8] = b"\xff\x00\x00\x00\x00\x00\x00\x00\x0f\x7f\x03\x01NULL\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x047\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x0e10.0.0.9:22001\x00>\x83\xa4type\xa1D\xachttp_address\xad10.0.0.9:8000\xabzmq_address\xae10.0.0.9:22001\x00>\x83\xa4type\xa1D\xachttp_address\xad10.0.0.9:8000\xabzmq_address\xae10.0.0.9:22001";

const PAYLOAD: &[u8] = b"\x83\xa4type\xa1D\xachttp_address\xad10.0.0.9:8000\xabzmq_address\xae10.0.0.9:22001";

/// The same of a PUSH, with two messages of msgspec's `msgpack.encode`.
const PUSH: &[u8] = b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x01NULL\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x04PUSH\x00:\x82\xa4type\xaaProxyNotif\xa6req_id\xd9 0123456789abcdef0123456789abcdef\x00:\x82\xa4type\xaaProxyNotif\xa6req_id\xd9 0123456789abcdef0123456789abcdef";

const NOTICE: &[u8] = b"\x82\xa4type\xaaProxyNotif\xa6req_id\xd9 0123456789abcdef0123456789abcdef";

/// What is heard of a peer that sends this, in pieces of this size, and leaves. The last is the error, if there is one.
fn heard(sent: &[u8], piece: usize) -> (Vec<Message>, Option<String>) {
    heard_as(Socket::Router, sent, piece)
}

fn heard_as(socket: Socket, sent: &[u8], piece: usize) -> (Vec<Message>, Option<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let (ours, mut theirs) = tokio::io::duplex(piece);
        let receive = async {
            let mut messages = Vec::new();
            let mut peer = match Peer::greet(ours, socket).await {
                Ok(peer) => peer,
                Err(error) => return (messages, Some(error.to_string())),
            };
            loop {
                match peer.message().await {
                    Ok(Some(message)) => messages.push(message),
                    Ok(None) => return (messages, None),
                    Err(error) => return (messages, Some(error.to_string())),
                }
            }
        };
        let send = async {
            let (mut read, mut write) = tokio::io::split(&mut theirs);
            let mut answer = vec![0; GREETING.len() + socket.ready().len()];
            // What is refused is not taken to its end.
            let _both = tokio::join!(read.read_exact(&mut answer), write.write_all(sent));
            drop((read, write));
            drop(theirs);
        };
        tokio::join!(receive, send).0
    })
}

#[test]
fn what_a_dealer_of_libzmq_sends_is_heard_however_it_is_split() {
    for piece in [1, 2, 3, 7, 64, 65, 4096] {
        let (messages, error) = heard(DEALER, piece);
        assert_eq!(messages, [(); 2].map(|()| Message::Single(PAYLOAD.to_vec())), "{piece}");
        assert_eq!(error, None);
    }
}

#[test]
fn what_a_push_of_libzmq_sends_is_heard_however_it_is_split() {
    for piece in [1, 2, 3, 7, 64, 65, 4096] {
        let (messages, error) = heard_as(Socket::Pull, PUSH, piece);
        assert_eq!(messages, [(); 2].map(|()| Message::Single(NOTICE.to_vec())), "{piece}");
        assert_eq!(error, None);
    }
}

#[test]
fn the_length_of_our_own_ready_is_right() {
    for ready in [ROUTER, PULL] {
        assert_eq!(usize::from(ready[1]), ready.len() - 2);
    }
}

#[test]
fn a_frame_that_is_long_in_its_head_only_is_taken_and_one_that_is_long_is_not() {
    let greeted = &DEALER[..64 + 2 + 0x37];
    let long = |length: u64| [greeted, &[LONG], &length.to_be_bytes(), &[7; 4096]].concat();
    let (messages, error) = heard(&long(4096), 512);
    assert_eq!((messages, error), (vec![Message::Single(vec![7; 4096])], None));
    for length in [4097, u64::from(u32::MAX), u64::MAX] {
        let (messages, error) = heard(&long(length), 512);
        assert!(messages.is_empty() && error.unwrap().contains("longer than anything"), "{length}");
    }
}

#[test]
fn a_message_of_several_frames_is_none_of_ours_and_the_next_one_is_heard() {
    let greeted = &DEALER[..64 + 2 + 0x37];
    let (messages, error) = heard(&[greeted, b"\x01\x00\x00\x01x\x00\x01y"].concat(), 16);
    assert_eq!((messages, error), (vec![Message::Several, Message::Single(b"y".to_vec())], None));
}

#[test]
fn other_protocols_and_broken_frames_end_the_connection() {
    let mut old = DEALER.to_vec();
    old[10] = 1;
    let mut secure = DEALER.to_vec();
    secure[12..17].copy_from_slice(b"PLAIN");
    let flags = [&DEALER[..64], b"\x08\x01x"].concat();
    let cases = [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "no ZMTP"),
        (old, "no ZMTP"),
        (secure, "security"),
        (flags, "flags"),
    ];
    for (sent, why) in cases {
        let (messages, error) = heard(&sent, 64);
        assert!(messages.is_empty() && error.as_ref().unwrap().contains(why), "{why}: {error:?}");
    }
}
