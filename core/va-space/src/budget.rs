//! The bounded work of one slice of a purge, counted in costs so that all slices cost about the same.
//!
//! # Theory
//! A slice runs at the end of some free, with the purge lock held, so its length delays that caller. A count of areas
//! is no bound. An area that goes to the index by itself costs ten times as much as a start bit that a sweep passes. A
//! node without areas has a cost too. So each step subtracts its own [`Cost`], in units of about 35 instructions
//! (`va-sim/examples/slices.rs` counts them). A slice has [`Config::SLICE_AREAS`] times the cost of an area, and ends
//! with the first step that exhausts it.

use crate::config::Config;

/// The cost of one step, in units.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cost(u64);

impl Cost {
    /// An area on its way to the index by itself: sorted, unmarked in the page map, freed in the index.
    pub(crate) const AREA: Self = Self(40);
    /// An area that a pool takes, or that is marked as leaving.
    pub(crate) const MOVE: Self = Self(6);
    /// A link of a list that is passed.
    pub(crate) const LINK: Self = Self(1);
    /// A list of areas that is moved as a whole.
    pub(crate) const LIST: Self = Self(6);
    /// The check of a node, whatever it holds.
    pub(crate) const NODE: Self = Self(5);
    /// A start bit that a sweep passes, or an area that it takes out of the page map.
    pub(crate) const PASS: Self = Self(5);
    /// Neighbours that are freed in the index as one.
    pub(crate) const RUN: Self = Self(32);
    /// An area whose flush is reported to the machine.
    pub(crate) const SETTLED: Self = Self(6);
}

/// The work that remains to a slice.
pub(crate) struct Budget(u64);

impl Budget {
    /// Returns the budget of a whole slice under the policies `C`.
    pub(crate) const fn of_slice<C: Config>() -> Self {
        // Policies that do not slice have a number that no slice reaches.
        Self(C::SLICE_AREAS.saturating_mul(Cost::AREA.0))
    }

    /// Returns a quarter of a slice's budget, for work beside a slice.
    pub(crate) const fn of_quarter<C: Config>() -> Self {
        Self(Self::of_slice::<C>().0 / 4)
    }

    /// Returns whether no more than a quarter of the budget of a slice was spent.
    pub(crate) const fn spares_a_slice<C: Config>(&self) -> bool {
        let Self(whole) = Self::of_slice::<C>();
        whole - self.0 <= whole / 4
    }

    /// Returns an unlimited budget, for calls that may take long.
    pub(crate) const fn unbounded() -> Self {
        Self(u64::MAX)
    }

    /// Returns whether a step may begin.
    #[inline(always)]
    pub(crate) fn is_left(&self) -> bool {
        self.0 > 0
    }

    /// Subtracts a step.
    #[inline(always)]
    pub(crate) fn spend(&mut self, cost: Cost) {
        self.0 = self.0.saturating_sub(cost.0);
    }

    /// Subtracts many steps.
    pub(crate) fn spend_each(&mut self, cost: Cost, steps: u64) {
        self.0 = self.0.saturating_sub(cost.0.saturating_mul(steps));
    }

    /// Returns how many steps of this cost may begin.
    pub(crate) fn steps(&self, cost: Cost) -> u64 {
        self.0.div_ceil(cost.0)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::config::Standard;

    #[test]
    fn a_budget_is_spent_step_by_step_and_many_at_a_time() {
        let mut budget = Budget::of_slice::<Standard>();
        assert_eq!((budget.steps(Cost::AREA), budget.steps(Cost::LIST)), (7, 47));
        assert_eq!(Budget::of_quarter::<Standard>().steps(Cost::AREA), 2);
        budget.spend_each(Cost::LINK, 70);
        assert!(budget.spares_a_slice::<Standard>());
        budget.spend(Cost::LINK);
        assert!(!budget.spares_a_slice::<Standard>());
        budget.spend_each(Cost::AREA, 5);
        assert_eq!((budget.is_left(), budget.steps(Cost::LINK)), (true, 9));
        budget.spend_each(Cost::LIST, 2);
        assert_eq!((budget.is_left(), budget.steps(Cost::LINK)), (false, 0));
    }
}
