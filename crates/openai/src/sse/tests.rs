use proptest::prelude::*;

use super::*;

const STREAM: &str = concat!(
    ": keep-alive\n\n",
    "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n",
    "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"usage\\\":{\"}}]}\r\n\r\n",
    "event: message_delta\rdata: {\"usage\": {\"output_tokens\":7}}\r\r",
    "\n\r\n\n",
    "id: 1\ndata: {\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\r\n",
    "data:{ \"error\" : {\"message\":\"x\"}}\n\n",
    "event: response.failed\ndata: {\"type\":\"response.failed\"}\n\n",
    "event:error\r\ndata: {}\r\n\r\n",
    "data: {\"error\":null}\n\n",
    "data: [DONE]\n\n",
);

const KINDS: [RecordKind; 10] = [
    RecordKind::Comment,
    RecordKind::Data,
    RecordKind::Data,
    RecordKind::Usage,
    RecordKind::Usage,
    RecordKind::Error,
    RecordKind::Error,
    RecordKind::Error,
    RecordKind::Data,
    RecordKind::Done,
];

/// What a stream cut at `cuts` gives: kinds with their ends in the stream, token counts, and bytes in whole records.
fn scan(stream: &[u8], cuts: &[usize]) -> (Vec<(RecordKind, usize)>, Usage, usize) {
    let mut scanner = SseScanner::default();
    let mut records = Vec::new();
    let mut start = 0;
    let mut whole = 0;
    for end in cuts.iter().copied().chain([stream.len()]) {
        let fed = scanner.feed(&stream[start..end], |record| {
            records.push((record.kind, start + record.end));
        });
        if fed > 0 {
            whole = start + fed;
        }
        start = end;
    }
    assert_eq!(scanner.at_boundary(), whole == stream.len());
    (records, scanner.usage(), whole)
}

#[test]
fn every_kind_of_record_is_told_and_counts_are_read() {
    let (records, usage, whole) = scan(STREAM.as_bytes(), &[]);
    let kinds: Vec<_> = records.iter().map(|record| record.0).collect();
    assert_eq!(kinds, KINDS);
    assert_eq!(usage, Usage { prompt_tokens: Some(5), completion_tokens: Some(2), cached_tokens: Some(4) });
    assert_eq!(whole, STREAM.len());
}

#[test]
fn a_record_is_not_whole_before_its_blank_line() {
    assert_eq!(scan(b"data: 1\n\ndata: 2\n", &[]), (vec![(RecordKind::Data, 9)], Usage::default(), 9));
    assert_eq!(scan(b"data: 1", &[3]).2, 0);
}

#[test]
fn a_line_feed_that_follows_later_belongs_to_the_record_before() {
    let (records, _, whole) = scan(b"data: 1\r\n\r\n", &[10]);
    assert_eq!(records, [(RecordKind::Data, 10)]);
    assert_eq!(whole, 11);
}

#[test]
fn words_inside_a_record_do_not_make_it_an_error() {
    let stream =
        b"data: {\"choices\":[{\"text\":\"event: error {\\\"error\\\"\"}]}\n\ndata: {\"errors\":1}\n\n";
    let kinds: Vec<_> = scan(stream, &[]).0.iter().map(|record| record.0).collect();
    assert_eq!(kinds, [RecordKind::Data, RecordKind::Data]);
}

fn same_but_for_line_feeds(stream: &[u8], cuts: &[usize]) {
    let (whole_records, usage, whole) = scan(stream, &[]);
    let (records, split_usage, split_whole) = scan(stream, cuts);
    assert_eq!(split_usage, usage, "{cuts:?}");
    assert_eq!(split_whole, whole, "{cuts:?}");
    assert_eq!(records.len(), whole_records.len(), "{cuts:?}");
    for (split, unsplit) in records.iter().zip(&whole_records) {
        assert_eq!(split.0, unsplit.0, "{cuts:?}");
        let late_line_feed = split.1 + 1 == unsplit.1 && stream[split.1] == b'\n' && cuts.contains(&split.1);
        assert!(split.1 == unsplit.1 || late_line_feed, "{cuts:?}");
    }
}

#[test]
fn a_stream_cut_in_two_anywhere_gives_the_same_records() {
    for cut in 0..=STREAM.len() {
        same_but_for_line_feeds(STREAM.as_bytes(), &[cut]);
    }
}

#[test]
fn a_stream_that_comes_byte_by_byte_gives_the_same_records() {
    let cuts: Vec<_> = (0..STREAM.len()).collect();
    same_but_for_line_feeds(STREAM.as_bytes(), &cuts);
}

proptest! {
    #[test]
    fn any_stream_cut_anywhere_gives_the_same_records(
        pieces in prop::collection::vec(prop::sample::select(vec![
            "\n", "\r", "\r\n", "\n\n", "data: ", "data:", ":", "event: error", "event: response.failed", "[DONE]",
            "{\"error\":{", "{\"error\": null", "\"usage\":{", "\"usage\":", "{\"prompt_tokens\":12,", "\"completion_tokens\": 3}}",
            "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "é",
        ]), 0..40),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let stream = pieces.concat().into_bytes();
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        cuts.sort_unstable();
        same_but_for_line_feeds(&stream, &cuts);
    }
}
