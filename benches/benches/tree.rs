//! The prefix tree under load: match and record of a prompt on a tree warmed with 10 000 prompts of 2 KiB,
//! and the hashing of the prompt that comes before, outside the lock.

use std::hint::black_box;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput};
use forebay_benches::Idle;
use forebay_policy::{Ask, Policy, PolicySettings, PrefixKey};

const SIZES: [(&str, usize); 3] = [("2KiB", 2 << 10), ("16KiB", 16 << 10), ("1MiB", 1 << 20)];

const WORKERS: Idle = Idle { workers: 4, cache_tokens: 0 };

fn key(namespace: u64, len: usize) -> PrefixKey {
    let mut key = PrefixKey::new();
    let mut builder = key.builder(namespace);
    builder.push(&vec![b'a'; len]);
    builder.finish();
    key
}

fn select(policy: &Policy, key: &PrefixKey) {
    let ask = Ask { prefix: Some(key), ..Ask::default() };
    black_box(policy.select(&ask, &WORKERS, |_| ()));
}

fn warmed() -> Policy {
    let policy = Policy::new(&PolicySettings::default(), 1);
    for i in 0..10_000 {
        select(&policy, &key(i, 2 << 10));
    }
    policy
}

/// The same few prompts again and again, among many others.
fn hit(c: &mut Criterion) {
    let policy = warmed();
    let mut group = c.benchmark_group("tree/hit");
    for (name, len) in SIZES {
        let prompts: Vec<PrefixKey> =
            (0..if len < 1 << 20 { 1000 } else { 2 }).map(|i| key(i, len)).collect();
        prompts.iter().for_each(|prompt| select(&policy, prompt));
        let mut turn = 0;
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter(|| {
                turn += 7;
                select(&policy, &prompts[turn % prompts.len()]);
            });
        });
    }
    group.finish();
}

/// Prompts never seen before, which evict others once the tree is full.
fn miss(c: &mut Criterion) {
    let policy = warmed();
    let mut group = c.benchmark_group("tree/miss");
    for (name, len) in SIZES {
        let mut prompt = key(0, len);
        let mut namespace = 1 << 32;
        let mut fresh = || {
            namespace += 1;
            let mut builder = prompt.builder(namespace);
            builder.push(&vec![b'a'; len]);
            builder.finish();
            prompt.clone()
        };
        let batch = if len < 1 << 20 { BatchSize::SmallInput } else { BatchSize::PerIteration };
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter_batched_ref(&mut fresh, |prompt| select(&policy, prompt), batch);
        });
    }
    group.finish();
}

/// Prompts that leave a known one half way: each cuts a run.
fn fork(c: &mut Criterion) {
    let policy = warmed();
    let mut group = c.benchmark_group("tree/fork");
    for (name, len) in SIZES {
        let mut turn = 0_u64;
        let mut fresh = || {
            turn += 1;
            let mut prompt = PrefixKey::new();
            let mut builder = prompt.builder(turn % 1000);
            let keep = len / 2 - len / 64 * (turn as usize / 1000 % 16);
            builder.push(&vec![b'a'; keep]);
            builder.push(&turn.to_le_bytes().repeat((len - keep) / 8));
            builder.finish();
            prompt
        };
        let batch = if len < 1 << 20 { BatchSize::SmallInput } else { BatchSize::PerIteration };
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter_batched_ref(&mut fresh, |prompt| select(&policy, prompt), batch);
        });
    }
    group.finish();
}

/// A chat of 20 turns of 1 KiB, each time grown by one turn.
fn chat(c: &mut Criterion) {
    let policy = warmed();
    let mut talk = 1 << 40;
    let mut grown = || {
        talk += 1;
        let mut prompt = key(talk, 20 << 10);
        select(&policy, &prompt);
        let mut builder = prompt.builder(talk);
        builder.push(&vec![b'a'; 21 << 10]);
        builder.finish();
        prompt
    };
    c.bench_function("tree/chat/21KiB", |b| {
        b.iter_batched_ref(&mut grown, |prompt| select(&policy, prompt), BatchSize::SmallInput);
    });
}

fn hashing(c: &mut Criterion) {
    let mut group = c.benchmark_group("tree/hash");
    for (name, len) in SIZES {
        let text = vec![b'a'; len];
        let mut key = PrefixKey::new();
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter(|| {
                let mut builder = key.builder(0);
                builder.push(black_box(&text));
                builder.finish();
                black_box(key.blocks().len())
            });
        });
    }
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    hashing(&mut criterion);
    hit(&mut criterion);
    miss(&mut criterion);
    fork(&mut criterion);
    chat(&mut criterion);
    criterion.final_summary();
}
