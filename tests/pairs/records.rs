//! The id of a pair: the same one in the access log, the decision log, the report of the trial and what a client hears; never
//! in a metric.

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay::decisions::DecisionLogSettings;
use forebay_router::AccessFormat;
use forebay_sim::Fault;
use forebay_tests::run;
use serde_json::Value;

use crate::setting::{ONE_EACH, Setting, completion};

fn file(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _absent = std::fs::remove_file(&path);
    path
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn the_room_of_a_pair_is_wherever_one_would_look_for_it() {
    run(async {
        let (access, decisions) = (file("pairs-access.json"), file("pairs-decisions.json"));
        let change = |settings: &mut forebay::settings::Settings| {
            settings.access_log.format = Some(AccessFormat::Json);
            settings.access_log.file = Some(access.clone());
            let buffer_bytes = 1 << 20;
            settings.decision_log = Some(DecisionLogSettings { file: decisions.clone(), buffer_bytes });
            settings.router.pairs.as_mut().unwrap().prefill_timeout = Some(Duration::from_secs(1));
            settings.router.pairs.as_mut().unwrap().conditions.threshold_tokens = 10;
        };
        let setting = ONE_EACH.start_with(|_| (), change).await;
        let mut client = setting.site.client().await;
        let long = completion(&"word ".repeat(30), 3, false);
        client.post("/v1/completions", &long).await;
        client.post("/v1/completions", completion("short", 3, false)).await;
        setting.prefill(0).fail_next(1, Fault::NeverAnswer);
        let late: Value = client.post("/v1/completions", &long).await.json();
        setting.prefill(0).fail_next(1, Fault::NoHandOver);
        client.post("/v1/completions", &long).await;
        setting.site.quiet().await;
        let report = setting.site.admin().await.get("/admin/trial").await.json();
        let metrics = setting.site.metrics().await;
        let Setting { site, .. } = setting;
        site.app.shutdown().await;

        let access: Vec<_> =
            lines(&access).into_iter().filter(|line| line["route"] == "/v1/completions").collect();
        let pairs: Vec<_> = access.iter().map(|line| line["pair"].as_str()).collect();
        assert_eq!(pairs, [Some("handed_over"), None, Some("timed_out"), Some("recomputed")]);
        let rooms: Vec<_> = access.iter().map(|line| line["room"].as_u64()).collect();
        assert!(rooms[1].is_none() && rooms[0] < rooms[2] && rooms[2] < rooms[3], "{rooms:?}");
        assert_eq!(late["forebay"]["bootstrap_room"].as_u64(), rooms[2], "{late}");
        let ended: Vec<_> = lines(&decisions)
            .iter()
            .filter_map(|line| line.get("ended"))
            .map(|ended| ended["room"].as_u64())
            .collect();
        assert_eq!(ended, rooms);
        assert_eq!(report["pairs"]["ended"], 3);
        assert_eq!(
            report["pairs"]["outcomes"],
            serde_json::json!({"handed_over": 1, "recomputed": 1, "timed_out": 1})
        );
        let troubled: Vec<_> =
            report["pairs"]["troubled_rooms"].as_array().unwrap().iter().map(Value::as_u64).collect();
        assert_eq!(troubled, rooms[2..]);
        assert!(rooms.iter().flatten().all(|room| !metrics.contains(&room.to_string())));
        for role in ["prefill", "decode"] {
            assert!(metrics.contains(&format!("role=\"{role}\"")), "{metrics}");
        }
    });
}
