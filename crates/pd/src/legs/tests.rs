use super::*;
use crate::connector::Connector::{Bootstrap as Boot, Lmcache, Nccl, Nixl, NixlPush};
use crate::endpoint::Endpoint::{Chat, Completions, Generate, Messages, Responses};
use crate::hand_over::Prefilled;
use crate::room::Rooms;

/// Connector, endpoint, what the client sends, what the prefill worker gets, what the decode worker gets. `<O>` is the order
/// to hand over, `<K>` what is handed over, `@` the bootstrap members where the pair has them.
type Row = (Connector, Endpoint, &'static str, &'static str, &'static str);

/// Each endpoint not streamed and streamed. Written by hand from what the engines take.
#[rustfmt::skip]
const ROWS: &[Row] = &[
    (Nixl, Chat,
     r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"max_completion_tokens":30,"seed":1.50}"#,
     r#"{"max_tokens":1,"min_tokens":1,"kv_transfer_params":<O>,@"model":"m","messages":[{"role":"user","content":"hi"}],"max_completion_tokens":1,"seed":1.50}"#,
     r#"{"kv_transfer_params":<K>,@"model":"m","messages":[{"role":"user","content":"hi"}],"max_completion_tokens":30,"seed":1.50}"#),
    (Nixl, Chat,
     r#"{"model":"m","messages":[],"max_tokens":30,"min_tokens":5,"stream":true,"stream_options":{"include_usage":true}}"#,
     r#"{"kv_transfer_params":<O>,@"model":"m","messages":[],"max_tokens":1,"min_tokens":1,"stream":false}"#,
     r#"{"kv_transfer_params":<K>,@"model":"m","messages":[],"max_tokens":30,"min_tokens":5,"stream":true,"stream_options":{"include_usage":true}}"#),
    (Nixl, Completions,
     r#"{"model":"m","prompt":"hi"}"#,
     r#"{"max_tokens":1,"min_tokens":1,"kv_transfer_params":<O>,@"model":"m","prompt":"hi"}"#,
     r#"{"kv_transfer_params":<K>,@"model":"m","prompt":"hi"}"#),
    (Nixl, Completions,
     r#"{ "stream" : true, "prompt":[1,2,3], "max_tokens":16, "stream_options":null }"#,
     r#"{"min_tokens":1,"kv_transfer_params":<O>,@ "stream" : false, "prompt":[1,2,3], "max_tokens":1 }"#,
     r#"{"kv_transfer_params":<K>,@ "stream" : true, "prompt":[1,2,3], "max_tokens":16, "stream_options":null }"#),
    (Nixl, Responses,
     r#"{"model":"m","input":"hi","max_output_tokens":30,"min_tokens":4}"#,
     r#"{"store":false,"kv_transfer_params":<O>,@"model":"m","input":"hi","max_output_tokens":1}"#,
     r#"{"kv_transfer_params":<K>,@"model":"m","input":"hi","max_output_tokens":30,"min_tokens":4}"#),
    (Nixl, Responses,
     r#"{"model":"m","input":"hi","store":true,"background":false,"stream":true}"#,
     r#"{"max_output_tokens":1,"kv_transfer_params":<O>,@"model":"m","input":"hi","store":false,"background":false,"stream":false}"#,
     r#"{"kv_transfer_params":<K>,@"model":"m","input":"hi","store":true,"background":false,"stream":true}"#),
    (Nixl, Messages,
     r#"{"model":"m","max_tokens":64,"messages":[]}"#,
     r#"{"kv_transfer_params":<O>,@"model":"m","max_tokens":1,"messages":[]}"#,
     r#"{"kv_transfer_params":<K>,@"model":"m","max_tokens":64,"messages":[]}"#),
    (Nixl, Messages,
     r#"{"model":"m","max_tokens":64,"messages":[],"min_tokens":3,"stream":true}"#,
     r#"{"kv_transfer_params":<O>,@"model":"m","max_tokens":1,"messages":[],"stream":false}"#,
     r#"{"kv_transfer_params":<K>,@"model":"m","max_tokens":64,"messages":[],"min_tokens":3,"stream":true}"#),
    (Nixl, Generate,
     r#"{"token_ids":[1,2],"sampling_params":{"max_tokens":8,"temperature":0}}"#,
     r#"{"kv_transfer_params":<O>,@"token_ids":[1,2],"sampling_params":{"min_tokens":1,"max_tokens":1,"temperature":0}}"#,
     r#"{"kv_transfer_params":<K>,@"token_ids":[1,2],"sampling_params":{"max_tokens":8,"temperature":0}}"#),
    (Nixl, Generate,
     r#"{"token_ids":[1,2],"stream":true}"#,
     r#"{"kv_transfer_params":<O>,@"sampling_params":{"max_tokens":1,"min_tokens":1},"token_ids":[1,2],"stream":false}"#,
     r#"{"kv_transfer_params":<K>,@"token_ids":[1,2],"stream":true}"#),
    (NixlPush, Chat,
     r#"{"messages":[],"max_tokens":30}"#,
     r#"{"min_tokens":1,"kv_transfer_params":<O>,"messages":[],"max_tokens":1}"#,
     r#"{"kv_transfer_params":<K:chatcmpl-id1>,"messages":[],"max_tokens":30}"#),
    (NixlPush, Chat,
     r#"{"messages":[],"max_tokens":30,"stream":true}"#,
     r#"{"min_tokens":1,"kv_transfer_params":<O>,"messages":[],"max_tokens":1,"stream":false}"#,
     r#"{"kv_transfer_params":<K:chatcmpl-id1>,"messages":[],"max_tokens":30,"stream":true}"#),
    (NixlPush, Completions,
     r#"{"prompt":"hi","max_tokens":30}"#,
     r#"{"min_tokens":1,"kv_transfer_params":<O>,"prompt":"hi","max_tokens":1}"#,
     r#"{"kv_transfer_params":<K:cmpl-id1-0>,"prompt":"hi","max_tokens":30}"#),
    (NixlPush, Completions,
     r#"{"prompt":"hi","max_tokens":30,"stream":true}"#,
     r#"{"min_tokens":1,"kv_transfer_params":<O>,"prompt":"hi","max_tokens":1,"stream":false}"#,
     r#"{"kv_transfer_params":<K:cmpl-id1-0>,"prompt":"hi","max_tokens":30,"stream":true}"#),
    (NixlPush, Responses,
     r#"{"input":"hi","request_id":"mine"}"#,
     r#"{"max_output_tokens":1,"store":false,"kv_transfer_params":<O>,"input":"hi","request_id":"id1"}"#,
     r#"{"kv_transfer_params":<K:id1>,"input":"hi","request_id":"id1"}"#),
    (NixlPush, Responses,
     r#"{"input":"hi","stream":true}"#,
     r#"{"max_output_tokens":1,"store":false,"kv_transfer_params":<O>,"request_id":"id1","input":"hi","stream":false}"#,
     r#"{"kv_transfer_params":<K:id1>,"request_id":"id1","input":"hi","stream":true}"#),
    (NixlPush, Messages,
     r#"{"max_tokens":64,"messages":[]}"#,
     r#"{"kv_transfer_params":<O>,"max_tokens":1,"messages":[]}"#,
     r#"{"kv_transfer_params":<K:chatcmpl-id1>,"max_tokens":64,"messages":[]}"#),
    (NixlPush, Messages,
     r#"{"max_tokens":64,"messages":[],"stream":true}"#,
     r#"{"kv_transfer_params":<O>,"max_tokens":1,"messages":[],"stream":false}"#,
     r#"{"kv_transfer_params":<K:chatcmpl-id1>,"max_tokens":64,"messages":[],"stream":true}"#),
    (NixlPush, Generate,
     r#"{"token_ids":[1,2],"sampling_params":{}}"#,
     r#"{"kv_transfer_params":<O>,"token_ids":[1,2],"sampling_params":{"max_tokens":1,"min_tokens":1}}"#,
     r#"{"kv_transfer_params":<K:generate-tokens-id1>,"token_ids":[1,2],"sampling_params":{}}"#),
    (NixlPush, Generate,
     r#"{"token_ids":[1,2],"sampling_params":{"max_tokens":9},"stream":true,"stream_options":{}}"#,
     r#"{"kv_transfer_params":<O>,"token_ids":[1,2],"sampling_params":{"min_tokens":1,"max_tokens":1},"stream":false}"#,
     r#"{"kv_transfer_params":<K:generate-tokens-id1>,"token_ids":[1,2],"sampling_params":{"max_tokens":9},"stream":true,"stream_options":{}}"#),
    (Boot, Chat,
     r#"{"messages":[],"max_tokens":30}"#,
     r#"{@"messages":[],"max_tokens":30}"#,
     r#"{@"messages":[],"max_tokens":30}"#),
    (Boot, Chat,
     r#"{"messages":[],"stream":true,"stream_options":{"include_usage":true}}"#,
     r#"{@"messages":[],"stream":true,"stream_options":{"include_usage":true}}"#,
     r#"{@"messages":[],"stream":true,"stream_options":{"include_usage":true}}"#),
    (Boot, Completions, r#"{"prompt":"hi"}"#, r#"{@"prompt":"hi"}"#, r#"{@"prompt":"hi"}"#),
    (Boot, Completions, r#"{"prompt":"hi","stream":true}"#, r#"{@"prompt":"hi","stream":true}"#, r#"{@"prompt":"hi","stream":true}"#),
    (Boot, Responses, r#"{"input":"hi"}"#, r#"{@"input":"hi"}"#, r#"{@"input":"hi"}"#),
    (Boot, Responses, r#"{"input":"hi","stream":true}"#, r#"{@"input":"hi","stream":true}"#, r#"{@"input":"hi","stream":true}"#),
    (Boot, Messages, r#"{"messages":[],"max_tokens":1}"#, r#"{@"messages":[],"max_tokens":1}"#, r#"{@"messages":[],"max_tokens":1}"#),
    (Boot, Messages, r#"{"messages":[],"stream":true}"#, r#"{@"messages":[],"stream":true}"#, r#"{@"messages":[],"stream":true}"#),
    (Boot, Generate, r#"{"token_ids":[1]}"#, r#"{@"token_ids":[1]}"#, r#"{@"token_ids":[1]}"#),
    (Boot, Generate, r#"{"token_ids":[1],"stream":true}"#, r#"{@"token_ids":[1],"stream":true}"#, r#"{@"token_ids":[1],"stream":true}"#),
    (Nccl, Chat,
     r#"{"messages":[],"max_completion_tokens":30,"min_tokens":2,"min_completion_tokens":2}"#,
     r#"{"max_tokens":1,"messages":[],"max_completion_tokens":1,"min_tokens":1}"#,
     r#"{"messages":[],"max_completion_tokens":30,"min_tokens":2,"min_completion_tokens":2}"#),
    (Nccl, Chat,
     r#"{"messages":[],"max_tokens":30,"stream":true,"stream_options":{"include_usage":true}}"#,
     r#"{"min_tokens":1,"messages":[],"max_tokens":1,"stream":false}"#,
     r#"{"messages":[],"max_tokens":30,"stream":true,"stream_options":{"include_usage":true}}"#),
    (Nccl, Completions,
     r#"{"prompt":"hi","temperature":0.70}"#,
     r#"{"max_tokens":1,"min_tokens":1,"prompt":"hi","temperature":0.70}"#,
     r#"{"prompt":"hi","temperature":0.70}"#),
    (Nccl, Completions,
     r#"{"prompt":[1,2],"max_tokens":30,"stream":true}"#,
     r#"{"min_tokens":1,"prompt":[1,2],"max_tokens":1,"stream":false}"#,
     r#"{"prompt":[1,2],"max_tokens":30,"stream":true}"#),
    (Nccl, Responses,
     r#"{"input":"hi","request_id":"mine","max_output_tokens":9}"#,
     r#"{"store":false,"input":"hi","request_id":"id1","max_output_tokens":1}"#,
     r#"{"input":"hi","request_id":"id1","max_output_tokens":9}"#),
    (Nccl, Responses,
     r#"{"input":"hi","stream":true}"#,
     r#"{"max_output_tokens":1,"store":false,"request_id":"id1","input":"hi","stream":false}"#,
     r#"{"request_id":"id1","input":"hi","stream":true}"#),
    (Nccl, Messages,
     r#"{"max_tokens":64,"messages":[]}"#,
     r#"{"max_tokens":1,"messages":[]}"#,
     r#"{"max_tokens":64,"messages":[]}"#),
    (Nccl, Messages,
     r#"{"max_tokens":64,"messages":[],"stream":true}"#,
     r#"{"max_tokens":1,"messages":[],"stream":false}"#,
     r#"{"max_tokens":64,"messages":[],"stream":true}"#),
    (Nccl, Generate,
     r#"{"token_ids":[1,2],"sampling_params":{"max_tokens":9}}"#,
     r#"{"token_ids":[1,2],"sampling_params":{"min_tokens":1,"max_tokens":1}}"#,
     r#"{"token_ids":[1,2],"sampling_params":{"max_tokens":9}}"#),
    (Nccl, Generate,
     r#"{"token_ids":[1,2],"stream":true}"#,
     r#"{"sampling_params":{"max_tokens":1,"min_tokens":1},"token_ids":[1,2],"stream":false}"#,
     r#"{"token_ids":[1,2],"stream":true}"#),
];

const ORDER: &str = r#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}"#;
const PUSH_ORDER: &str = r#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null,"transfer_id":"xfer-id1"}"#;
const HANDED_OVER: &str = r#"{"do_remote_prefill":true,"do_remote_decode":false, "remote_block_ids":[[2,3]],"remote_engine_id":"e1","remote_request_id":"r1","remote_host":"10.0.0.7","remote_port":8701,"tp_size":2,"transfer_mode":"push"}"#;
const BY_PEER: &str = r#"{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"e1","remote_host":"10.0.0.7","remote_port":8701,"tp_size":2,"pp_size":1,"remote_request_id":"<ID>","transfer_id":"xfer-id1"}"#;

fn prefilled(connector: Connector) -> Prefilled {
    let answer = format!(r#"{{"id":"x","kv_transfer_params":{HANDED_OVER}}}"#);
    Prefilled::read(&Bytes::from(answer), connector, 0).unwrap()
}

/// An expectation as the bytes it stands for.
fn wanted(text: &str, connector: Connector, bootstrap: &str) -> String {
    let order = if connector == NixlPush { PUSH_ORDER } else { ORDER };
    let text = text.replace("<O>", order).replace("<K>", HANDED_OVER).replace('@', bootstrap);
    match text.split_once("<K:") {
        Some((before, rest)) => {
            let (id, after) = rest.split_once('>').unwrap();
            format!("{before}{}{after}", BY_PEER.replace("<ID>", id))
        }
        None => text,
    }
}

#[test]
fn both_legs_of_every_connector_endpoint_and_stream_with_and_without_bootstrap_port() {
    for (connector, endpoint, client, prefill, decode) in ROWS {
        for port in [Some(8998), None] {
            let (bootstrap, members) = match (connector, port) {
                // Legs of LMCache are written down elsewhere.
                (NixlPush | Nccl | Lmcache, _) | (Nixl, None) => (None, ""),
                (_, Some(_)) => (
                    Some(Bootstrap { host: "10.0.0.7", port }),
                    r#""bootstrap_host":"10.0.0.7","bootstrap_port":8998,"bootstrap_room":77,"#,
                ),
                (Boot, None) => (
                    Some(Bootstrap { host: "10.0.0.7", port }),
                    r#""bootstrap_host":"10.0.0.7","bootstrap_port":null,"bootstrap_room":77,"#,
                ),
            };
            let pairing = pairing(*connector, *endpoint, bootstrap);
            let body = Bytes::from_static(client.as_bytes());
            let prefilled = prefilled(*connector);
            let decoded = match connector {
                Nixl | Nccl | Lmcache => pairing.decode(&body, &prefilled.hand_over.unwrap()),
                NixlPush | Boot => {
                    pairing.decode_along(&body, prefilled.peer.as_ref().filter(|_| *connector == NixlPush))
                }
            };
            let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).unwrap();
            assert_eq!(
                text(pairing.prefill(&body).unwrap()),
                wanted(prefill, *connector, members),
                "{client}"
            );
            assert_eq!(text(decoded.unwrap()), wanted(decode, *connector, members), "{client}");
            for leg in [wanted(prefill, *connector, members), wanted(decode, *connector, members)] {
                serde_json::from_str::<serde_json::Value>(&leg).unwrap();
            }
        }
    }
}

fn pairing(connector: Connector, endpoint: Endpoint, bootstrap: Option<Bootstrap<'_>>) -> Pairing<'_> {
    let (room, ranks) = (Rooms::new(77).next(), Ranks::default());
    Pairing { connector, endpoint, room, bootstrap, ranks, batch: None, request_id: "id1" }
}

#[test]
fn the_table_has_every_case_once_streamed_and_once_not() {
    for connector in Connector::ALL.into_iter().filter(|connector| *connector != Lmcache) {
        for endpoint in Endpoint::ALL {
            let of = |row: &&Row| (row.0, row.1) == (connector, endpoint);
            let streamed =
                |row: &Row| row.2.contains(r#""stream":true"#) || row.2.contains(r#""stream" : true"#);
            let rows: Vec<bool> = ROWS.iter().filter(of).map(streamed).collect();
            assert_eq!(rows, [false, true], "{connector:?} {endpoint:?}");
        }
    }
}

#[test]
fn an_nccl_leg_is_the_same_whether_it_follows_or_goes_along() {
    for (_, endpoint, client, _, decode) in ROWS.iter().filter(|row| row.0 == Nccl) {
        let body = Bytes::from_static(client.as_bytes());
        let along = pairing(Nccl, *endpoint, None).decode_along(&body, None).unwrap();
        assert_eq!(along, *decode);
    }
}

#[test]
fn a_push_leg_that_follows_the_prefill_leg_has_what_was_handed_over() {
    let body = Bytes::from_static(br#"{"prompt":"hi"}"#);
    let hand_over = prefilled(NixlPush).hand_over.unwrap();
    let decode = pairing(NixlPush, Completions, None).decode(&body, &hand_over).unwrap();
    assert_eq!(decode, format!(r#"{{"kv_transfer_params":{HANDED_OVER},"prompt":"hi"}}"#));
}

#[test]
fn every_prompt_of_a_batch_has_a_room_of_its_own() {
    let body = Bytes::from_static(br#"{"prompt":["a","b"]}"#);
    let bootstrap = Some(Bootstrap { host: "::1", port: Some(9) });
    let pairing = Pairing { batch: Some(2), ..pairing(Boot, Completions, bootstrap) };
    let second = pairing.room.of_prompt(1);
    let wanted = format!(
        r#"{{"bootstrap_host":["::1","::1"],"bootstrap_port":[9,9],"bootstrap_room":[77,{second}],"prompt":["a","b"]}}"#
    );
    assert_eq!(pairing.prefill(&body).unwrap(), wanted);
    assert_eq!(pairing.decode_along(&body, None).unwrap(), wanted);
}

#[test]
fn bootstrap_legs_name_the_ranks_that_are_known_and_no_other_leg_does() {
    let body = Bytes::from_static(br#"{"prompt":"hi"}"#);
    let rows = [
        ((Some(3), Some(1)), r#""routed_dp_rank":3,"#, r#""routed_dp_rank":1,"disagg_prefill_dp_rank":3,"#),
        ((Some(0), None), r#""routed_dp_rank":0,"#, r#""disagg_prefill_dp_rank":0,"#),
        ((None, Some(1)), "", r#""routed_dp_rank":1,"#),
    ];
    for ((prefill, decode), in_prefill, in_decode) in rows {
        let ranks = Ranks { prefill, decode };
        let bootstrap = Some(Bootstrap { host: "h", port: Some(9) });
        let pairing = Pairing { ranks, ..pairing(Boot, Completions, bootstrap) };
        let leg = |ranks: &str| {
            format!(r#"{{"bootstrap_host":"h","bootstrap_port":9,"bootstrap_room":77,{ranks}"prompt":"hi"}}"#)
        };
        assert_eq!(pairing.prefill(&body).unwrap(), leg(in_prefill));
        assert_eq!(pairing.decode_along(&body, None).unwrap(), leg(in_decode));
        let nixl = Pairing { connector: Nixl, ..pairing };
        assert!(!String::from_utf8_lossy(&nixl.prefill(&body).unwrap()).contains("dp_rank"));
    }
}

#[test]
fn members_in_any_spelling_and_number_are_changed() {
    let body = Bytes::from_static(
        br#"{"max\u005ftokens":9,"prompt":"max_tokens","max_tokens":8,"kv_transfer_params":{"a":1}}"#,
    );
    let leg = pairing(Nixl, Completions, None).prefill(&body).unwrap();
    assert_eq!(
        leg,
        format!(
            r#"{{"min_tokens":1,"max\u005ftokens":1,"prompt":"max_tokens","max_tokens":1,"kv_transfer_params":{ORDER}}}"#
        )
    );
}
