use proptest::prelude::*;

use crate::{BodyShape, Facts, Prompt, Scratch};

/// The parts of a prompt joined, with its control bytes made visible.
fn key(shape: BodyShape, body: &str) -> String {
    let mut scratch = Scratch::default();
    let facts = Facts::read(shape, body.as_bytes(), &mut scratch).unwrap();
    let mut bytes = Vec::new();
    if let Some(parts) = facts.prompt.parts() {
        parts.write_to(&mut bytes);
        assert_eq!(bytes.len(), facts.prompt.len());
    }
    let kind = match facts.prompt {
        Prompt::None => "none ",
        Prompt::Text(_) => "text ",
        Prompt::Ids(_) => "ids ",
    };
    let shown: String = String::from_utf8_lossy(&bytes)
        .chars()
        .map(|char| if char < ' ' { format!("<{:x}>", char as u32) } else { char.to_string() })
        .collect();
    format!("{kind}{shown}")
}

fn chat(messages: &str) -> String {
    key(BodyShape::Chat, &format!("{{\"messages\":{messages}}}"))
}

#[test]
fn completions_take_text_ids_and_lists_of_them() {
    let completions = |prompt: &str| key(BodyShape::Completions, &format!("{{\"prompt\":{prompt}}}"));
    assert_eq!(completions("\"a b\""), "text a b");
    assert_eq!(completions("[\"a b\"]"), "text a b");
    assert_eq!(completions("[\"a\",\"b\"]"), "text a<1e>b");
    assert_eq!(completions("[1,23]"), "ids 1,23");
    assert_eq!(completions("[ 1,\n 23 ]"), "ids 1,23");
    assert_eq!(completions("[[1,2],[3, 4]]"), "ids 1,2<1e>3,4");
    assert_eq!(completions("[]"), "none ");
    assert_eq!(completions("null"), "none ");
    assert_eq!(completions("{\"x\":1}"), "text {\"x\":1}");
    assert_eq!(completions("[{},\"a\",[]]"), "text {}<1e>a<1e>");
}

