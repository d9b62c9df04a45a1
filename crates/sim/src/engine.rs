//! The engine of one simulated rank: a prefix cache, serial prefill, decode at a fixed pace, a limit on concurrency.
//! No I/O and no clock: time is an argument in nanoseconds, so that a worker and a virtual-time bench share it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::cache::PrefixCache;

/// Bytes of prompt text that count as one token.
pub const BYTES_PER_TOKEN: usize = 4;

/// What one simulated engine can hold and how fast it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// Blocks the prefix cache holds.
    pub blocks: usize,
    /// Tokens in one block.
    pub block_tokens: usize,
    /// Cost of each prompt token that is not cached. One prompt is prefilled at a time.
    pub prefill_per_token: Duration,
    /// Time from one output token to the next.
    pub decode_per_token: Duration,
    /// Requests that run at once; the others wait in order of arrival.
    pub max_concurrent: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            blocks: 4096,
            block_tokens: 16,
            prefill_per_token: Duration::from_micros(50),
            decode_per_token: Duration::from_millis(5),
            max_concurrent: 256,
        }
    }
}

impl EngineOptions {
    /// The same engine with every duration zero: it keeps the cache and answers at once.
    #[must_use]
    pub fn without_delay(self) -> Self {
        Self { prefill_per_token: Duration::ZERO, decode_per_token: Duration::ZERO, ..self }
    }
}

/// A prompt as the engine sees it: hashes of its full blocks, each depending on those before, and its length in tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptChain {
    /// One hash per full block, from the start.
    pub blocks: Vec<u64>,
    /// Length in tokens, incomplete block included, at least 1.
    pub tokens: u64,
}

impl PromptChain {
    /// Chain of a text: `BYTES_PER_TOKEN` bytes are a token. Prompts with different `salt` share nothing.
    #[must_use]
    pub fn of_text(text: &[u8], salt: u64, block_tokens: usize) -> Self {
        let blocks = chain(text, salt, block_tokens.max(1) * BYTES_PER_TOKEN);
        Self { blocks, tokens: (text.len() / BYTES_PER_TOKEN).max(1) as u64 }
    }

    /// Chain of token ids.
    #[must_use]
    pub fn of_ids(ids: &[u32], salt: u64, block_tokens: usize) -> Self {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let blocks = chain(&bytes, salt ^ 0x1d5, block_tokens.max(1) * size_of::<u32>());
        Self { blocks, tokens: ids.len().max(1) as u64 }
    }
}

fn chain(bytes: &[u8], salt: u64, block_bytes: usize) -> Vec<u64> {
    let mut parent = mix(salt ^ 0x9e37_79b9_7f4a_7c15);
    let full = bytes.chunks_exact(block_bytes);
    full.map(|block| {
        parent = hash(block, parent);
        parent
    })
    .collect()
}

/// Hash of some bytes under a seed: stable across runs and machines.
#[must_use]
pub fn hash(bytes: &[u8], seed: u64) -> u64 {
    let mut state = mix(seed ^ bytes.len() as u64);
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        let mut le = [0; 8];
        le.copy_from_slice(word);
        state = mix(state ^ u64::from_le_bytes(le));
    }
    let mut le = [0; 8];
    le[..words.remainder().len()].copy_from_slice(words.remainder());
    mix(state ^ u64::from_le_bytes(le))
}

/// One round of splitmix64.
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What the engine decided about one request. Times are nanoseconds on the caller's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Number of the engine among those of its worker.
    pub place: usize,
    /// Number of the request in this engine.
    pub id: u64,
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: u64,
    /// Prompt tokens to be computed.
    pub uncached_tokens: u64,
    /// When prefill starts.
    pub start: u64,
    /// When the first output token is ready.
    pub first_token: u64,
    /// When the last output token is ready.
    pub finish: u64,
}

/// Requests in an engine at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineLoad {
    /// In prefill or decode.
    pub running: usize,
    /// Not started.
    pub waiting: usize,
}

#[derive(Clone, Copy, Debug)]
struct Active {
    start: u64,
    blocks: u64,
}

/// One simulated engine.
#[derive(Debug)]
pub struct Engine {
    options: EngineOptions,
    cache: PrefixCache,
    /// Every unfinished request, keyed by (finish, id): its order is the order in which places come free.
    active: BTreeMap<(u64, u64), Active>,
    prefill_free: u64,
    next_id: u64,
    queried_tokens: u64,
    hit_tokens: u64,
}

