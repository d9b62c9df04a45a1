//! How many bytes of prompt are a token, learnt from what workers count. No lock: a lost update costs nothing.

use std::sync::atomic::{AtomicU64, Ordering};

/// Before anything is learnt: English text under a common tokeniser.
const START: f64 = 4.0;

/// Weight of one prompt. A few dozen make the ratio, and one odd prompt does not spoil it.
const WEIGHT: f64 = 1.0 / 16.0;

/// Outside of this a count says something of the chat template or of images, not of the text.
const PLAUSIBLE: std::ops::RangeInclusive<f64> = 0.25..=32.0;

/// Bytes per token of one model.
#[derive(Debug, Default)]
pub(crate) struct TokenRatio {
    /// Bits of the ratio; 0 as long as nothing is learnt.
    bits: AtomicU64,
}

impl TokenRatio {
    /// Tokens in so many bytes, at least 1 if there are any bytes.
    pub(crate) fn tokens(&self, bytes: u64) -> u64 {
        ((bytes as f64 / self.ratio()).round() as u64).max(bytes.min(1))
    }

    /// A prompt of so many bytes had so many tokens.
    pub(crate) fn learn(&self, bytes: u64, tokens: u64) {
        let seen = bytes as f64 / tokens as f64;
        if PLAUSIBLE.contains(&seen) {
            let known = self.bits.load(Ordering::Relaxed);
            let ratio = f64::from_bits(known);
            let ratio = if known == 0 { seen } else { ratio + (seen - ratio) * WEIGHT };
            self.bits.store(ratio.to_bits(), Ordering::Relaxed);
        }
    }

    fn ratio(&self) -> f64 {
        match self.bits.load(Ordering::Relaxed) {
            0 => START,
            bits => f64::from_bits(bits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_starts_plausible_and_moves_to_what_is_counted() {
        let ratio = TokenRatio::default();
        assert_eq!((ratio.tokens(400), ratio.tokens(1), ratio.tokens(0)), (100, 1, 0));
        ratio.learn(300, 100);
        assert_eq!(ratio.tokens(300), 100);
        for _ in 0..100 {
            ratio.learn(200, 100);
        }
        assert!((99..=101).contains(&ratio.tokens(200)), "{}", ratio.tokens(200));
    }

    #[test]
    fn counts_that_cannot_be_of_the_text_are_not_learnt() {
        let ratio = TokenRatio::default();
        for (bytes, tokens) in [(100, 0), (0, 0), (0, 100), (10, 1000), (10_000, 1)] {
            ratio.learn(bytes, tokens);
        }
        assert_eq!(ratio.tokens(400), 100);
    }
}
