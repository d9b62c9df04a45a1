//! Choices: the same seed makes them again, keys are read at their places, and models have pools of their own.

#[cfg(test)]
mod tests {
    use forebay_policy::PolicyKind;
    use forebay_sim::{Fault, FaultRule, Lora, Scope, When, Worker, WorkerOptions};
    use forebay_tests::{Site, request, run, site};

    const REQUESTS: usize = 60;

    /// A few conversations that grow, so that every policy has something to go by.
    fn body(number: usize) -> String {
        let (talk, turn) = (number % 7, number / 7);
        let text =
            format!("conversation {talk} goes on and on about rivers and weirs ").repeat(4 * (turn + 1));
        format!(r#"{{"prompt":"{text}","max_tokens":2,"user":"u{talk}"}}"#)
    }

    async fn site_on(workers: Vec<Worker>, policy: PolicyKind, seed: u64) -> Site {
        Site::start_with(workers, policy, |settings| settings.seed = seed).await
    }

    #[test]
    fn the_same_seed_makes_the_same_choices_again_under_every_policy() {
        for policy in PolicyKind::ALL {
            run(async {
                let mut site = site_on(site::workers(4), policy, 7).await;
                let first = site.choices(REQUESTS, body).await;
                let mut admin = site.admin().await;
                assert_eq!(admin.post("/admin/reset", "").await.status(), 200);
                assert_eq!(site.choices(REQUESTS, body).await, first, "{policy}: after a reset");
                assert_eq!(admin.post("/admin/reset", r#"{"seed":7}"#).await.status(), 200);
                assert_eq!(
                    site.choices(REQUESTS, body).await,
                    first,
                    "{policy}: after a reset with the seed"
                );
                let Site { workers, app } = site;
                app.shutdown().await;
                site = site_on(workers, policy, 7).await;
                assert_eq!(site.choices(REQUESTS, body).await, first, "{policy}: after a restart");
                assert!(first.iter().any(|worker| *worker != first[0]), "{policy}: {first:?}");
            });
        }
    }

    #[test]
    fn another_seed_makes_other_choices_where_there_is_chance() {
        for policy in [PolicyKind::Random, PolicyKind::PowerOfTwo] {
            run(async {
                let site = site_on(site::workers(4), policy, 7).await;
                let first = site.choices(REQUESTS, body).await;
                site.admin().await.post("/admin/reset", r#"{"seed":8}"#).await;
                assert_ne!(site.choices(REQUESTS, body).await, first, "{policy}");
            });
        }
    }

    #[test]
    fn round_robin_takes_turns() {
        run(async {
            let site = site_on(site::workers(3), PolicyKind::RoundRobin, 7).await;
            let chosen = site.choices(6, body).await;
            assert_eq!(chosen[..3], chosen[3..]);
            let mut once = chosen[..3].to_vec();
            once.sort();
            assert_eq!(once, ["w0", "w1", "w2"]);
        });
    }

    #[test]
    fn cache_aware_keeps_a_conversation_where_it_began() {
        run(async {
            let site = site_on(site::workers(4), PolicyKind::CacheAware, 7).await;
            let chosen = site.choices(REQUESTS, body).await;
            for (i, worker) in chosen.iter().enumerate() {
                assert_eq!(*worker, chosen[i % 7], "turn {} of conversation {}", i / 7, i % 7);
            }
        });
    }

    /// The worker that takes a completion with these headers and members.
    async fn goes_to(site: &Site, headers: &[(&str, &str)], members: &str) -> String {
        let body = format!(r#"{{"prompt":"p","max_tokens":1{members}}}"#);
        let mut client = site.client().await;
        site::by(&client.ask("POST", "/v1/completions", headers, body.as_bytes()).await)
    }

    #[test]
    fn consistent_hash_looks_at_the_session_header_first_then_the_user_then_the_body() {
        run(async {
            let site = site_on(site::workers(4), PolicyKind::ConsistentHash, 7).await;
            let mut homes = std::collections::BTreeSet::new();
            for i in 0..20 {
                let (key, other) = (format!("key-{i}"), format!("other-{}", i * 7));
                let user_member = format!(r#","user":"{other}""#);
                let home = goes_to(&site, &[("x-session-id", &key)], "").await;
                let with_all =
                    [("x-user-id", other.as_str()), ("authorization", &other), ("x-session-id", &key)];
                assert_eq!(
                    goes_to(&site, &with_all, &user_member).await,
                    home,
                    "the session header comes first"
                );
                let user = [("x-user-id", key.as_str()), ("authorization", &other)];
                assert_eq!(goes_to(&site, &user, &user_member).await, home, "then the user header");
                for place in ["user", "session_id", "user_id"] {
                    let member = format!(r#","{place}":"{key}""#);
                    assert_eq!(goes_to(&site, &[("authorization", &other)], &member).await, home, "{place}");
                }
                let nested = format!(r#","user":"{other}","session_params":{{"session_id":"{key}"}}"#);
                assert_eq!(goes_to(&site, &[], &nested).await, home, "session_params comes before user");
                homes.insert(home);
            }
            assert!(homes.len() > 2, "{homes:?}");
        });
    }

    #[test]
    fn what_only_looks_like_a_key_is_none() {
        run(async {
            let site = site_on(site::workers(4), PolicyKind::ConsistentHash, 7).await;
            // Without a key all requests of one client go by its address.
            let home = goes_to(&site, &[], "").await;
            for i in 0..12 {
                for member in [
                    format!(r#","suffix":"\"user\": \"x{i}\"""#),
                    format!(r#","metadata":{{"user":"x{i}","session_id":"x{i}"}}"#),
                    format!(r#","messages":[{{"user":"x{i}"}}],"x":"user","y":"x{i}""#),
                    format!(r#","users":"x{i}","session_params":"x{i}""#),
                ] {
                    assert_eq!(goes_to(&site, &[], &member).await, home, "{member}");
                }
            }
        });
    }

    #[test]
    fn a_key_comes_home_when_its_worker_does() {
        run(async {
            let site = site_on(site::workers(3), PolicyKind::ConsistentHash, 7).await;
            let home = goes_to(&site, &[("x-session-id", "s")], "").await;
            let at = home.trim_start_matches('w').parse::<usize>().unwrap();
            site.workers[at].set_health(503);
            site.wait_eligible(at, false).await;
            let other = goes_to(&site, &[("x-session-id", "s")], "").await;
            assert!(other != home && goes_to(&site, &[("x-session-id", "s")], "").await == other);
            site.workers[at].set_health(200);
            site.wait_eligible(at, true).await;
            assert_eq!(goes_to(&site, &[("x-session-id", "s")], "").await, home);
        });
    }

    fn model(name: &str, model: &str, loras: &[&str]) -> Worker {
        let loras = loras
            .iter()
            .map(|name| Lora { name: (*name).to_owned(), path: format!("/loras/{name}") })
            .collect();
        let options = WorkerOptions {
            model: model.to_owned(),
            root: format!("models/{model}"),
            loras,
            ..WorkerOptions::default()
        };
        site::worker(options.named(name))
    }

    #[test]
    fn a_model_that_nobody_serves_is_not_found() {
        run(async {
            let site = site_on(vec![model("w0", "base", &[])], PolicyKind::RoundRobin, 7).await;
            let mut client = site.client().await;
            let answer = client.post("/v1/completions", r#"{"model":"no \"such\"","prompt":"x"}"#).await;
            let json = answer.json();
            assert_eq!((answer.status(), &json["error"]["code"]), (404, &404.into()), "{json}");
            assert_eq!(json["error"]["message"], "The model `no \"such\"` does not exist.");
            assert_eq!(
                (&json["error"]["type"], &json["error"]["param"]),
                (&"NotFoundError".into(), &"model".into())
            );
            assert_eq!(answer.header("x-forebay-failure"), "router_model_unknown");
            let other = client.post("/v1/messages", r#"{"model":"no","messages":[]}"#).await;
            assert_eq!((other.status(), &other.json()["type"]), (404, &"error".into()));
            assert!(site.workers[0].requests_to("/v1/completions").is_empty());
        });
    }

    #[test]
    fn adapters_go_where_they_are_loaded_and_no_name_means_the_one_base_model() {
        run(async {
            let workers =
                vec![model("w0", "base", &["la"]), model("w1", "base", &["lb"]), model("w2", "base", &[])];
            let site = site_on(workers, PolicyKind::RoundRobin, 7).await;
            let named = |name: &str| format!(r#"{{"model":"{name}","prompt":"x","max_tokens":1}}"#);
            assert_eq!(site.choices(3, |_| named("la")).await, ["w0", "w0", "w0"]);
            assert_eq!(site.choices(3, |_| named("lb")).await, ["w1", "w1", "w1"]);
            for body in
                [r#"{"prompt":"x"}"#.to_owned(), named("base"), r#"{"model":null,"prompt":"x"}"#.to_owned()]
            {
                let mut chosen = site.choices(3, |_| body.clone()).await;
                chosen.sort();
                assert_eq!(chosen, ["w0", "w1", "w2"], "{body}");
            }
            let list = site.client().await.get("/v1/models").await.json();
            let ids: Vec<_> =
                list["data"].as_array().unwrap().iter().map(|entry| entry["id"].clone()).collect();
            assert_eq!(ids, ["base", "la", "lb"]);
        });
    }

    #[test]
    fn with_several_base_models_one_must_be_named() {
        run(async {
            let workers = vec![model("w0", "one", &[]), model("w1", "two", &[])];
            let site = site_on(workers, PolicyKind::CacheAware, 7).await;
            let mut client = site.client().await;
            let answer = client.post("/v1/completions", r#"{"prompt":"x"}"#).await;
            assert_eq!(
                (answer.status(), answer.header("x-forebay-failure").as_str()),
                (400, "router_model_needed")
            );
            assert_eq!(answer.json()["error"]["param"], "model");
            for (name, worker) in [("one", "w0"), ("two", "w1")] {
                let body = format!(r#"{{"model":"{name}","prompt":"x"}}"#);
                assert_eq!(site::by(&client.post("/v1/completions", &body).await), worker);
                assert_eq!(site::by(&client.post("/tokenize", &body).await), worker);
            }
            client.send(&request("GET", "/tokenizer_info", &[], b"")).await;
            assert_ne!(
                client.answer().await.unwrap().status(),
                400,
                "a body that names no model may go anywhere"
            );
        });
    }

    #[test]
    fn a_worker_that_will_not_tell_its_models_is_taken_to_serve_any() {
        run(async {
            let workers = vec![model("w0", "anything", &[])];
            let silent = Fault::Status(401, "{}".to_owned());
            let rule =
                FaultRule { fault: silent, when: When::Always, scope: Scope::Path("/v1/models".to_owned()) };
            workers[0].add_fault(rule);
            let site = site_on(workers, PolicyKind::CacheAware, 7).await;
            let mut client = site.client().await;
            for (body, status) in [
                (r#"{"model":"anything","prompt":"x"}"#, 200),
                (r#"{"prompt":"x"}"#, 200),
                (r#"{"model":"unheard-of","prompt":"x"}"#, 404),
            ] {
                let answer = client.post("/v1/completions", body).await;
                assert_eq!(
                    (answer.status(), site::by(&answer).as_str()),
                    (status, "w0"),
                    "the worker decides"
                );
            }
        });
    }
}
