use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;

fn changed(body: &str, path: &[&str], changes: &[Change<'_>]) -> String {
    let body = Bytes::from(body.to_owned());
    let mut splices = Splices::default();
    splices.change(&body, path, changes).unwrap();
    String::from_utf8(splices.apply(&body).to_vec()).unwrap()
}

fn set(name: &'static str, value: &'static str) -> Change<'static> {
    Change::Set(name, Bytes::from_static(value.as_bytes()))
}

#[test]
fn without_edits_the_body_itself_is_given_back() {
    let body = Bytes::from_static(b"{}");
    assert_eq!(Splices::default().apply(&body).as_ptr(), body.as_ptr());
}

#[test]
fn a_cut_member_takes_one_comma_with_it() {
    let body = r#"{ "a":1 , "b":2 , "c":3 }"#;
    assert_eq!(changed(body, &[], &[Change::Cut("a")]), r#"{  "b":2 , "c":3 }"#);
    assert_eq!(changed(body, &[], &[Change::Cut("b")]), r#"{ "a":1 ,  "c":3 }"#);
    assert_eq!(changed(body, &[], &[Change::Cut("c")]), r#"{ "a":1 , "b":2  }"#);
    assert_eq!(changed(body, &[], &[Change::Cut("b"), Change::Cut("c")]), r#"{ "a":1   }"#);
    assert_eq!(changed(body, &[], &[Change::Cut("a"), Change::Cut("c")]), r#"{  "b":2  }"#);
    assert_eq!(changed(body, &[], &["a", "b", "c"].map(Change::Cut)), "{    }");
    assert_eq!(changed(body, &[], &[Change::Cut("x")]), body);
}

#[test]
fn a_value_is_replaced_in_every_duplicate_and_inserted_if_absent() {
    assert_eq!(changed(r#"{"a":1,"\u0061": 2}"#, &[], &[set("a", "9")]), r#"{"a":9,"\u0061": 9}"#);
    assert_eq!(changed(r#"{ "b":1}"#, &[], &[set("a", "9")]), r#"{"a":9, "b":1}"#);
    assert_eq!(changed("{ }", &[], &[set("a", "9"), set("b\"", "8")]), r#"{"a":9,"b\"":8 }"#);
}

#[test]
fn an_insert_into_an_object_that_is_cut_empty_needs_no_comma() {
    assert_eq!(
        changed(r#"{"b":1,"c":2}"#, &[], &[Change::Cut("b"), set("a", "9"), Change::Cut("c")]),
        r#"{"a":9}"#
    );
}

#[test]
fn nested_objects_are_changed_in_place_or_made() {
    let changes = [set("n", "1"), Change::Cut("x")];
    assert_eq!(changed(r#"{"p":{"x":0,"y":2}}"#, &["p"], &changes), r#"{"p":{"n":1,"y":2}}"#);
    assert_eq!(changed(r#"{"p":null,"q":1}"#, &["p"], &changes), r#"{"p":{"n":1},"q":1}"#);
    assert_eq!(changed("{}", &["p", "q"], &changes), r#"{"p":{"q":{"n":1}}}"#);
    assert_eq!(changed("{}", &["p"], &[Change::Cut("x")]), "{}");
    assert_eq!(changed(r#"{"p":{},"p":{"x":1}}"#, &["p"], &changes), r#"{"p":{"n":1},"p":{"n":1}}"#);
}

#[test]
fn changes_of_several_objects_go_together() {
    let body = Bytes::from_static(b"{}");
    let mut splices = Splices::default();
    splices.change(&body, &[], &[set("a", "1")]).unwrap();
    splices.change(&body, &["p"], &[set("b", "2")]).unwrap();
    assert_eq!(splices.apply(&body), r#"{"a":1,"p":{"b":2}}"#);
}

#[test]
fn an_object_that_one_call_cuts_empty_takes_the_insert_of_another() {
    let body = Bytes::from_static(b"{\"stream\":true}");
    for nested_first in [true, false] {
        let mut splices = Splices::default();
        let nested = |splices: &mut Splices| splices.change(&body, &["p"], &[set("b", "2")]).unwrap();
        if nested_first {
            nested(&mut splices);
        }
        splices.change(&body, &[], &[Change::Cut("stream")]).unwrap();
        if !nested_first {
            nested(&mut splices);
        }
        assert_eq!(splices.apply(&body), r#"{"p":{"b":2}}"#);
    }
}

#[test]
fn a_body_that_cannot_be_walked_adds_no_edit() {
    let mut splices = Splices::default();
    assert!(splices.change(b"{\"a\":1,\"b\"", &[], &[Change::Cut("a")]).is_err());
    assert!(splices.is_empty());
}

#[test]
fn of_edits_that_overlap_the_first_holds() {
    let body = Bytes::from_static(b"0123456789");
    let mut splices = Splices::default();
    splices.replace(4..6, Bytes::from_static(b"b"));
    splices.replace(2..5, Bytes::from_static(b"a"));
    splices.replace(9..30, Bytes::from_static(b"c"));
    assert_eq!(splices.apply(&body), "01a56789");
}

#[test]
fn pieces_share_the_memory_of_the_body() {
    let body = Bytes::from_static(b"{\"a\":1,\"b\":2}");
    let mut splices = Splices::default();
    splices.change(&body, &[], &[set("a", "9")]).unwrap();
    let pieces = splices.pieces(&body);
    assert_eq!(pieces[0].as_ptr(), body.as_ptr());
    assert_eq!(pieces.concat(), b"{\"a\":9,\"b\":2}");
}

fn name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b", "c", "d", "\\u0061", "é"])
}

fn body() -> impl Strategy<Value = String> {
    let value =
        prop::sample::select(vec!["1", "\"x,}\"", "[1, {\"a\":2}]", "{\"a\":1,\"b\":2}", "null", "{ }"]);
    let space = prop::sample::select(vec!["", " ", "\n"]);
    let member = (space.clone(), name(), space.clone(), value, space.clone())
        .prop_map(|(a, name, b, value, c)| format!("{a}\"{name}\"{b}:{b}{value}{c}"));
    (prop::collection::vec(member, 0..7), space)
        .prop_map(|(members, pad)| format!("{pad}{{{pad}{}}}{pad}", members.join(",")))
}

fn change() -> impl Strategy<Value = (&'static str, Option<i32>)> {
    (prop::sample::select(vec!["a", "b", "c", "e", "é"]), prop::option::of(any::<i32>()))
}

proptest! {
    #[test]
    fn exactly_the_meant_members_change(body in body(), changes in prop::collection::hash_map(
        change().prop_map(|change| change.0), prop::option::of(any::<i32>()), 0..4)) {
        let mut wanted: Map<String, Value> = serde_json::from_str(&body).unwrap();
        let list: Vec<_> = changes.iter().map(|(name, value)| match value {
            None => Change::Cut(name),
            Some(value) => Change::Set(name, Bytes::from(value.to_string())),
        }).collect();
        for (name, value) in &changes {
            match value {
                None => { wanted.remove(*name); }
                Some(value) => { wanted.insert((*name).to_owned(), json!(value)); }
            }
        }
        let after = changed(&body, &[], &list);
        let found: Map<String, Value> = serde_json::from_str(&after).map_err(|error| {
            TestCaseError::fail(format!("{body} -> {after}: {error}"))
        })?;
        prop_assert_eq!(found, wanted, "{} -> {}", body, after);
    }

    #[test]
    fn what_is_set_and_cut_again_leaves_every_byte_as_it_was(body in body()) {
        let set = changed(&body, &[], &[set("zz", "[1,2]")]);
        let cut = changed(&set, &[], &[Change::Cut("zz")]);
        prop_assert_eq!(cut, body);
    }
}
