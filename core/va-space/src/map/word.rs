//! One word with the state of the area that starts at a page.
//!
//! ```text
//!   63         41 40      18 17       5   4    3     2    0
//!   | generation |  pages   |  owner  |huge|noted| state |
//! ```
//!
//! - **state** 1 busy, 2 idle, 3 detached; with bit 2, an idle area leaves and a busy one is held by its owner.
//! - **noted** a busy area has a note: a number of its owner, in the link of its slot.
//! - **owner** 0 for none, otherwise node + 1.
//! - **generation** the lowest 23 bits of a count, which grows by one each time an area begins to be busy at this page.
//!   When a leaf moves here, the page begins above the count of every leaf that has moved. So a handle of an earlier
//!   area differs from the present one unless the count grew by a multiple of 2^23 in between. While the leaf stays,
//!   that takes as many areas at this page. A move may add what areas elsewhere counted. Then few may have begun here,
//!   and at least 2^23 in the space since it was created. It is on top, so that the next is one addition.
//! - **pages** the size, if it is below 2^23. The size of a larger area is in its leaf, in which no other can be as
//!   large. The bit **huge** marks this, and in place of the size is the number of its *shape*, which changes each time a
//!   huge area gets a size. So a compare-exchange of the word of a huge area fails, too, if its size is not the one that
//!   was read.

/// The state of an area at this moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum State {
    /// Allocated.
    Busy = 1,
    /// Freed, and in a list: of lazy areas, of a purge, of a pool or of a magazine. The word does not name the list, so
    /// that a list of any length moves without access to its areas.
    Idle = 2,
    /// Removed from lookups and frees by its owner, which holds it ([`detach`](crate::VmapSpace::detach)).
    Detached = 3,
}

impl State {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Busy, Self::Idle, Self::Detached];
}

const STATE_BITS: u32 = 3;
const STATE_MASK: u64 = (1 << STATE_BITS) - 1;
/// Idle, and on its way to the index.
const LEAVING: u64 = State::Idle as u64 | 4;
/// Busy, and held by its owner: lookups find it, and no free, cut or note takes it.
const HELD: u64 = State::Busy as u64 | 4;
const NOTED: u64 = 1 << STATE_BITS;
const OWNER_BITS: u32 = 13;
const GENERATION_BITS: u32 = 23;
/// The size is in the leaf.
const HUGE: u64 = 1 << (STATE_BITS + 1);
const OWNER_AT: u32 = STATE_BITS + 2;
const OWNER_MASK: u64 = (1 << OWNER_BITS) - 1;
const PAGES_AT: u32 = OWNER_AT + OWNER_BITS;
const SHAPE_BITS: u32 = 23;
const PAGES_MASK: u64 = (1 << SHAPE_BITS) - 1;
const GENERATION_AT: u32 = PAGES_AT + SHAPE_BITS;
pub(super) const GENERATION_MASK: u64 = (1 << GENERATION_BITS) - 1;
const _: () = assert!(GENERATION_AT + GENERATION_BITS == u64::BITS);
/// The fields of a word that a handle does not have.
const UNKNOWN: u64 = OWNER_MASK << OWNER_AT | NOTED;

/// Pages from which the size is in the leaf.
pub(crate) const ESCAPE_PAGES: u64 = 1 << SHAPE_BITS;
/// Most nodes that an owner can name.
pub(crate) const OWNERS_MAX: u32 = (1 << OWNER_BITS) - 1;

/// The word of an area's first page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Word(u64);

impl Word {
    /// The word of a page at which no area starts.
    pub(crate) const NONE: Self = Self(0);

    /// Converts stored bits.
    #[inline(always)]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns the bits to store.
    #[inline(always)]
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    /// Returns a word for `pages` pages (of shape 0 if they escape), owned by a node or by none, without a note.
    #[inline]
    pub(crate) const fn new(pages: u64, owner: Option<u32>, generation: u32, state: State) -> Self {
        let owner = match owner {
            Some(node) => node as u64 + 1,
            None => 0,
        };
        let pages = if pages < ESCAPE_PAGES { pages << PAGES_AT } else { HUGE };
        let generation = generation as u64 & GENERATION_MASK;
        Self(pages | generation << GENERATION_AT | owner << OWNER_AT | state as u64)
    }

