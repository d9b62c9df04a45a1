//! Whether the bound on the prefix tree holds, by what the allocator hands out, over churn of many prompts; and what a
//! resident block costs. The argument is the number of prompts, 50 million if it is missing.

use std::alloc::System;

use forebay_benches::Idle;
use forebay_policy::{Ask, Policy, PolicySettings, PrefixKey, Slot};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Of known capacity.
const WORKERS: Idle = Idle { workers: 8, cache_tokens: 500_000 };

fn in_use() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated.wrapping_sub(stats.bytes_deallocated)
}

/// Prompts that share beginnings of any length with others, or nothing; from 1 to about 100 blocks.
fn fill(key: &mut PrefixKey, number: u64) {
    let random = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number.rotate_left(31);
    let mut builder = key.builder(random >> 32 & 63);
    for part in 0..1 + random % 4 {
        let fresh = random >> (8 * part) & 3 == 0;
        let word = if fresh { random ^ part } else { random >> 50 & 7 };
        builder.push(&word.to_le_bytes().repeat(1 << (random >> (40 + part) & 7)));
    }
    builder.finish();
}

fn churn(prompts: u64) -> f64 {
    let settings = PolicySettings::default();
    let bound = settings.cache.max_tree_size as f64;
    let mut key = PrefixKey::new();
    key.builder(0).push(&[0; 64 * 1024]);
    let before = in_use();
    let policy = Policy::new(&settings, 1);
    let mut most = 0;
    for number in 0..prompts {
        fill(&mut key, number);
        let ask = Ask { prefix: Some(&key), now_ms: number / 100, ..Ask::default() };
        let _choice = policy.select(&ask, &WORKERS, |_| ());
        most = most.max(in_use().wrapping_sub(before));
        if number % 1_000_000 == 999_999 {
            policy.forget(Slot((number / 1_000_000 % 8) as u32));
        }
    }
    most as f64 / bound
}

/// Bytes for each 64-byte block of 100 000 prompts of 2 KiB, of which 1 KiB is common.
fn each_block() -> f64 {
    let mut settings = PolicySettings::default();
    settings.cache.max_tree_size = 1 << 30;
    let mut key = PrefixKey::new();
    key.builder(0).push(&[0; 4096]);
    let before = in_use();
    let policy = Policy::new(&settings, 1);
    for number in 0..100_000_u64 {
        let mut builder = key.builder(0);
        builder.push(&[b'a'; 1024]);
        builder.push(&number.to_le_bytes().repeat(128));
        builder.finish();
        let ask = Ask { prefix: Some(&key), ..Ask::default() };
        let _choice = policy.select(&ask, &WORKERS, |_| ());
    }
    let distinct = 16 + 100_000 * 16;
    in_use().wrapping_sub(before) as f64 / f64::from(distinct)
}

fn main() {
    let given = std::env::args().skip(1).find_map(|argument| argument.parse().ok());
    let prompts: u64 = given.unwrap_or(50_000_000);
    println!("100 000 prompts of 2 KiB: {:.1} bytes for each distinct block of 64", each_block());
    let most = churn(prompts);
    println!("{prompts} prompts: at most {:.2} % of the bound was in use", most * 100.0);
    if most > 1.01 {
        std::process::exit(1);
    }
}
