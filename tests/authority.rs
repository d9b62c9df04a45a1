//! Who may do what changes something: this machine by itself, or whoever has the key, on either listener.

#[cfg(test)]
mod tests {
    use std::process::{Command, Output, Stdio};

    use forebay::settings::Settings;
    use forebay_policy::PolicyKind;
    use forebay_router::Secret;
    use forebay_tests::{Client, Site, run, site};

    const KEY: &str = "the-admin-key";
    const BEARER: (&str, &str) = ("authorization", "Bearer the-admin-key");

    /// Requests that change a worker.
    const ORDERS: [&str; 8] = [
        "/reset_prefix_cache",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/sleep",
        "/pause?mode=abort",
        "/collective_rpc",
        "/update_weights",
        "/abort_requests",
    ];

    async fn site_with(change: impl FnOnce(&mut Settings)) -> Site {
        Site::start_with(site::workers(2), PolicyKind::CacheAware, change).await
    }

    fn with_key(settings: &mut Settings) {
        settings.router.admin_api_key = Some(Secret::new(KEY.to_owned()));
    }

    /// A POST with exactly these header lines, `host` included.
    async fn post(url: &str, target: &str, lines: &[(&str, &str)]) -> (u16, String) {
        let mut client = Client::connect(url).await;
        let lines: String = lines.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        client
            .send(format!("POST {target} HTTP/1.1\r\n{lines}content-length: 2\r\n\r\n{{}}").as_bytes())
            .await;
        let answer = client.answer().await.unwrap();
        (answer.status(), answer.text())
    }

    /// What somebody sends who is not on this machine, or was talked into it.
    fn suspicious() -> Vec<Vec<(&'static str, &'static str)>> {
        let local = ("host", "localhost");
        vec![
            vec![local, ("origin", "http://evil.example")],
            vec![local, ("origin", "null")],
            vec![local, ("forwarded", "for=1.2.3.4")],
            vec![local, ("x-forwarded-for", "127.0.0.1")],
            // What proxies add that do not say for whom: Envoy, nginx with a common snippet, caches.
            vec![local, ("x-forwarded-proto", "http")],
            vec![local, ("x-real-ip", "1.2.3.4")],
            vec![local, ("via", "1.1 proxy")],
            vec![("host", "evil.example")],
            vec![("host", "localhost.evil.example:30000")],
            vec![("host", "127.0.0.1.evil.example")],
            vec![local, ("host", "evil.example")],
            vec![local, ("connection", "x-forwarded-for"), ("x-forwarded-for", "1.2.3.4")],
            vec![local, ("connection", "origin, keep-alive"), ("origin", "http://evil.example")],
            vec![local, ("connection", "forwarded"), ("forwarded", "for=1.2.3.4")],
        ]
    }

    fn nothing_changed(site: &Site) {
        assert_eq!(site.epoch(), 1);
        for worker in &site.workers {
            assert!(
                worker.requests().iter().all(|request| request.method == "GET"),
                "an order reached a worker"
            );
        }
    }

