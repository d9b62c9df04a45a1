use bytes::Bytes;
use proptest::prelude::*;

use super::*;

const LIMITS: Limits =
    Limits { repeats: 4, unreachable: 8, lease_ms: 30_000, once_only: false, decodes_alone: true };

fn plan(order: Order) -> Plan {
    Plan::new(order, LIMITS)
}

fn hand_over(serial: u64, born_ms: u64) -> HandOver {
    HandOver::new(Bytes::from(serial.to_string()), born_ms)
}

fn run(plan: &mut Plan, events: Vec<Happened>) -> Vec<Step> {
    let mut steps = vec![plan.first()];
    steps.extend(events.into_iter().map(|happened| plan.next(happened, 1_000)));
    steps
}

#[test]
fn a_pair_that_goes_well() {
    let steps = run(
        &mut plan(Order::PrefillFirst),
        vec![Happened::Prefilled(Some(hand_over(1, 900))), Happened::DecodeBegan],
    );
    assert_eq!(steps, [Step::Prefill, Step::Decode(hand_over(1, 900)), Step::GiveDecode]);
}

#[test]
fn two_legs_at_once_wait_for_each_other_in_either_order() {
    for prefill_first in [true, false] {
        let mut events = vec![Happened::Prefilled(None), Happened::DecodeBegan];
        if !prefill_first {
            events.reverse();
        }
        assert_eq!(run(&mut plan(Order::Both), events), [Step::Both, Step::Wait, Step::GiveDecode]);
    }
}

#[test]
fn a_prefill_answer_without_hand_over_means_that_the_decode_worker_computes_it() {
    let steps = run(&mut plan(Order::PrefillFirst), vec![Happened::Prefilled(None)]);
    assert_eq!(steps[1], Step::Plain(Recompute::NoHandOver));
}

#[test]
fn nobody_gets_a_request_alone_who_would_wait_for_blocks_for_ever() {
    let events: [fn() -> Happened; 4] = [
        || Happened::NoPrefill,
        || Happened::Prefilled(None),
        || Happened::PrefillFailed(LegFailure::Busy),
        || Happened::DecodeFailed(LegFailure::Doubtful),
    ];
    for (i, event) in events.iter().enumerate() {
        let end = |decodes_alone| {
            let mut plan = Plan::new(Order::PrefillFirst, Limits { repeats: 1, decodes_alone, ..LIMITS });
            plan.first();
            let steps = [event(), event(), event()].map(|event| plan.next(event, 1_000));
            steps.into_iter().find(Step::is_last)
        };
        assert_eq!(end(false), Some(Step::GiveUp), "{i}");
        assert_eq!(matches!(end(true), Some(Step::Plain(_))), i != 3, "{i}");
    }
}

#[test]
fn the_failures_of_a_prefill_leg() {
    let next = |failure| plan_after(Order::PrefillFirst, Happened::PrefillFailed(failure));
    assert_eq!(next(LegFailure::Rejected), Step::GivePrefill);
    assert_eq!(next(LegFailure::TimedOut), Step::TimedOut(LegKind::Prefill));
    for again in [LegFailure::Unreachable, LegFailure::Busy, LegFailure::Broken, LegFailure::Doubtful] {
        assert_eq!(next(again), Step::Prefill, "{again:?}");
    }
    assert_eq!(plan_after(Order::PrefillFirst, Happened::NoPrefill), Step::Plain(Recompute::NoPrefill));
}

#[test]
fn one_other_worker_is_asked_for_a_model_that_is_gone_and_its_refusal_is_the_answer() {
    let gone = || Happened::PrefillFailed(LegFailure::Unserved);
    let steps = run(&mut plan(Order::PrefillFirst), vec![gone(), gone()]);
    assert_eq!(steps, [Step::Prefill, Step::Prefill, Step::GivePrefill]);
    let gone = || Happened::DecodeFailed(LegFailure::Unserved);
    assert_eq!(run(&mut plan(Order::Both), vec![gone(), gone()]), [Step::Both, Step::Both, Step::GiveDecode]);
    let steps = run(
        &mut plan(Order::PrefillFirst),
        vec![Happened::PrefillFailed(LegFailure::Unserved), Happened::NoPrefill],
    );
    assert_eq!(steps[2], Step::Plain(Recompute::NoPrefill));
}

