//! One choice among 4, 64 and 1000 workers, for each policy. Measures `Policy::select` and nothing around it.

use std::cell::Cell;
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion};
use forebay_policy::{Ask, Fleet, HashKey, HashKeyKind, Policy, PolicyKind, PolicySettings, PrefixKey, Slot};

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

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    choice(&mut criterion);
    criterion.final_summary();
}
