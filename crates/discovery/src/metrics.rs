//! What a worker's own pages tell of its prefix cache and its data-parallel ranks. It asks nobody.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::IgnoredAny;

/// What a worker's metrics tell.
#[derive(Debug, PartialEq, Eq)]
pub struct Told {
    /// Tokens that the prefix cache of one rank holds.
    pub cache_tokens: Option<u64>,
    /// Engines, one for each rank, as far as they have labels.
    pub engines: Option<u32>,
}

/// Reads an answer of `/metrics`.
pub(crate) fn read(metrics: &str) -> Told {
    Told { cache_tokens: read_cache_tokens(metrics), engines: read_engines(metrics) }
}

/// Ranks in an answer of `/kv_event_sources`: an object with one member for each, empty if they publish nothing.
pub(crate) fn read_event_sources(body: &[u8]) -> Option<u32> {
    let ranks: BTreeMap<u32, IgnoredAny> = serde_json::from_slice(body).ok()?;
    u32::try_from(ranks.len()).ok().filter(|&ranks| ranks > 0)
}

/// Distinct `engine` labels of a gauge that each engine has from its start.
fn read_engines(metrics: &str) -> Option<u32> {
    let lines = metrics.lines().filter(|line| line.starts_with("vllm:num_requests_running{"));
    let engines: BTreeSet<&str> = lines.filter_map(|line| label(line, "engine=\"").next()).collect();
    u32::try_from(engines.len()).ok().filter(|&engines| engines > 0)
}

/// What `vllm:cache_config_info` says in its labels.
fn read_cache_tokens(metrics: &str) -> Option<u64> {
    let line = metrics.lines().find(|line| line.starts_with("vllm:cache_config_info{"))?;
    let number = |name: &str| label(line, name).find_map(|value| value.parse::<u64>().ok());
    let tokens = number("block_size=\"")?.checked_mul(number("num_gpu_blocks=\"")?)?;
    let caches = !line.contains("enable_prefix_caching=\"False\"");
    // A worker that keeps nothing holds nothing for long; 0 would mean that nothing is known.
    Some(if caches { tokens } else { tokens.min(1) })
}

/// Values of a label. The name of one label can end like another's.
fn label<'a>(line: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    let starts = line.match_indices(name).map(|(at, _)| at);
    let values = starts.filter(|&at| line[..at].ends_with(['{', ','])).map(|at| &line[at + name.len()..]);
    values.filter_map(|value| value.split('"').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_the_distinct_engines() {
        let line =
            |engine| format!("vllm:num_requests_running{{engine=\"{engine}\",model_name=\"m\"}} 0.0\n");
        let metrics = ["0", "1", "1", "10"].map(line).concat();
        assert_eq!(read(&metrics).engines, Some(3));
        assert_eq!(read("vllm:num_requests_running 3\n").engines, None);
    }

    #[test]
    fn event_sources_are_one_for_each_rank() {
        let body = br#"{"0":{"publisher":"zmq","endpoint":"tcp://*:1"},"1":{"publisher":"zmq"}}"#;
        assert_eq!(read_event_sources(body), Some(2));
        for none in [&b"{}"[..], b"", b"[]", br#"{"detail":"Not Found"}"#, b"null"] {
            assert_eq!(read_event_sources(none), None);
        }
    }

    #[test]
    fn the_size_of_the_cache_is_read_from_the_labels() {
        let metrics = "# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{block_size=\"16\",\
            cache_dtype=\"auto\",cpu_num_gpu_blocks=\"7\",enable_prefix_caching=\"True\",engine=\"0\",\
            num_gpu_blocks=\"6000\"} 1.0\n";
        assert_eq!(read_cache_tokens(metrics), Some(96_000));
        assert_eq!(read_cache_tokens(&metrics.replace("True", "False")), Some(1));
        for bad in ["", "vllm:cache_config_info{} 1", &metrics.replace("\"6000\"", "\"None\"")] {
            assert_eq!(read_cache_tokens(bad), None);
        }
    }
}
