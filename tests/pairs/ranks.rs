//! Pairs of workers whose data-parallel ranks are told apart: which rank each leg names, where, and what a refusal teaches.

use forebay::App;
use forebay::settings::{RoleSettings, Settings};
use forebay::startup::StartupError;
use forebay_discovery::RankCount;
use forebay_pd::Connector;
use forebay_policy::{PolicyKind, PolicySettings};
use forebay_sim::{PairRole, Recorded, Worker, WorkerOptions};
use forebay_tests::run;
use forebay_workers::{Ranks, Role};

use crate::setting::{ONE_EACH, Setting, Shape, alike, completion};

const RANK: &str = "x-data-parallel-rank";

/// Of P2P NCCL one rank finds another only if it has the same number: the flags take no ranks with it.
fn with_ranks() -> impl Iterator<Item = Connector> {
    alike().filter(|connector| !connector.names_workers())
}

fn given(ranks: u32) -> RankCount {
    RankCount::Given(Ranks::first(ranks).unwrap())
}

/// Prefill workers have four ranks, decode workers two.
fn four_and_two(options: &mut WorkerOptions) {
    options.ranks = match options.pair.as_ref().unwrap().role {
        PairRole::Prefill => 0..4,
        PairRole::Decode => 0..2,
    };
}

fn in_turn(settings: &mut Settings) {
    (settings.prefill_ranks, settings.ranks) = (given(4), given(2));
    settings.policy.kind = PolicyKind::RoundRobin;
    settings.roles.as_mut().unwrap().prefill_policy.kind = PolicyKind::RoundRobin;
}

async fn start(shape: Shape) -> Setting {
    shape.start_with(four_and_two, in_turn).await
}

/// The rank in the head of a leg, which is there once.
fn rank_of(leg: &Recorded) -> u32 {
    let head = String::from_utf8(leg.head.to_vec()).unwrap();
    let lines = head.lines().filter_map(|line| line.split_once(':'));
    let ranks: Vec<_> = lines.filter(|(name, _)| name.eq_ignore_ascii_case(RANK)).collect();
    assert_eq!(ranks.len(), 1, "{head}");
    ranks[0].1.trim().parse().unwrap()
}

fn legs_of(worker: &Worker) -> Vec<Recorded> {
    worker.requests_to("/v1/completions")
}

#[test]
fn each_leg_names_the_rank_that_was_chosen_for_it_and_every_rank_gets_its_turn() {
    run(async {
        for connector in with_ranks() {
            let setting = start(ONE_EACH.by(connector)).await;
            let mut client = setting.site.client().await;
            for i in 0..16 {
                let body = completion(&format!("p{i}"), 2, i % 2 == 0);
                // What a client says of ranks goes to nobody.
                let forged = [(RANK, "9")];
                let answer = client.ask("POST", "/v1/completions", &forged, body.as_bytes()).await;
                assert_eq!(answer.status(), 200, "{connector:?}: {}", answer.text());
            }
            let (prefills, decodes) = (legs_of(setting.prefill(0)), legs_of(setting.decode(0)));
            let count = |legs: &[Recorded], rank| legs.iter().filter(|leg| rank_of(leg) == rank).count();
            assert_eq!([0, 1, 2, 3].map(|rank| count(&prefills, rank)), [4; 4], "{connector:?}");
            assert_eq!([0, 1].map(|rank| count(&decodes, rank)), [8; 2], "{connector:?}");
            for (prefill, decode) in prefills.iter().zip(&decodes) {
                let of = |leg: &Recorded, name: &str| {
                    let body: serde_json::Value = serde_json::from_slice(&leg.body).unwrap();
                    body.get(name).and_then(serde_json::Value::as_u64)
                };
                let names = |leg: &Recorded| ["routed_dp_rank", "disagg_prefill_dp_rank"].map(|n| of(leg, n));
                let [from, to] = [prefill, decode].map(|leg| u64::from(rank_of(leg)));
                let wanted = match connector {
                    Connector::Bootstrap => ([Some(from), None], [Some(to), Some(from)]),
                    _ => ([None; 2], [None; 2]),
                };
                assert_eq!((names(prefill), names(decode)), wanted, "{connector:?}");
            }
            setting.site.quiet().await;
            setting.no_violation();
            assert_eq!(setting.exchange.transfers(), 16);
        }
    });
}

