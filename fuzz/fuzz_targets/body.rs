//! Any bytes as a body: nothing panics, a cut body has nothing left to cut, and edits do not change what is not meant.
#![no_main]

use bytes::Bytes;
use forebay_openai::{BodyShape, Change, Facts, Members, Scratch, Splices, strip};
use libfuzzer_sys::fuzz_target;

const SHAPES: [BodyShape; 13] = [
    BodyShape::Chat,
    BodyShape::ChatTokens,
    BodyShape::Completions,
    BodyShape::Responses,
    BodyShape::Messages,
    BodyShape::Generate,
    BodyShape::SglGenerate,
    BodyShape::Embeddings,
    BodyShape::Pooling,
    BodyShape::Classify,
    BodyShape::Score,
    BodyShape::Rerank,
    BodyShape::Opaque,
];

fuzz_target!(|data: &[u8]| {
    let Some((choice, body)) = data.split_first() else { return };
    let shape = SHAPES[usize::from(*choice) % SHAPES.len()];
    let body = Bytes::copy_from_slice(body);
    let mut scratch = Scratch::default();
    let Ok(facts) = Facts::read(shape, &body, &mut scratch) else { return };
    let length: usize = facts.prompt.parts().map_or(0, |parts| parts.iter().map(<[u8]>::len).sum());
    assert_eq!(length, facts.prompt.len());
    let clean = strip::cut(&body, facts.strips);

    let mut second = Scratch::default();
    let again = Facts::read(shape, &clean, &mut second).expect("a cut body can be read");
    assert!(again.strips.is_empty());
    assert_eq!(again.model, facts.model);
    assert_eq!(again.session, facts.session);

    // Bodies that are not JSON may be walked by one and refused by the other.
    let set = [Change::Set("\u{1}none", Bytes::from_static(b"[1]"))];
    let mut splices = Splices::default();
    if splices.change(&body, &[], &set).is_ok() {
        let members = Members::new(&body).expect("it was changed").count();
        let edited = splices.apply(&body);
        assert_eq!(edited.len(), splices.pieces(&body).iter().map(Bytes::len).sum::<usize>());
        let added = Members::new(&edited).expect("an edited body can be walked").count() - members;
        assert!(added <= 1);
    }

    let mut nested = Splices::default();
    let _ = nested.change(&body, &["sampling_params", "extra_args"], &set);
    let _ = nested.apply(&body);
});
