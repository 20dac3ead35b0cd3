//! The assignment of colours to callers.
//!
//! A name determines its colour, so that a caller has the same colour in two pictures. If several of the largest
//! callers have the same colour, all but the first use the next free one. All other callers are grey.

use super::listing::Area;
use super::measure::Numbers;
use std::collections::BTreeMap;
use vmlab_replay::state::State;

/// Colours of callers, legible on white and on black.
pub const COLOURS: [&str; 12] = [
    "#3b7dd8", "#2f9e5a", "#8e5bd0", "#d1495b", "#1f9aa8", "#c74a9c", "#8a8d1e", "#a0673a", "#5a63d6",
    "#6aa827", "#d57aa0", "#5b8fb0",
];
/// Colour of all other callers.
pub const OTHER: &str = "#8b95a3";
/// Colour of freed areas that are not purged.
pub const LAZY: &str = "#e2872b";
/// Colour of pooled areas.
pub const POOLED: &str = "#c9a413";

/// The colour class of a range.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Ink {
    /// A caller of the legend, by its index there.
    Caller(u8),
    /// Any other caller.
    Other,
    /// Lazy.
    Lazy,
    /// Pooled.
    Pooled,
    /// A hole.
    Hole,
}

/// The callers with a colour of their own.
#[derive(Clone, Debug, Default)]
pub struct Palette {
    /// The index in the legend, by a caller's number.
    places: Vec<Option<u8>>,
    /// The index in [`COLOURS`], by index in the legend.
    colours: Vec<usize>,
}

impl Palette {
    /// Assigns colours to the largest callers.
    pub fn of(numbers: &Numbers) -> Self {
        let mut palette = Self::default();
        let people = numbers.callers.iter().filter(|row| !is_state(&row.name) && row.name != UNCOUNTED);
        let most = numbers.callers.iter().map(|row| row.number as usize + 1).max().unwrap_or(0);
        palette.places = vec![None; most];
        let people: Vec<_> = people.take(COLOURS.len()).collect();
        palette.colours = assign(people.iter().map(|row| row.name.as_str()));
        for (place, row) in people.iter().enumerate() {
            palette.places[row.number as usize] = Some(place as u8);
        }
        palette
    }

    /// Returns the ink of an area.
    pub fn ink(&self, area: &Area) -> Ink {
        match area.state {
            State::Busy => {
                let place = self.places.get(area.caller as usize).copied().flatten();
                place.map_or(Ink::Other, Ink::Caller)
            }
            State::Lazy => Ink::Lazy,
            State::Pooled => Ink::Pooled,
        }
    }

    /// Returns the index of a caller in the legend.
    pub fn place(&self, caller: u32) -> Option<u8> {
        self.places.get(caller as usize).copied().flatten()
    }

    /// Returns the number of callers with a colour of their own.
    pub fn len(&self) -> usize {
        self.colours.len()
    }

    /// Returns true if none has.
    pub fn is_empty(&self) -> bool {
        self.colours.is_empty()
    }

    /// Returns the colour of an ink, `#rrggbb`; holes have the background's.
    pub fn colour(&self, ink: Ink) -> &'static str {
        match ink {
            Ink::Caller(place) => self.colours.get(usize::from(place)).map_or(OTHER, |&at| COLOURS[at]),
            Ink::Other => OTHER,
            Ink::Lazy => LAZY,
            Ink::Pooled => POOLED,
            Ink::Hole => "#ffffff",
        }
    }
}

/// Returns the index in [`COLOURS`] of each of the first names, as many as there are colours. Each has its own by its
/// hash, or the next that no name before it has.
pub fn assign<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<usize> {
    Shared::default().assign(names)
}

/// The colours of names in the pictures of one page.
#[derive(Clone, Debug, Default)]
pub struct Shared(BTreeMap<String, usize>);