#[test]
fn a_rank_that_either_leg_is_refused_is_learnt_and_the_client_does_not_notice() {
    run(async {
        for connector in with_ranks() {
            let setting = start(ONE_EACH.by(connector)).await;
            let mut client = setting.site.client().await;
            for (worker, ranks) in [(setting.prefill(0), 5..7), (setting.decode(0), 3..4)] {
                worker.set_ranks(ranks.clone());
                let before = legs_of(worker).len();
                let answer = client.post("/v1/completions", completion("p", 2, false)).await;
                assert_eq!(answer.status(), 200, "{connector:?}: {}", answer.text());
                let told: Vec<u32> = legs_of(worker)[before..].iter().map(rank_of).collect();
                assert_eq!(told.len(), 2, "one refusal: {told:?}");
                assert!(!ranks.contains(&told[0]) && ranks.contains(&told[1]), "{told:?}");
            }
            setting.site.quiet().await;
            setting.no_violation();
            assert_eq!((setting.pairs("begun_anew").await, setting.pairs("handed_over").await), (2, 2));
        }
    });
}

#[test]
fn a_client_that_may_insist_on_a_rank_means_the_worker_that_answers_it() {
    run(async {
        let honour = |settings: &mut Settings| {
            in_turn(settings);
            settings.router.honor_client_dp_rank = true;
        };
        let setting = ONE_EACH.start_with(four_and_two, honour).await;
        let mut client = setting.site.client().await;
        let body = completion("p", 2, false);
        for _ in 0..4 {
            client.ask("POST", "/v1/completions", &[(RANK, "1")], body.as_bytes()).await;
        }
        let ranks = |worker| legs_of(worker).iter().map(rank_of).collect::<Vec<_>>();
        assert_eq!((ranks(setting.prefill(0)), ranks(setting.decode(0))), (vec![0, 1, 2, 3], vec![1; 4]));
        let answer = client.ask("POST", "/v1/completions", &[(RANK, "2")], body.as_bytes()).await;
        assert_eq!(
            (answer.status(), answer.header("x-forebay-failure").as_str()),
            (400, "router_rank_unknown"),
            "no decode worker has it"
        );
        setting.no_violation();
    });
}

#[test]
fn another_number_of_ranks_than_was_given_is_told_with_the_flag_of_the_role() {
    run(async {
        for (role, flag, given) in
            [(PairRole::Prefill, "prefill", [3, 2]), (PairRole::Decode, "decode", [4, 3])]
        {
            let setting = start(ONE_EACH).await;
            let mut settings = forebay_tests::site::settings(PolicyKind::RoundRobin, &[]);
            let workers = vec![
                (setting.prefill(0).url().parse().unwrap(), Role::Prefill { bootstrap_port: None }),
                (setting.decode(0).url().parse().unwrap(), Role::Decode),
            ];
            let prefill_policy = PolicySettings::default();
            settings.roles = Some(RoleSettings { workers, prefill_policy, announced: None, readiness: None });
            [settings.prefill_ranks, settings.ranks] = given.map(self::given);
            let app = App::start(&settings).unwrap();
            let error = StartupError::ranks(&app.misfit().await).to_string();
            let (said, url, has) = match role {
                PairRole::Prefill => (3, setting.prefill(0).url(), 4),
                PairRole::Decode => (3, setting.decode(0).url(), 2),
            };
            let expected = format!(
                "--{flag}-data-parallel-size: {said} was given, but {url} has {has}; give {has}, or auto"
            );
            assert_eq!(error, expected);
        }
    });
}
