//! Load cannot drift: thousands of requests that end in every way leave each worker's load where the worker itself has it.

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_discovery::RankCount;
    use forebay_policy::PolicyKind;
    use forebay_sim::{Stage, Worker, WorkerOptions};
    use forebay_tests::client::{chunked, request};
    use forebay_tests::{Client, Site, run, site, until};
    use forebay_workers::Ranks;
    use tokio::task::JoinSet;

    /// Of a hundred requests each. `LOAD_BATCHES` asks for more of them.
    const BATCHES: usize = 20;
    const MIXED: usize = 85;
    const HELD: usize = 15;

    /// Data-parallel ranks of each worker in the tests that have them.
    const RANKS: u32 = 4;

    #[test]
    fn under_cache_aware() {
        drifts_nowhere(PolicyKind::CacheAware);
    }

    #[test]
    fn under_cache_aware_with_ranks() {
        drifts_nowhere_with_ranks(PolicyKind::CacheAware);
    }

    #[test]
    fn under_power_of_two_with_ranks() {
        drifts_nowhere_with_ranks(PolicyKind::PowerOfTwo);
    }

    #[test]
    fn under_consistent_hash_with_ranks() {
        drifts_nowhere_with_ranks(PolicyKind::ConsistentHash);
    }

    #[test]
    fn under_round_robin_with_ranks() {
        drifts_nowhere_with_ranks(PolicyKind::RoundRobin);
    }

    #[test]
    fn under_random_with_ranks() {
        drifts_nowhere_with_ranks(PolicyKind::Random);
    }

    #[test]
    fn under_least_loaded_with_ranks() {
        drifts_nowhere_with_ranks(PolicyKind::LeastLoaded);
    }

    #[test]
    fn under_power_of_two() {
        drifts_nowhere(PolicyKind::PowerOfTwo);
    }

    #[test]
    fn under_consistent_hash() {
        drifts_nowhere(PolicyKind::ConsistentHash);
    }

    #[test]
    fn under_round_robin() {
        drifts_nowhere(PolicyKind::RoundRobin);
    }

    #[test]
    fn under_random() {
        drifts_nowhere(PolicyKind::Random);
    }

    fn drifts_nowhere(policy: PolicyKind) {
        drifts_nowhere_among(policy, 1);
    }

    fn drifts_nowhere_with_ranks(policy: PolicyKind) {
        drifts_nowhere_among(policy, RANKS);
    }

    fn workers(ranks: u32) -> Vec<Worker> {
        let options = |i| WorkerOptions::recording().named(format!("w{i}")).with_ranks(ranks);
        (0..3).map(|i| site::worker(options(i))).collect()
    }

    /// Two thousand requests in batches; after the mixed part and twice in the held part of each there is a quiet point.
    fn drifts_nowhere_among(policy: PolicyKind, ranks: u32) {
        run(async {
            // What comes broken here is asked for by the requests: no worker is to leave for it.
            let without_breakers = |settings: &mut forebay::settings::Settings| {
                settings.breaker.enabled = false;
                settings.ranks = RankCount::Given(Ranks::first(ranks).unwrap());
            };
            let site = Arc::new(Site::start_with(workers(ranks), policy, without_breakers).await);
            let mut sent = 0;
            let batches = std::env::var("LOAD_BATCHES").ok().and_then(|n| n.parse().ok()).unwrap_or(BATCHES);
            for batch in 0..batches {
                // Two batches in four meet a worker that refuses new connections.
                match batch % 4 {
                    1 => site.workers[batch % 3].refuse_connections().await,
                    3 => all_back(&site).await,
                    _ => {}
                }
                mixed(&site, batch).await;
                sent += MIXED;
                all_counted(&site, sent).await;
                site.quiet().await;
                held(&site, batch).await;
                sent += HELD;
                all_counted(&site, sent).await;
                site.quiet().await;
            }
            assert_eq!(sent, batches * (MIXED + HELD));
            assert_eq!(site.metric("forebay_policy_invariant_violations_total", &[]).await, 0);
            assert_eq!(site.metric("forebay_in_flight", &[]).await, 0);
            assert_eq!(site.metric("forebay_requests_total", &["panicked"]).await, 0);
            assert!(site.metric("forebay_retries_total", &[]).await > 0, "no worker was ever refused");
            for outcome in [
                "completed",
                "refused",
                "client_gone_before_headers",
                "client_gone_mid_stream",
                "reset_mid_stream",
                "own",
            ] {
                let label = format!("outcome=\"{outcome}\"");
                assert!(site.metric("forebay_requests_total", &[&label]).await > 0, "none {outcome}");
            }
        });
    }

    /// Waits until every request has ended for the router too: each is counted once, under one outcome.
    async fn all_counted(site: &Site, sent: usize) {
        let mut admin = site.admin().await;
        let mut counted = String::new();
        for _ in 0..5000 {
            let metrics = admin.get("/metrics").await.text();
            // Less the scrapes themselves.
            let ours = |line: &&str| line.starts_with("forebay_requests_total") && !line.contains("/metrics");
            counted = metrics.lines().filter(ours).collect::<Vec<_>>().join("\n");
            if site::sum(&counted, "forebay_requests_total", &[]) >= sent as u64 {
                break;
            }
        }
        assert_eq!(site::sum(&counted, "forebay_requests_total", &[]), sent as u64, "{counted}");
    }

    async fn all_back(site: &Site) {
        for (i, worker) in site.workers.iter().enumerate() {
            worker.accept().await;
            site.wait_eligible(i, true).await;
        }
    }

    /// Requests of every kind at once, to their ends.
    async fn mixed(site: &Arc<Site>, batch: usize) {
        let mut tasks = JoinSet::new();
        for i in 0..MIXED {
            let site = Arc::clone(site);
            tasks.spawn(async move { one(&site, batch * MIXED + i).await });
        }
        tasks.join_all().await;
    }

    /// One request of the kind that its number says.
    async fn one(site: &Site, number: usize) {
        let mut client = site.client().await;
        let whole = format!(r#"{{"prompt":"number {number}","max_tokens":4}}"#);
        let stream = format!(r#"{{"prompt":"number {number}","max_tokens":8,"stream":true}}"#);
        let ask = |fault: &str, body: &str| {
            request("POST", "/v1/completions", &[("x-sim-fault", fault)], body.as_bytes())
        };
        match number % 17 {
            0..3 => whole_answer(&mut client, &ask("", &whole)).await,
            3..5 => whole_answer(&mut client, &ask("", &stream)).await,
            5 => whole_answer(&mut client, &ask("status=500", &whole)).await,
            6 => broken_answer(client, &ask("close-mid-stream=2", &stream)).await,
            7 => whole_answer(&mut client, &ask("close-before-head", &whole)).await,
            8 => leave_before_head(client, &whole, number.is_multiple_of(2)).await,
            9 => leave_mid_stream(client, &ask("stall-mid-stream=2", &stream)).await,
            10 => whole_answer(&mut client, &request("PUT", "/tokenize", &[], b"")).await,
            11 => whole_answer(&mut client, &request("GET", "/etc/passwd", &[], b"")).await,
            12 => {
                whole_answer(&mut client, &request("POST", "/v1/completions", &[], br#"{"model":"no"}"#))
                    .await;
            }
            13 => whole_answer(&mut client, &request("POST", "/v1/completions", &[], br#"{"prompt":"#)).await,
            14 => whole_answer(&mut client, &request("POST", "/reset_mm_cache", &[], b"")).await,
            15 => whole_answer(&mut client, &chunked("/tokenize", &[], whole.as_bytes(), 9)).await,
            _ => whole_answer(&mut client, &request("GET", "/v1/models", &[], b"")).await,
        }
    }

    async fn whole_answer(client: &mut Client, bytes: &[u8]) {
        client.send(bytes).await;
        let answer = client.answer().await.unwrap();
        assert!(answer.status() >= 200);
    }

    async fn broken_answer(mut client: Client, bytes: &[u8]) {
        client.send(bytes).await;
        let answer = client.answer().await;
        // A worker that could not be reached at all is told with a whole answer.
        let answer = answer.unwrap();
        assert!(answer.status() >= 500 || answer.text().contains("worker_died_mid_stream"));
    }

    /// Leaves a request that nobody will ever answer: when the router has begun with it, or at once.
    async fn leave_before_head(mut client: Client, body: &str, at_once: bool) {
        if at_once {
            let never = [("x-sim-fault", "never-answer")];
            return client.send(&request("POST", "/v1/completions", &never, body.as_bytes())).await;
        }
        let headers = [("x-sim-fault", "never-answer"), ("expect", "100-continue")];
        let bytes = request("POST", "/v1/completions", &headers, body.as_bytes());
        let head = bytes.len() - body.len();
        client.send(&bytes[..head]).await;
        assert_eq!(client.head().await.unwrap().status, 100);
        client.send(&bytes[head..]).await;
        drop(client);
    }

    async fn leave_mid_stream(mut client: Client, bytes: &[u8]) {
        client.send(bytes).await;
        if client.head().await.unwrap().status == 200 {
            let _first = client.chunk().await.unwrap();
        }
        client.reset();
    }

    /// Streams that are held at the worker, so that loads are not nought when they are compared.
    async fn held(site: &Site, batch: usize) {
        let gates: Vec<_> = site.workers.iter().map(|worker| worker.hold(Stage::AfterChunks(2))).collect();
        let mut clients = Vec::new();
        for worker in &site.workers {
            drop(worker.take_requests());
        }
        for i in 0..HELD {
            let body =
                format!(r#"{{"prompt":"held {batch} {i}","max_tokens":8,"stream":true,"user":"{i}"}}"#);
            let mut client = site.client().await;
            client.send(&request("POST", "/v1/completions", &[], body.as_bytes())).await;
            clients.push(client);
        }
        let all_held = || gates.iter().map(|gate| gate.held()).sum::<usize>() == HELD;
        until("all streams are held", all_held).await;
        compare(site, HELD).await;
        compare_ranks(site, |_| true);
        let (gone, stay) = (clients.split_off(HELD - 5), clients);
        drop(gone);
        let open = |worker: &Worker| worker.stats().open_inference;
        let left = || site.workers.iter().map(open).sum::<u64>() == (HELD - 5) as u64;
        until("the workers saw five clients leave", left).await;
        compare(site, HELD - 5).await;
        compare_ranks(site, |i| i < HELD - 5);
        drop(gates);
        for mut client in stay {
            assert_eq!(client.answer().await.unwrap().status(), 200);
        }
    }

    /// The load of each rank against the held requests that name it, of those clients that `stay`.
    fn compare_ranks(site: &Site, stay: impl Fn(usize) -> bool) {
        let world = site.app.reader().world();
        for (worker, host) in site.workers.iter().zip(world.hosts()) {
            let mut named = vec![0; RANKS as usize];
            for held in worker.requests_to("/v1/completions") {
                let number = held
                    .text()
                    .rsplit_once("\"user\":\"")
                    .and_then(|(_, user)| user.trim_end_matches("\"}").parse().ok());
                if let (Some(rank), true) = (held.header("x-data-parallel-rank"), number.is_some_and(&stay)) {
                    named[rank.parse::<usize>().unwrap()] += 1;
                }
            }
            for rank in host.workers().iter().filter(|worker| worker.dp_rank().is_some()) {
                assert_eq!(rank.in_flight(), named[rank.dp_rank().unwrap() as usize], "{}", rank.name());
            }
        }
    }

    /// What the router believes, what the workers count, and what is scraped.
    async fn compare(site: &Site, total: usize) {
        site.loads_agree().await;
        let metrics = site.metrics().await;
        for (i, worker) in site.workers.iter().enumerate() {
            let scraped = site::sum(&metrics, "forebay_in_flight", &[&worker.url()]);
            assert_eq!((scraped, site.in_flight(i)), (worker.stats().open_inference, scraped));
        }
        assert_eq!((0..3).map(|i| site.in_flight(i)).sum::<u64>(), total as u64);
    }
}
