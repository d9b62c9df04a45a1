#![no_main]
//! What a client sends: no bytes make the reader of requests' heads panic, a head is read alike however much of it has
//! come, and a chunked body gives the same payload however it is split over reads.

use forebay::http1::head;
use forebay_router::upstream::framing::Decoder;
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

/// Payload and bytes used before the end, an error, or the end of the input.
fn read(mut decoder: Decoder, body: &[u8], step: usize) -> (Vec<u8>, usize, bool) {
    let (mut payload, mut at) = (Vec::new(), 0);
    for piece in body.chunks(step) {
        let Ok((bytes, used)) = decoder.decode(piece) else {
            // How much of a broken message is handed out before the break is found depends on the reads.
            return (Vec::new(), 0, true);
        };
        payload.extend_from_slice(&bytes);
        at += used;
        if decoder.is_done() {
            break;
        }
    }
    (payload, at, false)
}