#[test]
fn a_text_and_one_text_part_give_the_same() {
    let wanted = "text <1>user<2>hi";
    assert_eq!(chat(r#"[{"role":"user","content":"hi"}]"#), wanted);
    assert_eq!(chat(r#"[{"content":[{"type":"text","text":"hi"}],"role":"user"}]"#), wanted);
    assert_eq!(chat(r#"[{"role":"user","content":["hi"],"name":null,"tool_calls":null}]"#), wanted);
    let input = |input: &str| key(BodyShape::Responses, &format!("{{\"input\":{input}}}"));
    assert_eq!(input("\"hi\""), wanted);
    assert_eq!(
        input(r#"[{"type":"message","role":"user","content":[{"text":"hi","type":"input_text"}]}]"#),
        wanted
    );
}

#[test]
fn clients_that_escape_all_but_ascii_give_the_same_as_others() {
    let escaped = r#"[{"role":"us\u0065r","content":"caf\u00e9 \ud83d\ude00\n"}]"#;
    assert_eq!(chat(escaped), chat(r#"[{"role":"user","content":"café 😀\n"}]"#));
    assert_eq!(chat(escaped), "text <1>user<2>café 😀\\n");
}

#[test]
fn what_a_template_puts_in_front_comes_first_whatever_the_order_of_the_body() {
    let wanted = "text <5>tools<6>[{\"a\":1}]<1d><5>chat_template<6>\"t\"<1d><1>user<2>hi<1d><5>add_generation_prompt<6>false";
    let members = [
        r#""tools":[{"a":1}]"#,
        r#""chat_template":"t""#,
        r#""messages":[{"role":"user","content":"hi"}]"#,
        r#""add_generation_prompt":false"#,
    ];
    let mut order = members;
    assert_eq!(key(BodyShape::Chat, &format!("{{{}}}", order.join(","))), wanted);
    order.reverse();
    assert_eq!(key(BodyShape::Chat, &format!("{{{}}}", order.join(","))), wanted);
}

#[test]
fn other_members_of_a_message_take_part_but_marks_and_nulls_do_not() {
    assert_eq!(
        chat(
            r#"[{"tool_calls":[{"id":"x"}],"role":"assistant","content":null,"refusal":null,"reasoning_content":"r"}]"#
        ),
        "text <1>assistant<2><5>tool_calls<6>[{\"id\":\"x\"}]<5>reasoning_content<6>\"r\""
    );
    let marked =
        r#"[{"role":"user","content":[{"type":"text","text":"hi","cache_control":{"type":"ephemeral"}}]}]"#;
    assert_eq!(key(BodyShape::Messages, &format!("{{\"messages\":{marked}}}")), "text <1>user<2>hi");
}

#[test]
fn of_duplicates_the_last_counts() {
    assert_eq!(chat(r#"[{"role":"a","content":"x","role":"b","content":["y","z"]}]"#), "text <1>b<2>y<3>z");
    assert_eq!(key(BodyShape::Completions, r#"{"prompt":"a","\u0070rompt":[1,2]}"#), "ids 1,2");
}

#[test]
fn images_take_part_by_address_or_digest() {
    let image = |url: &str| {
        chat(&format!(
            r#"[{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"{url}"}}}},{{"type":"text","text":"x"}}]}}]"#
        ))
    };
    assert_eq!(image("https://e/x.png"), "text <1>user<2><5>type<6>\"image_url\"<4>https://e/x.png<3>x");
    let data = |bytes: &str| image(&format!("data:image/png;base64,{bytes}"));
    assert_ne!(data("AAAA"), data("AAAB"));
    assert_eq!(data("AAAA"), data("AAAA"));
    assert!(data(&"A".repeat(10_000)).len() < 100);
    let sound = r#"[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"AAAA"}}]}]"#;
    assert!(!chat(sound).contains("AAAA"));
}

#[test]
fn lists_of_conversations_are_read_as_such() {
    assert_eq!(
        chat(r#"[[{"role":"user","content":"a"}],[{"role":"user","content":"b"}]]"#),
        "text <7><1>user<2>a<7><1>user<2>b"
    );
}

#[test]
fn ids_at_the_top_are_the_prompt_of_every_shape_but_opaque() {
    let body = r#"{"messages":[{"role":"user","content":"a"}],"prompt":"b","input":"c","prompt_token_ids":[1, 2],"token_ids":[3]}"#;
    for shape in [BodyShape::Chat, BodyShape::Completions, BodyShape::Generate, BodyShape::Score] {
        assert_eq!(key(shape, body), "ids 1,2");
    }
    assert_eq!(key(BodyShape::Opaque, body), "none ");
    assert_eq!(key(BodyShape::ChatTokens, r#"{"tokens":[7],"messages":[]}"#), "ids 7");
    assert_eq!(key(BodyShape::Generate, r#"{"token_ids":null}"#), "none ");
    assert_eq!(key(BodyShape::SglGenerate, r#"{"text":"x","input_ids":[9]}"#), "ids 9");
}

#[test]
fn every_other_shape_finds_its_prompt() {
    let cases = [
        (BodyShape::Responses, r#"{"input":"x","instructions":"i"}"#, "text i<1d><1>user<2>x"),
        (BodyShape::Messages, r#"{"messages":[],"system":[{"type":"text","text":"s"}]}"#, "text s"),
        (BodyShape::SglGenerate, r#"{"text":"x"}"#, "text x"),
        (BodyShape::Embeddings, r#"{"input":[[1],[2]]}"#, "ids 1<1e>2"),
        (BodyShape::Pooling, r#"{"messages":[{"role":"u","content":"x"}]}"#, "text <1>u<2>x"),
        (BodyShape::Classify, r#"{"input":["x","y"]}"#, "text x<1e>y"),
        (BodyShape::Score, r#"{"text_2":["d"],"text_1":"q"}"#, "text q<1d>d"),
        (
            BodyShape::Rerank,
            r#"{"query":"q","documents":["d",{"text":"e"}]}"#,
            "text q<1d>d<1e>{\"text\":\"e\"}",
        ),
    ];
    for (shape, body, wanted) in cases {
        assert_eq!(key(shape, body), wanted, "{body}");
    }
}

#[test]
fn odd_messages_take_part_as_they_are() {
    assert_eq!(chat(r#"["a",1,null,{"content":{"x":1}}]"#), "text <7>\"a\"<7>1<7><1><2>{\"x\":1}");
    assert_eq!(chat("{}"), "text {}");
}

#[test]
fn ids_are_counted_without_being_parsed() {
    let mut scratch = Scratch::default();
    let facts = Facts::read(BodyShape::Completions, b"{\"prompt\":[[1,2, 3],[],[4]]}", &mut scratch).unwrap();
    assert_eq!(facts.prompt.parts().unwrap().id_count(), 4);
}

proptest! {
    #[test]
    fn a_conversation_that_goes_on_keeps_its_beginning(
        texts in prop::collection::vec("[a-z\"\\\\\n é]{0,12}", 1..8), kept in any::<prop::sample::Index>(),
    ) {
        let messages: Vec<_> = texts.iter()
            .map(|text| format!("{{\"role\":\"user\",\"content\":{}}}", serde_json::Value::from(text.as_str())))
            .collect();
        let kept = kept.index(messages.len());
        let all = chat(&format!("[{}]", messages.join(",")));
        let beginning = chat(&format!("[{}]", messages[..=kept].join(",")));
        prop_assert!(all.starts_with(&beginning), "{} {}", all, beginning);
    }
}
