//! What the soak says in the end, and on the way.

use std::process::ExitCode;

use crate::quiet::Sample;
use crate::router::{Router, outcomes};
use crate::tally::Tally;

/// What memory may grow by, from the second quarter of the time to the last one: a share, and bytes.
const GROWTH: (f64, f64) = (0.05, 4.0 * MIB);

const MIB: f64 = 1024.0 * 1024.0;

/// Samples that it takes to say anything of memory.
const ENOUGH: usize = 12;

/// One line for a quiet point.
pub(crate) fn progress(sample: &Sample, tally: &Tally) {
    println!(
        "{:8.1} s  {:9} requests  {:3} wrong  {:7.1} MiB resident  {:5} descriptors",
        sample.at,
        tally.all(),
        tally.wrongs(),
        sample.resident as f64 / MIB,
        sample.descriptors
    );
}

/// Ends the router, and says everything.
pub(crate) async fn give(seed: u64, mut router: Router, samples: &[Sample], tally: &Tally) -> ExitCode {
    let outcomes = outcomes(&router.metrics().await);
    if router.process.has_ended() {
        tally.wrong("the router has ended by itself");
    } else {
        router.process.signal("-TERM").await;
        let status = router.process.end().await;
        if !status.success() {
            tally.wrong(&format!("the router ended with {status}"));
        }
    }
    let memory = memory(samples);
    if let Some(Memory { flat: false, .. }) = memory {
        tally.wrong("memory is not flat");
    }
    let counted: u64 = outcomes.values().sum();
    println!("\nwhat clients saw:\n{}", tally.table());
    println!("outcomes:");
    outcomes.iter().for_each(|(outcome, count)| println!("  {count:>9}  {outcome}"));
    if let Some(Memory { before, after, per_hour, .. }) = memory {
        println!("\nresident memory: {before:.1} MiB, then {after:.1} MiB ({per_hour:+.2} MiB an hour)");
    }
    let passed = tally.wrongs() == 0 && counted == tally.all() && !samples.is_empty();
    println!(
        "\nsoak: {}: seed {seed}, {:.0} s, {} quiet points, {} requests sent, {counted} outcomes, {} wrong",
        if passed { "PASSED" } else { "FAILED" },
        samples.last().map_or(0.0, |sample| sample.at),
        samples.len(),
        tally.all(),
        tally.wrongs()
    );
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

struct Memory {
    /// Median of the second quarter, and of the last one, in MiB.
    before: f64,
    after: f64,
    /// What that is in MiB an hour.
    per_hour: f64,
    flat: bool,
}

/// Memory over time. The first quarter is not looked at: caches fill up to their bounds. Medians, since a sample taken right
/// after a crowd holds what the crowd's connections took.
fn memory(samples: &[Sample]) -> Option<Memory> {
    if samples.len() < ENOUGH {
        return None;
    }
    let quarter = samples.len() / 4;
    let (early, late) = (&samples[quarter..2 * quarter], &samples[3 * quarter..]);
    let (before, after) = (median(early, |s| s.resident as f64), median(late, |s| s.resident as f64));
    let hours = (median(late, |s| s.at) - median(early, |s| s.at)) / 3600.0;
    let flat = after - before <= (before * GROWTH.0).max(GROWTH.1);
    Some(Memory { before: before / MIB, after: after / MIB, per_hour: (after - before) / hours / MIB, flat })
}

fn median(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> f64 {
    let mut all: Vec<f64> = samples.iter().map(of).collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}
