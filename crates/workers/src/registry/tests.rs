use super::*;
use crate::tried::Tried;
use crate::worker::Worker;

use crate::breaker::BreakerState;
use crate::by::{By, PoolError};
use crate::note::{Asker, Note};
use crate::pool::Pool;
use crate::served::ServedModel;
use forebay_policy::{Ask, PolicyKind};
use std::time::Duration;

mod ranks;

const BREAKING: BreakerSettings = BreakerSettings {
    enabled: true,
    failure_threshold: 3,
    success_threshold: 2,
    open_for: Duration::from_secs(10),
    window: Duration::from_secs(10),
};

fn fleet(kind: PolicyKind, urls: &[&str]) -> (Reader, Writer, Vec<Arc<Worker>>) {
    let settings = PolicySettings { kind, ..PolicySettings::default() };
    let (reader, writer) = registry(settings, 7, HealthSettings::default(), BREAKING);
    let workers = urls.iter().map(|url| whole(&writer.add(url.parse().unwrap()))).collect();
    (reader, writer, workers)
}

fn whole(host: &Arc<Host>) -> Arc<Worker> {
    Arc::clone(&host.workers()[0])
}

fn model(id: &str, parent: Option<&str>, root: &str) -> ServedModel {
    ServedModel {
        id: id.to_owned(),
        parent: parent.map(str::to_owned),
        root: Some(root.to_owned()),
        entry: String::new(),
    }
}

fn serve(writer: &Writer, worker: &Arc<Worker>, models: &[ServedModel]) {
    writer.learnt(worker.host(), Models::Named(models.to_vec()), None);
    writer.probed(worker.host(), true);
}

fn chosen(reader: &Reader, model: Option<&str>) -> Option<String> {
    let world = reader.world();
    let selected = world.pool(By::Rank, model).ok()?.select(&Ask::default(), &Tried::default()).unwrap()?;
    Some(selected.guard.worker().name().to_owned())
}

#[test]
fn a_request_goes_to_a_worker_that_serves_its_model() {
    let (reader, writer, workers) = fleet(PolicyKind::RoundRobin, &["http://a:1", "http://b:1"]);
    serve(&writer, &workers[0], &[model("m", None, "/m")]);
    serve(&writer, &workers[1], &[model("n", None, "/n"), model("lora", Some("n"), "/l")]);
    for _ in 0..3 {
        assert_eq!(chosen(&reader, Some("m")).as_deref(), Some("http://a:1"));
        assert_eq!(chosen(&reader, Some("lora")).as_deref(), Some("http://b:1"));
    }
    assert_eq!(reader.world().pool(By::Rank, Some("x")).err(), Some(PoolError::UnknownModel));
    assert_eq!(reader.world().pool(By::Rank, None).err(), Some(PoolError::ModelNeeded));
}

#[test]
fn an_adapter_or_a_second_name_is_no_second_base_model() {
    let (reader, writer, workers) = fleet(PolicyKind::RoundRobin, &["http://a:1"]);
    serve(
        &writer,
        &workers[0],
        &[model("m", None, "/m"), model("m2", None, "/m"), model("lora", Some("m"), "/l")],
    );
    assert_eq!(chosen(&reader, None).as_deref(), Some("http://a:1"));
}

#[test]
fn a_worker_whose_models_cannot_be_read_takes_any_name() {
    let (reader, writer, workers) = fleet(PolicyKind::RoundRobin, &["http://a:1", "http://b:1"]);
    assert_eq!(reader.world().pool(By::Rank, Some("m")).err(), Some(PoolError::NothingKnown));
    serve(&writer, &workers[0], &[model("m", None, "/m")]);
    writer.learnt(workers[1].host(), Models::Any, None);
    writer.probed(workers[1].host(), true);
    let mut names: Vec<_> = (0..2).filter_map(|_| chosen(&reader, Some("m"))).collect();
    names.sort();
    assert_eq!(names, ["http://a:1", "http://b:1"]);
    assert_eq!(chosen(&reader, Some("other")).as_deref(), Some("http://b:1"));
}

