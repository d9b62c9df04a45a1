#![no_main]
//! What a client sends: no bytes make the reader of requests' heads panic, a head is read alike however much of it has
//! come, and a chunked body gives the same payload however it is split over reads.

use forebay::http1::head;
use forebay_fuzz::read;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (split, wire) = input;
    let Ok(Some(head)) = head::parse(wire) else { return };
    assert!(head.length <= wire.len());
    // A head that is whole is whole without what follows it, and not without its last byte.
    assert!(head::parse(&wire[..head.length]).is_ok_and(|head| head.is_some()));
    assert!(head::parse(&wire[..head.length - 1]).is_ok_and(|head| head.is_none()));
    let body = &wire[head.length..];
    let whole = read(head.body.clone(), body, body.len().max(1));
    assert_eq!(whole, read(head.body, body, usize::from(split) + 1));
});
