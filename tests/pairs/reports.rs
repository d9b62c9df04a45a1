//! What reports of trials say of pairs.

use forebay_policy::PolicyKind;
use forebay_tests::{Site, run};
use serde_json::Value;

use crate::setting::{ONE_EACH, Shape, completion};

/// Three equal requests of one client, long enough to be handed over.
async fn three_alike(site: &Site) {
    let mut client = site.client().await;
    let text = "a prompt that is long enough to be handed over ".repeat(100);
    for _ in 0..3 {
        assert_eq!(client.post("/v1/completions", completion(&text, 4, true)).await.status(), 200);
    }
}

#[test]
fn a_report_tells_how_both_legs_were_chosen_and_is_what_the_schema_says() {
    run(async {
        let schema = include_str!("../../config/trial.schema.json");
        let schema = jsonschema::validator_for(&serde_json::from_str::<Value>(schema).unwrap()).unwrap();
        let shape = Shape { prefills: 2, ..ONE_EACH };
        let setting = shape
            .start_with(
                |_| (),
                |settings| {
                    let roles = settings.roles.as_mut().unwrap();
                    roles.prefill_policy.kind = PolicyKind::CacheAware;
                },
            )
            .await;
        let site = &setting.site;
        three_alike(site).await;
        let mut admin = site.admin().await;
        let report = admin.get("/admin/trial").await.json();
        assert!(schema.is_valid(&report), "{report:#}");
        let of_role = |role: &str| -> u64 {
            let workers = report["workers"].as_array().unwrap().iter();
            workers.filter(|worker| worker["role"] == role).map(|w| w["requests"].as_u64().unwrap()).sum()
        };
        assert_eq!((of_role("prefill"), of_role("decode")), (3, 3), "{report:#}");
        assert_eq!(report["prefill_decisions"]["prefix_hit"], 2, "{report:#}");
        assert_eq!(report["decisions"]["least_load"], 3, "{report:#}");
        let pairs = &report["config"]["pairs"];
        assert_eq!(
            (&pairs["connector"], &pairs["prefill"]["policy"]),
            (&"nixl".into(), &"cache_aware".into())
        );
        assert_eq!(pairs["prefill"]["tree"], "cold");
        admin.post("/admin/reset/counters", "").await;
        let next = admin.get("/admin/trial").await.json();
        assert!(schema.is_valid(&next), "{next:#}");
        assert_eq!(next["config"]["pairs"]["prefill"]["tree"], "warm(3)");
    });
}

#[test]
fn series_tell_the_policy_of_each_leg_and_the_trees_of_prefill_workers() {
    run(async {
        let change = |settings: &mut forebay::settings::Settings| {
            settings.roles.as_mut().unwrap().prefill_policy.kind = PolicyKind::CacheAware;
        };
        let setting = Shape { prefills: 2, ..ONE_EACH }.start_with(|_| (), change).await;
        let site = &setting.site;
        three_alike(site).await;
        let series = site.metrics().await;
        let choices = |policy: &str, reason: &str| {
            let labels = [&*format!(r#"policy="{policy}""#), &*format!(r#"reason="{reason}""#)];
            forebay_tests::site::sum(&series, "forebay_policy_decisions_total", &labels)
        };
        assert_eq!((choices("cache_aware", "prefix_hit"), choices("least_loaded", "least_load")), (2, 3));
        let sum = |family: &str| forebay_tests::site::sum(&series, family, &[]);
        assert!(sum("forebay_tree_bytes") > 0 && sum("forebay_prompt_tokens_total") > 0, "{series}");
        assert_eq!(sum("forebay_matched_share_count"), 3);
    });
}
