//! Thousands of clients that connect at the same moment, from a process of their own.

use std::sync::Arc;

use forebay_tests::Process;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::asks::Ask;
use crate::chance::Chance;
use crate::clients::Asker;
use crate::tally::Tally;

/// What one of these processes does: all connect, and when all have, all ask.
pub(crate) async fn come(url: &str, count: usize, seed: u64) {
    let (tally, all) = (Arc::new(Tally::default()), Arc::new(Barrier::new(count)));
    let mut clients = JoinSet::new();
    for number in 0..count {
        let (tally, all, url) = (Arc::clone(&tally), Arc::clone(&all), url.to_owned());
        clients.spawn(async move {
            let mut chance = Chance::new(seed, number as u64);
            let client = forebay_tests::Client::connect(&url).await;
            all.wait().await;
            // Even on a busy machine, where it took long until all were connected: nobody connects again.
            let mut asker = Asker { url: &url, tally: &tally, kept: Some((client, Instant::now())) };
            asker.ask(&Ask::generating(&mut chance, number.is_multiple_of(4))).await;
            // Nobody leaves before all have their answers: so many are connected at once.
            all.wait().await;
        });
    }
    clients.join_all().await;
    println!("{}", tally.report());
}

/// Sends for them, and adds what they report.
pub(crate) async fn send_for(url: &str, count: usize, seed: u64, tally: &Tally) {
    let program = std::env::current_exe().expect("this program");
    let mut process = Process::start(program, &format!("crowd --url {url} --count {count} --seed {seed}"));
    match process.next().await {
        Some(report) if report["sent"] == count => tally.add("crowd", &report),
        other => tally.wrong(&format!("a crowd of {count} reported {other:?}")),
    }
}
