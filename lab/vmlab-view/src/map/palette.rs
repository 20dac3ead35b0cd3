//! The assignment of colours to callers.
//!
//! A name determines its colour, so that a caller has the same colour in two pictures. If several of the largest
//! callers have the same colour, all but the first use the next free one. All other callers are grey.

use super::listing::Area;
use super::measure::Numbers;
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
        let mut taken = [false; COLOURS.len()];
        let people = numbers.callers.iter().filter(|row| !is_state(&row.name) && row.name != UNCOUNTED);
        let most = numbers.callers.iter().map(|row| row.number as usize + 1).max().unwrap_or(0);
        palette.places = vec![None; most];
        for row in people.take(COLOURS.len()) {
            let wanted = (hash(&row.name) % COLOURS.len() as u64) as usize;
            let mut places = (wanted..COLOURS.len()).chain(0..wanted);
            let Some(colour) = places.find(|&place| !taken[place]) else { break };
            taken[colour] = true;
            palette.places[row.number as usize] = Some(palette.colours.len() as u8);
            palette.colours.push(colour);
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

/// Returns the colour that a name has by itself.
pub fn colour_of(name: &str) -> &'static str {
    COLOURS[(hash(name) % COLOURS.len() as u64) as usize]
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
