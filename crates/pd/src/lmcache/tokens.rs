//! The prompt as ids: as the client sent them, or as a worker's `/tokenize` answered.

use bytes::Bytes;
use forebay_openai::Members;

use crate::hand_over::number;

/// The ids of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokens {
    /// In JSON, without the brackets.
    ids: Bytes,
    count: u64,
    /// Tokens that a prompt and its answer may have together, if a worker said so.
    max_model_len: Option<u64>,
}

impl Tokens {
    /// From a list in JSON; `None` if it is not one of ids, or is empty.
    pub(crate) fn of_list(list: &Bytes) -> Option<Self> {
        let inner = list.strip_prefix(b"[")?.strip_suffix(b"]")?.trim_ascii();
        let is_id = |id: &[u8]| u32::try_from(number(id.trim_ascii()).unwrap_or(u64::MAX)).is_ok();
        let mut count = 0;
        for id in inner.split(|byte| *byte == b',') {
            if !is_id(id) {
                return None;
            }
            count += 1;
        }
        Some(Self { ids: list.slice_ref(inner), count, max_model_len: None })
    }

    fn of_list_or_none(list: &Bytes) -> Option<Self> {
        let is_empty = list
            .strip_prefix(b"[")
            .and_then(|rest| rest.strip_suffix(b"]"))
            .is_some_and(|inner| inner.trim_ascii().is_empty());
        let none = || Self { ids: Bytes::new(), count: 0, max_model_len: None };
        if is_empty { Some(none()) } else { Self::of_list(list) }
    }

    /// From the answer of `/tokenize`. A prompt may be empty.
    pub fn read(answer: &Bytes) -> Option<Self> {
        let (mut found, mut max_model_len) = (None, None);
        for member in Members::new(answer).ok()? {
            let member = member.ok()?;
            match &answer[member.key.raw] {
                b"tokens" => found = Self::of_list_or_none(&answer.slice(member.value)),
                b"max_model_len" => max_model_len = number(&answer[member.value]),
                _ => {}
            }
        }
        found.map(|found| Self { max_model_len, ..found })
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Tokens that may follow them, if that is known.
    pub(crate) fn room(&self) -> Option<u64> {
        Some(self.max_model_len?.saturating_sub(self.count))
    }

    /// As a list in JSON, with another one behind them if there is one.
    pub(crate) fn with(&self, last: Option<&[u8]>) -> Bytes {
        let mut list = Vec::with_capacity(self.ids.len() + 16);
        list.push(b'[');
        list.extend_from_slice(&self.ids);
        if let Some(last) = last {
            list.push(b',');
            list.extend_from_slice(last);
        }
        list.push(b']');
        list.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_they_came_and_written_with_one_behind() {
        let answer = r#"{"count":3,"max_model_len":32,"tokens":[1, 22,333],"token_strs":null}"#;
        let tokens = Tokens::read(&Bytes::from(answer)).unwrap();
        assert_eq!((tokens.count(), tokens.room()), (3, Some(29)));
        assert_eq!(
            (tokens.with(None), tokens.with(Some(b"4"))),
            ("[1, 22,333]".into(), "[1, 22,333,4]".into())
        );
        let sent = Tokens::of_list(&Bytes::from("[ 7 ]")).unwrap();
        assert_eq!((sent.count(), sent.room(), sent.with(Some(b"8"))), (1, None, "[7,8]".into()));
    }

    #[test]
    fn what_is_no_list_of_ids_is_none() {
        for list in
            ["", "[]", "[1", "[1,]", "[-1]", "[1.0]", "[\"1\"]", "[[1]]", "[4294967296]", "{}", "null"]
        {
            assert_eq!(Tokens::of_list(&Bytes::from(list)), None, "{list}");
            let answer = format!(r#"{{"tokens":{list}}}"#);
            let read = Tokens::read(&Bytes::from(answer)).map(|tokens| tokens.count());
            assert_eq!(read, (list == "[]").then_some(0), "{list}");
        }
    }
}
