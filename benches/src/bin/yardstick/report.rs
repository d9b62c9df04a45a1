//! Puts results into Markdown: medians, ratios, spreads. Measures nothing.

use std::fmt::Write;
use std::time::Duration;

use crate::failure::Failure;
use crate::pairs::Compared;
use crate::sample::Sample;
use crate::silent::Held;
use crate::startup::Start;
use crate::threads::Threads;

/// The table of one closed-loop case.
pub(crate) fn case(title: &str, all: &[Compared], refused: &[String]) -> String {
    let mut text = format!(
        "## {title}\n\n| router | requests/s | added p50 µs | added p99 µs | CPU µs/request | core busy | RSS MB fresh → after | errors | forebay ÷ it (CPU, min–max) |\n|---|---|---|---|---|---|---|---|---|\n"
    );
    let forebay: Vec<_> = all.iter().flat_map(|compared| compared.forebay.clone()).collect();
    let direct: Vec<_> = all.iter().flat_map(|compared| compared.direct.clone()).collect();
    if let Some(first) = all.first() {
        text += &row("forebay", &forebay, &direct, first.fresh[0], "");
    }
    for compared in all {
        let ratio = match compared.ratios() {
            Ok(ratios) => spread(&ratios),
            Err(why) => format!("none: {why}"),
        };
        let name = if compared.altered { " (alters answers)" } else { "" };
        let name = format!("{}{name}", compared.peer.name());
        text += &row(&name, &compared.peers, &compared.direct, compared.fresh[1], &ratio);
    }
    let rate = median(direct.iter().map(|sample| sample.rate));
    let p50 = micros(&direct, |sample| sample.p50);
    let p99 = micros(&direct, |sample| sample.p99);
    // Writing to a string cannot fail.
    let _ = writeln!(text, "\nDirect: {rate:.0} requests/s, p50 {p50:.0} µs, p99 {p99:.0} µs.");
    for why in refused {
        let _ = writeln!(text, "\nNot measured: {why}.");
    }
    text + "\n"
}

fn row(name: &str, samples: &[Sample], direct: &[Sample], fresh: u64, ratio: &str) -> String {
    let added = |of: fn(&Sample) -> Duration| micros(samples, of) - micros(direct, of);
    let errors: u64 = samples.iter().map(|sample| sample.errors).sum();
    format!(
        "| {name} | {:.0} | {:.0} | {:.0} | {:.1} | {:.0} % | {:.1} → {:.1} | {errors} | {ratio} |\n",
        median(samples.iter().map(|sample| sample.rate)),
        added(|sample| sample.p50),
        added(|sample| sample.p99),
        micros(samples, |sample| sample.cpu),
        median(samples.iter().map(|sample| sample.busy * 100.0)),
        megabytes(fresh),
        // Memory grows over the runs: the last reading is the one that counts.
        megabytes(samples.last().map_or(0, |sample| sample.resident)),
    )
}

/// The table of the idle streams.
pub(crate) fn idle_streams(all: &[(&str, Result<Held, Failure>)]) -> String {
    let mut text = String::from(
        "## 1,000 streams that wait for their second token\n\n| router | RSS MB before | with them | KiB per stream |\n|---|---|---|---|\n",
    );
    for (name, held) in all {
        let _ = match held {
            Ok(held) => writeln!(
                text,
                "| {name} | {:.1} | {:.1} | {:.1} |",
                megabytes(held.before),
                megabytes(held.with_streams),
                held.per_stream() / 1024.0
            ),
            Err(why) => writeln!(text, "| {name} | | | not measured: {why} |"),
        };
    }
    text + "\n"
}

pub(crate) fn startup(starts: &[Start]) -> String {
    let of =
        |field: fn(&Start) -> Duration| median(starts.iter().map(|start| field(start).as_secs_f64() * 1e3));
    format!(
        "## Start\n\nFrom the first probe that reaches a worker to the `ready` line: {:.1} ms; from the start of the process: {:.1} ms (medians of {}).\n\n",
        of(|start| start.since_probe),
        of(|start| start.since_spawn),
        starts.len()
    )
}

pub(crate) fn threads(threads: &Result<Vec<Threads>, Failure>) -> String {
    let all = match threads {
        Ok(all) => all,
        Err(why) => return format!("## Threads\n\nNot measured: {why}.\n\n"),
    };
    let mut text = format!(
        "## Two threads against one, 2 KiB prompt, {:.0} requests/s offered\n\n| router | threads | requests/s | p50 µs | CPU µs/request | sleeps/request | futex calls/request | errors | CPU, two ÷ one |\n|---|---|---|---|---|---|---|---|---|\n",
        all.first().map_or(0.0, |threads| threads.offered)
    );
    for threads in all {
        for (count, (samples, futexes)) in (1..).zip(threads.samples.iter().zip(threads.futexes)) {
            let errors: u64 = samples.iter().map(|sample| sample.errors).sum();
            let _ = writeln!(
                text,
                "| {} | {count} | {:.0} | {:.0} | {:.1} | {:.2} | {} | {errors} | {} |",
                threads.router.name(),
                median(samples.iter().map(|sample| sample.rate)),
                micros(samples, |sample| sample.p50),
                micros(samples, |sample| sample.cpu),
                median(samples.iter().map(|sample| sample.sleeps)),
                futexes.map_or_else(|| "not traced".to_owned(), |calls| format!("{calls:.3}")),
                if count == 1 { String::new() } else { two_by_one(&threads.samples) },
            );
        }
    }
    text + "\n"
}

fn two_by_one([one, two]: &[Vec<Sample>; 2]) -> String {
    let errors: u64 = one.iter().chain(two).map(|sample| sample.errors).sum();
    if errors > 0 {
        return format!("none: {errors} errors");
    }
    let pairs = one.iter().zip(two);
    let mut ratios: Vec<_> = pairs.map(|(one, two)| two.cpu.as_secs_f64() / one.cpu.as_secs_f64()).collect();
    ratios.sort_by(f64::total_cmp);
    spread(&ratios)
}

/// Median, and the extremes behind it.
pub(crate) fn spread(sorted: &[f64]) -> String {
    let [first, .., last] = sorted else {
        return sorted.first().map_or_else(String::new, |only| format!("{only:.2}"));
    };
    format!("**{:.2}** ({first:.2}–{last:.2})", median(sorted.iter().copied()))
}

/// The middle one, or the mean of the two in the middle; 0 of nothing.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => values[odd / 2],
        even => f64::midpoint(values[even / 2 - 1], values[even / 2]),
    }
}

pub(crate) fn micros(samples: &[Sample], of: impl Fn(&Sample) -> Duration) -> f64 {
    median(samples.iter().map(|sample| of(sample).as_secs_f64() * 1e6))
}

pub(crate) fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(median([4.0, 1.0, 3.0, 2.0].into_iter()), 2.5);
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median(std::iter::empty()), 0.0);
    }

    #[test]
    fn a_spread_shows_the_extremes() {
        assert_eq!(spread(&[1.0, 1.25, 2.0]), "**1.25** (1.00–2.00)");
        assert_eq!(spread(&[1.0]), "1.00");
    }
}
