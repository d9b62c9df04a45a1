//! The engines of one worker, one for each data-parallel rank, each with a cache of its own, and the balancer that chooses
//! among them when a request names none. Without I/O.

use std::ops::Range;

use crate::engine::{Admission, Engine, EngineLoad, EngineOptions, PromptChain};

/// The engines behind one port.
#[derive(Debug)]
pub(crate) struct Engines {
    /// The rank of the first one.
    first: u32,
    all: Vec<Engine>,
    /// Which one the next tie is for.
    turn: usize,
}

impl Engines {
    /// One engine for each of these ranks; one at least.
    pub(crate) fn new(ranks: Range<u32>, options: EngineOptions) -> Self {
        let all = (0..ranks.len().max(1)).map(|_| Engine::new(options)).collect();
        Self { first: ranks.start, all, turn: 0 }
    }

    /// Other ranks from now on. Engines that stay keep their caches.
    pub(crate) fn resize(&mut self, ranks: Range<u32>) {
        let options = *self.options();
        self.first = ranks.start;
        self.all.resize_with(ranks.len().max(1), || Engine::new(options));
    }

    pub(crate) fn options(&self) -> &EngineOptions {
        self.all[0].options()
    }

    /// Each rank with its engine.
    pub(crate) fn each(&self) -> impl Iterator<Item = (u32, &Engine)> {
        (self.first..).zip(&self.all)
    }

    /// The engine of a rank, or of the balancer's choice: not by what caches hold. An error is the complaint.
    pub(crate) fn place(&mut self, rank: Option<i64>, now: u64) -> Result<usize, String> {
        let Some(rank) = rank else {
            let count = self.all.len();
            self.turn = (self.turn + 1) % count;
            let in_turn = (0..count).map(|i| (self.turn + i) % count);
            let busy = |&i: &usize| {
                let load = self.all[i].load(now);
                load.running + load.waiting
            };
            return Ok(in_turn.min_by_key(busy).unwrap_or(0));
        };
        let place = rank - i64::from(self.first);
        let fits = usize::try_from(place).ok().filter(|&place| place < self.all.len());
        let end = u64::from(self.first) + self.all.len() as u64;
        fits.ok_or_else(|| format!("data_parallel_rank {rank} is out of range [{}, {end}).", self.first))
    }

    /// The blocks of a prompt came to this engine from another one.
    pub(crate) fn receive(&mut self, place: usize, prompt: &PromptChain) {
        if let Some(engine) = self.all.get_mut(place) {
            engine.receive(prompt);
        }
    }

    /// Gives a prompt to the engine at this place.
    pub(crate) fn admit(&mut self, place: usize, now: u64, prompt: &PromptChain, output: u64) -> Admission {
        let at = place.min(self.all.len() - 1);
        Admission { place: at, ..self.all[at].admit(now, prompt, output) }
    }

    pub(crate) fn abort(&mut self, admission: &Admission, now: u64) {
        if let Some(engine) = self.all.get_mut(admission.place) {
            engine.abort(admission, now);
        }
    }

    pub(crate) fn clear_cache(&mut self) {
        self.all.iter_mut().for_each(Engine::clear_cache);
    }

    pub(crate) fn cached_blocks(&self) -> usize {
        self.all.iter().map(Engine::cached_blocks).sum()
    }

    pub(crate) fn load(&self, now: u64) -> EngineLoad {
        self.all.iter().map(|engine| engine.load(now)).fold(EngineLoad::default(), |sum, load| EngineLoad {
            running: sum.running + load.running,
            waiting: sum.waiting + load.waiting,
        })
    }

    /// Of the fullest engine.
    pub(crate) fn usage(&self, now: u64) -> f64 {
        self.all.iter().map(|engine| engine.usage(now)).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_cached_where_it_was_computed_and_nowhere_else() {
        let mut engines = Engines::new(0..2, EngineOptions::default());
        let prompt = PromptChain::of_text(&[b'a'; 4096], 0, engines.options().block_tokens);
        assert_eq!(engines.admit(1, 0, &prompt, 1).cached_tokens, 0);
        assert_eq!(engines.admit(0, 0, &prompt, 1).cached_tokens, 0);
        assert!(engines.admit(1, 0, &prompt, 1).cached_tokens > 0);
    }

    #[test]
    fn without_a_rank_the_least_busy_engine_is_taken_and_ties_rotate() {
        let mut engines = Engines::new(0..3, EngineOptions::default());
        let prompt = PromptChain::of_text(b"a", 0, engines.options().block_tokens);
        let mut places: Vec<usize> = (0..3)
            .map(|_| {
                let place = engines.place(None, 0).unwrap();
                engines.admit(place, 0, &prompt, 1000);
                place
            })
            .collect();
        places.sort_unstable();
        assert_eq!(places, [0, 1, 2]);
    }

    #[test]
    fn a_rank_that_is_not_there_is_refused_as_vllm_does() {
        let mut engines = Engines::new(2..4, EngineOptions::default());
        assert_eq!(engines.place(Some(3), 0), Ok(1));
        let complaint = |rank| engines.place(Some(rank), 0).unwrap_err();
        assert_eq!([4, 1, -1].map(complaint)[0], "data_parallel_rank 4 is out of range [2, 4).");
    }
}