    #[test]
    fn this_machine_by_itself_needs_no_key() {
        run(async {
            let site = site_with(|_| ()).await;
            for (i, url) in [site.app.url(), site.app.admin_url()].into_iter().enumerate() {
                for (j, host) in ["localhost", "127.0.0.1:1", "[::1]:30000"].into_iter().enumerate() {
                    let (status, text) = post(&url, "/admin/reset", &[("host", host)]).await;
                    let epoch = (i * 3 + j + 2) as u64;
                    assert!(status == 200 && text.starts_with(&format!(r#"{{"epoch":{epoch},"#)), "{text}");
                    assert_eq!(site.epoch(), epoch);
                }
            }
        });
    }

    #[test]
    fn on_behalf_of_others_this_machine_resets_nothing() {
        run(async {
            for keyed in [false, true] {
                let site = site_with(|settings| {
                    if keyed {
                        with_key(settings);
                    }
                })
                .await;
                for url in [site.app.url(), site.app.admin_url()] {
                    for lines in suspicious() {
                        assert_eq!(post(&url, "/admin/reset", &lines).await.0, 403, "{lines:?}");
                    }
                    let absolute = "http://evil.example/admin/reset";
                    assert_eq!(post(&url, absolute, &[("host", "localhost")]).await.0, 403);
                }
                nothing_changed(&site);
            }
        });
    }

    #[test]
    fn on_behalf_of_others_this_machine_gives_workers_no_orders() {
        run(async {
            let site = site_with(|_| ()).await;
            let mut passed = Vec::new();
            for order in ORDERS {
                for lines in suspicious() {
                    if post(&site.app.url(), order, &lines).await.0 != 403 {
                        passed.push((order, lines));
                    }
                }
            }
            assert!(passed.is_empty(), "these were carried out: {passed:#?}");
            nothing_changed(&site);
        });
    }

    /// A worker unquotes paths before it looks them up, so the router has to know them in every spelling.
    #[test]
    fn a_path_in_another_spelling_is_no_way_around() {
        run(async {
            let site = site_with(with_key).await;
            for path in [
                "/v1/%6coad_lora_adapter",
                "/v1/%6Coad_lora_adapter?x=1",
                "/v1/load%5Flora%5fadapter",
                "/v1/unload_lora_adapte%72",
                "/inference/v1/%61bort_requests",
                "/inference/%76%31/abort_requests",
            ] {
                let (status, _) = post(&site.app.url(), path, &[("host", "evil.example")]).await;
                assert!(matches!(status, 403 | 404), "{path}: {status}");
            }
            nothing_changed(&site);
        });
    }

    #[test]
    fn the_admin_listener_passes_nothing_to_workers_not_even_with_the_key() {
        run(async {
            let site = site_with(with_key).await;
            for path in ORDERS.into_iter().chain(["/v1/completions", "/tokenize", "/v1/new"]) {
                assert_eq!(
                    post(&site.app.admin_url(), path, &[("host", "h"), BEARER]).await.0,
                    404,
                    "{path}"
                );
            }
            nothing_changed(&site);
        });
    }

    #[test]
    fn the_key_opens_what_everything_else_closes_and_a_wrong_one_nothing() {
        run(async {
            let site = site_with(with_key).await;
            let wrong = [
                "Bearer the-admin-kez",
                "Bearer the-admin-key2",
                "Bearer ",
                "Bearer",
                "the-admin-key",
                "Basic the-admin-key",
            ];
            for url in [site.app.url(), site.app.admin_url()] {
                for value in wrong {
                    let lines = [("host", "public.example"), ("authorization", value)];
                    assert_eq!(post(&url, "/admin/reset", &lines).await.0, 403, "{value}");
                }
            }
            for value in wrong {
                let lines = [("host", "public.example"), ("authorization", value)];
                assert_eq!(post(&site.app.url(), "/reset_prefix_cache", &lines).await.0, 403, "{value}");
            }
            nothing_changed(&site);
            let lines = [("host", "public.example"), ("x-forwarded-for", "1.2.3.4"), BEARER];
            for url in [site.app.url(), site.app.admin_url()] {
                assert_eq!(post(&url, "/admin/reset", &lines).await.0, 200);
            }
            assert_eq!(site.epoch(), 3);
            assert_eq!(post(&site.app.url(), "/reset_prefix_cache", &lines).await.0, 200);
            for worker in &site.workers {
                let recorded = worker.requests_to("/reset_prefix_cache");
                assert_eq!(
                    (recorded.len(), recorded[0].header("authorization")),
                    (1, None),
                    "the key is not passed on"
                );
            }
        });
    }

    #[test]
    fn the_key_of_the_workers_gives_no_admin_right_and_is_shown_to_them_only() {
        run(async {
            let change = |settings: &mut Settings| {
                with_key(settings);
                settings.router.api_key = Some(Secret::new("for-workers".to_owned()));
            };
            let site = site_with(change).await;
            let lines = [("host", "public"), ("authorization", "Bearer for-workers")];
            assert_eq!(post(&site.app.url(), "/admin/reset", &lines).await.0, 403);
            assert_eq!(post(&site.app.url(), "/reset_mm_cache", &[("host", "public"), BEARER]).await.0, 200);
            let recorded = site.workers[0].requests_to("/reset_mm_cache").pop().unwrap();
            assert_eq!(recorded.header("authorization"), Some("Bearer for-workers"));
            let mut client = site.client().await;
            client.ask("POST", "/v1/completions", &[("authorization", "Bearer mine")], b"{}").await;
            let recorded = site.workers.iter().flat_map(|worker| worker.requests_to("/v1/completions"));
            let shown: Vec<_> =
                recorded.map(|request| request.header("authorization").map(str::to_owned)).collect();
            assert_eq!(shown, [Some("Bearer mine".to_owned())], "clients' requests keep their own");
        });
    }

    /// A network namespace with one end of a veth pair; the other end is here. Gone when dropped.
    struct Namespace {
        name: String,
        here: String,
    }

    impl Namespace {
        /// `None` with a printed reason where that is not possible.
        fn make() -> Option<Self> {
            let id = std::process::id() % 100_000;
            let space = Self { name: format!("forebay-{id}"), here: format!("fb{id}") };
            let (name, here, there) = (&space.name, &space.here, format!("fc{id}"));
            for args in [
                format!("netns add {name}"),
                format!("link add {here} type veth peer name {there} netns {name}"),
                format!("addr add {}/30 dev {here}", Self::HERE),
                format!("link set {here} up"),
                format!("-n {name} addr add {}/30 dev {there}", Self::THERE),
                format!("-n {name} link set {there} up"),
            ] {
                let done = ip(&args);
                if !done.as_ref().is_ok_and(|output| output.status.success()) {
                    println!("skipped: `ip {args}` is not possible here: {done:?}");
                    return None;
                }
            }
            Some(space)
        }

        // From the block that is set aside for documents, so that nothing real is hidden.
        const HERE: &str = "198.51.100.1";
        const THERE: &str = "198.51.100.2";

        /// The status that a client over there gets for a POST.
        fn post(&self, url: &str, header: Option<&str>) -> String {
            let mut curl = Command::new("ip");
            curl.args(["netns", "exec", &self.name, "curl", "-s", "--noproxy", "*", "--max-time", "20"]);
            curl.args(["-o", "/dev/null", "-w", "%{http_code}", "-X", "POST", url]);
            curl.args(header.iter().flat_map(|header| ["-H", header]));
            String::from_utf8(curl.output().unwrap().stdout).unwrap()
        }
    }

    impl Drop for Namespace {
        fn drop(&mut self) {
            // The veth pair goes with either end; the first fails if the pair was never made.
            let _ends = (ip(&format!("link del {}", self.here)), ip(&format!("netns del {}", self.name)));
        }
    }

    fn ip(args: &str) -> std::io::Result<Output> {
        Command::new("ip").args(args.split(' ')).stdin(Stdio::null()).output()
    }

    #[test]
    fn from_another_machine_only_the_key_opens_either_listener() {
        let curl = Command::new("curl").arg("--version").output();
        if !curl.is_ok_and(|output| output.status.success()) {
            return println!("skipped: there is no curl");
        }
        let Some(space) = Namespace::make() else { return };
        run(async {
            let site = site_with(|settings| {
                with_key(settings);
                settings.listen.host = "0.0.0.0".parse().unwrap();
                settings.admin.host = "0.0.0.0".parse().unwrap();
            })
            .await;
            let there = |url: String| url.replace("0.0.0.0", Namespace::HERE);
            // The application has threads of its own, so this one may wait for curl.
            let ask = |url: String, header: Option<&str>| space.post(&url, header);
            for listener in [there(site.app.url()), there(site.app.admin_url())] {
                let reset = format!("{listener}/admin/reset");
                for header in
                    [None, Some("host: localhost"), Some("host: 127.0.0.1"), Some("authorization: Bearer x")]
                {
                    assert_eq!(ask(reset.clone(), header), "403", "{reset} {header:?}");
                }
            }
            for order in ["reset_prefix_cache", "sleep", "v1/load_lora_adapter"] {
                assert_eq!(ask(format!("{}/{order}", there(site.app.url())), Some("host: localhost")), "403");
            }
            nothing_changed(&site);
            for (i, listener) in [there(site.app.url()), there(site.app.admin_url())].into_iter().enumerate()
            {
                let header = Some("authorization: Bearer the-admin-key");
                assert_eq!(ask(format!("{listener}/admin/reset"), header), "200");
                assert_eq!(site.epoch(), i as u64 + 2);
            }
        });
    }
}
