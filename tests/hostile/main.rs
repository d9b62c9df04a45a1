//! What clients and workers may send that nobody should: each is answered or ended, harms nobody else, and the process
//! still serves afterwards.

// The lints on panics leave only code marked as test alone.
#[cfg(test)]
mod bodies;
#[cfg(test)]
mod clients;
#[cfg(test)]
mod connections;
#[cfg(test)]
mod http2;
#[cfg(test)]
mod smuggling;
#[cfg(test)]
mod workers;

#[cfg(test)]
use forebay_tests::Site;

/// The process still serves, nothing is left behind, and nothing panicked.
#[cfg(test)]
async fn still_serves(site: &Site) {
    let answer =
        site.client().await.post("/v1/completions", r#"{"prompt":"still there","max_tokens":1}"#).await;
    assert_eq!(answer.status(), 200);
    site.quiet().await;
    assert_eq!(site.metric("forebay_requests_total", &["panicked"]).await, 0);
}