impl Shared {
    /// Does as [`assign`], but a name that an earlier picture has keeps the colour that it has there. A new name prefers
    /// one that no picture has. With more names than colours two of one colour may meet: the second gets another here.
    pub fn assign<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) -> Vec<usize> {
        let names: Vec<&str> = names.into_iter().take(COLOURS.len()).collect();
        let mut taken = [false; COLOURS.len()];
        let keep = |name: &&str| {
            let &colour = self.0.get(*name)?;
            (!std::mem::replace(&mut taken[colour], true)).then_some(colour)
        };
        let kept: Vec<Option<usize>> = names.iter().map(keep).collect();
        let mut used = [false; COLOURS.len()];
        self.0.values().for_each(|&colour| used[colour] = true);
        let colours = names.iter().zip(kept).map(|(name, kept)| {
            let colour = kept.unwrap_or_else(|| {
                let wanted = (hash(name) % COLOURS.len() as u64) as usize;
                let places = || (wanted..COLOURS.len()).chain(0..wanted);
                let unused = places().find(|&place| !used[place] && !taken[place]);
                unused.or_else(|| places().find(|&place| !taken[place])).unwrap_or(wanted)
            });
            (taken[colour], used[colour]) = (true, true);
            self.0.entry((*name).to_string()).or_insert(colour);
            colour
        });
        colours.collect()
    }
}

/// Returns the colour that a name has by itself.
pub fn colour_of(name: &str) -> &'static str {
    COLOURS[(hash(name) % COLOURS.len() as u64) as usize]
}

/// Parses the numbers of `#rrggbb`.
pub fn rgb(colour: &str) -> [u8; 3] {
    [1, 3, 5].map(|at| colour.get(at..at + 2).and_then(|hex| u8::from_str_radix(hex, 16).ok()).unwrap_or(0))
}

/// The caller of busy areas that a selection does not count.
pub const UNCOUNTED: &str = "(not selected)";

/// Returns true if a caller stands for areas that are not busy.
pub fn is_state(name: &str) -> bool {
    matches!(name, "(lazy)" | "(pooled)")
}

/// Computes FNV-1a, which is the same on every machine and in every version.
fn hash(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::fold::Part;
    use crate::map::listing::Builder;

    fn palette(names: &[&str]) -> (Palette, Vec<&'static str>) {
        let mut builder = Builder::default();
        for (at, name) in names.iter().enumerate() {
            let start = at as u64 * 100;
            builder.add(Part { start, end: start + 90 - at as u64 }, State::Busy, name);
        }
        builder.add(Part { start: 9000, end: 9999 }, State::Lazy, "");
        let listing = builder.finish(None);
        let palette = Palette::of(&Numbers::of(&listing));
        let colours = listing.areas.iter().map(|area| palette.colour(palette.ink(area))).collect();
        (palette, colours)
    }

    #[test]
    fn a_name_has_one_colour_in_all_pictures_of_a_page() {
        // Three names that want the same colour.
        let names: Vec<String> = (0..1000).map(|n| format!("f{n}")).collect();
        let same: Vec<&str> =
            names.iter().map(String::as_str).filter(|name| colour_of(name) == COLOURS[3]).take(3).collect();
        let mut shared = Shared::default();
        assert_eq!(shared.assign([same[0], same[1]]), [3, 4]);
        assert_eq!(shared.assign([same[2], same[1]]), [5, 4], "a new name takes what is left");
        assert_eq!(shared.assign([same[1], same[0]]), [4, 3]);
        // Of more names than colours some share one. Where two of these meet, the first keeps it.
        let others = names.iter().map(String::as_str).filter(|name| !same.contains(name));
        let all: Vec<&str> = others.take(COLOURS.len()).collect();
        shared.assign(all.iter().copied());
        let other = all.iter().copied().find(|name| shared.assign([*name]) == [3]).unwrap();
        assert_eq!(shared.assign([other, same[0]])[0], 3);
        assert_ne!(shared.assign([other, same[0]])[1], 3);
    }

    #[test]
    fn a_name_has_its_colour_wherever_it_is_and_no_two_share_one() {
        let (palette, colours) = palette(&["load_module", "kernel_clone"]);
        assert_eq!(palette.len(), 2);
        assert_eq!(
            colours,
            [self::palette(&["load_module"]).1[0], self::palette(&["kernel_clone"]).1[0], LAZY]
        );
        let names: Vec<String> = (0..20).map(|n| format!("f{n}")).collect();
        let (palette, mut colours) = self::palette(&names.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!((palette.len(), &colours[12..]), (12, &[[OTHER; 8].as_slice(), &[LAZY]].concat()[..]));
        colours.truncate(12);
        colours.sort_unstable();
        colours.dedup();
        assert_eq!(colours.len(), 12);
    }
}
