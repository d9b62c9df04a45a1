//! What it costs to read the facts of a body and to scan a stream.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use forebay_openai::{BodyShape, Facts, Scratch, SseScanner};

const ASCII: &str = "The quick brown fox jumps over the lazy dog, and the river goes on. ";
const ESCAPES: &str = "fn main() {\\n    println!(\\\"hello, world\\\");\\n}\\n\\n";
const CJK: &str = "前池是汇集水流的地方，水从这里均匀地流向每一台水轮机。";
const CJK_ESCAPED: &str = "\\u524d\\u6c60\\u662f\\u6c47\\u96c6\\u6c34\\u6d41\\u7684\\u5730\\u65b9";

const SIZES: [(&str, usize); 3] = [("2KiB", 2 << 10), ("16KiB", 16 << 10), ("1MiB", 1 << 20)];

fn text(pattern: &str, bytes: usize) -> String {
    pattern.repeat(bytes / pattern.len() + 1)
}

fn completions(pattern: &str, bytes: usize) -> String {
    let prompt = text(pattern, bytes);
    format!(
        r#"{{"model":"m/m-8b","prompt":"{prompt}","repetition_penalty":1.0,"max_tokens":128,"logprobs":null,"stream":true,"stream_options":{{"include_usage":true}},"user":"u-1"}}"#
    )
}

/// Twenty turns with a system prompt, as a chat client sends them.
fn chat(pattern: &str, bytes: usize) -> String {
    let turn = text(pattern, bytes / 20);
    let turns: Vec<_> = (0..20)
        .map(|index| {
            let role = if index % 2 == 0 { "user" } else { "assistant" };
            format!(r#"{{"role":"{role}","content":"{turn}"}}"#)
        })
        .collect();
    format!(
        r#"{{"model":"m/m-8b","messages":[{}],"max_completion_tokens":128,"temperature":0.7,"stream":true,"stream_options":{{"include_usage":true}}}}"#,
        turns.join(",")
    )
}

fn ids(count: u32, separator: &str) -> String {
    let ids: Vec<_> = (0..count).map(|id| (10_000 + id % 90_000).to_string()).collect();
    format!(r#"{{"model":"m/m-8b","prompt":[{}],"max_tokens":1,"stream":true}}"#, ids.join(separator))
}

fn facts(c: &mut Criterion) {
    let mut group = c.benchmark_group("facts");
    let mut bench = |name: String, shape: BodyShape, body: &str| {
        let mut scratch = Scratch::default();
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_function(name, |bench| {
            bench.iter(|| {
                let facts = Facts::read(shape, black_box(body.as_bytes()), &mut scratch);
                black_box(facts.is_ok_and(|facts| facts.stream))
            });
        });
    };
    for (size, bytes) in SIZES {
        for (kind, pattern) in
            [("ascii", ASCII), ("escapes", ESCAPES), ("cjk", CJK), ("cjk_escaped", CJK_ESCAPED)]
        {
            bench(format!("completions/{kind}/{size}"), BodyShape::Completions, &completions(pattern, bytes));
            bench(format!("chat/{kind}/{size}"), BodyShape::Chat, &chat(pattern, bytes));
        }
    }
    bench("ids/compact/100k".to_owned(), BodyShape::Completions, &ids(100_000, ","));
    bench("ids/spaced/100k".to_owned(), BodyShape::Completions, &ids(100_000, ", "));
    group.finish();
}

fn sse(c: &mut Criterion) {
    let record = r#"data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":null}]}"#;
    let usage = r#"data: {"id":"cmpl-1","choices":[],"usage":{"prompt_tokens":5,"total_tokens":7,"completion_tokens":2}}"#;
    let short = "data: {\"i\":1}\n\n".repeat(128);
    let burst = format!("{record}\n\n").repeat(128);
    let counted = format!("{usage}\n\n").repeat(128);
    let one = format!("{record}\n\n");
    let mut group = c.benchmark_group("sse");
    for (name, chunk) in
        [("128_short", &short), ("128_typical", &burst), ("128_usage", &counted), ("one", &one)]
    {
        let mut scanner = SseScanner::default();
        group.throughput(Throughput::Bytes(chunk.len() as u64));
        group.bench_function(name, |bench| {
            bench.iter(|| {
                let mut records = 0_u32;
                let whole = scanner.feed(black_box(chunk.as_bytes()), |_| records += 1);
                black_box((records, whole))
            });
        });
    }
    group.finish();
}

criterion_group!(benches, facts, sse);
criterion_main!(benches);
