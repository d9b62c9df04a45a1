//! What the answer of a prefill leg says: the hand-over for the decode leg, checked for what would kill or hang an engine if
//! it were missing, and the counts. Parses nothing beyond the members it needs.

use bytes::Bytes;
use forebay_openai::{BodyError, Members};

use crate::connector::Connector;
use crate::lmcache::First;
use crate::peer::Peer;

/// The member that carries the hand-over in requests and answers.
pub(crate) const FIELD: &str = "kv_transfer_params";

/// So long before the lease ends a hand-over is too old to be sent, in milliseconds: the decode worker has to get to it.
const MARGIN_MS: u64 = 5_000;

/// The right to read one prompt's blocks once. It cannot be copied: whoever sends it has it no more.
#[derive(Debug, PartialEq, Eq)]
pub struct HandOver {
    raw: Bytes,
    born_ms: u64,
}

/// What an answer of a prefill leg says.
#[derive(Debug, Default)]
pub struct Prefilled {
    /// Whole and usable; `None` if there is none or something is missing.
    pub hand_over: Option<HandOver>,
    /// There was one, but it lacked something.
    pub is_incomplete: bool,
    /// Where the worker is reached, if it pushes.
    pub peer: Option<Peer>,
    /// The first token of the answer, if the worker tells it.
    pub first: Option<Box<First>>,
    /// Tokens of the prompt.
    pub prompt_tokens: Option<u64>,
    /// Those of them that the prefill worker had cached, where the decode worker will not tell it by itself.
    pub cached_tokens: Option<u64>,
}

/// The members of a hand-over that matter here, as raw JSON.
#[derive(Default)]
pub(crate) struct Coordinates<'a> {
    is_for_decode: bool,
    has_blocks: bool,
    tells_cached: bool,
    pushes: bool,
    pub engine_id: Option<&'a [u8]>,
    pub request_id: Option<&'a [u8]>,
    pub host: Option<&'a [u8]>,
    pub port: Option<&'a [u8]>,
    pub tp_size: Option<&'a [u8]>,
    pub pp_size: Option<&'a [u8]>,
}

impl HandOver {
    /// One that was found at `born_ms`.
    pub fn new(raw: Bytes, born_ms: u64) -> Self {
        Self { raw, born_ms }
    }

    /// The object as it came.
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }

    /// Whether the blocks will still be there when the decode worker gets to them.
    pub fn is_fresh(&self, now_ms: u64, lease_ms: u64) -> bool {
        now_ms.saturating_sub(self.born_ms) < lease_ms.saturating_sub(MARGIN_MS)
    }
}

impl Prefilled {
    /// Reads an answer that came at `now_ms`.
    ///
    /// # Errors
    /// [`BodyError`] if it is no JSON object.
    pub fn read(answer: &Bytes, connector: Connector, now_ms: u64) -> Result<Self, BodyError> {
        if connector == Connector::Lmcache {
            return Self::with_first(answer, now_ms);
        }
        let mut prefilled = Self::default();
        if connector.hands_over_unsaid() {
            prefilled.hand_over = Some(HandOver::new(Bytes::new(), now_ms));
        }
        let mut tells_cached = false;
        for member in Members::new(answer)? {
            let member = member?;
            let raw = &answer[member.value.clone()];
            match &answer[member.key.raw.clone()] {
                b"kv_transfer_params" if raw.starts_with(b"{") && !connector.hands_over_unsaid() => {
                    let coordinates = Coordinates::read(answer, member.value.start)?;
                    tells_cached = coordinates.tells_cached;
                    prefilled.peer = coordinates.pushes.then(|| Peer::of(&coordinates)).flatten();
                    let usable = coordinates.are_whole(connector);
                    prefilled.is_incomplete = !usable;
                    let taken = || HandOver::new(answer.slice(member.value.clone()), now_ms);
                    prefilled.hand_over = usable.then(taken);
                }
                b"usage" if raw.starts_with(b"{") => prefilled.usage(answer, member.value.start)?,
                _ => {}
            }
        }
        if tells_cached {
            prefilled.cached_tokens = None;
        }
        Ok(prefilled)
    }

