use super::*;

/// As `msgpack.dumps` of Python writes it.
const PREFILL: &[u8] =
    b"\x83\xa4type\xa1P\xachttp_address\xae127.0.0.1:8000\xabzmq_address\xaf127.0.0.1:21001";

fn read(payload: &[u8]) -> Result<Announcement, Dropped> {
    Announcement::read(payload, &Range::usual())
}

/// A map of short texts, as msgpack.
fn map(members: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| [&[0xd9, u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let count = 0x80 | u8::try_from(members.len()).unwrap();
    let members = members.iter().flat_map(|(key, value)| [text(key), text(value)].concat());
    std::iter::once(count).chain(members).collect()
}

#[test]
fn what_a_worker_sends_is_read() {
    let wanted = Announcement {
        url: "http://127.0.0.1:8000".parse().unwrap(),
        role: Role::Prefill { bootstrap_port: None },
        kv_address: "127.0.0.1:21001".to_owned(),
    };
    assert_eq!(read(PREFILL), Ok(wanted));
    let others = [
        ("dp_size", "1"),
        ("zmq_address", "10.0.0.9:22001"),
        ("type", "D"),
        ("http_address", "10.0.0.9:8000"),
    ];
    let decode = read(&map(&others)).unwrap();
    assert_eq!((decode.role, &*decode.kv_address), (Role::Decode, "10.0.0.9:22001"));
    assert_eq!(decode.url.as_str(), "http://10.0.0.9:8000");
}

#[test]
fn what_is_no_announcement_is_dropped_whatever_it_is() {
    for cut in 0..PREFILL.len() {
        assert_eq!(read(&PREFILL[..cut]), Err(Dropped::Malformed), "{cut} bytes");
    }
    let nested = [&[0x81, 0xa1, b'x'][..], &[0x91; 10_000]].concat();
    let cases: [&[u8]; 6] = [
        b"PING",
        b"\x93\xa1P\xae127.0.0.1:8000\xaf127.0.0.1:21001",
        b"\xdf\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        &nested,
        &map(&[
            ("type", "P"),
            ("type", "P"),
            ("http_address", "127.0.0.1:1"),
            ("zmq_address", "127.0.0.1:1"),
        ]),
    ];
    for case in cases {
        assert_eq!(read(case), Err(Dropped::Malformed), "{case:?}");
    }
}

#[test]
fn addresses_must_be_ones_that_workers_can_read_and_that_are_allowed() {
    let of = |kind, http, zmq| read(&map(&[("type", kind), ("http_address", http), ("zmq_address", zmq)]));
    assert!(of("D", "10.0.0.1:80", "192.168.0.1:1").is_ok());
    assert_eq!(of("X", "10.0.0.1:80", "10.0.0.1:1"), Err(Dropped::Type));
    for bad in [
        "",
        "10.0.0.1",
        "10.0.0.1:",
        "10.0.0.1:0",
        "10.0.0.1:65536",
        "10.0.0.1:1:2",
        "10.0.0.1:1/x",
        "gpu:1",
        "[::1]:1",
        "::1:1",
        " 10.0.0.1:1",
        "u@10.0.0.1:1",
        "10.0.0.1:1___decode_addr_10.0.0.2:2",
    ] {
        assert_eq!(of("P", bad, "10.0.0.1:1"), Err(Dropped::Address), "{bad}");
        assert_eq!(of("P", "10.0.0.1:1", bad), Err(Dropped::Address), "{bad}");
    }
    assert_eq!(of("P", "8.8.8.8:80", "10.0.0.1:1"), Err(Dropped::Outside));
    assert_eq!(of("P", "10.0.0.1:80", "8.8.8.8:1"), Err(Dropped::Outside));
}
