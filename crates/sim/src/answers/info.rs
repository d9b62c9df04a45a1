//! Answers that only tell something about the worker.

use std::sync::atomic::Ordering::Relaxed;

use crate::answer::{Answer, quoted};
use crate::engine::Engine;
use crate::lock::Held;
use crate::routes::Info;
use crate::state::{Pause, State};

pub(super) fn answer(state: &State, kind: Info) -> Answer {
    let options = &state.options;
    match kind {
        Info::Health => Answer::empty(state.health.load(Relaxed)),
        Info::Version => Answer::json(200, format!(r#"{{"version":{}}}"#, quoted(&options.version))),
        Info::Models => Answer::json(200, models(state)),
        Info::Metrics => Answer {
            content_type: Some("text/plain; version=1.0.0; charset=utf-8"),
            ..Answer::text(200, metrics(state))
        },
        Info::Load => {
            let load = state.counters.stats().open_inference;
            Answer::json(200, format!(r#"{{"server_load":{load}}}"#))
        }
        Info::KvEventSources => Answer::json(200, "{}"),
        Info::Config => {
            let text = format!("model={}, max_seq_len={}", options.root, options.max_model_len);
            Answer::json(200, format!(r#"{{"vllm_config":{}}}"#, quoted(&text)))
        }
        Info::WorldSize => Answer::json(200, r#"{"world_size":1}"#),
        Info::IsSleeping => Answer::json(200, format!(r#"{{"is_sleeping":{}}}"#, state.is_asleep())),
        Info::IsPaused => {
            let paused = !matches!(*state.pause.held(), Pause::No);
            Answer::json(200, format!(r#"{{"is_paused":{paused}}}"#))
        }
    }
}

fn models(state: &State) -> String {
    let options = &state.options;
    let card = |name: &str, root: &str, parent: &str, limit: &str| {
        format!(
            r#"{{"id":{},"object":"model","created":{},"owned_by":"vllm","root":{},"parent":{parent},"max_model_len":{limit},"permission":[{{"id":"modelperm-{}","object":"model_permission","created":{},"allow_create_engine":false,"allow_sampling":true,"allow_logprobs":true,"allow_search_indices":false,"allow_view":true,"allow_fine_tuning":false,"organization":"*","group":null,"is_blocking":false}}]}}"#,
            quoted(name),
            state.created,
            quoted(root),
            state.fresh_id(),
            state.created
        )
    };
    let base = state.model();
    let root = if *base == *options.model { options.root.clone() } else { format!("models/{base}") };
    let mut cards = vec![card(&base, &root, "null", &options.max_model_len.to_string())];
    let parent = quoted(&base);
    cards.extend(state.loras.held().iter().map(|lora| card(&lora.name, &lora.path, &parent, "null")));
    format!(r#"{{"object":"list","data":[{}]}}"#, cards.join(","))
}

/// A metric's name, type, labels and value.
struct Row(&'static str, &'static str, String, f64);

fn metrics(state: &State) -> String {
    rows(state).iter().fold(String::new(), |text, Row(metric, kind, labels, value)| {
        text + &format!(
            "# HELP vllm:{metric} Simulated.\n# TYPE vllm:{metric} {kind}\nvllm:{metric}{{{labels}}} {value:?}\n"
        )
    })
}

fn rows(state: &State) -> Vec<Row> {
    let engines = state.engine.held();
    engines.each().flat_map(|(rank, engine)| engine_rows(state, rank, engine)).collect()
}

fn engine_rows(state: &State, rank: u32, engine: &Engine) -> Vec<Row> {
    let name = state.model().replace('\\', "\\\\").replace('"', "\\\"");
    let label = rank + state.options.first_engine;
    let labels = format!(r#"engine="{label}",model_name="{name}""#);
    let with = |more: &str| format!("{labels},{more}");
    let now = state.now();
    let (load, usage) = (engine.load(now), engine.usage(now));
    let blocks = engine.options().blocks;
    let config = format!(
        r#"block_size="{}",cache_dtype="auto",enable_prefix_caching="True",engine="{label}",num_gpu_blocks="{blocks}""#,
        engine.options().block_tokens
    );
    let awake = f64::from(u8::from(!state.is_asleep()));
    let (queried, hit) = (engine.queried_tokens() as f64, engine.hit_tokens() as f64);
    // Of all engines, told by the first.
    let served =
        if rank == state.options.ranks.start { state.counters.stats().served_inference as f64 } else { 0.0 };
    vec![
        Row("num_requests_running", "gauge", labels.clone(), load.running as f64),
        Row("num_requests_waiting", "gauge", labels.clone(), load.waiting as f64),
        Row("kv_cache_usage_perc", "gauge", labels.clone(), usage),
        Row("engine_sleep_state", "gauge", with(r#"sleep_state="awake""#), awake),
        Row("prefix_cache_queries_total", "counter", labels.clone(), queried),
        Row("prefix_cache_hits_total", "counter", labels.clone(), hit),
        Row("prompt_tokens_total", "counter", labels.clone(), queried),
        Row("request_success_total", "counter", with(r#"finished_reason="length""#), served),
        Row("cache_config_info", "gauge", config, 1.0),
    ]
}