    /// What is handed over is the first token; the blocks have gone by another way.
    fn with_first(answer: &Bytes, now_ms: u64) -> Result<Self, BodyError> {
        let first = First::read(answer)?;
        let hand_over = first.as_ref().map(|_| HandOver::new(Bytes::new(), now_ms));
        let prompt_tokens = first.as_ref().and_then(|first| first.prompt_tokens);
        Ok(Self { hand_over, first: first.map(Box::new), prompt_tokens, ..Self::default() })
    }

    fn usage(&mut self, answer: &[u8], at: usize) -> Result<(), BodyError> {
        // A worker that does not say how much it had cached is taken to have had nothing.
        self.cached_tokens = Some(0);
        // The Messages API counts what was cached, and what will be, apart from the rest.
        let mut apart = 0_u64;
        for member in Members::nested(answer, at)? {
            let member = member?;
            let raw = &answer[member.value.clone()];
            match &answer[member.key.raw.clone()] {
                b"prompt_tokens" | b"input_tokens" => self.prompt_tokens = number(raw),
                b"cache_read_input_tokens" => {
                    self.cached_tokens = Some(number(raw).unwrap_or(0));
                    apart = apart.saturating_add(number(raw).unwrap_or(0));
                }
                b"cache_creation_input_tokens" => apart = apart.saturating_add(number(raw).unwrap_or(0)),
                b"prompt_tokens_details" | b"input_tokens_details" if raw.starts_with(b"{") => {
                    for detail in Members::nested(answer, member.value.start)? {
                        let detail = detail?;
                        if &answer[detail.key.raw] == b"cached_tokens" {
                            self.cached_tokens = Some(number(&answer[detail.value]).unwrap_or(0));
                        }
                    }
                }
                _ => {}
            }
        }
        self.prompt_tokens = self.prompt_tokens.map(|tokens| tokens.saturating_add(apart));
        Ok(())
    }
}

impl<'a> Coordinates<'a> {
    fn read(answer: &'a [u8], at: usize) -> Result<Self, BodyError> {
        let mut found = Self::default();
        for member in Members::nested(answer, at)? {
            let member = member?;
            let raw = &answer[member.value];
            let given = Some(raw).filter(|raw| !matches!(*raw, b"null" | b"\"\""));
            match &answer[member.key.raw] {
                b"do_remote_prefill" => found.is_for_decode = raw == b"true",
                b"remote_block_ids" => found.has_blocks = has_number(raw),
                b"remote_prefill_cached_tokens" => found.tells_cached = true,
                b"transfer_mode" => found.pushes = raw == b"\"push\"",
                b"remote_engine_id" => found.engine_id = given,
                b"remote_request_id" => found.request_id = given,
                b"remote_host" => found.host = given,
                b"remote_port" => found.port = given,
                b"tp_size" => found.tp_size = given,
                b"pp_size" => found.pp_size = given,
                _ => {}
            }
        }
        Ok(found)
    }

    /// Whether a decode worker can use them without dying or waiting for ever.
    fn are_whole(&self, connector: Connector) -> bool {
        let needed = [self.engine_id, self.request_id, self.host, self.port];
        // Without the blocks an engine that pulls dies; one that is pushed to is told of them.
        let blocks = self.has_blocks || connector == Connector::NixlPush;
        self.is_for_decode && blocks && needed.iter().all(Option::is_some)
    }
}

/// Whether a list, or a list of lists, has a number in it.
fn has_number(raw: &[u8]) -> bool {
    raw.starts_with(b"[") && raw.iter().any(u8::is_ascii_digit)
}

