//! A hundred resets while clients send as fast as they can: nothing is lost, and every request counts in one trial.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use forebay_policy::PolicyKind;
use forebay_tests::{Site, run, until};
use tokio::task::JoinSet;

const CLIENTS: usize = 16;
const RESETS: u64 = 100;

#[test]
fn no_request_is_lost_and_each_counts_in_one_trial() {
    run(async {
        let site = Arc::new(Site::start(3, PolicyKind::CacheAware).await);
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let began = Instant::now();
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            let (site, stop, sent) = (Arc::clone(&site), Arc::clone(&stop), Arc::clone(&sent));
            clients.spawn(async move {
                let mut client = site.client().await;
                while !stop.load(Ordering::Relaxed) {
                    let body = format!(r#"{{"prompt":"client {number}","max_tokens":1}}"#);
                    sent.fetch_add(1, Ordering::Relaxed);
                    assert_eq!(client.post("/v1/completions", body).await.status(), 200);
                }
            });
        }
        let mut admin = site.admin().await;
        let mut took = Vec::new();
        let mut first = 0;
        for epoch in 2..=RESETS + 1 {
            let answer = admin.post("/admin/reset", "").await.json();
            assert_eq!(answer["epoch"], epoch);
            took.push(answer["took_ms"].as_f64().unwrap());
            // Some traffic in each trial; and the first one, which will be forgotten, is read when it is over.
            until("requests in this trial", || view(&site, epoch).1 > 20).await;
            if epoch == 2 {
                until("the first trial is over", || view(&site, 1).0).await;
                first = view(&site, 1).1;
            }
        }
        stop.store(true, Ordering::Relaxed);
        while let Some(client) = clients.join_next().await {
            client.unwrap();
        }
        site.quiet().await;
        let sent = sent.load(Ordering::Relaxed);
        let rate = sent as f64 / began.elapsed().as_secs_f64();
        until("all are over", || (2..=RESETS).all(|epoch| view(&site, epoch).0)).await;
        let counted = || first + (2..=RESETS + 1).map(|epoch| view(&site, epoch).1).sum::<u64>();
        until("every request counts once", || counted() >= sent).await;
        assert_eq!(counted(), sent);
        assert_eq!(site.metric("forebay_policy_invariant_violations_total", &[]).await, 0);
        took.sort_by(f64::total_cmp);
        let (p50, p99) = (took[took.len() / 2], took[took.len() * 99 / 100]);
        println!("{sent} requests, {rate:.0}/s, {RESETS} resets: took_ms p50 {p50:.2} p99 {p99:.2}");
    });
}

/// Whether a trial is over for good, and how many of its requests have ended.
fn view(site: &Site, epoch: u64) -> (bool, u64) {
    let view = site.app.router().trial(Some(epoch)).unwrap();
    (view.is_final, view.figures.requests.ended)
}
