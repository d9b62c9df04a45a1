use forebay_policy::PolicySettings;
use forebay_workers::{BreakerSettings, HealthSettings, registry};

use super::*;

struct Scene {
    announced: Announced,
    reader: Reader,
    writer: Writer,
    begun: Instant,
}

const PREFILL: Role = Role::Prefill { bootstrap_port: None };

impl Scene {
    fn new() -> Self {
        let (health, breaker) = (HealthSettings::default(), BreakerSettings::default());
        let (reader, writer) = registry(PolicySettings::default(), 1, health, breaker);
        writer.prefill_by(PolicySettings::default());
        let announced = Announced::new(reader.clone(), writer.clone());
        Self { announced, reader, writer, begun: Instant::now() }
    }

    fn at(&self, secs: f64) -> Instant {
        self.begun + Duration::from_secs_f64(secs)
    }

    fn says(&mut self, port: u16, role: Role, secs: f64) -> Heard {
        self.says_with(port, role, &format!("127.0.0.1:{}", port ^ 1 << 15), secs)
    }

    fn says_with(&mut self, port: u16, role: Role, kv_address: &str, secs: f64) -> Heard {
        let url = format!("http://127.0.0.1:{port}").parse().unwrap();
        let said = Announcement { url, role, kv_address: kv_address.to_owned() };
        self.announced.heard(said, self.at(secs))
    }

    fn pass(&mut self, secs: f64) {
        let now = self.at(secs);
        self.announced.pass(now);
        self.writer.remove_drained();
        self.announced.pass(now);
    }

    fn ports(&self) -> Vec<u16> {
        self.reader.world().hosts().iter().map(|host| host.url().port()).collect()
    }
}

fn is_new(heard: &Heard) -> bool {
    matches!(heard, Heard::New(_))
}

#[tokio::test]
async fn a_worker_stays_as_long_as_two_beats_of_three_are_missed_and_no_longer() {
    let mut scene = Scene::new();
    assert!(is_new(&scene.says(8000, PREFILL, 0.0)));
    assert!(is_new(&scene.says(8001, Role::Decode, 0.0)));
    for beat in 1..=3 {
        assert!(!is_new(&scene.says(8001, Role::Decode, f64::from(beat) * 3.0)));
    }
    scene.pass(9.9);
    assert_eq!(scene.ports(), [8000, 8001]);
    scene.pass(10.1);
    assert_eq!(scene.ports(), [8001]);
    assert!(is_new(&scene.says(8000, PREFILL, 12.0)), "it may come back");
    assert_eq!(scene.ports(), [8000, 8001], "under its old number");
}

#[tokio::test]
async fn one_that_falls_silent_ends_its_requests_and_stays_if_it_is_heard_before() {
    let mut scene = Scene::new();
    let Heard::New(host) = scene.says(8000, Role::Decode, 0.0) else { panic!("not new") };
    let guard = host.workers()[0].hold();
    scene.pass(11.0);
    assert!(host.blocked_by(Blocker::Draining) && !host.blocked_by(Blocker::Removed));
    assert!(matches!(scene.says(8000, Role::Decode, 11.5), Heard::Known));
    assert!(!host.blocked_by(Blocker::Draining));
    drop(guard);
    scene.pass(12.0);
    assert_eq!(scene.ports(), [8000]);
}

#[tokio::test]
async fn whom_an_operator_has_taken_off_does_not_come_back_by_its_next_beat() {
    let mut scene = Scene::new();
    let Heard::New(host) = scene.says(8000, Role::Decode, 0.0) else { panic!("not new") };
    scene.writer.drain(&host);
    scene.says(8000, Role::Decode, 3.0);
    assert!(host.blocked_by(Blocker::Draining), "a beat does not take a drain back");
    scene.pass(4.0);
    for beat in 2..=20 {
        assert!(!is_new(&scene.says(8000, Role::Decode, f64::from(beat) * 3.0)));
        scene.pass(f64::from(beat) * 3.0);
    }
    assert_eq!(scene.ports(), [0_u16; 0]);
    scene.pass(71.0);
    assert!(is_new(&scene.says(8000, Role::Decode, 72.0)), "another process, for all that is known");
}