pub(crate) fn number(raw: &[u8]) -> Option<u64> {
    std::str::from_utf8(raw).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[2,3]],"remote_engine_id":"5e67","remote_request_id":"cmpl-a-0-b11c75d8","remote_host":"127.0.0.1","remote_port":8701,"tp_size":1}"#;

    fn read(params: &str, connector: Connector) -> Prefilled {
        let answer = format!(
            r#"{{"id":"x","choices":[{{"text":"\"kv_transfer_params\":{{}}"}}],"usage":{{"prompt_tokens":33,"prompt_tokens_details":{{"cached_tokens":7}}}},"kv_transfer_params":{params}}}"#
        );
        Prefilled::read(&Bytes::from(answer), connector, 100).unwrap()
    }

    #[test]
    fn a_whole_hand_over_is_taken_as_the_bytes_it_came_in() {
        let prefilled = read(WHOLE, Connector::Nixl);
        let hand_over = prefilled.hand_over.unwrap();
        assert_eq!(&hand_over.raw()[..], WHOLE.as_bytes());
        assert_eq!((prefilled.prompt_tokens, prefilled.cached_tokens), (Some(33), Some(7)));
    }

    #[test]
    fn a_prompt_of_the_messages_api_is_all_its_parts() {
        let answer = r#"{"usage":{"input_tokens":4,"cache_creation_input_tokens":3,"cache_read_input_tokens":96},"kv_transfer_params":null}"#;
        let prefilled = Prefilled::read(&Bytes::from(answer), Connector::Nixl, 0).unwrap();
        assert_eq!((prefilled.prompt_tokens, prefilled.cached_tokens), (Some(103), Some(96)));
    }

    #[test]
    fn one_that_lacks_what_an_engine_needs_is_none() {
        let broken = [
            ("[[2,3]]", "[]"),
            ("[[2,3]]", "[[]]"),
            ("[[2,3]]", "null"),
            (r#""remote_engine_id":"5e67","#, ""),
            (r#""5e67""#, "null"),
            (r#""5e67""#, r#""""#),
            (r#""remote_request_id":"cmpl-a-0-b11c75d8","#, ""),
            (r#""127.0.0.1""#, "null"),
            (r#""remote_port":8701,"#, ""),
            (r#""do_remote_prefill":true"#, r#""do_remote_prefill":false"#),
        ];
        for (whole, part) in broken {
            let prefilled = read(&WHOLE.replace(whole, part), Connector::Nixl);
            assert!(prefilled.hand_over.is_none() && prefilled.is_incomplete, "{whole} -> {part}");
        }
        let absent = read("null", Connector::Nixl);
        assert!(absent.hand_over.is_none() && !absent.is_incomplete);
    }

    #[test]
    fn blocks_that_are_pushed_need_no_numbers() {
        let params =
            WHOLE.replace("[[2,3]]", "[]").replace("\"tp_size\"", "\"transfer_mode\":\"push\",\"tp_size\"");
        let prefilled = read(&params, Connector::NixlPush);
        assert!(prefilled.hand_over.is_some() && prefilled.peer.is_some());
        assert!(read(WHOLE, Connector::NixlPush).peer.is_none(), "it pulls");
    }

    #[test]
    fn where_the_decode_worker_knows_what_was_cached_there_is_nothing_to_put_right() {
        let params = WHOLE.replace("\"tp_size\"", "\"remote_prefill_cached_tokens\":7,\"tp_size\"");
        assert_eq!(read(&params, Connector::Nixl).cached_tokens, None);
    }

    #[test]
    fn it_is_too_old_five_seconds_before_the_lease_ends() {
        let hand_over = HandOver::new(Bytes::new(), 1_000);
        assert!(hand_over.is_fresh(25_999, 30_000));
        assert!(!hand_over.is_fresh(26_000, 30_000));
        assert!(!hand_over.is_fresh(1_000, 4_000), "a lease that short leaves no time at all");
    }

    #[test]
    fn what_is_no_json_object_is_an_error() {
        for answer in ["", "[]", "{", "null"] {
            assert!(Prefilled::read(&Bytes::from(answer), Connector::Nixl, 0).is_err(), "{answer}");
        }
    }
}