#[test]
fn the_load_is_up_from_the_choice_until_the_guard_falls() {
    let (reader, writer, workers) = fleet(PolicyKind::PowerOfTwo, &["http://a:1", "http://b:1"]);
    for worker in &workers {
        serve(&writer, worker, &[model("m", None, "/m")]);
    }
    let world = reader.world();
    let pool = world.pool(By::Rank, Some("m")).unwrap();
    let burst: Vec<_> =
        (0..10).filter_map(|_| pool.select(&Ask::default(), &Tried::default()).unwrap()).collect();
    assert_eq!(workers.iter().map(|w| w.in_flight()).collect::<Vec<_>>(), [5, 5]);
    assert_eq!(workers.iter().map(|w| pool.served(w.slot())).sum::<u64>(), 10);
    drop(burst);
    assert_eq!(workers.iter().map(|w| w.in_flight()).sum::<u32>(), 0);
}

#[test]
fn a_reset_gives_fresh_policies_and_leaves_loads_alone() {
    let (reader, writer, workers) = fleet(PolicyKind::RoundRobin, &["http://a:1", "http://b:1"]);
    for worker in &workers {
        serve(&writer, worker, &[model("m", None, "/m")]);
    }
    let old = reader.world();
    let held =
        old.pool(By::Rank, Some("m")).unwrap().select(&Ask::default(), &Tried::default()).unwrap().unwrap();
    let world = writer.reset(Parts::USUAL, Some(9));
    assert_eq!((world.epoch(), world.seed(), workers[0].in_flight()), (2, 9, 1));
    // The cursor starts over, and a late request of the old epoch does not move it.
    drop(old.pool(By::Rank, Some("m")).unwrap().select(&Ask::default(), &Tried::default()));
    assert_eq!(chosen(&reader, Some("m")).as_deref(), Some("http://a:1"));
    assert_eq!(world.pool(By::Rank, Some("m")).unwrap().served(workers[1].slot()), 0);
    drop(held);
    assert_eq!(workers[0].in_flight(), 0);
}

#[test]
fn a_worker_that_leaves_and_returns_keeps_its_place() {
    let (reader, writer, workers) =
        fleet(PolicyKind::RoundRobin, &["http://a:1", "http://b:1", "http://c:1"]);
    writer.remove(workers[1].host());
    assert_eq!(reader.world().workers().len(), 2);
    let back = whole(&writer.add("http://b:1".parse().unwrap()));
    assert_eq!(back.slot(), workers[1].slot());
    let names: Vec<_> = reader.world().workers().iter().map(|w| w.name().to_owned()).collect();
    assert_eq!(names, ["http://a:1", "http://b:1", "http://c:1"]);
}

#[test]
fn a_refused_connection_takes_the_worker_out_until_a_probe_has_looked() {
    let (reader, writer, workers) = fleet(PolicyKind::RoundRobin, &["http://a:1"]);
    serve(&writer, &workers[0], &[model("m", None, "/m")]);
    workers[0].host().suspect();
    assert_eq!(chosen(&reader, Some("m")), None);
    assert!(writer.probed(workers[0].host(), true), "a good probe clears the suspicion");
    assert!(chosen(&reader, Some("m")).is_some());
    workers[0].host().suspect();
    assert!(!writer.probed(workers[0].host(), false), "a failed one confirms it at once");
    assert_eq!(workers[0].health_word(), "unhealthy");
    assert!(!writer.probed(workers[0].host(), true));
    assert!(writer.probed(workers[0].host(), true), "two good probes bring it back");
}

/// Requests that the worker fails at `now_ms`, one by one.
fn fail(pool: &Pool, count: usize, now_ms: u64) {
    for _ in 0..count {
        let ask = Ask { now_ms, ..Ask::default() };
        pool.select(&ask, &Tried::default()).unwrap().unwrap().guard.failed(now_ms);
    }
}

fn select(pool: &Pool, now_ms: u64) -> Option<crate::pool::Selected> {
    pool.select(&Ask { now_ms, ..Ask::default() }, &Tried::default()).unwrap()
}

