//! Who has announced itself, and what follows from that for the list of workers. No sockets; time is an argument.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use forebay_workers::{Blocker, Host, Reader, Role, WorkerUrl, Writer};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::announcement::Announcement;

/// Workers announce themselves every three seconds. Three that are missed and one second for delays, and they are gone.
const SILENCE: Duration = Duration::from_secs(10);

/// Most workers that are known by their word at a time.
pub(crate) const MOST: usize = 1024;

/// Most URLs in all. None is forgotten, so that a worker that comes back is the one that it was: nobody may go on naming new
/// ones for ever.
const REMEMBERED: usize = 1 << 16;

/// What an announcement changes.
#[derive(Debug)]
pub(crate) enum Heard {
    /// Nothing, but that it goes on.
    Known,
    /// The list has a worker more, whom somebody has to probe.
    New(Arc<Host>),
    /// There are as many as there may be.
    TooMany,
    /// Its URL is on the list in another role, by somebody else's word.
    OtherRole,
    /// The worker with this URL, who is there, is reached by others at the same address.
    Taken(WorkerUrl),
}

/// The workers that announce themselves.
pub(crate) struct Announced {
    reader: Reader,
    writer: Writer,
    known: HashMap<WorkerUrl, Known>,
    remembered: usize,
}

struct Known {
    host: Arc<Host>,
    kv_address: String,
    heard: Instant,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// On the list by its own word.
    Serves,
    /// It fell silent: it is drained, and then off the list.
    Leaves,
    /// On the list by somebody else's word, who also says when it leaves.
    Others,
    /// Somebody took it off the list. Its word does not count until it was silent.
    Dismissed,
}

impl Announced {
    pub(crate) fn new(reader: Reader, writer: Writer) -> Self {
        Self { reader, writer, known: HashMap::new(), remembered: REMEMBERED }
    }

    /// One announcement.
    pub(crate) fn heard(&mut self, said: Announcement, now: Instant) -> Heard {
        if let Some(other) = self.holder_of(&said) {
            return Heard::Taken(other);
        }
        let is_full = self.known.len() >= MOST;
        let Entry::Occupied(mut known) = self.known.entry(said.url.clone()) else {
            return if is_full { Heard::TooMany } else { self.first(said, now) };
        };
        let it = known.get_mut();
        it.heard = now;
        if it.state == State::Dismissed {
            return Heard::Known;
        }
        let was_removed = it.host.blocked_by(Blocker::Removed);
        if was_removed && it.state != State::Leaves {
            info!(
                worker = said.url.as_str(),
                "worker was taken off the list; it is not heard until it was silent"
            );
            it.state = State::Dismissed;
            return Heard::Known;
        }
        if !is_same(it.host.role(), said.role) {
            if it.state == State::Others {
                return Heard::OtherRole;
            }
            // Another process at the same place.
            self.writer.remove(&it.host);
            known.remove();
            return self.first(said, now);
        }
        if it.state == State::Leaves && !self.writer.undrain(&it.host) {
            known.remove();
            return self.first(said, now);
        }
        if it.state == State::Leaves {
            info!(worker = said.url.as_str(), "worker announces itself again");
            it.state = State::Serves;
        }
        self.writer.reached_at(&it.host, &said.kv_address);
        it.kv_address = said.kv_address;
        Heard::Known
    }

    /// Who else is reached at the address, and was heard of late: blocks for one of them would go to the other.
    fn holder_of(&self, said: &Announcement) -> Option<WorkerUrl> {
        let is_held = |it: &Known| it.state != State::Leaves && it.kv_address == said.kv_address;
        if self.known.get(&said.url).is_some_and(is_held) {
            return None;
        }
        let mut others = self.known.iter().filter(|(url, it)| **url != said.url && is_held(it));
        others.next().map(|(url, _)| url.clone())
    }

    /// The first one of a worker.
    fn first(&mut self, said: Announcement, now: Instant) -> Heard {
        let Announcement { url, role, kv_address } = said;
        let there = self.reader.world().hosts().iter().find(|host| *host.url() == url).cloned();
        if there.as_ref().is_some_and(|host| !is_same(host.role(), role)) {
            return Heard::OtherRole;
        }
        if !self.writer.has_room_for(&url, self.remembered) {
            return Heard::TooMany;
        }
        let host = self.writer.add_announced(url.clone(), role, &kv_address);
        if host.blocked_by(Blocker::Removed) {
            // It is taken off the list just now. Its next word counts.
            return Heard::Known;
        }
        // Who was there a moment ago may have gone.
        let is_there = there.is_some_and(|there| Arc::ptr_eq(&there, &host));
        if !is_there {
            info!(worker = url.as_str(), role = role.as_str(), kv_address, "worker has announced itself");
        }
        let state = if is_there { State::Others } else { State::Serves };
        self.known.insert(url, Known { host: Arc::clone(&host), kv_address, heard: now, state });
        if is_there { Heard::Known } else { Heard::New(host) }
    }

    /// Those that were silent for too long leave: no request is given to them, and what is under way there ends.
    pub(crate) fn pass(&mut self, now: Instant) {
        let writer = &self.writer;
        self.known.retain(|url, it| {
            let is_silent = now.saturating_duration_since(it.heard) > SILENCE;
            match it.state {
                // Somebody else drains it, and takes that back or not.
                State::Serves if is_silent && it.host.blocked_by(Blocker::Draining) => {
                    !it.host.blocked_by(Blocker::Removed)
                }
                State::Serves if is_silent => {
                    warn!(worker = url.as_str(), "worker does not announce itself any more: it leaves");
                    writer.drain(&it.host);
                    it.state = State::Leaves;
                    true
                }
                State::Serves => true,
                State::Leaves => !it.host.blocked_by(Blocker::Removed),
                State::Others | State::Dismissed => !is_silent,
            }
        });
    }

    /// Workers that are known by their word.
    #[cfg(test)]
    fn count(&self) -> usize {
        self.known.len()
    }
}

/// Ports that were given for other purposes do not matter.
fn is_same(one: Role, other: Role) -> bool {
    std::mem::discriminant(&one) == std::mem::discriminant(&other)
}

#[cfg(test)]
mod tests;