    /// Returns the same word for an area of another size, of the given shape if that escapes.
    pub(crate) const fn resized(self, pages: u64, shape: u32) -> Self {
        let shape = shape as u64 & PAGES_MASK;
        let pages = if pages < ESCAPE_PAGES { pages << PAGES_AT } else { HUGE | shape << PAGES_AT };
        Self(self.0 & !(PAGES_MASK << PAGES_AT | HUGE) | pages)
    }

    /// Returns the state, or `None` if no area starts here.
    #[inline]
    pub(crate) const fn state(self) -> Option<State> {
        match self.0 & STATE_MASK {
            1 | HELD => Some(State::Busy),
            2 | LEAVING => Some(State::Idle),
            3 => Some(State::Detached),
            _ => None,
        }
    }

    /// Returns whether the area is busy.
    #[inline(always)]
    pub(crate) const fn is_busy(self) -> bool {
        self.0 & 3 == State::Busy as u64
    }

    /// Returns whether the area is idle.
    #[inline(always)]
    pub(crate) const fn is_idle(self) -> bool {
        self.0 & 3 == State::Idle as u64
    }

    /// Returns whether the area is busy and not held. A free, a cut and a note begin with such a word.
    #[inline(always)]
    pub(crate) const fn is_steady(self) -> bool {
        self.0 & STATE_MASK == State::Busy as u64
    }

    /// Returns the same busy area, held by its owner, and without a note.
    pub(crate) const fn held(self) -> Self {
        Self(self.0 & !(STATE_MASK | NOTED) | HELD)
    }

    /// Returns whether the area is detached.
    #[inline(always)]
    pub(crate) const fn is_detached(self) -> bool {
        self.0 & STATE_MASK == State::Detached as u64
    }

    /// Returns whether the area is busy, and held by its owner.
    pub(crate) const fn is_held(self) -> bool {
        self.0 & STATE_MASK == HELD
    }

    /// Returns the same busy area with a note.
    pub(crate) const fn with_note(self) -> Self {
        Self(self.0 & !STATE_MASK | NOTED | State::Busy as u64)
    }

    /// Returns whether the area is busy with a note, and not held.
    #[inline(always)]
    pub(crate) const fn is_noted_alone(self) -> bool {
        self.0 & (STATE_MASK | NOTED) == State::Busy as u64 | NOTED
    }

    /// Returns whether it has a note.
    #[inline(always)]
    pub(crate) const fn is_noted(self) -> bool {
        self.0 & NOTED != 0
    }

    /// Returns the same area, idle, with the mark of one that leaves.
    #[inline(always)]
    pub(crate) const fn leaving(self) -> Self {
        Self(self.0 & !STATE_MASK | LEAVING)
    }

    /// Returns whether it has the mark of an area that leaves.
    #[inline(always)]
    pub(crate) const fn is_leaving(self) -> bool {
        self.0 & STATE_MASK == LEAVING
    }

    /// Returns the same area in another state.
    #[inline(always)]
    pub(crate) const fn with_state(self, state: State) -> Self {
        Self(self.0 & !STATE_MASK | state as u64)
    }

    /// Returns the word of the same area when it is busy again, for `owner`.
    #[inline(always)]
    pub(crate) const fn again(self, owner: Option<u32>) -> Self {
        let owner = match owner {
            Some(node) => node as u64 + 1,
            None => 0,
        };
        let next = self.0.wrapping_add(1 << GENERATION_AT) & !(OWNER_MASK << OWNER_AT | NOTED | STATE_MASK);
        Self(next | owner << OWNER_AT | State::Busy as u64)
    }

    /// Returns whether this is the word of a busy area of `pages` pages, too few to escape, with the generation of a
    /// handle.
    #[inline(always)]
    pub(crate) const fn is_of(self, pages: u64, generation: u32) -> bool {
        let handle = Self::new(pages, None, generation, State::Busy);
        pages < ESCAPE_PAGES && (self.0 ^ handle.0) & !UNKNOWN == 0
    }