#[tokio::test]
async fn a_silence_while_an_operator_drains_a_worker_does_not_end_the_drain() {
    let mut scene = Scene::new();
    let Heard::New(host) = scene.says(8000, Role::Decode, 0.0) else { panic!("not new") };
    let guard = host.workers()[0].hold();
    scene.writer.drain(&host);
    scene.pass(11.0);
    assert!(!is_new(&scene.says(8000, Role::Decode, 11.5)));
    assert!(host.blocked_by(Blocker::Draining), "its word does not take an operator's back");
    drop(guard);
    scene.pass(12.0);
    assert_eq!(scene.ports(), [0_u16; 0]);
    assert!(!is_new(&scene.says(8000, Role::Decode, 14.5)), "nor does it bring it back");
}

#[tokio::test]
async fn one_that_an_operator_keeps_after_all_still_leaves_by_its_own_silence() {
    let mut scene = Scene::new();
    let Heard::New(host) = scene.says(8000, Role::Decode, 0.0) else { panic!("not new") };
    let guard = host.workers()[0].hold();
    scene.writer.drain(&host);
    scene.pass(11.0);
    scene.says(8000, Role::Decode, 11.5);
    assert!(scene.writer.undrain(&host));
    drop(guard);
    scene.pass(21.0);
    assert_eq!((scene.ports(), host.blocked_by(Blocker::Draining)), (vec![8000], false));
    scene.pass(22.0);
    assert_eq!((scene.ports(), scene.announced.count()), (vec![], 0));
}

#[tokio::test]
async fn one_that_was_given_is_not_removed_and_tells_where_it_is_reached() {
    let mut scene = Scene::new();
    let host = scene.writer.add_as("http://127.0.0.1:8000".parse().unwrap(), Role::Decode);
    assert!(matches!(scene.says_with(8000, Role::Decode, "10.0.0.1:5", 0.0), Heard::Known));
    assert_eq!(host.kv_address().as_deref().map(String::as_str), Some("10.0.0.1:5"));
    assert!(matches!(scene.says(8000, PREFILL, 1.0), Heard::OtherRole));
    scene.pass(60.0);
    assert_eq!((scene.ports(), scene.announced.count()), (vec![8000], 0));
    assert!(matches!(scene.says(8000, PREFILL, 61.0), Heard::OtherRole));
}

#[tokio::test]
async fn another_role_or_address_at_the_same_place_is_another_process() {
    let mut scene = Scene::new();
    let Heard::New(before) = scene.says_with(8000, PREFILL, "127.0.0.1:5", 0.0) else { panic!("not new") };
    scene.says_with(8000, PREFILL, "127.0.0.1:6", 1.0);
    assert_eq!(before.kv_address().as_deref().map(String::as_str), Some("127.0.0.1:6"));
    let Heard::New(after) = scene.says(8000, Role::Decode, 2.0) else { panic!("not new") };
    assert!(before.blocked_by(Blocker::Removed) && after.role() == Role::Decode);
    assert_eq!(scene.ports(), [8000]);
}

#[tokio::test]
async fn there_are_never_more_than_the_bound() {
    let mut scene = Scene::new();
    let heard: Vec<_> = (0..MOST + 5)
        .map(|i| scene.says(u16::try_from(1000 + i).unwrap(), Role::Decode, 0.0))
        .filter(|heard| matches!(heard, Heard::TooMany))
        .collect();
    assert_eq!((heard.len(), scene.ports().len()), (5, MOST));
    scene.pass(11.0);
    assert_eq!((scene.ports().len(), scene.announced.count()), (0, 0));
    assert!(is_new(&scene.says(9, Role::Decode, 12.0)));
}

