//! One language of operations: for property tests, fuzzing, saved failures.
//!
//! An op is decoded from six 16-bit numbers, so that a random generator, a shrinking property test and a fuzzer's bytes
//! can all produce it. It has a text form of one line, so that any failure can be printed and run again. Ops are raw:
//! sizes and alignments need not make sense, ranges need not be free, and freed ranges need not have been taken.

use std::fmt;
use std::str::FromStr;
use va_base::{PAGE_SIZE, VaRange};

/// The space of the ops.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// The range that the index manages.
    pub extent: VaRange,
    /// The window of requests without one.
    pub default_window: VaRange,
}

impl Space {
    /// Returns a space whose default window is all of it.
    #[must_use]
    pub fn whole(extent: VaRange) -> Self {
        Self { extent, default_window: extent }
    }
}

/// One operation. Addresses and sizes are bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Take a range that fits.
    Alloc(Ask),
    /// Find it.
    WouldFit(Ask),
    /// Take `[start, start + size)`.
    Take {
        /// First address.
        start: u64,
        /// Bytes.
        size: u64,
    },
    /// Take several ranges at fixed distances, as high as possible.
    Congruent {
        /// `(offset, size)` pairs.
        areas: Vec<(u64, u64)>,
        /// Alignment of the base.
        align: u64,
    },
    /// Free the `n`th area out (modulo their number).
    Free(u64),
    /// Free the `n`th area out in two fragments, cut after `cut` pages (modulo its size), with a fragment reserved.
    FreeSplit {
        /// Which area.
        n: u64,
        /// Pages in the first part.
        cut: u64,
    },
    /// Free the `n`th area out and its right neighbour, if they touch, as one range, and release a fragment.
    FreeJoined(u64),
    /// Free a range, in any state.
    FreeRange {
        /// First address.
        start: u64,
        /// Bytes.
        size: u64,
    },
}

/// A raw request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// Bytes.
    pub size: u64,
    /// Bytes.
    pub align: u64,
    /// Ends of the window, in any order.
    pub window: Option<(u64, u64)>,
    /// The fit that is chosen.
    pub choice: Choice,
}

/// The fit that an op chooses of those that are possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// The lowest address.
    Lowest,
    /// The lowest hole that holds it wherever the hole starts.
    Ample,
    /// The highest address.
    Highest,
    /// The smallest hole.
    Best,
}

/// The numbers from which an op is decoded.
pub type Code = [u16; 6];

impl Op {
    /// Decodes an op for `space`. Every code is an op; codes of zeros are the simplest.
    #[must_use]
    pub fn decode(space: &Space, code: Code) -> Self {
        let [kind, a, b, c, d, e] = code;
        match kind % 16 {
            0..=5 => Self::Alloc(ask(space, [a, b, c, d, e])),
            6..=9 => Self::Free(u64::from(a)),
            10 => Self::WouldFit(ask(space, [a, b, c, d, e])),
            11 => Self::Take { start: address(space, a, b), size: size(space, c, d) },
            12 => Self::FreeSplit { n: u64::from(a), cut: u64::from(b) },
            13 => Self::FreeJoined(u64::from(a)),
            14 => {
                let align = PAGE_SIZE << (a % 4);
                let mut at = 0;
                let areas = [b, c, d].into_iter().take(1 + usize::from(a / 4 % 3)).map(|n| {
                    let offset = at + align * u64::from(n >> 8 & 3);
                    let size = align * (1 + u64::from(n & 7));
                    at = offset + size;
                    (offset, size)
                });
                Self::Congruent { areas: areas.collect(), align }
            }
            _ => Self::FreeRange { start: address(space, a, b), size: size(space, c, d) },
        }
    }

    /// Decodes bytes, twelve to an op.
    pub fn decode_all<'a>(space: &'a Space, bytes: &'a [u8]) -> impl Iterator<Item = Self> + 'a {
        bytes.chunks_exact(12).map(|chunk| {
            let code = std::array::from_fn(|i| u16::from_le_bytes([chunk[2 * i], chunk[2 * i + 1]]));
            Self::decode(space, code)
        })
    }

