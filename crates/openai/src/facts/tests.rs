use super::*;

/// Asserts something about the facts of a body.
fn with(shape: BodyShape, body: &str, check: impl FnOnce(&Facts<'_>)) {
    check(&Facts::read(shape, body.as_bytes(), &mut Scratch::default()).unwrap());
}

fn chat(body: &str, check: impl FnOnce(&Facts<'_>)) {
    with(BodyShape::Chat, body, check);
}

#[test]
fn an_empty_body_has_the_defaults() {
    chat("{}", |facts| {
        assert_eq!(facts.model, ModelFact::Absent);
        assert_eq!((facts.n, facts.best_of, facts.max_tokens, facts.store), (1, 1, None, None));
        assert!(!facts.stream && !facts.use_beam_search && !facts.has_prompt_logprobs && !facts.background);
        assert_eq!(facts.session, SessionKeys::default());
        assert_eq!(facts.session.first(), None);
        assert!(facts.prompt.is_empty() && facts.strips.is_empty());
    });
}

#[test]
fn the_last_of_several_models_counts_and_is_unescaped() {
    chat(r#"{"model":"a","mod\u0065l":"b\/c"}"#, |facts| {
        assert_eq!(facts.model, ModelFact::Name("b/c".into()));
    });
    for (body, wanted) in [
        (r#"{"model":"a","model":null}"#, ModelFact::Absent),
        (r#"{"model":""}"#, ModelFact::Absent),
        (r#"{"model":7}"#, ModelFact::NotString),
        (r#"{"model":["a"]}"#, ModelFact::NotString),
        (r#"{"messages":[{"model":"a"}],"metadata":{"model":"b"}}"#, ModelFact::Absent),
    ] {
        chat(body, |facts| assert_eq!(facts.model, wanted, "{body}"));
    }
}

#[test]
fn a_plain_model_name_is_borrowed() {
    chat(r#"{"model":"a"}"#, |facts| {
        assert!(matches!(facts.model, ModelFact::Name(Cow::Borrowed("a"))));
    });
}

#[test]
fn session_keys_come_from_their_real_place_only() {
    let body = r#"{"messages":[{"role":"user","content":"\"user\":\"no\"","user":"no","session_id":"no"}],
        "session_params":{"x":{"session_id":"no"},"session_id":"s1"},"user":"u","session_id":42,"user_id":""}"#;
    chat(body, |facts| {
        assert_eq!(facts.session.session_params.as_deref(), Some("s1"));
        assert_eq!(facts.session.user.as_deref(), Some("u"));
        assert_eq!(facts.session.session_id.as_deref(), Some("42"));
        assert_eq!(facts.session.user_id, None);
        assert_eq!(facts.session.first().map(AsRef::as_ref), Some("s1"));
    });
    chat(r#"{"session_params":{"session_id":"a"},"session_params":{},"user":"u","user":"v"}"#, |facts| {
        assert_eq!(facts.session.first().map(AsRef::as_ref), Some("v"));
    });
}

#[test]
fn what_decides_how_a_request_is_served_is_read() {
    let body = r#"{"stream":true,"n":2,"best_of":"3","use_beam_search":1,"prompt_logprobs":0,"store":false,
        "background":true,"previous_response_id":"resp_1","lora_path":"l","cache_salt":"s","max_tokens":5,"max_completion_tokens":6}"#;
    chat(body, |facts| {
        assert!(facts.stream && facts.use_beam_search && facts.has_prompt_logprobs && facts.background);
        assert_eq!((facts.n, facts.best_of, facts.max_tokens), (2, 3, Some(6)));
        assert_eq!(facts.store, Some(false));
        assert_eq!(facts.previous_response_id.as_deref(), Some("resp_1"));
        assert_eq!((facts.lora, facts.cache_salt), (Some(&b"\"l\""[..]), Some(&b"\"s\""[..])));
    });
}

#[test]
fn sampling_params_count_where_the_top_says_nothing() {
    let body = r#"{"sampling_params":{"n":9,"max_tokens":9},"sampling_params":{"max_tokens":7,"prompt_logprobs":1,"extra_args":{}}}"#;
    with(BodyShape::Generate, body, |facts| {
        assert_eq!((facts.n, facts.max_tokens, facts.has_prompt_logprobs), (1, Some(7), true));
    });
}

#[test]
fn an_echo_with_logprobs_needs_logprobs_of_the_prompt() {
    for (body, wanted) in [
        (r#"{"echo":true,"logprobs":1}"#, true),
        (r#"{"echo":true,"logprobs":null}"#, false),
        (r#"{"echo":false,"logprobs":1}"#, false),
        (r#"{"prompt_logprobs":null}"#, false),
    ] {
        with(BodyShape::Completions, body, |facts| {
            assert_eq!(facts.has_prompt_logprobs, wanted, "{body}");
        });
    }
}

#[test]
fn a_scratch_that_was_used_before_changes_nothing() {
    let mut scratch = Scratch::default();
    let first = br#"{"bootstrap_room":1,"prompt":["caf\u00e9",2],"user":"u"}"#;
    let _ = Facts::read(BodyShape::Completions, first, &mut scratch).unwrap();
    assert!(Facts::read(BodyShape::Completions, b"{\"prompt\":[1 2", &mut scratch).is_err());
    let facts = Facts::read(BodyShape::Completions, b"{\"prompt\":\"x\"}", &mut scratch).unwrap();
    assert_eq!(facts.strips, []);
    assert_eq!(facts.session, SessionKeys::default());
    assert_eq!(facts.prompt.parts().unwrap().iter().collect::<Vec<_>>(), [b"x"]);
}

#[test]
fn ten_thousand_levels_in_every_place_do_not_overflow() {
    let deep = "[".repeat(10_000) + &"]".repeat(10_000);
    for shape in [BodyShape::Chat, BodyShape::Completions, BodyShape::Responses, BodyShape::Messages] {
        for name in ["messages", "prompt", "input", "system", "tools", "vllm_xargs", "sampling_params", "x"] {
            with(shape, &format!("{{\"{name}\":{deep},\"model\":\"m\"}}"), |facts| {
                assert_eq!(facts.model, ModelFact::Name("m".into()), "{name}");
            });
        }
    }
}

#[test]
fn every_known_name_is_found_at_its_length() {
    for slot in
        [BodyShape::Chat, BodyShape::ChatTokens, BodyShape::Responses, BodyShape::Score, BodyShape::Rerank]
            .iter()
            .flat_map(|shape| shape.slots())
    {
        assert!(MAX_SLOTS >= 11 && (slot.0 as usize) < Field::COUNT);
    }
    for name in [
        "n",
        "max_output_tokens",
        "continue_final_message",
        "session_params",
        "use_beam_search",
        "text_2",
        "best_of",
        "data_1",
    ] {
        assert!(Field::from_name(name.as_bytes()).is_some(), "{name}");
    }
    for name in ["", "nn", "Model", "models", "session_param", "prompts"] {
        assert!(Field::from_name(name.as_bytes()).is_none(), "{name}");
    }
}
