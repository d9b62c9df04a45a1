//! How a worker says which data-parallel ranks it has: in the refusal of one that it does not have. It changes nothing.

use forebay_workers::Ranks;
use memchr::memmem;

/// The ranks in vLLM's `data_parallel_rank 9 is out of range [0, 8).`, if the text is that complaint.
pub(crate) fn told(text: &[u8]) -> Option<Ranks> {
    let behind = |text: &[u8], what: &str| memmem::find(text, what.as_bytes()).map(|at| at + what.len());
    let rest = &text[behind(text, "data_parallel_rank ")?..];
    let range = std::str::from_utf8(rest.get(behind(rest, " is out of range [")?..)?).ok()?;
    let (first, rest) = range.split_once(", ")?;
    let (end, _) = rest.split_once(')')?;
    Ranks::new(first.parse().ok()?..end.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_is_read_from_the_complaint_and_from_nothing_else() {
        let told = |range: &str| {
            let message = format!("data_parallel_rank 9 is out of range {range}.");
            told(format!(r#"{{"error":{{"message":"{message}","type":"BadRequestError"}}}}"#).as_bytes())
        };
        assert_eq!(told("[0, 8)"), Ranks::new(0..8));
        assert_eq!(told("[3, 4)"), Ranks::new(3..4));
        for odd in ["[0, 0)", "[8, 4)", "[0, 99999)", "[a, b)", "[0; 8)", "[-1, 8)", "[0, 8", ""] {
            assert_eq!(told(odd), None, "{odd}");
        }
        assert_eq!(super::told(b"max_tokens 9 is out of range [0, 8)."), None);
        assert_eq!(
            super::told("\u{fffd} data_parallel_rank 9 is out of range [0, \u{fffd})".as_bytes()),
            None
        );
    }
}
