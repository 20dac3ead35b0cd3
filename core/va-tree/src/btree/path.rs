//! The path from the root to a hole.

/// Most levels of inner nodes. At the worst fill of fanout 16 (m = 6) that is over `2 * 6^12 = 4e9` leaves, more than
/// ids can name; see `cost::leaves_within_height`, which rejects a higher tree.
pub(super) const MAX_HEIGHT: usize = 12;

/// One step: a node and the slot taken in it.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub(super) node: u32,
    pub(super) slot: u32,
}

/// A path: step 0 is in a leaf, step `height` in the root. The slot of step 0 may be one past the last hole.
#[derive(Clone, Copy)]
pub(super) struct Path {
    step: [Step; MAX_HEIGHT + 1],
}

impl Path {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self { step: [Step { node: 0, slot: 0 }; MAX_HEIGHT + 1] }
    }

    #[inline(always)]
    pub(super) fn set(&mut self, level: usize, node: u32, slot: usize) {
        self.step[level] = Step { node, slot: slot as u32 };
    }

    #[inline(always)]
    pub(super) fn node(&self, level: usize) -> u32 {
        self.step[level].node
    }

    #[inline(always)]
    pub(super) fn slot(&self, level: usize) -> usize {
        self.step[level].slot as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_a_step_for_each_level_of_the_highest_tree() {
        let mut path = Path::new();
        (0..=MAX_HEIGHT).for_each(|level| path.set(level, level as u32, 2 * level));
        assert!(
            (0..=MAX_HEIGHT).all(|level| (path.node(level), path.slot(level)) == (level as u32, 2 * level))
        );
    }
}
