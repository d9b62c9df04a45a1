//! Prompts go where their beginnings are cached, without herding: over sockets, measured by what workers report.

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::Duration;

    use forebay_policy::PolicyKind;
    use forebay_sim::WorkerOptions;
    use forebay_sim::engine::EngineOptions;
    use forebay_tests::{Client, Site, request, run, site, until};
    use tokio::task::JoinSet;

    const PROMPTS: u64 = 32;

    /// 8 KiB that no other prompt begins with.
    fn body(prompt: u64, stream: bool) -> String {
        let text = format!("{prompt:x} runs from the forebay to the tailrace; ").repeat(8192 / 40);
        let options = if stream { r#","stream":true,"stream_options":{"include_usage":true}"# } else { "" };
        format!(r#"{{"prompt":"{text}","max_tokens":4{options}}}"#)
    }

    /// The same order each time: 8 of each prompt, well mixed.
    fn mixed() -> Vec<u64> {
        let mut order: Vec<u64> = (0..PROMPTS * 8).map(|i| i % PROMPTS).collect();
        let mut state = 7_u64;
        for i in (1..order.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            order.swap(i, (state >> 33) as usize % (i + 1));
        }
        order
    }

    fn engine() -> EngineOptions {
        EngineOptions {
            blocks: 6000,
            block_tokens: 16,
            prefill_per_token: Duration::from_micros(2),
            decode_per_token: Duration::from_micros(500),
            max_concurrent: 256,
        }
    }

    async fn engines(count: usize) -> Site {
        let workers =
            (0..count).map(|i| site::worker(WorkerOptions::engine(engine()).named(format!("w{i}"))));
        Site::start_with(workers.collect(), PolicyKind::CacheAware, |_| ()).await
    }

    /// Hit rate by what the workers counted, and requests of the busiest over the mean.
    async fn hit_and_spread(site: &Site) -> (f64, f64) {
        let (mut queried, mut hit, mut served) = (0.0, 0.0, Vec::new());
        for worker in &site.workers {
            let metrics = Client::connect(&worker.url()).await.get("/metrics").await.text();
            let value = |name: &str| -> f64 {
                let line = metrics.lines().find(|line| line.starts_with(name)).unwrap();
                line.rsplit(' ').next().unwrap().parse().unwrap()
            };
            queried += value("vllm:prefix_cache_queries_total{");
            hit += value("vllm:prefix_cache_hits_total{");
            served.push(worker.stats().served_inference as f64);
        }
        let mean = served.iter().sum::<f64>() / served.len() as f64;
        (hit / queried, served.into_iter().fold(0.0, f64::max) / mean)
    }

    /// Hit rate and spread of all prompts, asked for by so many clients at a time.
    async fn of_all_prompts(clients: usize, stream: bool) -> (f64, f64) {
        let site = Arc::new(engines(4).await);
        let order = Arc::new(mixed());
        let next = Arc::new(AtomicUsize::new(0));
        let mut tasks = JoinSet::new();
        for _ in 0..clients {
            let (site, order, next) = (Arc::clone(&site), Arc::clone(&order), Arc::clone(&next));
            tasks.spawn(async move {
                let mut client = site.client().await;
                while let Some(prompt) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let answer = client.post("/v1/completions", body(*prompt, stream)).await;
                    assert_eq!(answer.status(), 200);
                }
            });
        }
        tasks.join_all().await;
        site.quiet().await;
        hit_and_spread(&site).await
    }

    /// Where several clients ask at a time it depends on the machine who is first: the run in the middle counts.
    #[test]
    fn thirty_two_prompts_asked_for_eight_times_hit_and_spread_over_four_workers() {
        for (clients, runs) in [(1, 1), (16, 3)] {
            for stream in [false, true] {
                run(async {
                    let (mut hits, mut spreads) = (Vec::new(), Vec::new());
                    for _ in 0..runs {
                        let (hit, spread) = of_all_prompts(clients, stream).await;
                        hits.push(hit);
                        spreads.push(spread);
                    }
                    for figures in [&mut hits, &mut spreads] {
                        figures.sort_by(f64::total_cmp);
                    }
                    assert!(hits[runs / 2] >= 0.86, "{clients} clients: hit {hits:?}, spread {spreads:?}");
                    assert!(spreads[runs / 2] <= 1.1, "{clients} clients: hit {hits:?}, spread {spreads:?}");
                });
            }
        }
    }

    /// Clients that ask for growing chats until told to stop.
    struct Crowd {
        stop: Arc<AtomicBool>,
        answered: Arc<AtomicUsize>,
        tasks: JoinSet<()>,
    }

    impl Crowd {
        fn start(url: &str, clients: u64) -> Self {
            let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
            let mut tasks = JoinSet::new();
            for client in 0..clients {
                let (url, stop, answered) = (url.to_owned(), Arc::clone(&stop), Arc::clone(&answered));
                tasks.spawn(async move {
                    let mut round = 0;
                    while !stop.load(Ordering::Relaxed) {
                        round += 1;
                        let mut connection = Client::connect(&url).await;
                        let sent = request(
                            "POST",
                            "/v1/completions",
                            &[("content-type", "application/json"), ("connection", "close")],
                            body(client * 5 + round % 5, true).as_bytes(),
                        );
                        connection.send(&sent).await;
                        // Whoever was on the worker that died gets an error or a cut answer.
                        if connection.answer().await.is_ok_and(|answer| answer.status() == 200) {
                            answered.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            Self { stop, answered, tasks }
        }
    }

    /// Requests that each worker serves while the crowd gets so many answers.
    async fn served_during(site: &Site, crowd: &Crowd, answers: usize) -> Vec<u64> {
        let served =
            || -> Vec<u64> { site.workers.iter().map(|worker| worker.stats().served_inference).collect() };
        let before = served();
        let target = crowd.answered.load(Ordering::Relaxed) + answers;
        until("answers", || crowd.answered.load(Ordering::Relaxed) >= target).await;
        served().iter().zip(before).map(|(now, before)| now - before).collect()
    }

    #[test]
    fn the_prompts_of_a_worker_that_dies_spread_over_the_others_and_it_is_used_again_soon_after_it_returns() {
        run(async {
            let mut site = engines(4).await;
            let mut crowd = Crowd::start(&site.app.url(), 8);
            let all = served_during(&site, &crowd, 400).await;
            assert!(all.iter().all(|&served| served >= 60), "{all:?}");

            let port = site.workers[1].addr().port();
            let options = WorkerOptions { port, ..WorkerOptions::engine(engine()).named("w1") };
            let dead = std::mem::replace(&mut site.workers[1], site::worker(WorkerOptions::recording()));
            dead.stop().await;
            site.wait_eligible(1, false).await;
            let rest = served_during(&site, &crowd, 400).await;
            let three = [rest[0], rest[2], rest[3]];
            assert!(three.iter().all(|&served| (80..=190).contains(&served)), "{rest:?}");

            site.workers[1] = site::worker(options);
            site.wait_eligible(1, true).await;
            let back = served_during(&site, &crowd, 1000).await;
            assert!(back.iter().all(|&served| (80..=400).contains(&served)), "{back:?}");
            crowd.stop.store(true, Ordering::Relaxed);
            while crowd.tasks.join_next().await.is_some() {}
        });
    }

    #[test]
    fn answers_tell_the_choice_and_metrics_what_was_predicted_and_what_was_true() {
        run(async {
            let workers = vec![site::worker(WorkerOptions::recording().named("w0"))];
            let expose = |settings: &mut forebay::settings::Settings| {
                settings.router.expose_routing_headers = true;
            };
            let site = Site::start_with(workers, PolicyKind::CacheAware, expose).await;
            let mut client = site.client().await;
            for stream in [false, true] {
                client.post("/v1/completions", body(1, stream)).await;
            }
            let answer = client.post("/v1/completions", body(1, true)).await;
            assert_eq!(answer.header("x-forebay-worker"), site.workers[0].url());
            let decision = answer.header("x-forebay-decision");
            assert!(decision.starts_with("only_candidate; matched="), "{decision}");
            let told = |kind: &'static str| {
                let kind = format!("kind=\"{kind}\"");
                let site = &site;
                async move { site.metric("forebay_cache_check_tokens_total", &[&kind]).await }
            };
            let (predicted, reported) = (told("predicted").await, told("reported").await);
            assert!(
                reported > 3000 && predicted.abs_diff(reported) * 50 < reported,
                "{predicted} {reported}"
            );
            // Learnt from the worker's own metrics: 4096 blocks of 16 tokens.
            assert_eq!(site.metric("forebay_worker_cache_tokens", &[]).await, 65536);
            assert_eq!(site.metric("forebay_matched_share_count", &[]).await, 3);
        });
    }
}