    /// Returns the word of the same area without an owner.
    pub(crate) const fn without_owner(self) -> Self {
        Self(self.0 & !(OWNER_MASK << OWNER_AT))
    }

    /// Returns the owner.
    #[inline]
    pub(crate) const fn owner(self) -> Option<u32> {
        ((self.0 >> OWNER_AT & OWNER_MASK) as u32).checked_sub(1)
    }

    /// Returns the number of times that an area began to be busy here.
    #[inline]
    pub(crate) const fn generation(self) -> u32 {
        (self.0 >> GENERATION_AT) as u32
    }

    /// Returns the pages, or `None` if the leaf has them.
    #[inline]
    pub(crate) const fn pages(self) -> Option<u64> {
        if self.0 & HUGE == 0 { Some(self.0 >> PAGES_AT & PAGES_MASK) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_returns_what_it_was_made_of() {
        for pages in [1, 257, ESCAPE_PAGES - 1] {
            for owner in [None, Some(0), Some(127), Some(4095), Some(OWNERS_MAX - 1)] {
                for state in State::ALL {
                    for generation in [0, 1, (1 << GENERATION_BITS) - 1] {
                        let word = Word::new(pages, owner, generation, state);
                        assert_eq!((word.pages(), word.owner()), (Some(pages), owner));
                        assert_eq!((word.generation(), word.state()), (generation, Some(state)));
                        assert_eq!(word.is_busy(), state == State::Busy);
                        let leaving = word.leaving();
                        assert_eq!((leaving.state(), leaving.is_leaving()), (Some(State::Idle), true));
                        assert_eq!((leaving.with_state(state), word.is_leaving()), (word, false));
                        let other = word.with_state(State::Idle);
                        assert_eq!(other, Word::new(pages, owner, generation, State::Idle));
                        let busy = word.with_state(State::Busy);
                        assert!(busy.is_of(pages, generation) && busy.with_note().is_of(pages, generation));
                        assert!(!busy.held().is_of(pages, generation) && busy.held().is_busy());
                        assert!(!busy.is_of(pages + 1, generation) && !busy.is_of(pages, generation ^ 1));
                        assert_eq!((busy.with_note().is_noted(), busy.held().is_noted()), (true, false));
                        assert!(!busy.with_note().held().is_noted());
                        assert_eq!(busy.resized(pages, 77), busy);
                        assert_eq!(word.without_owner(), Word::new(pages, None, generation, state));
                    }
                }
            }
        }
        for (generation, next) in [(7, 8), ((1 << GENERATION_BITS) - 1, 0)] {
            let before = Word::new(9, Some(3), generation, State::Idle);
            assert_eq!(before.again(Some(5)), Word::new(9, Some(5), next, State::Busy));
            assert_eq!(before.again(None), Word::new(9, None, next, State::Busy));
        }
        let wrapped = Word::new(1, None, 1 << GENERATION_BITS, State::Busy);
        assert_eq!(wrapped, Word::new(1, None, 0, State::Busy));
    }

    #[test]
    fn a_huge_size_escapes_and_leaves_its_shape() {
        let pages = (1 << 52) - 1;
        assert_eq!(Word::new(pages, Some(3), 7, State::Busy).pages(), None);
        let huge = Word::new(pages, Some(3), 7, State::Busy);
        assert!(!huge.is_of(pages, 7) && huge.resized(pages, 1) != huge);
        assert_eq!(huge.resized(9, 1), Word::new(9, Some(3), 7, State::Busy));
        assert_eq!(huge.resized(9, 1).resized(pages, 0), huge);
        assert_eq!((Word::NONE.state(), Word::NONE.owner()), (None, None));
        // The smallest that escapes.
        let least = Word::new(ESCAPE_PAGES, Some(3), 7, State::Busy);
        assert!(!least.is_of(ESCAPE_PAGES, 7));
        assert_eq!(least.resized(ESCAPE_PAGES, 0), least);
        assert_ne!(least.resized(ESCAPE_PAGES, 1), least);
    }
}