#[test]
fn a_worker_whose_breaker_is_open_is_passed_over_until_its_probes_succeed() {
    let (reader, writer, workers) = fleet(PolicyKind::RoundRobin, &["http://a:1", "http://b:1"]);
    serve(&writer, &workers[0], &[model("m", None, "/m")]);
    let world = reader.world();
    fail(world.pool(By::Rank, Some("m")).unwrap(), 3, 0);
    serve(&writer, &workers[1], &[model("m", None, "/m")]);
    let world = reader.world();
    let pool = world.pool(By::Rank, Some("m")).unwrap();
    let by = |now_ms| select(pool, now_ms).map(|selected| selected.guard.worker().name().to_owned());
    assert!((0..6).all(|_| by(9_999).as_deref() == Some("http://b:1")));
    assert!(workers[0].blocked_by(Blocker::Open) && !workers[0].eligible());
    let held: Vec<_> = (0..8).filter_map(|_| select(pool, 10_000)).collect();
    assert_eq!((workers[0].in_flight(), workers[0].breaker_state()), (2, BreakerState::HalfOpen));
    held.into_iter().for_each(|selected| selected.guard.succeeded());
    assert!(workers[0].eligible(), "two probes, two successes");
}

#[test]
fn when_all_breakers_are_open_the_one_that_opened_first_gets_a_trickle() {
    let (reader, writer, workers) = fleet(PolicyKind::RoundRobin, &["http://a:1", "http://b:1"]);
    for worker in &workers {
        serve(&writer, worker, &[model("m", None, "/m")]);
    }
    let world = reader.world();
    let pool = world.pool(By::Rank, Some("m")).unwrap();
    fail(pool, 6, 1000);
    assert!(workers.iter().all(|worker| worker.breaker_state() == BreakerState::Open));
    let probes: Vec<_> = (0..10).filter_map(|_| select(pool, 1000)).collect();
    assert_eq!(probes.len(), 2, "one at a time for each worker");
    probes.into_iter().for_each(|probe| probe.guard.succeeded());
    assert_eq!(workers[0].breaker_state(), BreakerState::HalfOpen);
    select(pool, 2000).unwrap().guard.succeeded();
    select(pool, 2000).unwrap().guard.succeeded();
    assert!(workers.iter().all(|worker| worker.eligible()), "long before the breakers' time is over");
}

#[test]
fn a_reset_closes_breakers_and_requests_of_the_old_trial_do_not_open_them() {
    let (reader, writer, workers) = fleet(PolicyKind::RoundRobin, &["http://a:1"]);
    serve(&writer, &workers[0], &[model("m", None, "/m")]);
    let old = reader.world();
    let old = old.pool(By::Rank, Some("m")).unwrap();
    let late: Vec<_> = (0..20).filter_map(|_| select(old, 0)).collect();
    fail(old, 3, 0);
    assert_eq!(workers[0].breaker_state(), BreakerState::Open);
    writer.reset(Parts::USUAL, None);
    assert!(workers[0].eligible());
    late.into_iter().for_each(|selected| selected.guard.failed(1));
    fail(old, 20, 1);
    assert!(workers[0].eligible());
    assert_eq!(workers[0].in_flight(), 0);
}

