use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::Value;
use serde_json::value::RawValue;

use super::*;
use crate::Members;

/// Names and raw values of all top-level members, in order.
fn members(body: &[u8]) -> Result<Vec<(String, String)>, BodyError> {
    Members::new(body)?
        .map(|member| {
            let member = member?;
            let mut buffer = KeyBuffer::default();
            let name = String::from_utf8_lossy(member.key.name(body, &mut buffer)).into_owned();
            Ok((name, String::from_utf8_lossy(&body[member.value]).into_owned()))
        })
        .collect()
}

fn walked(body: &str) -> Vec<(String, String)> {
    members(body.as_bytes()).unwrap()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn members_are_told_in_order_with_their_commas() {
    let body = br#" { "a" : 1 , "b":[1,{"c":"]"}] ,"d":"x\"}" }"#;
    assert_eq!(members(body).unwrap(), pairs(&[("a", "1"), ("b", r#"[1,{"c":"]"}]"#), ("d", r#""x\"}""#)]));
    let commas: Vec<_> = Members::new(body)
        .unwrap()
        .map(|member| member.map(|member| (member.key.comma_before, member.comma_after)).unwrap())
        .collect();
    assert_eq!(commas, [(None, Some(11)), (Some(11), Some(31)), (Some(31), None)]);
}

#[test]
fn an_escaped_key_is_known_by_its_name() {
    assert_eq!(walked(r#"{"\u006bv_transfer_params":1,"\/":2,"\ud83d\ude00":3}"#)[0].0, "kv_transfer_params");
    assert_eq!(walked(r#"{"\/":2,"\ud83d\ude00":3}"#), pairs(&[("/", "2"), ("😀", "3")]));
}

#[test]
fn a_key_that_only_looks_escaped_keeps_its_backslash() {
    assert_eq!(walked(r#"{"\\u006bv":1}"#), pairs(&[(r"\u006bv", "1")]));
}

#[test]
fn what_only_python_accepts_is_walked() {
    let body = "{\"a\":NaN,\"b\":-Infinity,\"c\":1e400,\"a\":\"\\ud800\",\"d\":\"tab\there\"}";
    let keys: Vec<_> = walked(body).into_iter().map(|member| member.0).collect();
    assert_eq!(keys, ["a", "b", "c", "a", "d"]);
}

#[test]
fn a_byte_order_mark_comes_first_only() {
    assert_eq!(walked("\u{feff}{\"a\":1}"), pairs(&[("a", "1")]));
    assert!(members("\u{feff}\u{feff}{}".as_bytes()).is_err());
    assert!(members("{}\u{feff}".as_bytes()).is_err());
}

#[test]
fn wide_encodings_are_refused_because_their_members_are_elsewhere() {
    let wide = |unit: fn(u8) -> Vec<u8>| "{\"a\":1}".bytes().flat_map(unit).collect::<Vec<_>>();
    for body in [
        wide(|byte| vec![byte, 0]),
        wide(|byte| vec![0, byte]),
        wide(|byte| vec![byte, 0, 0, 0]),
        wide(|byte| vec![0, 0, 0, byte]),
        [vec![0xff, 0xfe], wide(|byte| vec![byte, 0])].concat(),
    ] {
        assert_eq!(members(&body), Err(BodyError::WideEncoding));
    }
}

#[test]
fn bytes_that_are_not_utf8_are_refused_wherever_they_are() {
    assert_eq!(members(b"{\"a\":\"\xff\"}"), Err(BodyError::NotUtf8));
    assert_eq!(members(b"{}\xc3"), Err(BodyError::NotUtf8));
    assert_eq!(members(b"{\"\xed\xa0\x80\":1}"), Err(BodyError::NotUtf8));
}

#[test]
fn ten_thousand_levels_do_not_overflow() {
    let deep = "[{\"a\":".repeat(10_000) + "1" + &"}]".repeat(10_000);
    let body = format!("{{\"deep\":{deep},\"after\":2}}");
    assert_eq!(walked(&body)[1], ("after".to_owned(), "2".to_owned()));
}

#[test]
fn runs_of_backslashes_are_counted() {
    assert_eq!(walked(r#"{"a":"\\","b":"\\\"","c":"\\\\"}"#).len(), 3);
    assert!(members(br#"{"a":"\\\"}"#).is_err());
    assert_eq!(walked(r#"{"\\":1,"\"":2}"#).len(), 2);
}

#[test]
fn what_cannot_be_walked_says_where() {
    for (body, offset) in [
        ("", 0),
        ("[1]", 0),
        ("{", 1),
        ("{\"a\"}", 4),
        ("{\"a\":}", 5),
        ("{\"a\":1", 6),
        ("{\"a\":1,}", 7),
        ("{\"a\":1 \"b\":2}", 7),
        ("{\"a\":[1}", 5),
        ("{\"a\":\"x}", 5),
        ("{\"a\":1}{", 7),
        ("{a:1}", 1),
        ("{\"a\":1}\u{b}", 7),
    ] {
        match members(body.as_bytes()) {
            Err(BodyError::Broken { offset: found, .. }) => assert_eq!(found, offset, "{body}"),
            other => panic!("{body}: {other:?}"),
        }
    }
}

#[test]
fn arrays_are_walked_element_by_element() {
    let body = br#"[ 1 ,"]", [2] , {"a":[]} ]x"#;
    let mut array = Array::open(body, 0).unwrap();
    let mut elements = Vec::new();
    while array.next_element().unwrap().is_some() {
        elements.push(&body[array.skip_element().unwrap()]);
    }
    assert_eq!(elements, [&b"1"[..], b"\"]\"", b"[2]", br#"{"a":[]}"#]);
    assert_eq!(&body[array.end()..], b"x");
    assert!(Array::open(b"[]", 0).unwrap().next_element().unwrap().is_none());
}

/// JSON text with whitespace and escapes in all the places that allow them.
fn json_text() -> impl Strategy<Value = String> {
    let scalar = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        any::<i32>().prop_map(|number| number.to_string()),
        any::<f32>()
            .prop_filter("finite", |number| number.is_finite())
            .prop_map(|number| format!("{number:e}")),
        string_text(),
    ];
    scalar.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            (prop::collection::vec((space(), inner.clone(), space()), 0..6), space())
                .prop_map(|(items, pad)| bracket('[', items, &pad, ']')),
            object_text(inner),
        ]
    })
}

fn bracket(open: char, items: Vec<(String, String, String)>, pad: &str, close: char) -> String {
    let items: Vec<_> = items.into_iter().map(|(a, b, c)| a + &b + &c).collect();
    format!("{open}{pad}{}{close}", items.join(","))
}

fn object_text(value: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    let member = (space(), string_text(), space(), space(), value, space())
        .prop_map(|(a, key, b, c, value, d)| (a, format!("{key}{b}:{c}{value}"), d));
    (prop::collection::vec(member, 0..6), space()).prop_map(|(items, pad)| bracket('{', items, &pad, '}'))
}

fn space() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["", "", "", " ", "\n", "\t \r\n"]).prop_map(str::to_owned)
}

fn string_text() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "a",
        "kv",
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        " ",
        "\\\"",
        "\\\\",
        "\\/",
        "\\n",
        "\\u0041",
        "\\u00e9",
        "é",
        "\\ud83d\\ude00",
        "中",
        "\\u005c",
        "\\u0022",
    ]);
    prop::collection::vec(piece, 0..8).prop_map(|pieces| format!("\"{}\"", pieces.concat()))
}

proptest! {
    #[test]
    fn members_are_where_serde_json_sees_them(body in object_text(json_text())) {
        let found = members(body.as_bytes()).unwrap();
        let wanted: BTreeMap<String, Box<RawValue>> = serde_json::from_str(&body).unwrap();
        let found_last: BTreeMap<_, _> = found.iter().cloned().collect();
        prop_assert_eq!(found_last.len(), wanted.len());
        for (key, value) in &wanted {
            prop_assert_eq!(found_last[key].as_str(), value.get());
        }
        // All of them, in order: walking text that is rebuilt from what was found finds the same again.
        let rebuilt: Vec<_> = found.iter().map(|(key, value)| format!("{}:{value}", Value::from(key.as_str()))).collect();
        prop_assert_eq!(members(format!("{{{}}}", rebuilt.join(",")).as_bytes()).unwrap(), found);
    }

    #[test]
    fn any_bytes_are_walked_without_panic(body in prop::collection::vec(prop::sample::select(b"{}[]\",:\\u0a \xef\xbb\xbf\0".to_vec()), 0..60)) {
        let _ = members(&body);
    }

    #[test]
    fn a_body_that_is_cut_off_is_never_walked_to_its_end(body in object_text(json_text()), cut in any::<prop::sample::Index>()) {
        let end = cut.index(body.len());
        prop_assert!(members(&body.as_bytes()[..end]).is_err());
    }
}
