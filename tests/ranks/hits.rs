//! What telling ranks apart is worth: the hit rate of caches that are one for each rank.

use forebay_discovery::RankCount;
use forebay_policy::PolicyKind;
use forebay_sim::engine::EngineOptions;
use forebay_sim::{Worker, WorkerOptions};
use forebay_tests::{Site, run, site};
use forebay_workers::Ranks;

const RANKS: u32 = 8;
const CHATS: usize = 48;
const TURNS: usize = 6;

/// Tokens found in prefix caches, of those asked for, by chats that take turns in an order that is no order.
async fn hit_rate(workers: Vec<Worker>, ranks: RankCount) -> f64 {
    let site = Site::start_with(workers, PolicyKind::CacheAware, |settings| settings.ranks = ranks).await;
    let mut client = site.client().await;
    for turn in 0..TURNS {
        for i in 0..CHATS {
            let chat = (i * 31 + turn * 7) % CHATS;
            let system = format!("You are assistant {} for all who ask. ", chat % 4).repeat(20);
            let mut messages = vec![format!(r#"{{"role":"system","content":"{system}"}}"#)];
            for said in 0..=turn {
                let text = format!("In chat {chat} I say for the time {said} what I want. ").repeat(8);
                messages.push(format!(r#"{{"role":"user","content":"{text}"}}"#));
                if said < turn {
                    messages.push(format!(r#"{{"role":"assistant","content":"{text}"}}"#));
                }
            }
            let body = format!(r#"{{"messages":[{}],"max_tokens":4}}"#, messages.join(","));
            assert_eq!(client.post("/v1/chat/completions", body).await.status(), 200);
        }
    }
    site.quiet().await;
    let tokens: Vec<(u64, u64)> = site.workers.iter().flat_map(|worker| worker.rank_tokens()).collect();
    let (asked, hit) = tokens.iter().fold((0, 0), |sum, rank| (sum.0 + rank.0, sum.1 + rank.1));
    hit as f64 / asked as f64
}

fn options(ranks: u32) -> WorkerOptions {
    // Room for an eighth of the chats and a little more.
    let engine = EngineOptions { blocks: 700, ..EngineOptions::default() };
    WorkerOptions { engine, ..WorkerOptions::recording() }.with_ranks(ranks)
}

#[test]
fn ranks_that_are_told_apart_are_worth_as_much_as_workers() {
    run(async {
        let given = RankCount::Given(Ranks::first(RANKS).unwrap());
        let with = hit_rate(vec![site::worker(options(RANKS))], given).await;
        let without = hit_rate(vec![site::worker(options(RANKS))], RankCount::default()).await;
        let separate = (0..RANKS).map(|_| site::worker(options(1))).collect();
        let separate = hit_rate(separate, RankCount::default()).await;
        println!(
            "hit rate: ranks told apart {with:.3}, not told apart {without:.3}, separate workers {separate:.3}"
        );
        assert!(with >= 0.95 * separate, "{with} of {separate}");
        assert!(with > 1.3 * without, "{with} and {without}");
    });
}
