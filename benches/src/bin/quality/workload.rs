//! What clients ask: the shapes of traffic that the policies are judged by. It knows no policy and no worker.

use std::collections::VecDeque;

use crate::chance::Chance;

/// Output tokens of every request.
pub(crate) const OUTPUT_TOKENS: u64 = 16;

/// Bytes of a turn, of the user and of the assistant.
const TURN: usize = 400;

/// Turns after which a session starts again.
const TURNS: usize = 12;

/// One request: a chat.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Role and text of each message.
    pub(crate) messages: Vec<(&'static str, String)>,
    /// What a client would send as its session id.
    pub(crate) session: u64,
}

impl Request {
    /// The text the chat becomes.
    pub(crate) fn text(&self) -> String {
        self.messages.iter().fold(String::new(), |text, (role, content)| text + role + "\n" + content + "\n")
    }
}

/// A shape of traffic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Shape {
    /// Sessions picked at random, each with one of some system prompts, growing by a turn each time.
    Chat { sessions: u64, systems: u64 },
    /// The same with sessions that differ in popularity (Zipf) and in the length of their turns.
    Skewed { sessions: u64, systems: u64 },
    /// The same 4096 bytes so many times in a row, then the next.
    Groups { of: u64 },
    /// One common beginning, and a tail of its own for each request.
    Agents { prefix: usize },
    /// Every other request is of one session, the others are alone.
    Hot,
    /// A question about one of some long documents.
    Documents { count: u64, bytes: usize },
    /// Nothing in common.
    Uniform,
}

/// Produces the requests of one run.
pub(crate) struct Workload {
    shape: Shape,
    chance: Chance,
    systems: Vec<String>,
    /// Messages of each session after the system prompt.
    histories: Vec<VecDeque<(&'static str, String)>>,
    issued: u64,
}

impl Workload {
    pub(crate) fn new(shape: Shape, seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let (systems, bytes, sessions) = match shape {
            Shape::Chat { sessions, systems } | Shape::Skewed { sessions, systems } => {
                (systems, 4096, sessions)
            }
            Shape::Groups { .. } => (1, 4096, 0),
            Shape::Agents { prefix } => (1, prefix, 0),
            Shape::Hot => (1, 4096, 1),
            Shape::Documents { count, bytes } => (count, bytes, 0),
            Shape::Uniform => (0, 0, 0),
        };
        let systems = (0..systems).map(|_| chance.words(bytes)).collect();
        let histories = (0..sessions).map(|_| VecDeque::new()).collect();
        Self { shape, chance, systems, histories, issued: 0 }
    }

    /// The next request.
    pub(crate) fn next(&mut self) -> Request {
        self.issued += 1;
        match self.shape {
            Shape::Chat { sessions, .. } => {
                let session = self.chance.below(sessions);
                self.turn(session, TURN)
            }
            Shape::Skewed { sessions, .. } => {
                // Zipf with exponent about 1: equal shares for each doubling.
                let session = (sessions as f64).powf(self.chance.share()) as u64 - 1;
                let bytes = self.chance.between(100, 1500) as usize;
                self.turn(session, bytes)
            }
            Shape::Groups { of } => {
                if (self.issued - 1).is_multiple_of(of) {
                    self.systems[0] = self.chance.words(4096);
                }
                Request { messages: vec![("user", self.systems[0].clone())], session: (self.issued - 1) / of }
            }
            Shape::Agents { .. } => self.question(0, 256, 4096),
            Shape::Hot if self.chance.below(2) == 0 => self.turn(0, TURN),
            Shape::Hot => self.alone(1024, 8192),
            Shape::Documents { count, .. } => {
                let document = self.chance.below(count);
                self.question(document, 64, 512)
            }
            Shape::Uniform => self.alone(512, 8192),
        }
    }

    /// The next turn of a session.
    fn turn(&mut self, session: u64, bytes: usize) -> Request {
        let system = &self.systems[session as usize % self.systems.len()];
        let history = &mut self.histories[session as usize];
        if history.len() >= 2 * TURNS {
            history.clear();
        }
        history.push_back(("user", self.chance.words(bytes)));
        let mut messages = vec![("system", system.clone())];
        messages.extend(history.iter().cloned());
        history.push_back(("assistant", self.chance.words(bytes)));
        Request { messages, session }
    }

    /// Something new behind something known.
    fn question(&mut self, known: u64, low: u64, high: u64) -> Request {
        let bytes = self.chance.between(low, high) as usize;
        let messages =
            vec![("system", self.systems[known as usize].clone()), ("user", self.chance.words(bytes))];
        Request { messages, session: 1 << 32 | self.issued }
    }

    fn alone(&mut self, low: u64, high: u64) -> Request {
        let bytes = self.chance.between(low, high) as usize;
        Request { messages: vec![("user", self.chance.words(bytes))], session: 1 << 32 | self.issued }
    }
}
