//! One word says all about the area that starts at a page.
//!
//! ```text
//!   63          32 31                11 10        3 2     0
//!   |    pages    |    generation     |   owner    | state |       owner 0: none; otherwise node + 1
//! ```
//!
//! The generation counts how often an area began to be busy at this page, so that a handle to an earlier one is told
//! from the present one until the count wraps after 2^21 of them. Areas of 2^32 pages and more write 0 for pages and keep
//! the size in the word of their second page, which no other area can need ([`Word::size_escape`]).

/// What an area is at this moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum State {
    /// Somebody has it.
    Busy = 1,
    /// Given back, and in a list: of the lazy, of a purge, of a pool or of a magazine. Which of them is nobody's business but
    /// the list's, so that a list of any length changes hands without a look at its areas.
    Idle = 2,
}

impl State {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 2] = [Self::Busy, Self::Idle];
}

const STATE_BITS: u32 = 3;
const OWNER_BITS: u32 = 8;
const GENERATION_BITS: u32 = 21;
const OWNER_AT: u32 = STATE_BITS;
const GENERATION_AT: u32 = OWNER_AT + OWNER_BITS;
const PAGES_AT: u32 = GENERATION_AT + GENERATION_BITS;
const _: () = assert!(PAGES_AT == u32::BITS);

/// Pages from which the size is kept in the second page's word.
pub(crate) const ESCAPE_PAGES: u64 = 1 << (u64::BITS - PAGES_AT);
/// Most nodes that an owner can name.
pub(crate) const OWNERS_MAX: u32 = (1 << OWNER_BITS) - 1;

/// The word of an area's first page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Word(u64);

impl Word {
    /// The word of a page at which no area starts.
    pub(crate) const NONE: Self = Self(0);

    /// Reads what was stored.
    #[inline(always)]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// What to store.
    #[inline(always)]
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    /// A word for `pages` pages (0 in the word if they escape), owned by a node or by none.
    #[inline]
    pub(crate) const fn new(pages: u64, owner: Option<u32>, generation: u32, state: State) -> Self {
        let owner = match owner {
            Some(node) => node as u64 + 1,
            None => 0,
        };
        let pages = if pages < ESCAPE_PAGES { pages } else { 0 };
        let generation = generation as u64 & ((1 << GENERATION_BITS) - 1);
        Self(pages << PAGES_AT | generation << GENERATION_AT | owner << OWNER_AT | state as u64)
    }

    /// The state, or `None` if no area starts here.
    #[inline]
    pub(crate) const fn state(self) -> Option<State> {
        match self.0 & ((1 << STATE_BITS) - 1) {
            1 => Some(State::Busy),
            2 => Some(State::Idle),
            _ => None,
        }
    }

    /// Tells whether the area is busy.
    #[inline(always)]
    pub(crate) const fn is_busy(self) -> bool {
        self.0 & ((1 << STATE_BITS) - 1) == State::Busy as u64
    }

    /// The same area in another state.
    #[inline(always)]
    pub(crate) const fn with_state(self, state: State) -> Self {
        Self(self.0 & !((1 << STATE_BITS) - 1) | state as u64)
    }

    /// The word of the same area when it is busy again, for `owner`.
    #[inline(always)]
    pub(crate) const fn again(self, owner: Option<u32>) -> Self {
        let owner = match owner {
            Some(node) => node as u64 + 1,
            None => 0,
        };
        let generation = (self.0 + (1 << GENERATION_AT)) & (((1 << GENERATION_BITS) - 1) << GENERATION_AT);
        Self(self.0 >> PAGES_AT << PAGES_AT | generation | owner << OWNER_AT | State::Busy as u64)
    }

    /// The owner.
    #[inline]
    pub(crate) const fn owner(self) -> Option<u32> {
        ((self.0 >> OWNER_AT & ((1 << OWNER_BITS) - 1)) as u32).checked_sub(1)
    }

    /// How often an area began to be busy here.
    #[inline]
    pub(crate) const fn generation(self) -> u32 {
        (self.0 >> GENERATION_AT) as u32 & ((1 << GENERATION_BITS) - 1)
    }

    /// The pages, or `None` if the second page's word has them.
    #[inline]
    pub(crate) const fn pages(self) -> Option<u64> {
        match self.0 >> PAGES_AT {
            0 => None,
            pages => Some(pages),
        }
    }

    /// The word of the second page of an area of `pages` pages that escape: it is in no state.
    pub(crate) const fn size_escape(pages: u64) -> Self {
        Self(pages << STATE_BITS)
    }

    /// The pages that [`size_escape`](Self::size_escape) wrote.
    pub(crate) const fn escaped_pages(self) -> u64 {
        self.0 >> STATE_BITS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_gives_back_what_it_was_made_of() {
        for pages in [1, 257, ESCAPE_PAGES - 1] {
            for owner in [None, Some(0), Some(127), Some(OWNERS_MAX - 1)] {
                for state in State::ALL {
                    for generation in [0, 1, (1 << GENERATION_BITS) - 1] {
                        let word = Word::new(pages, owner, generation, state);
                        assert_eq!((word.pages(), word.owner()), (Some(pages), owner));
                        assert_eq!((word.generation(), word.state()), (generation, Some(state)));
                        assert_eq!(word.is_busy(), state == State::Busy);
                        let other = word.with_state(State::Idle);
                        assert_eq!(other, Word::new(pages, owner, generation, State::Idle));
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
    fn a_huge_size_escapes_into_a_word_without_a_state() {
        let pages = (1 << 52) - 1;
        assert_eq!(Word::new(pages, Some(3), 7, State::Busy).pages(), None);
        let second = Word::size_escape(pages);
        assert_eq!((second.state(), second.escaped_pages()), (None, pages));
        assert_eq!((Word::NONE.state(), Word::NONE.owner()), (None, None));
    }
}