impl Engine {
    /// An idle engine with an empty cache.
    #[must_use]
    pub fn new(options: EngineOptions) -> Self {
        Self {
            options,
            cache: PrefixCache::new(options.blocks),
            active: BTreeMap::new(),
            prefill_free: 0,
            next_id: 0,
            queried_tokens: 0,
            hit_tokens: 0,
        }
    }

    /// What it was made with.
    #[must_use]
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Takes a request that arrives at `now` and will produce `output_tokens` (at least 1 is assumed).
    ///
    /// Requests are taken in the order of the calls. The cache is looked at here: whatever is ahead in the queue has
    /// been computed by the time this request starts, so looking later would find the same blocks.
    pub fn admit(&mut self, now: u64, prompt: &PromptChain, output_tokens: u64) -> Admission {
        self.expire(now);
        // The last token is always computed, because its logits are needed.
        let reusable = prompt.tokens.saturating_sub(1) / self.block_tokens();
        let found = self.cache.touch(&prompt.blocks) as u64;
        let cached_tokens = found.min(reusable) * self.block_tokens();
        let uncached_tokens = prompt.tokens - cached_tokens;
        let start = now.max(self.place_free(now)).max(self.prefill_free);
        let first_token = start + uncached_tokens * nanos(self.options.prefill_per_token);
        let finish = first_token + output_tokens.saturating_sub(1) * nanos(self.options.decode_per_token);
        self.prefill_free = first_token;
        let id = self.next_id;
        self.next_id += 1;
        let blocks = (prompt.tokens + output_tokens).div_ceil(self.block_tokens());
        self.active.insert((finish, id), Active { start, blocks });
        self.queried_tokens += prompt.tokens;
        self.hit_tokens += cached_tokens;
        Admission { place: 0, id, cached_tokens, uncached_tokens, start, first_token, finish }
    }

    /// The blocks of a prompt came from another engine.
    pub fn receive(&mut self, prompt: &PromptChain) {
        self.cache.touch(&prompt.blocks);
    }

    /// Takes a request out before its time (the client left). Its place is free for requests admitted from now on; those
    /// admitted before keep the times they were given.
    pub fn abort(&mut self, admission: &Admission, now: u64) {
        let there = self.active.remove(&(admission.finish, admission.id)).is_some();
        let last_in_prefill = self.prefill_free == admission.first_token;
        if there && last_in_prefill && admission.first_token > now {
            self.prefill_free = now.max(admission.start);
        }
    }

    /// Requests running and waiting at `now`.
    #[must_use]
    pub fn load(&self, now: u64) -> EngineLoad {
        let unfinished = self.active.range((now + 1, 0)..);
        unfinished.fold(EngineLoad::default(), |load, (_, active)| match active.start <= now {
            true => EngineLoad { running: load.running + 1, ..load },
            false => EngineLoad { waiting: load.waiting + 1, ..load },
        })
    }

    /// Share of the blocks that running requests hold at `now`, from 0 to 1. Blocks that are only cached are free.
    #[must_use]
    pub fn usage(&self, now: u64) -> f64 {
        let running = self.active.range((now + 1, 0)..).filter(|(_, active)| active.start <= now);
        let held: u64 = running.map(|(_, active)| active.blocks).sum();
        (held as f64 / self.options.blocks.max(1) as f64).min(1.0)
    }

    /// Forgets every cached block.
    pub fn clear_cache(&mut self) {
        self.cache.clear();
    }

    /// Blocks in the cache.
    #[must_use]
    pub fn cached_blocks(&self) -> usize {
        self.cache.len()
    }

    /// Prompt tokens looked up in the cache since the start.
    #[must_use]
    pub fn queried_tokens(&self) -> u64 {
        self.queried_tokens
    }

    /// Prompt tokens found in the cache since the start.
    #[must_use]
    pub fn hit_tokens(&self) -> u64 {
        self.hit_tokens
    }

    fn block_tokens(&self) -> u64 {
        self.options.block_tokens.max(1) as u64
    }

    fn expire(&mut self, now: u64) {
        while let Some(entry) = self.active.first_entry() {
            if entry.key().0 > now {
                break;
            }
            entry.remove();
        }
    }

    fn place_free(&self, now: u64) -> u64 {
        match self.active.len().checked_sub(self.options.max_concurrent.max(1)) {
            None => now,
            Some(ahead) => self.active.keys().nth(ahead).map_or(now, |&(finish, _)| finish),
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