#[tokio::test]
async fn blocks_of_one_worker_go_to_no_other_who_says_that_it_is_reached_there() {
    let mut scene = Scene::new();
    assert!(is_new(&scene.says_with(8000, Role::Decode, "127.0.0.1:5", 0.0)));
    let first = "http://127.0.0.1:8000".parse().unwrap();
    let is_refused = |heard: &Heard| matches!(heard, Heard::Taken(other) if *other == first);
    assert!(is_refused(&scene.says_with(8001, Role::Decode, "127.0.0.1:5", 1.0)));
    assert!(is_refused(&scene.says_with(8001, PREFILL, "127.0.0.1:5", 1.0)));
    assert!(is_new(&scene.says_with(8001, Role::Decode, "127.0.0.1:6", 2.0)));
    assert!(is_refused(&scene.says_with(8001, Role::Decode, "127.0.0.1:5", 3.0)), "nor does it move there");
    scene.pass(10.5);
    assert_eq!(scene.ports(), [8001], "the first has gone, so that its address is free");
    assert!(matches!(scene.says_with(8001, Role::Decode, "127.0.0.1:5", 11.0), Heard::Known));
    let second = scene.reader.world().hosts()[0].kv_address();
    assert_eq!(second.as_deref().map(String::as_str), Some("127.0.0.1:5"));
    assert!(matches!(scene.says_with(8000, Role::Decode, "127.0.0.1:5", 12.0), Heard::Taken(_)));
}

#[tokio::test]
async fn one_that_leaves_keeps_its_address_from_nobody_and_returns_only_while_that_is_free() {
    let mut scene = Scene::new();
    let Heard::New(leaving) = scene.says_with(8000, Role::Decode, "127.0.0.1:5", 0.0) else {
        panic!("not new")
    };
    let guard = leaving.workers()[0].hold();
    scene.pass(10.5);
    assert!(
        is_new(&scene.says_with(8001, Role::Decode, "127.0.0.1:5", 11.0)),
        "it is the same one, elsewhere"
    );
    assert!(matches!(scene.says_with(8000, Role::Decode, "127.0.0.1:5", 11.5), Heard::Taken(_)));
    assert!(leaving.blocked_by(Blocker::Draining));
    drop(guard);
    scene.pass(12.0);
    assert_eq!(scene.ports(), [8001]);
}

#[tokio::test]
async fn nobody_goes_on_naming_new_ones_for_ever_and_who_was_there_comes_back() {
    let mut scene = Scene::new();
    scene.announced.remembered = 3;
    for port in [8000, 8001, 8002] {
        assert!(is_new(&scene.says(port, Role::Decode, 0.0)));
    }
    scene.pass(11.0);
    assert!(matches!(scene.says(8003, Role::Decode, 12.0), Heard::TooMany));
    assert!(is_new(&scene.says(8001, Role::Decode, 12.0)));
    assert_eq!((scene.ports(), scene.reader.world().hosts()[0].number()), (vec![8001], 1));
}

#[tokio::test]
async fn one_that_returns_while_it_is_taken_off_the_list_is_heard_of_again() {
    let mut scene = Scene::new();
    let mut last = None;
    // Many, so that the last one stays on the list for a while after it was said that it goes.
    for port in 8000..8300 {
        let Heard::New(host) = scene.says(port, Role::Decode, 0.0) else { panic!("not new") };
        last = Some(host);
    }
    let (silent, last, writer) = (scene.at(11.0), last.unwrap(), scene.writer.clone());
    scene.announced.pass(silent);
    let removing = std::thread::spawn(move || writer.remove_drained());
    while !last.blocked_by(Blocker::Removed) {
        std::hint::spin_loop();
    }
    let at_once = scene.says(8299, Role::Decode, 11.0);
    removing.join().unwrap();
    let next = scene.says(8299, Role::Decode, 14.0);
    assert!(is_new(&at_once) != is_new(&next), "somebody has to probe it: {at_once:?}, {next:?}");
    assert_eq!(scene.ports(), [8299]);
    scene.says(8299, Role::Decode, 17.0);
    scene.pass(26.0);
    assert_eq!(scene.ports(), [8299], "it is listened to");
}
