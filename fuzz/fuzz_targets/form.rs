//! Any bytes as a form, split anywhere: nothing panics, the same is read as unsplit, and the model's name is where it is said to
//! be.
#![no_main]

use forebay_openai::{FormReader, form};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8], &[u8])| {
    let (step, kind, wire) = input;
    let boundary = form::boundary(kind).unwrap_or_else(|| b"b".to_vec());
    let (mut at_once, mut by_and_by) = (FormReader::new(&boundary), FormReader::new(&boundary));
    at_once.read(wire);
    for end in (0..wire.len()).step_by(usize::from(step).max(1)) {
        by_and_by.read(&wire[..end]);
    }
    by_and_by.read(wire);
    let told = |form: &FormReader| (form.model_place(), form.stream(), form.is_over());
    assert_eq!(told(&at_once), told(&by_and_by));
    let named = at_once.model_place().map(|place| &wire[place]);
    assert_eq!(named, at_once.model().map(str::as_bytes));
});
