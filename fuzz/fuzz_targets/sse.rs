//! Any stream, split anywhere: the same records and token counts as unsplit.
#![no_main]

use forebay_openai::{RecordKind, SseScanner, Usage};
use libfuzzer_sys::fuzz_target;

fn scan<'a>(chunks: impl Iterator<Item = &'a [u8]>) -> (Vec<RecordKind>, Usage, bool) {
    let mut scanner = SseScanner::default();
    let mut kinds = Vec::new();
    for chunk in chunks {
        let mut end = 0;
        let whole = scanner.feed(chunk, |record| {
            assert!(record.end > end && record.end <= chunk.len());
            end = record.end;
            kinds.push(record.kind);
        });
        assert!(whole >= end && whole <= chunk.len());
    }
    (kinds, scanner.usage(), scanner.at_boundary())
}

fuzz_target!(|data: &[u8]| {
    let Some((step, stream)) = data.split_first() else { return };
    let step = usize::from(*step).max(1);
    assert_eq!(scan(std::iter::once(stream)), scan(stream.chunks(step)));
});
