use super::*;

const MS: u64 = 1_000_000;

fn options() -> EngineOptions {
    EngineOptions {
        blocks: 64,
        block_tokens: 4,
        prefill_per_token: Duration::from_micros(100),
        decode_per_token: Duration::from_millis(2),
        max_concurrent: 2,
    }
}

fn text(text: &str) -> PromptChain {
    PromptChain::of_text(text.as_bytes(), 0, 4)
}

fn prompt(tokens: usize, seed: u8) -> PromptChain {
    PromptChain::of_text(&vec![seed; tokens * BYTES_PER_TOKEN], 0, 4)
}

#[test]
fn a_prompt_costs_its_uncached_tokens_and_its_output() {
    let mut engine = Engine::new(options());
    let first = engine.admit(5 * MS, &prompt(20, 1), 3);
    assert_eq!((first.cached_tokens, first.uncached_tokens), (0, 20));
    assert_eq!((first.start, first.first_token, first.finish), (5 * MS, 7 * MS, 11 * MS));
}

#[test]
fn a_repeated_prompt_computes_only_its_last_block() {
    let mut engine = Engine::new(options());
    engine.admit(0, &prompt(20, 1), 1);
    let again = engine.admit(100 * MS, &prompt(20, 1), 1);
    assert_eq!((again.cached_tokens, again.uncached_tokens), (16, 4), "the last token is always computed");
    let longer = engine.admit(200 * MS, &prompt(22, 1), 1);
    assert_eq!(longer.cached_tokens, 20);
    assert_eq!((engine.queried_tokens(), engine.hit_tokens()), (62, 36));
}

#[test]
fn prompts_share_a_prefix_only_up_to_the_first_difference() {
    let mut engine = Engine::new(options());
    engine.admit(0, &text("system: be brief. abcdefghijklmn"), 1);
    let other = engine.admit(0, &text("system: be brief. ABCDEFGHIJKLMNOP"), 1);
    assert_eq!(other.cached_tokens, 4);
    let salted = PromptChain::of_text(b"system: be brief. abcdefghijklmn", 7, 4);
    assert_eq!(engine.admit(0, &salted, 1).cached_tokens, 0);
}

#[test]
fn ids_and_text_are_counted_in_their_own_unit() {
    assert_eq!(PromptChain::of_ids(&[7; 9], 0, 4).tokens, 9);
    assert_eq!(PromptChain::of_ids(&[7; 9], 0, 4).blocks.len(), 2);
    assert_eq!(PromptChain::of_text(&[b'x'; 35], 0, 4).tokens, 8);
    assert_eq!(PromptChain::of_text(&[b'x'; 35], 0, 4).blocks.len(), 2);
    assert_eq!(PromptChain::of_text(b"", 0, 4).tokens, 1);
}

#[test]
fn prefill_is_serial_and_decode_is_not() {
    let mut engine = Engine::new(options());
    let first = engine.admit(0, &prompt(10, 1), 100);
    let second = engine.admit(0, &prompt(10, 2), 100);
    assert_eq!(second.start, first.first_token);
    assert!(second.first_token < first.finish);
}

#[test]
fn a_request_beyond_the_limit_waits_for_the_first_place() {
    let mut engine = Engine::new(options());
    let long = engine.admit(0, &prompt(10, 1), 100);
    let short = engine.admit(0, &prompt(10, 2), 2);
    let third = engine.admit(0, &prompt(10, 3), 1);
    let fourth = engine.admit(0, &prompt(10, 4), 1);
    assert!(short.finish < long.finish);
    assert_eq!(third.start, short.finish);
    assert_eq!(fourth.start, third.finish);
    assert_eq!(engine.load(short.first_token), EngineLoad { running: 2, waiting: 2 });
    assert_eq!(engine.load(long.finish), EngineLoad::default());
    assert!(engine.usage(short.first_token) > 0.0);
    assert_eq!(engine.usage(long.finish), 0.0, "what is only cached is free");
}

#[test]
fn an_aborted_request_gives_its_place_and_prefill_time_back() {
    let mut engine = Engine::new(options());
    let long = engine.admit(0, &prompt(10, 1), 1000);
    let queued = engine.admit(0, &prompt(1000, 2), 1000);
    engine.abort(&queued, MS / 2);
    assert_eq!(engine.load(MS), EngineLoad { running: 1, waiting: 0 });
    assert_eq!(engine.admit(2 * MS, &prompt(10, 3), 1).start, 2 * MS);
    engine.abort(&long, 2 * MS);
    engine.abort(&long, 2 * MS);
    assert_eq!(engine.load(2 * MS).running, 1);
}

#[test]
fn clearing_forgets_the_cache() {
    let mut engine = Engine::new(options());
    engine.admit(0, &prompt(20, 1), 1);
    assert_eq!(engine.cached_blocks(), 5);
    engine.clear_cache();
    assert_eq!(engine.cached_blocks(), 0);
    assert_eq!(engine.admit(0, &prompt(20, 1), 1).cached_tokens, 0);
}
