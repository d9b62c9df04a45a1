//! What a policy sees when it is asked again: candidates as plain values, with their names.

use std::collections::BTreeMap;

use forebay_policy::{Ask, Fleet, HashKey, PrefixKey, Slot};
use forebay_workers::note::Seen;

use crate::decisions::line::{ChoiceLine, Line};

/// All workers that were ever registered, by slot.
#[derive(Debug, Default)]
pub(crate) struct Names(BTreeMap<u32, Known>);

/// What is known of one.
#[derive(Debug)]
struct Known {
    name: String,
    rank: u32,
    /// Small number of its URL, the same for all ranks behind it.
    group: u32,
}

impl Names {
    /// Takes the next line.
    pub(crate) fn take(&mut self, line: &Line) {
        if let Line::WorkerAdded { slot, name, rank, .. } = line {
            let url = |name: &str| match name.rsplit_once('@') {
                Some((url, _)) if rank.is_some() => url.to_owned(),
                _ => name.to_owned(),
            };
            let (url, next) = (url(name), self.0.values().map(|known| known.group + 1).max().unwrap_or(0));
            let beside = self.0.values().find(|known| {
                known.name.strip_prefix(&*url).is_some_and(|rest| rest.is_empty() || rest.starts_with('@'))
            });
            let group = beside.map_or(next, |known| known.group);
            let known = Known { name: name.clone(), rank: rank.unwrap_or(0), group };
            self.0.insert(*slot, known);
        }
    }

    /// The name of a worker, empty if it is not known, and its rank.
    pub(crate) fn of(&self, slot: u32) -> (&str, u32) {
        self.0.get(&slot).map_or(("", 0), |known| (&known.name, known.rank))
    }

    /// What it steps together with.
    fn group(&self, slot: u32) -> u32 {
        self.0.get(&slot).map_or(slot, |known| known.group)
    }
}

/// Most tokens that a line may speak of. Far beyond what there is, and far from what a sum could not hold.
const MOST_TOKENS: u64 = 1 << 40;

/// The candidates of one choice.
pub(crate) struct Scene<'a> {
    pub(crate) names: &'a Names,
    pub(crate) seen: &'a [Seen],
    pub(crate) generation: u64,
}

#[deny(
    clippy::missing_trait_methods,
    reason = "a default here would answer otherwise than the fleet that was recorded"
)]
impl Fleet for Scene<'_> {
    fn len(&self) -> usize {
        self.seen.len()
    }

    fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    fn slot(&self, i: usize) -> Slot {
        self.seen[i].slot
    }

    fn name(&self, i: usize) -> &str {
        self.names.of(self.seen[i].slot.0).0
    }

    fn eligible(&self, i: usize) -> bool {
        self.seen[i].eligible
    }

    fn in_flight(&self, i: usize) -> u32 {
        self.seen[i].in_flight
    }

    fn pending_tokens(&self, i: usize) -> u64 {
        self.seen[i].pending_tokens
    }

    fn cache_tokens(&self, i: usize) -> u64 {
        self.seen[i].cache_tokens
    }

    fn served(&self, i: usize) -> u64 {
        self.seen[i].served
    }

    fn rank(&self, i: usize) -> u32 {
        self.names.of(self.seen[i].slot.0).1
    }

    fn group(&self, i: usize) -> u32 {
        self.names.group(self.seen[i].slot.0)
    }

    fn find(&self, slot: Slot) -> Option<usize> {
        self.seen.binary_search_by_key(&slot, |seen| seen.slot).ok()
    }

    fn generation(&self) -> u64 {
        self.generation
    }
}

/// The candidates of a line, or what is wrong with them. No policy is asked about what could not have been.
pub(crate) fn candidates(line: &ChoiceLine, prefix: Option<&PrefixKey>) -> Result<Vec<Seen>, String> {
    let seen: Vec<Seen> = line.candidates.iter().map(|candidate| (*candidate).into()).collect();
    if !seen.is_sorted_by(|one, next| one.slot < next.slot) {
        return Err("candidates are not in the order of their slots".to_owned());
    }
    if line.tokens > MOST_TOKENS || seen.iter().any(|seen| seen.pending_tokens > MOST_TOKENS) {
        return Err(format!("more than {MOST_TOKENS} tokens"));
    }
    let fits = prefix.is_none_or(|key| {
        key.blocks().len() as u64 == key.len_bytes().div_ceil(forebay_policy::BLOCK_BYTES as u64)
    });
    if fits { Ok(seen) } else { Err("key.bytes does not agree with the number of its blocks".to_owned()) }
}

/// The question of a line. `tokens` as they are known.
pub(crate) fn ask<'a>(line: &ChoiceLine, prefix: Option<&'a PrefixKey>, tokens: Option<u64>) -> Ask<'a> {
    let hash = line.hash.as_ref().and_then(|key| {
        let hash = u64::from_str_radix(&key.hash, 16).ok()?;
        Some(HashKey { hash, kind: key.kind })
    });
    Ask { prefix, tokens, streamed: line.streamed, hash, now_ms: line.ms }
}
