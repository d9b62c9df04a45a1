//! Server-sent events and HTTP chunks as bytes. It knows no API.

/// One record with data only.
pub(crate) fn data(json: &str) -> Vec<u8> {
    format!("data: {json}\n\n").into_bytes()
}

/// One record with its type.
pub(crate) fn event(kind: &str, json: &str) -> Vec<u8> {
    format!("event: {kind}\ndata: {json}\n\n").into_bytes()
}

/// The record that ends a stream of the OpenAI API.
pub(crate) fn done() -> Vec<u8> {
    b"data: [DONE]\n\n".to_vec()
}

/// One HTTP chunk.
pub(crate) fn chunk(bytes: &[u8]) -> Vec<u8> {
    let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
    chunk.extend_from_slice(bytes);
    chunk.extend_from_slice(b"\r\n");
    chunk
}

/// The chunk that ends a body.
pub(crate) const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
