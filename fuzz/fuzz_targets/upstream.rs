#![no_main]
//! What a worker sends: no bytes make the reader of heads and bodies panic, and how they are split over reads makes no
//! difference to what is read.

use forebay_fuzz::read;
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