#[test]
fn choices_and_what_changes_policies_are_noted_in_order() {
    let (reader, writer, _) = fleet(PolicyKind::RoundRobin, &[]);
    let ledger = Arc::new(Ledger::new(1 << 20, prometheus::IntCounter::new("dropped", "x").unwrap()));
    writer.note_in(Arc::clone(&ledger));
    let worker = whole(&writer.add("http://a:1".parse().unwrap()));
    serve(&writer, &worker, &[model("m", None, "m")]);
    let world = reader.world();
    let asker = Asker { request: b"r-1", attempt: 0 };
    let ask = Ask { now_ms: 5, ..Ask::default() };
    let selected = world.all(By::Rank).select_for(asker, &ask, &Tried::default()).unwrap().unwrap();
    writer.cache_holds(worker.host(), 100);
    writer.forget(worker.host());
    writer.reset(Parts::USUAL, Some(9));
    let again = world.all(By::Rank).select_for(asker, &ask, &Tried::default()).unwrap().unwrap();
    let mut tried = Tried::default();
    tried.add(worker.slot());
    assert!(world.all(By::Rank).select_for(asker, &ask, &tried).unwrap().is_none());
    let notes = ledger.take().unwrap();
    assert!(notes.iter().enumerate().all(|(i, (number, _))| i as u64 == *number));
    let asked: Vec<_> = notes
        .iter()
        .filter_map(|(number, note)| match note {
            Note::Asked(asked) => Some((*number, asked)),
            _ => None,
        })
        .collect();
    assert_eq!(asked.len(), 3);
    assert_eq!((Some(asked[0].0), Some(asked[1].0)), (selected.noted, again.noted));
    assert_eq!((asked[0].1.choice, asked[2].1.choice), (Some(selected.choice), None));
    assert_eq!((&*asked[0].1.request, asked[0].1.epoch, asked[1].1.epoch), (&b"r-1"[..], 1, 1));
    let seen = |at: usize| asked[at].1.candidates[0];
    assert_eq!((seen(0).eligible, seen(0).in_flight, seen(0).cache_tokens), (true, 0, 0));
    assert_eq!((seen(1).in_flight, seen(1).cache_tokens, seen(1).served), (1, 100, 1));
    assert!(!seen(2).eligible);
    let between: Vec<_> = notes[asked[0].0 as usize + 1..asked[1].0 as usize].iter().map(|n| &n.1).collect();
    assert!(matches!(between[0], Note::Capacity { tokens: 100, .. }), "{between:?}");
    assert!(between.iter().any(|note| matches!(note, Note::Forgot { .. })));
    assert!(between.iter().any(|note| matches!(note, Note::Reset { epoch: 2, seed: 9, policies: true })));
    let of_epoch =
        |wanted| move |note: &&(u64, Note)| matches!(&note.1, Note::Policy(made) if made.epoch == wanted);
    assert!(notes.iter().filter(of_epoch(2)).count() >= 1);
}

#[test]
fn a_reset_of_the_counts_keeps_cursors_and_breakers_and_begins_an_epoch() {
    let (reader, writer, workers) = fleet(PolicyKind::RoundRobin, &["http://a:1", "http://b:1"]);
    for worker in &workers {
        serve(&writer, worker, &[model("m", None, "/m")]);
    }
    let old = reader.world();
    let pool = old.pool(By::Rank, Some("m")).unwrap();
    assert_eq!(chosen(&reader, Some("m")).as_deref(), Some("http://a:1"));
    let late: Vec<_> = (0..9).filter_map(|_| select(pool, 0)).collect();
    assert_eq!(late.len(), 9);
    let world = writer.reset(Parts::NONE, None);
    assert_eq!(world.epoch(), 2);
    assert_eq!(chosen(&reader, Some("m")).as_deref(), Some("http://a:1"), "the tenth turn was b's");
    late.into_iter().for_each(|selected| selected.guard.failed(1));
    assert!(workers.iter().all(|worker| worker.eligible()), "the new trial hears nothing of the old one");
    fail(world.pool(By::Rank, Some("m")).unwrap(), 6, 1);
    assert!(workers.iter().all(|worker| worker.breaker_state() == BreakerState::Open));
    assert_eq!(writer.reset(Parts::NONE, None).epoch(), 3);
    assert!(workers.iter().all(|worker| worker.breaker_state() == BreakerState::Open));
    assert_eq!(writer.reset(Parts { breakers: true, ..Parts::NONE }, None).epoch(), 4);
    assert!(workers.iter().all(|worker| worker.eligible()));
}

#[test]
fn a_reset_of_health_takes_suspicions_and_streaks_back_and_believes_the_next_probe() {
    let (_reader, writer, workers) = fleet(PolicyKind::RoundRobin, &["http://a:1"]);
    serve(&writer, &workers[0], &[model("m", None, "/m")]);
    workers[0].host().suspect();
    writer.reset(Parts::USUAL, None);
    assert!(!workers[0].eligible(), "health is kept unless it is named");
    writer.reset(Parts { health: true, ..Parts::NONE }, None);
    assert!(workers[0].eligible());
    assert_eq!([(); 3].map(|()| writer.probed(workers[0].host(), false)), [true, true, false]);
    assert!(!writer.probed(workers[0].host(), true), "one good probe of two");
    writer.reset(Parts { health: true, ..Parts::NONE }, None);
    assert!(!workers[0].eligible());
    assert!(writer.probed(workers[0].host(), true));
}

