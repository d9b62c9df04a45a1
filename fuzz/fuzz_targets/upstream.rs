#![no_main]
//! What a worker sends: no bytes make the reader of heads and bodies panic, and how they are split over reads makes no
//! difference to what is read.

use forebay_router::upstream::framing::Decoder;
use forebay_router::upstream::head;
use http::Method;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (split, wire) = input;
    let method = if split & 1 == 0 { Method::POST } else { Method::HEAD };
    let Ok(Some(head)) = head::parse(wire, &method) else { return };
    assert!(head.length <= wire.len());
    let body = &wire[head.length..];
    let whole = read(head.decoder.clone(), body, body.len().max(1));
    let split = read(head.decoder, body, usize::from(split / 8) + 1);
    assert_eq!(whole, split);
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
