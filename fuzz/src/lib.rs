//! What several targets share.

use forebay_router::upstream::framing::Decoder;

/// Payload and bytes used before the end, an error, or the end of the input.
pub fn read(mut decoder: Decoder, body: &[u8], step: usize) -> (Vec<u8>, usize, bool) {
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
