//! What was predicted of a worker's prefix cache, and what the worker said about it. Counts only.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_policy::Choice;

/// Upper bounds of the shares that are told apart; the last is everything.
pub(crate) const SHARES: [f64; 6] = [0.0, 0.25, 0.5, 0.75, 0.9, 1.0];

/// Sums over the choices of one worker, since it was registered.
#[derive(Debug, Default)]
pub struct Predictions {
    /// Tokens of all prompts.
    prompt: AtomicU64,
    /// Tokens predicted to be computed.
    uncached: AtomicU64,
    /// Choices by matched share, each counted once.
    shares: [AtomicU64; SHARES.len()],
    /// Of the answers that told cached tokens: tokens of the prompts, predicted and told as cached.
    checked: [AtomicU64; 3],
}

/// Token counts of one answer that told how many were cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checked {
    /// Tokens of the prompt, as the worker counted them.
    pub prompt: u64,
    /// Those of them that were predicted to be cached.
    pub predicted: u64,
    /// Those that were.
    pub reported: u64,
}

impl Predictions {
    /// Counts a choice. Choices that know nothing of a prompt do not count.
    pub(crate) fn chosen(&self, choice: &Choice) {
        if choice.key_len == 0 {
            return;
        }
        self.prompt.fetch_add(u64::from(choice.prompt_tokens), Ordering::Relaxed);
        self.uncached.fetch_add(u64::from(choice.uncached_tokens), Ordering::Relaxed);
        let share = f64::from(choice.matched) / f64::from(choice.key_len);
        let place = SHARES.iter().position(|&bound| share <= bound).unwrap_or(SHARES.len() - 1);
        self.shares[place].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts what an answer told.
    pub fn checked(&self, told: Checked) {
        for (sum, tokens) in self.checked.iter().zip([told.prompt, told.predicted, told.reported]) {
            sum.fetch_add(tokens, Ordering::Relaxed);
        }
    }

    /// Tokens of all prompts, and those predicted to be computed.
    pub fn tokens(&self) -> (u64, u64) {
        (self.prompt.load(Ordering::Relaxed), self.uncached.load(Ordering::Relaxed))
    }

    /// Sums over the answers that told cached tokens.
    pub fn checks(&self) -> Checked {
        let [prompt, predicted, reported] = [0, 1, 2].map(|i| self.checked[i].load(Ordering::Relaxed));
        Checked { prompt, predicted, reported }
    }

    /// Choices by matched share, each counted once.
    pub(crate) fn shares(&self) -> [u64; SHARES.len()] {
        std::array::from_fn(|place| self.shares[place].load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_policy::{Reason, Slot};

    #[test]
    fn choices_are_counted_by_share_and_without_a_prompt_not_at_all() {
        let predictions = Predictions::default();
        for (matched, key_len) in [(0, 100), (1, 100), (100, 100), (0, 0)] {
            predictions.chosen(&Choice {
                index: 0,
                slot: Slot(0),
                reason: Reason::PrefixHit,
                matched,
                key_len,
                prompt_tokens: key_len / 4,
                uncached_tokens: (key_len - matched) / 4,
                draw: 0,
            });
        }
        assert_eq!(predictions.tokens(), (75, 49));
        assert_eq!(predictions.shares(), [1, 1, 0, 0, 0, 1]);
    }
}