#[test]
fn a_worker_that_asked_to_be_left_alone_in_one_trial_takes_part_in_the_next() {
    let (reader, writer, workers) = fleet(PolicyKind::RoundRobin, &["http://a:1", "http://b:1"]);
    workers.iter().for_each(|worker| serve(&writer, worker, &[model("m", None, "m")]));
    workers[0].host().pause(30_000);
    writer.reset(Parts::NONE, None);
    assert!(!workers[0].admits(1), "breakers are not reset, and nor is this");
    writer.reset(Parts::USUAL, None);
    assert!(workers[0].admits(1) && workers[0].eligible());
    assert_eq!(chosen(&reader, Some("m")).as_deref(), Some("http://a:1"));
    workers[0].host().pause(10);
    assert!(!workers[0].admits(9) && workers[0].admits(10), "it may ask again");
}

#[test]
fn old_policies_are_given_out_to_be_dropped_when_no_request_holds_them() {
    let (reader, writer, workers) = fleet(PolicyKind::CacheAware, &["http://a:1"]);
    serve(&writer, &workers[0], &[model("m", None, "/m")]);
    let held = reader.world();
    writer.reset(Parts::USUAL, None);
    assert_eq!(writer.take_retired().len(), 0);
    drop(held);
    assert_eq!(writer.take_retired().len(), 2, "of the model and of all workers");
    assert_eq!(writer.take_retired().len(), 0);
}

#[test]
fn what_a_probe_heard_before_an_order_was_carried_out_changes_nothing() {
    let (_reader, writer, workers) = fleet(PolicyKind::RoundRobin, &["http://a:1"]);
    let host = workers[0].host();
    serve(&writer, &workers[0], &[]);
    for rest in [Rest::Asleep, Rest::Stopped] {
        let asked = host.news();
        assert!(writer.rests(host, rest, true));
        assert!(!writer.heard_of_rest(host, rest, false, asked), "it was asked before it went to rest");
        assert!(!workers[0].eligible());
        let asked = host.news();
        assert!(writer.rests(host, rest, false));
        assert!(!writer.heard_of_rest(host, rest, true, asked), "it was asked before it woke up");
        assert!(workers[0].eligible());
        assert!(writer.heard_of_rest(host, rest, true, host.news()));
        assert!(writer.heard_of_rest(host, rest, false, host.news()));
    }
    let asked = host.news();
    assert!(!host.is_suspected_since(asked));
    host.suspect();
    assert!(host.is_suspected_since(asked) && !host.is_suspected_since(host.news()));
}

#[test]
fn a_drain_can_be_taken_back_until_the_worker_has_left() {
    let (reader, writer, workers) = fleet(PolicyKind::RoundRobin, &["http://a:1", "http://b:1"]);
    workers.iter().for_each(|worker| serve(&writer, worker, &[]));
    let host = workers[0].host();
    let leg = workers[0].hold();
    writer.drain(host);
    assert!(!workers[0].eligible() && writer.remove_drained().is_empty(), "it has a leg yet");
    assert!(writer.undrain(host) && workers[0].eligible());
    drop(leg);
    assert!(writer.remove_drained().is_empty());
    writer.drain(host);
    assert_eq!(writer.remove_drained().len(), 1);
    assert!(!writer.undrain(host) && !workers[0].eligible());
    assert_eq!(reader.world().workers().len(), 1);
}

#[test]
fn a_request_that_failed_and_the_probe_that_follows_agree_that_a_worker_is_dead() {
    let (_reader, writer, workers) = fleet(PolicyKind::RoundRobin, &["http://a:1"]);
    let host = workers[0].host();
    serve(&writer, &workers[0], &[]);
    assert!(writer.probed(host, false), "one failed probe alone is no reason");
    workers[0].hold().failed(0);
    assert!(writer.probed(host, true), "a good one says that the request was to blame");
    assert!(writer.probed(host, false));
    workers[0].hold().broke(0);
    assert!(!writer.probed(host, false));
    assert_eq!(host.left_rotation(), 1);
}
