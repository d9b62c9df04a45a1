//! Which requests become pairs: exactly at the thresholds, and what that is good for.

use std::time::{Duration, Instant};

use forebay_policy::PolicyKind;
use forebay_sim::engine::EngineOptions;
use forebay_sim::{Mode, WorkerOptions};
use forebay_tests::{Client, request, run};

use crate::setting::{ONE_EACH, Setting};

/// A completion of so many token ids.
fn ids(count: usize, seed: usize) -> String {
    let ids: Vec<String> = (0..count).map(|i| ((i * 7 + seed * 131) % 4000 + 10).to_string()).collect();
    format!(r#"{{"prompt":[{}],"max_tokens":2,"stream":true}}"#, ids.join(","))
}

async fn paired(setting: &Setting, body: &str) -> bool {
    let before = setting.exchange.transfers();
    let answer = setting.site.client().await.post("/v1/completions", body).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    setting.site.quiet().await;
    setting.exchange.transfers() > before
}

#[test]
fn a_prompt_is_paired_from_exactly_the_threshold_on() {
    run(async {
        let setting = ONE_EACH
            .start_with(|_| (), |s| s.router.pairs.as_mut().unwrap().conditions.threshold_tokens = 100)
            .await;
        assert!(!paired(&setting, &ids(99, 1)).await);
        assert!(paired(&setting, &ids(100, 2)).await);
        assert_eq!(setting.site.metric("forebay_pd_bypasses_total", &["reason=\"short\""]).await, 1);
        setting.no_violation();
        println!("--pd-threshold-tokens 100: 99 tokens go to a decode worker alone, 100 are paired");
    });
}

#[test]
fn a_prompt_is_paired_from_exactly_so_many_missing_tokens_on() {
    run(async {
        let change = |settings: &mut forebay::settings::Settings| {
            settings.policy.kind = PolicyKind::CacheAware;
            settings.router.pairs.as_mut().unwrap().conditions.uncached_threshold_tokens = 100;
        };
        let setting = ONE_EACH.start_with(|_| (), change).await;
        assert!(!paired(&setting, &ids(99, 1)).await);
        assert!(paired(&setting, &ids(100, 2)).await);
        // The decode worker holds it by now.
        let long = ids(400, 3);
        assert!(paired(&setting, &long).await);
        assert!(!paired(&setting, &long).await);
        assert_eq!(setting.site.metric("forebay_pd_bypasses_total", &["reason=\"cached\""]).await, 2);
        setting.no_violation();
        println!(
            "--pd-uncached-threshold-tokens 100: a lack of 99 goes to a decode worker alone, one of 100 is paired"
        );
    });
}

#[test]
fn tokens_of_texts_are_estimated_by_what_workers_have_counted() {
    run(async {
        let setting = ONE_EACH
            .start_with(|_| (), |s| s.router.pairs.as_mut().unwrap().conditions.threshold_tokens = 100)
            .await;
        // In each of these texts a character is three bytes on the way, and the workers count four bytes of text as one
        // token: the ratio becomes another than the one to begin with.
        let text = |chars: usize| format!(r#"{{"prompt":"{}","max_tokens":2}}"#, "\\u0061".repeat(chars));
        for _ in 0..100 {
            paired(&setting, &text(1000)).await;
        }
        // 600 bytes on the way are 150 tokens by a fixed 4, and 25 for the workers.
        assert!(!paired(&setting, &text(100)).await);
        assert!(paired(&setting, &text(450)).await);
    });
}

/// Median time to the first record, in seconds, of short prompts and of long ones.
async fn first_tokens(threshold: u64) -> [Duration; 2] {
    let engine = EngineOptions {
        prefill_per_token: Duration::from_micros(40),
        decode_per_token: Duration::from_micros(200),
        ..EngineOptions::default()
    };
    let setting = ONE_EACH
        .start_with(
            |options: &mut WorkerOptions| (options.mode, options.engine) = (Mode::Engine, engine),
            |s| s.router.pairs.as_mut().unwrap().conditions.threshold_tokens = threshold,
        )
        .await;
    let mut took = [Vec::new(), Vec::new()];
    let url = setting.site.app.url();
    for round in 0..15 {
        // Each long one keeps the prefill worker busy while short ones come.
        let (long, short) = (ids(1500, round * 2), ids(40, round * 2 + 1));
        let (slow, first, second, third) = tokio::join!(
            first_record(&url, &long, 0),
            first_record(&url, &short, 5),
            first_record(&url, &short, 10),
            first_record(&url, &short, 15),
        );
        took[0].extend([first, second, third]);
        took[1].push(slow);
    }
    setting.no_violation();
    took.map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2]
    })
}

async fn first_record(url: &str, body: &str, after_ms: u64) -> Duration {
    tokio::time::sleep(Duration::from_millis(after_ms)).await;
    let mut client = Client::connect(url).await;
    let began = Instant::now();
    client.send(&request("POST", "/v1/completions", &[], body.as_bytes())).await;
    // The head comes with the first record.
    client.head().await.unwrap();
    began.elapsed()
}

#[test]
fn with_a_threshold_short_prompts_do_not_wait_behind_long_ones() {
    run(async {
        let [short_always, long_always] = first_tokens(0).await;
        let [short, long] = first_tokens(512).await;
        let ratio = |with: Duration, without: Duration| with.as_secs_f64() / without.as_secs_f64();
        println!(
            "p50 to the first token, always paired -> with a threshold of 512: 40 tokens {short_always:.1?} -> {short:.1?} \
             ({:.2} of it), 1500 tokens {long_always:.1?} -> {long:.1?} ({:.2} of it)",
            ratio(short, short_always),
            ratio(long, long_always),
        );
        assert!(short < short_always / 2, "{short:?} {short_always:?}");
        // As far as a busy machine lets anybody tell.
        assert!(long < long_always.mul_f64(1.5), "{long:?} {long_always:?}");
    });
}