fn plan_after(order: Order, happened: Happened) -> Step {
    let mut plan = plan(order);
    plan.first();
    plan.next(happened, 1_000)
}

#[test]
fn two_prefill_workers_that_say_500_are_believed() {
    let mut plan = plan(Order::PrefillFirst);
    let failed = || Happened::PrefillFailed(LegFailure::Doubtful);
    assert_eq!(run(&mut plan, vec![failed(), failed()]), [Step::Prefill, Step::Prefill, Step::GivePrefill]);
}

#[test]
fn prefill_workers_that_fail_for_ever_leave_the_prompt_to_the_decode_worker() {
    let mut plan = plan(Order::PrefillFirst);
    let steps = run(&mut plan, (0..5).map(|_| Happened::PrefillFailed(LegFailure::Busy)).collect());
    assert_eq!(steps[..5], [const { Step::Prefill }; 5]);
    assert_eq!(steps[5], Step::Plain(Recompute::PrefillFailed));
}

#[test]
fn a_decode_worker_that_was_not_reached_leaves_the_hand_over_to_another() {
    let mut plan = plan(Order::PrefillFirst);
    plan.first();
    let Step::Decode(sent) = plan.next(Happened::Prefilled(Some(hand_over(1, 900))), 1_000) else {
        panic!("it is fresh")
    };
    let Step::Decode(again) = plan.next(Happened::DecodeUnsent(sent), 25_899) else { panic!("it still is") };
    assert_eq!(plan.next(Happened::DecodeUnsent(again), 25_900), Step::Prefill, "its lease is nearly over");
}

#[test]
fn a_decode_worker_that_may_have_read_the_hand_over_means_both_legs_again() {
    for failure in [LegFailure::Busy, LegFailure::Doubtful, LegFailure::Broken] {
        let mut plan = plan(Order::PrefillFirst);
        let events = vec![Happened::Prefilled(Some(hand_over(1, 900))), Happened::DecodeFailed(failure)];
        assert_eq!(run(&mut plan, events).pop(), Some(Step::Prefill), "{failure:?}");
        assert_eq!(plan_after(Order::Both, Happened::DecodeFailed(failure)), Step::Both, "{failure:?}");
    }
}

#[test]
fn a_second_500_of_decode_workers_is_tried_without_a_hand_over() {
    let mut plan = plan(Order::PrefillFirst);
    let failed = || Happened::DecodeFailed(LegFailure::Doubtful);
    let prefilled = |n| Happened::Prefilled(Some(hand_over(n, 900)));
    let steps = run(&mut plan, vec![prefilled(1), failed(), prefilled(2), failed()]);
    assert_eq!(steps.last(), Some(&Step::Plain(Recompute::DecodeFailed)));
}

#[test]
fn what_must_not_be_worked_on_twice_is_not_sent_again() {
    for failure in [LegFailure::Busy, LegFailure::Doubtful, LegFailure::Broken] {
        let mut plan = Plan::new(Order::PrefillFirst, Limits { once_only: true, ..LIMITS });
        let events = vec![Happened::Prefilled(Some(hand_over(1, 900))), Happened::DecodeFailed(failure)];
        assert_eq!(run(&mut plan, events).pop(), Some(Step::GiveUp), "{failure:?}");
    }
    let mut plan = Plan::new(Order::Both, Limits { once_only: true, ..LIMITS });
    plan.first();
    assert_eq!(plan.next(Happened::PrefillFailed(LegFailure::Busy), 0), Step::GiveUp);
}