    /// Returns the ops of a seed.
    pub fn from_seed(space: &Space, seed: u64) -> impl Iterator<Item = Self> + '_ {
        let mut rng = Rng::new(seed);
        std::iter::repeat_with(move || {
            let (x, y) = (rng.next_u64(), rng.next_u64());
            let word = |from: u64, i: u32| (from >> (16 * i)) as u16;
            Self::decode(space, [word(x, 0), word(x, 1), word(x, 2), word(x, 3), word(y, 0), word(y, 1)])
        })
    }
}

/// Returns a size: mostly small, sometimes the scale of the space, rarely nonsense.
fn size(space: &Space, how: u16, value: u16) -> u64 {
    let value = u64::from(value);
    let total = space.extent.len_bytes();
    match how % 32 {
        0..=23 => PAGE_SIZE * (1 + value % 8),
        24..=27 => PAGE_SIZE * (1 + value % 256),
        28 => total / PAGE_SIZE / (1 + value % 8) * PAGE_SIZE,
        29 => value,
        30 => [0, 1, PAGE_SIZE - 1, u64::MAX, 1 << 63, 1 << 52, total][value as usize % 7],
        _ => PAGE_SIZE << (value % 60),
    }
}

/// Returns an address: inside the space, at its ends, at the ends of all addresses.
fn address(space: &Space, how: u16, value: u16) -> u64 {
    let (start, end) = (space.extent.start().get(), space.extent.end().get());
    let pages = (space.extent.len_bytes() / PAGE_SIZE).max(1);
    let value = u64::from(value);
    match how % 16 {
        0..=9 => start.wrapping_add(value % pages * PAGE_SIZE) & !(PAGE_SIZE - 1),
        10 => end.wrapping_sub(value * PAGE_SIZE) & !(PAGE_SIZE - 1),
        11 => start.wrapping_add(pages / 16 * (value % 16) * PAGE_SIZE) & !(PAGE_SIZE - 1),
        12 => start.wrapping_add(value),
        13 => end.wrapping_sub(value),
        14 => value,
        _ => u64::MAX - value,
    }
}

fn ask(space: &Space, [a, b, c, d, e]: [u16; 5]) -> Ask {
    let align = match c % 16 {
        0..=8 => PAGE_SIZE,
        9..=12 => PAGE_SIZE << (c / 16 % 8),
        13 => 1 << (c / 16 % 64),
        14 => 1 << (c / 16 % 13),
        _ => u64::from(c / 16) * 3,
    };
    let window = match d % 8 {
        0..=4 => None,
        // The window's width is small as often as it is arbitrary.
        5 | 6 => {
            let low = address(space, d / 8, e);
            Some((low, low.wrapping_add(PAGE_SIZE * (1 + u64::from(e % 64)))))
        }
        _ => Some((address(space, d / 8, e), address(space, d / 128, e.rotate_left(8)))),
    };
    let choice = [Choice::Lowest, Choice::Ample, Choice::Best, Choice::Highest][usize::from(c >> 14)];
    Ask { size: size(space, a, b), align, window, choice }
}

impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.size, self.align)?;
        if let Some((low, high)) = self.window {
            write!(f, " {low} {high}")?;
        }
        match self.choice {
            Choice::Lowest => Ok(()),
            Choice::Ample => write!(f, " ample"),
            Choice::Highest => write!(f, " highest"),
            Choice::Best => write!(f, " best"),
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alloc(ask) => write!(f, "alloc {ask}"),
            Self::WouldFit(ask) => write!(f, "would-fit {ask}"),
            Self::Take { start, size } => write!(f, "take {start} {size}"),
            Self::Congruent { areas, align } => {
                write!(f, "congruent {align}")?;
                areas.iter().try_for_each(|(offset, size)| write!(f, " {offset} {size}"))
            }
            Self::Free(n) => write!(f, "free {n}"),
            Self::FreeSplit { n, cut } => write!(f, "free-split {n} {cut}"),
            Self::FreeJoined(n) => write!(f, "free-joined {n}"),
            Self::FreeRange { start, size } => write!(f, "free-range {start} {size}"),
        }
    }
}

