//! What a space tells its lookup, and whether the two agree.

use super::VmapSpace;
use crate::area::{AreaView, range_of};
use crate::config::Config;
use crate::error::SpaceError;
use crate::lookup::Lookup;
use crate::map::State;
use va_base::{Broken, Machine, Va, VaRange};

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    /// Whether the lookup finds areas by itself, and so must be told of them.
    pub(super) const TELLS: bool = <C::Lookup<P> as Lookup<P>>::FINDS;

    /// Readies all that an area needs that was just taken from the index: its slots, and its place in the lookup.
    ///
    /// # Errors
    /// [`SpaceError::NoTable`], [`SpaceError::Index`] with `NoMeta`: the machine lends nothing; nothing is left behind.
    pub(super) fn ready(&self, page: u64, pages: u64) -> Result<(), SpaceError> {
        if !self.map.reserve(page, pages, &self.machine) {
            return Err(SpaceError::NoTable);
        }
        Ok(self.lookup.admit(range_of(page, pages), &self.machine)?)
    }

    /// Undoes [`ready`](Self::ready).
    pub(super) fn unready(&self, page: u64) {
        let start = Va::from_page(page);
        self.lookup.remove(start, &self.machine);
        self.lookup.release(start);
    }

    /// What a lookup that finds by itself found.
    pub(super) fn view_of(&self, range: VaRange) -> AreaView {
        let owner = self.map.word(range.start().page_floor()).owner();
        AreaView { range, state: State::Busy, owner }
    }

    /// Checks LK1 and LK2: the lookup has what the page map calls busy, and a record for all that is out of the index.
    pub(super) fn check_lookup(&self) -> Result<(), Broken> {
        if !Self::TELLS {
            return Ok(());
        }
        let (areas, promised) = self.lookup.validate()?;
        let (mut busy, mut out) = (0, 0);
        for seen in self.areas() {
            out += 1;
            if seen.state == State::Busy {
                busy += 1;
                let found = self.lookup.find(seen.range.start(), &self.machine);
                let got = found.map_or(0, |range| range.end().get());
                let want = seen.range.end().get();
                Broken::unless(got == want, "LK1", seen.range.start(), want, got)?;
            }
        }
        Broken::unless(areas == busy, "LK1", Va::ZERO, busy, areas)?;
        Broken::unless(promised == out, "LK2", Va::ZERO, out, promised)
    }
}
