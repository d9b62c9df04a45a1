//! What a run is judged by.

/// The figures of one run, filled request by request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
    /// Nanoseconds to the first token.
    first_token: Vec<u64>,
    /// Requests by worker.
    served: Vec<u64>,
    /// Nanoseconds from the first request to the last answer.
    pub(crate) took: u64,
}

/// What is printed of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    /// Share of the prompt tokens that came from a cache.
    pub(crate) hit: f64,
    /// Milliseconds to the first token: median and 99th percentile.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// Requests per second.
    pub(crate) rate: f64,
    /// Requests of the busiest worker over the mean.
    pub(crate) spread: f64,
}

impl Tally {
    /// There is a worker of this number.
    pub(crate) fn has(&mut self, worker: usize) {
        if self.served.len() <= worker {
            self.served.resize(worker + 1, 0);
        }
    }

    /// A worker gave a first token, so long after it was asked for.
    pub(crate) fn answered(&mut self, worker: usize, first_token: u64) {
        self.has(worker);
        self.served[worker] += 1;
        self.first_token_after(first_token);
    }

    /// Somebody gave a first token.
    pub(crate) fn first_token_after(&mut self, first_token: u64) {
        self.first_token.push(first_token);
    }

    /// A worker says how many it served.
    pub(crate) fn served_by(&mut self, worker: usize, count: u64) {
        self.has(worker);
        self.served[worker] = count;
    }

    pub(crate) fn figures(mut self) -> Figures {
        self.first_token.sort_unstable();
        let count = self.first_token.len().max(1);
        let at = |share: f64| {
            let place = ((count as f64 * share) as usize).min(count - 1);
            self.first_token.get(place).copied().unwrap_or(0) as f64 / 1e6
        };
        let busiest = self.served.iter().copied().max().unwrap_or(0) as f64;
        let workers = self.served.len().max(1);
        Figures {
            hit: self.cached_tokens as f64 / self.prompt_tokens.max(1) as f64,
            p50: at(0.5),
            p99: at(0.99),
            rate: count as f64 / (self.took.max(1) as f64 / 1e9),
            spread: busiest * workers as f64 / count as f64,
        }
    }
}
