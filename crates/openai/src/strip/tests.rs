use proptest::prelude::*;
use serde_json::Value;

use crate::{BodyShape, Facts, InternalField, Place, Scratch, strip};
use bytes::Bytes;

/// What was found, and the body without it; a second read has to find nothing.
fn stripped(body: &[u8]) -> (Vec<(InternalField, Place)>, String) {
    let body = Bytes::copy_from_slice(body);
    let mut scratch = Scratch::default();
    let facts = Facts::read(BodyShape::Generate, &body, &mut scratch).unwrap();
    let found = facts.strips.iter().map(|strip| (strip.field, strip.place)).collect();
    let clean = strip::cut(&body, facts.strips);
    let again = Facts::read(BodyShape::Opaque, &clean, &mut scratch).unwrap();
    assert_eq!(again.strips, []);
    (found, String::from_utf8(clean.to_vec()).unwrap())
}

#[test]
fn every_internal_field_is_cut_from_every_place() {
    for field in InternalField::ALL {
        let name = field.as_str();
        // Of request ids only such a one is internal.
        let value = r#""___prefill_addr_10.0.0.1:1___decode_addr_x""#;
        let (found, clean) = stripped(
            format!(
                r#"{{"{name}":{value},"vllm_xargs":{{"x":1,"{name}":{value}}},"sampling_params":{{"n":1,"extra_args":{{"{name}":{value},"y":[]}}}}}}"#
            )
            .as_bytes(),
        );
        assert_eq!(found, [(field, Place::Top), (field, Place::VllmXargs), (field, Place::ExtraArgs)]);
        assert_eq!(clean, r#"{"vllm_xargs":{"x":1},"sampling_params":{"n":1,"extra_args":{"y":[]}}}"#);
    }
}

#[test]
fn escaped_and_duplicated_names_do_not_slip_through() {
    let (found, clean) = stripped(
        br#"{"\u006bv_transfer_params":1,"model":"m","kv_transfer_par\u0061ms":2, "kv_transfer_params" :3}"#,
    );
    assert_eq!(found.len(), 3);
    assert_eq!(clean, r#"{"model":"m" }"#);
}

#[test]
fn escaped_and_duplicated_containers_do_not_hide_anything() {
    let (found, clean) = stripped(
        br#"{"vllm_xargs":{"data_parallel_rank":1},"vllm\u005fxargs":{"data_parallel_rank":1},"sampling\u005fparams":{"extra\u005fargs":{"bootstrap_room":1},"extra_args":{"disagg_spec":1}}}"#,
    );
    assert_eq!(found.len(), 4);
    assert_eq!(
        clean,
        r#"{"vllm_xargs":{},"vllm\u005fxargs":{},"sampling\u005fparams":{"extra\u005fargs":{},"extra_args":{}}}"#
    );
}

#[test]
fn a_body_of_nothing_else_becomes_empty() {
    assert_eq!(stripped(b"{\"kv_transfer_params\":{}}").1, "{}");
    assert_eq!(stripped(b"{ \"kv_transfer_params\":{} ,\n\"bootstrap_port\":1 }\n").1, "{ \n }\n");
}

#[test]
fn names_elsewhere_stay() {
    let body = r#"{"messages":[{"kv_transfer_params":1}],"prompt":"\"kv_transfer_params\":1","x":{"vllm_xargs":{"bootstrap_room":1}},"KV_transfer_params":1,"kv_transfer_params ":2,"vllm_xargs":["bootstrap_room"],"sampling_params":{"bootstrap_room":1}}"#;
    assert_eq!(stripped(body.as_bytes()), (vec![], body.to_owned()));
}

#[test]
fn a_body_with_a_byte_order_mark_is_cut_at_the_right_place() {
    assert_eq!(stripped("\u{feff}{\"bootstrap_room\":1,\"n\":NaN}".as_bytes()).1, "\u{feff}{\"n\":NaN}");
}

/// An object of which some members are internal, with the same object without them.
fn object() -> impl Strategy<Value = (String, String)> {
    let inner = prop::sample::select(vec!["1", "\"a\\\"}\"", "[{},2]", "{\"kv_transfer_params\":1}"]);
    let name = prop::sample::select(vec![
        ("kv_transfer_params", true),
        ("\\u0062ootstrap_room", true),
        ("data_parallel\\u005frank", true),
        ("model", false),
        ("kv_transfer_param", false),
        ("n", false),
    ]);
    prop::collection::vec((name, inner), 0..7).prop_map(|members| {
        let text = |keep_all: bool| {
            let kept = members.iter().filter(|((_, internal), _)| keep_all || !internal);
            let kept: Vec<_> = kept.map(|((name, _), value)| format!("\"{name}\":{value}")).collect();
            format!("{{{}}}", kept.join(","))
        };
        (text(true), text(false))
    })
}

proptest! {
    #[test]
    fn all_that_is_not_internal_stays_byte_for_byte(top in object(), xargs in object(), args in object()) {
        let join = |a: &str, b: &str, c: &str| {
            let members = a.strip_suffix('}').unwrap();
            let comma = if members == "{" { "" } else { "," };
            format!("{members}{comma}\"vllm_xargs\":{b},\"sampling_params\":{{\"extra_args\":{c}}}}}")
        };
        let (_, clean) = stripped(join(&top.0, &xargs.0, &args.0).as_bytes());
        prop_assert_eq!(&clean, &join(&top.1, &xargs.1, &args.1));
        prop_assert!(serde_json::from_str::<Value>(&clean).is_ok());
    }
}

#[test]
fn request_ids_stay_unless_engines_would_read_an_address_in_them() {
    for stays in ["mine", "a___b", "x_addr_y", "_addr____", "__a_addr_"] {
        let body = format!(r#"{{"request_id":"{stays}","n":1}}"#);
        assert_eq!(stripped(body.as_bytes()), (vec![], body.clone()), "{stays}");
    }
    let (found, clean) = stripped(br#"{"n":1,"request\u005fid":"x___decode\u005faddr_10.0.0.1:9_y"}"#);
    assert_eq!((found, clean.as_str()), (vec![(InternalField::RequestId, Place::Top)], r#"{"n":1}"#));
}
