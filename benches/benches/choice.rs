//! One choice among 4, 64 and 1000 workers, for each policy: `Policy::select` and nothing around it. And one with its load from
//! a pool as it is: among 512 URLs, and among as many data-parallel ranks behind 64.

use std::cell::Cell;
use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion};
use forebay_policy::{Ask, Fleet, HashKey, HashKeyKind, Policy, PolicyKind, PolicySettings, PrefixKey, Slot};
use forebay_workers::{BreakerSettings, By, Guard, HealthSettings, Models, Pool, Ranks, Tried, registry};

/// Workers as a snapshot holds them: a few contiguous words each, names apart.
struct Workers {
    loads: Vec<Load>,
    names: Vec<String>,
}

struct Load {
    in_flight: Cell<u32>,
    served: Cell<u64>,
}

impl Workers {
    fn new(len: usize) -> Self {
        let load = |i: usize| Load { in_flight: Cell::new((i % 7) as u32), served: Cell::new(0) };
        Self {
            loads: (0..len).map(load).collect(),
            names: (0..len).map(|i| format!("http://worker-{i}:8000")).collect(),
        }
    }
}

impl Fleet for Workers {
    fn len(&self) -> usize {
        self.loads.len()
    }

    fn slot(&self, i: usize) -> Slot {
        Slot(i as u32)
    }

    fn name(&self, i: usize) -> &str {
        &self.names[i]
    }

    fn eligible(&self, i: usize) -> bool {
        self.loads[i].in_flight.get() < u32::MAX
    }

    fn in_flight(&self, i: usize) -> u32 {
        self.loads[i].in_flight.get()
    }

    fn pending_tokens(&self, _: usize) -> u64 {
        0
    }

    fn served(&self, i: usize) -> u64 {
        self.loads[i].served.get()
    }

    fn generation(&self) -> u64 {
        1
    }
}

/// 2 KiB prompts, half of which share their first half.
fn prompts(count: u64) -> Vec<PrefixKey> {
    (0..count)
        .map(|i| {
            let mut key = PrefixKey::new();
            let mut builder = key.builder(0);
            builder.push(&if i % 2 == 0 { [0; 1024] } else { [i as u8; 1024] });
            builder.push(&i.to_le_bytes().repeat(128));
            builder.finish();
            key
        })
        .collect()
}

fn choice(c: &mut Criterion) {
    let prompts = prompts(1000);
    for kind in PolicyKind::ALL {
        let mut group = c.benchmark_group(format!("choice/{kind}"));
        for len in [4, 64, 1000] {
            let workers = Workers::new(len);
            let policy = Policy::new(&PolicySettings { kind, ..PolicySettings::default() }, 1);
            let mut turn = 0;
            group.bench_function(BenchmarkId::from_parameter(len), |b| {
                b.iter(|| {
                    turn += 1;
                    let hash = (turn as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    let hash = HashKey { hash, kind: HashKeyKind::Body };
                    let ask = Ask {
                        prefix: Some(&prompts[turn % prompts.len()]),
                        hash: Some(hash),
                        ..Ask::default()
                    };
                    black_box(policy.select(&ask, &workers, |choice| {
                        let served = &workers.loads[choice.index].served;
                        served.set(served.get() + 1);
                    }))
                });
            });
        }
        group.finish();
    }
}

/// The pool of so many URLs with so many ranks each, and the loads on it.
fn pool(settings: &PolicySettings, urls: usize, ranks: u32) -> (Arc<Pool>, Vec<Guard>) {
    let (reader, writer) =
        registry(settings.clone(), 1, HealthSettings::default(), BreakerSettings::default());
    for i in 0..urls {
        let Ok(url) = format!("http://worker-{i}:8000").parse() else { continue };
        let host = writer.add(url);
        writer.ranks(&host, Ranks::first(ranks).filter(|_| ranks > 1));
        writer.learnt(&host, Models::Any, None);
        writer.probed(&host, true);
    }
    let pool = Arc::clone(reader.world().all(By::Rank));
    let loads = pool.workers().enumerate().flat_map(|(i, worker)| (0..i % 7).map(|_| worker.hold()));
    let loads = loads.collect();
    (pool, loads)
}

fn ranks(c: &mut Criterion) {
    let prompts = prompts(1000);
    let kinds = PolicyKind::ALL.map(|kind| (kind, 0.0));
    for (kind, group_weight) in kinds.into_iter().chain([(PolicyKind::CacheAware, 1.0)]) {
        let settings = PolicySettings { kind, group_weight, ..PolicySettings::default() };
        let mut group = c.benchmark_group(format!("pool/{kind}/{group_weight}"));
        for (name, urls, ranks) in [("512", 512, 1), ("64x8", 64, 8)] {
            let (pool, _loads) = pool(&settings, urls, ranks);
            assert_eq!(pool.workers().len(), 512);
            let (tried, mut turn) = (Tried::default(), 0);
            group.bench_function(name, |b| {
                b.iter(|| {
                    turn += 1;
                    let hash = (turn as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    let ask = Ask {
                        prefix: Some(&prompts[turn % prompts.len()]),
                        hash: Some(HashKey { hash, kind: HashKeyKind::Body }),
                        streamed: true,
                        ..Ask::default()
                    };
                    // The load falls with it.
                    drop(black_box(pool.select(&ask, &tried)));
                });
            });
        }
        group.finish();
    }
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    choice(&mut criterion);
    ranks(&mut criterion);
    criterion.final_summary();
}
