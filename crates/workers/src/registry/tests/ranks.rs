//! URLs with several ranks: which of them share what.

use super::*;

/// URLs with two ranks each that serve anything.
fn ranked(kind: PolicyKind, urls: &[&str]) -> (Reader, Writer, Vec<Arc<Host>>) {
    let (reader, writer, wholes) = fleet(kind, urls);
    let hosts: Vec<_> = wholes.iter().map(|whole| Arc::clone(whole.host())).collect();
    for host in &hosts {
        assert!(writer.ranks(host, Ranks::first(2)) && !writer.ranks(host, Ranks::first(2)));
        writer.learnt(host, Models::Any, None);
        writer.probed(host, true);
    }
    (reader, writer, hosts)
}

fn names(reader: &Reader) -> Vec<String> {
    reader.world().workers().iter().map(|worker| worker.name().to_owned()).collect()
}

#[test]
fn each_rank_is_a_worker_and_the_url_stays_one_for_requests_without_a_rank() {
    let (reader, writer, hosts) = ranked(PolicyKind::RoundRobin, &["http://a:1", "http://b:1"]);
    assert_eq!(names(&reader), ["http://a:1@0", "http://a:1@1", "http://b:1@0", "http://b:1@1"]);
    let world = reader.world();
    let by = |by| -> Vec<_> {
        let pool = world.pool(by, Some("m")).unwrap();
        (0..4).map(|_| select(pool, 0).unwrap().guard).collect()
    };
    let (ranks, urls) = (by(By::Rank), by(By::Url));
    let chosen = |guards: &[crate::Guard]| -> Vec<String> {
        guards.iter().map(|guard| guard.worker().name().to_owned()).collect()
    };
    assert_eq!(chosen(&ranks), ["http://a:1@0", "http://b:1@0", "http://a:1@1", "http://b:1@1"]);
    assert_eq!(chosen(&urls), ["http://a:1", "http://b:1", "http://a:1", "http://b:1"]);
    let loads: Vec<_> = world.carriers().map(|carrier| carrier.in_flight()).collect();
    assert_eq!(loads, [1, 1, 1, 1, 2, 2]);
    assert_eq!(world.wholes()[0].in_flight_at_host(), 4);
    drop((ranks, urls));
    assert!(world.carriers().all(|carrier| carrier.in_flight() == 0 && carrier.in_flight_at_host() == 0));
    writer.remove(&hosts[0]);
    assert_eq!(names(&reader), ["http://b:1@0", "http://b:1@1"]);
}

#[test]
fn ranks_that_come_and_go_leave_the_others_as_they_are() {
    let (reader, writer, hosts) = ranked(PolicyKind::RoundRobin, &["http://a:1"]);
    let held = select(reader.world().pool(By::Rank, None).unwrap(), 0).unwrap();
    assert!(writer.ranks(&hosts[0], Ranks::first(4)));
    let world = reader.world();
    assert_eq!(names(&reader), ["http://a:1@0", "http://a:1@1", "http://a:1@2", "http://a:1@3"]);
    assert!(world.workers().iter().all(|worker| worker.eligible()), "the new ones are as well as the URL");
    assert_eq!(world.workers()[0].in_flight(), 1);
    assert!(writer.ranks(&hosts[0], Ranks::new(1..2)));
    assert_eq!(names(&reader), ["http://a:1@1"]);
    assert!(!world.workers()[0].eligible() && world.workers()[1].eligible());
    drop(held);
    assert_eq!(world.workers()[0].in_flight(), 0);
    assert!(writer.ranks(&hosts[0], None));
    assert_eq!((names(&reader), hosts[0].workers().len()), (vec!["http://a:1".to_owned()], 1));
}

#[test]
fn health_is_of_the_url_and_so_is_the_breaker_for_connections() {
    let (reader, writer, hosts) = ranked(PolicyKind::RoundRobin, &["http://a:1"]);
    let world = reader.world();
    let ranks = world.workers();
    hosts[0].suspect();
    assert!(ranks.iter().all(|rank| !rank.eligible() && rank.health_word() == "suspect"));
    writer.probed(&hosts[0], true);
    assert!(ranks.iter().all(|rank| rank.eligible()));
    let pool = world.pool(By::Rank, None).unwrap();
    (0..3).for_each(|_| select(pool, 0).unwrap().guard.broke(0));
    assert!(ranks.iter().all(|rank| rank.breaker_state() == BreakerState::Open && !rank.eligible()));
    assert!(select(pool, 9_999).is_some_and(|trickle| trickle.guard.worker().dp_rank().is_some()));
    let held: Vec<_> = (0..8).filter_map(|_| select(pool, 10_000)).collect();
    assert_eq!(held.len(), 2, "two probes for the URL, not for each rank");
    held.into_iter().for_each(|selected| selected.guard.succeeded());
    assert!(ranks.iter().all(|rank| rank.eligible()));
}

#[test]
fn a_rank_whose_answers_fail_is_passed_over_alone() {
    let (reader, _, _) = ranked(PolicyKind::RoundRobin, &["http://a:1"]);
    let world = reader.world();
    let pool = world.pool(By::Rank, None).unwrap();
    for _ in 0..8 {
        let guard = select(pool, 0).unwrap().guard;
        if guard.worker().dp_rank() == Some(1) { guard.failed(0) } else { guard.succeeded() }
    }
    let states: Vec<_> = world.workers().iter().map(|worker| worker.breaker_state()).collect();
    assert_eq!(states, [BreakerState::Closed, BreakerState::Open]);
    assert_eq!(select(pool, 1).unwrap().guard.worker().dp_rank(), Some(0));
}

#[test]
fn a_url_whose_ranks_go_is_not_kept_out_by_what_was_said_of_all_of_them() {
    let (reader, writer, hosts) = ranked(PolicyKind::RoundRobin, &["http://a:1"]);
    let world = reader.world();
    let pool = world.pool(By::Rank, None).unwrap();
    for _ in 0..BREAKING.failure_threshold {
        select(pool, 0).unwrap().guard.broke(0);
    }
    assert!(hosts[0].blocked_by(Blocker::HostOpen));
    assert!(writer.ranks(&hosts[0], None));
    let whole = whole(&hosts[0]);
    assert!(whole.eligible() && whole.breaker_state() == BreakerState::Closed);
}
