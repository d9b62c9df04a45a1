//! The order in which nodes were last the end of a match, threaded through the nodes. It decides which leaf
//! goes first, and frees nothing.

use super::arena::{Arena, NONE, UNLISTED};

/// Every leaf is listed. A node with children may be: it was an end itself once. Such a node is taken out when
/// it gets to the back and put there again when its last child goes, which is its true place: whatever it was
/// used through was older than everything else in the list.
#[derive(Debug)]
pub(super) struct Recency {
    newest: u32,
    oldest: u32,
}

impl Recency {
    pub(super) const fn new() -> Self {
        Self { newest: NONE, oldest: NONE }
    }

    /// The node at the back, or `NONE`.
    pub(super) const fn oldest(&self) -> u32 {
        self.oldest
    }

    pub(super) fn is_listed(id: u32, arena: &Arena) -> bool {
        arena.get(id).newer != UNLISTED
    }

    /// Puts a node in front, wherever it was.
    pub(super) fn touch(&mut self, id: u32, arena: &mut Arena) {
        if self.newest == id {
            return;
        }
        self.unlist(id, arena);
        let node = arena.get_mut(id);
        (node.newer, node.older) = (NONE, self.newest);
        if self.newest == NONE {
            self.oldest = id;
        } else {
            arena.get_mut(self.newest).newer = id;
        }
        self.newest = id;
    }

    /// Puts a node that is not listed at the back.
    pub(super) fn append(&mut self, id: u32, arena: &mut Arena) {
        let node = arena.get_mut(id);
        (node.newer, node.older) = (self.oldest, NONE);
        if self.oldest == NONE {
            self.newest = id;
        } else {
            arena.get_mut(self.oldest).older = id;
        }
        self.oldest = id;
    }

    /// Takes a node out if it is listed.
    pub(super) fn unlist(&mut self, id: u32, arena: &mut Arena) {
        let node = arena.get_mut(id);
        let (newer, older) = (node.newer, node.older);
        if newer == UNLISTED {
            return;
        }
        node.newer = UNLISTED;
        if newer == NONE {
            self.newest = older;
        } else {
            arena.get_mut(newer).older = older;
        }
        if older == NONE {
            self.oldest = newer;
        } else {
            arena.get_mut(older).newer = newer;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache_aware::arena::Node;
    use crate::cache_aware::holders::Holders;

    fn from_the_back(list: &Recency, arena: &Arena) -> Vec<u32> {
        let mut ids = Vec::new();
        let mut at = list.oldest();
        while at != NONE {
            ids.push(at);
            at = arena.get(at).newer;
        }
        ids
    }

    #[test]
    fn nodes_go_in_front_when_touched_and_leave_no_gap_when_taken_out() {
        let (mut arena, mut list) = (Arena::new(), Recency::new());
        for _ in 0..4 {
            let id = arena.insert(Node::new(Box::new([1]), Holders::EMPTY, NONE));
            list.touch(id, &mut arena);
        }
        list.touch(1, &mut arena);
        assert_eq!(from_the_back(&list, &arena), [0, 2, 3, 1]);
        list.unlist(2, &mut arena);
        list.unlist(2, &mut arena);
        list.append(2, &mut arena);
        assert_eq!(from_the_back(&list, &arena), [2, 0, 3, 1]);
        for id in [1, 2, 3, 0] {
            list.unlist(id, &mut arena);
            assert!(!Recency::is_listed(id, &arena));
        }
        assert_eq!((list.oldest, list.newest), (NONE, NONE));
        list.append(3, &mut arena);
        assert_eq!((list.oldest, list.newest), (3, 3));
    }
}