fn failures() -> impl Strategy<Value = LegFailure> {
    prop::sample::select(vec![
        LegFailure::Unreachable,
        LegFailure::Busy,
        LegFailure::Doubtful,
        LegFailure::Unserved,
        LegFailure::Rejected,
        LegFailure::Broken,
        LegFailure::TimedOut,
    ])
}

/// What the world does at one step, whatever step it is.
#[derive(Debug, Clone)]
enum World {
    Well { later_ms: u64 },
    Empty,
    Fails(LegFailure),
    Nobody,
    OtherFirst,
}

fn worlds() -> impl Strategy<Value = World> {
    prop_oneof![
        (0_u64..40_000).prop_map(|later_ms| World::Well { later_ms }),
        Just(World::Empty),
        failures().prop_map(World::Fails),
        Just(World::Nobody),
        Just(World::OtherFirst),
    ]
}

proptest! {
    #[test]
    fn every_course_ends_and_no_hand_over_is_sent_twice_or_too_late(
        both in any::<bool>(),
        once_only in any::<bool>(),
        course in prop::collection::vec(worlds(), 1..80),
    ) {
        let order = if both { Order::Both } else { Order::PrefillFirst };
        let mut plan = Plan::new(order, Limits { once_only, ..LIMITS });
        let (mut now_ms, mut serial, mut decodes) = (1_000, 0, 0);
        let mut step = plan.first();
        let mut reached = std::collections::HashSet::new();
        let mut world = course.iter().cycle();
        let mut steps = 0;
        while !step.is_last() {
            steps += 1;
            prop_assert!(steps <= 60, "it does not end");
            let World::Well { later_ms } = world.next().unwrap() else {
                step = badly(&mut plan, step, world.clone().next().unwrap(), now_ms);
                continue;
            };
            now_ms += later_ms;
            step = match step {
                Step::Prefill => {
                    serial += 1;
                    plan.next(Happened::Prefilled(Some(hand_over(serial, now_ms))), now_ms)
                }
                Step::Decode(hand_over) => {
                    prop_assert!(hand_over.is_fresh(now_ms - later_ms, LIMITS.lease_ms));
                    prop_assert!(reached.insert(hand_over.raw().clone()), "sent twice");
                    decodes += 1;
                    if decodes % 3 == 0 {
                        plan.next(Happened::DecodeBegan, now_ms)
                    } else {
                        plan.next(Happened::DecodeFailed(LegFailure::Broken), now_ms)
                    }
                }
                Step::Both => plan.next(Happened::DecodeBegan, now_ms),
                Step::Wait => plan.next(Happened::Prefilled(None), now_ms),
                _ => unreachable!("the last step"),
            };
        }
    }
}

/// Something that may happen at this step and is not as it should be.
fn badly(plan: &mut Plan, step: Step, world: &World, now_ms: u64) -> Step {
    let happened = match (step, world) {
        (Step::Prefill | Step::Both, World::Nobody) => Happened::NoPrefill,
        (Step::Prefill, World::Fails(failure)) => Happened::PrefillFailed(*failure),
        (Step::Prefill, _) => Happened::Prefilled(None),
        (Step::Decode(hand_over), World::Fails(LegFailure::Unreachable) | World::OtherFirst) => {
            Happened::DecodeUnsent(hand_over)
        }
        (Step::Decode(_), World::Nobody) => Happened::NoDecode,
        (Step::Decode(_), World::Fails(failure)) => Happened::DecodeFailed(*failure),
        (Step::Decode(_), _) => Happened::DecodeFailed(LegFailure::Busy),
        (Step::Both, World::Fails(LegFailure::Unreachable)) => Happened::DecodeUnreachable,
        (Step::Both | Step::Wait, World::Fails(failure)) => Happened::PrefillFailed(*failure),
        (Step::Both, World::OtherFirst) => Happened::Prefilled(None),
        (Step::Both | Step::Wait, _) => Happened::DecodeFailed(LegFailure::Doubtful),
        _ => unreachable!("the last step"),
    };
    plan.next(happened, now_ms)
}