/// The reason why a line is not an op.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadOp(pub String);

impl fmt::Display for BadOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not an operation: {:?}", self.0)
    }
}

impl std::error::Error for BadOp {}

impl FromStr for Op {
    type Err = BadOp;

    fn from_str(line: &str) -> Result<Self, BadOp> {
        let bad = || BadOp(line.chars().take(80).collect());
        let mut words = line.split_whitespace();
        let name = words.next().ok_or_else(bad)?;
        let mut words: Vec<&str> = words.collect();
        let asks = ["alloc", "would-fit"].contains(&name);
        let choice = match words.pop_if(|word| asks && ["ample", "highest", "best"].contains(word)) {
            Some("ample") => Choice::Ample,
            Some("highest") => Choice::Highest,
            Some(_) => Choice::Best,
            None => Choice::Lowest,
        };
        let numbers: Vec<u64> =
            words.iter().map(|word| word.parse().map_err(|_| bad())).collect::<Result<_, _>>()?;
        let ask = || match numbers[..] {
            [size, align] => Ok(Ask { size, align, window: None, choice }),
            [size, align, low, high] => Ok(Ask { size, align, window: Some((low, high)), choice }),
            _ => Err(bad()),
        };
        match (name, &numbers[..]) {
            ("alloc", _) => Ok(Self::Alloc(ask()?)),
            ("would-fit", _) => Ok(Self::WouldFit(ask()?)),
            ("take", &[start, size]) => Ok(Self::Take { start, size }),
            ("congruent", [align, pairs @ ..]) if pairs.len().is_multiple_of(2) => Ok(Self::Congruent {
                areas: pairs.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect(),
                align: *align,
            }),
            ("free", &[n]) => Ok(Self::Free(n)),
            ("free-split", &[n, cut]) => Ok(Self::FreeSplit { n, cut }),
            ("free-joined", &[n]) => Ok(Self::FreeJoined(n)),
            ("free-range", &[start, size]) => Ok(Self::FreeRange { start, size }),
            _ => Err(bad()),
        }
    }
}

/// A small deterministic generator (SplitMix64), so that a seed means the same ops on every machine and version.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Starts from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`, which is not zero; its slight bias does not matter for tests.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_reads_back() {
        let space = Space::whole(VaRange::ALL);
        for op in Op::from_seed(&space, 5).take(2000) {
            assert_eq!(op.to_string().parse::<Op>().as_ref(), Ok(&op));
        }
        for bad in ["", "alloc", "alloc 1", "free x", "congruent 1 2", "take 1", "free-joined 1 2", "?"] {
            assert!(bad.parse::<Op>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_seed_covers_the_language() {
        let space = Space::whole(VaRange::from_pages(0, 64).unwrap());
        let ops: Vec<_> = Op::from_seed(&space, 1).take(4000).collect();
        let has = |what: fn(&Op) -> bool| ops.iter().any(what);
        assert!(has(|op| matches!(op, Op::Alloc(ask) if ask.size == 0)));
        assert!(has(|op| matches!(op, Op::Alloc(ask) if ask.align == 1 << 63)));
        assert!(has(|op| matches!(op, Op::Alloc(ask) if !ask.align.is_power_of_two())));
        assert!(has(|op| matches!(op, Op::Alloc(ask) if ask.window.is_some_and(|(low, high)| high < low))));
        assert!(has(|op| matches!(op, Op::Alloc(ask) if ask.window.is_some_and(|(_, high)| high > 1 << 63))));
        for choice in [Choice::Ample, Choice::Highest, Choice::Best] {
            let chosen =
                |op: &Op| matches!(op, Op::Alloc(ask) if ask.choice == choice && ask.window.is_none());
            assert!(ops.iter().any(chosen), "{choice:?}");
        }
        assert!(has(|op| matches!(op, Op::Congruent { areas, .. } if areas.len() == 3)));
        assert!(has(|op| matches!(op, Op::FreeRange { size: 0, .. })));
        assert!(has(|op| matches!(op, Op::FreeSplit { .. })));
        assert!(has(|op| matches!(op, Op::FreeJoined(_))));
    }
}
