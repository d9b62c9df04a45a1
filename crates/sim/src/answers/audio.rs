//! Answers about sound: a worker without ears tells how many bytes it heard.

use memchr::memmem;

use crate::answer::{Answer, Record, quoted};
use crate::request::Request;
use crate::sse;
use crate::state::State;

pub(super) fn answer(state: &State, request: &Request<'_>) -> Answer {
    let model = field(request.body, "model");
    if !state.serves(model) {
        let message = format!("The model `{}` does not exist.", model.unwrap_or_default());
        return Answer::error(404, "NotFoundError", &message, Some("model"));
    }
    if memmem::find(request.body, b"name=\"file\"").is_none() {
        return Answer::invalid("missing", "body.file", "Field required");
    }
    let words = ["a", "form", "of", &format!("{}", request.body.len()), "bytes"].map(str::to_owned);
    if !field(request.body, "stream").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        let text = quoted(&words.join(" "));
        return Answer::json(200, format!(r#"{{"text":{text},"usage":{{"type":"duration","seconds":1}}}}"#));
    }
    let records = (1..).zip(&words).map(|(token, word)| {
        let delta = quoted(&format!("{word} "));
        let json = format!(
            r#"{{"id":"trsc-1","object":"transcription.chunk","created":1,"model":{},"choices":[{{"delta":{{"content":{delta}}},"finish_reason":null,"stop_reason":null}}]}}"#,
            quoted(model.unwrap_or(&state.options.model))
        );
        Record { token, bytes: sse::data(&json) }
    });
    let end = Record { token: words.len() as u64, bytes: sse::done() };
    Answer::stream(records.chain([end]).collect())
}

/// The value of a short text field of a form.
fn field<'a>(form: &'a [u8], name: &str) -> Option<&'a str> {
    let head = format!("name=\"{name}\"\r\n\r\n");
    let value = &form[memmem::find(form, head.as_bytes())? + head.len()..];
    std::str::from_utf8(&value[..memmem::find(value, b"\r\n")?]).ok()
}
