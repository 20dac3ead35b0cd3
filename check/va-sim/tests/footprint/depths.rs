//! The table of entry points: the stack of each, and its bound.

use crate::stack::raw_depth;

/// Stack of an entry point in optimised code, in bytes.
const STACK_MAX: usize = 4096;

/// The stack of one call.
pub(crate) struct Row {
    pub(crate) policy: &'static str,
    /// The entry point, followed by a comma and the case.
    pub(crate) name: &'static str,
    pub(crate) depth: usize,
    pub(crate) most: usize,
}

/// The stack of each entry point.
pub(crate) struct Depths {
    /// The stack of the thread itself.
    pub(crate) empty: usize,
    /// The policy of the rows that follow.
    pub(crate) policy: &'static str,
    pub(crate) rows: Vec<Row>,
}

impl Depths {
    pub(crate) fn new() -> Self {
        Self { empty: raw_depth(&mut || ()), policy: "", rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, name: &'static str, call: impl FnMut()) {
        self.row_within(name, STACK_MAX, call);
    }

    /// A row with a bound of its own: a constructor that returns its value.
    pub(crate) fn row_within(&mut self, name: &'static str, most: usize, mut call: impl FnMut()) {
        let depth = raw_depth(&mut call).saturating_sub(self.empty);
        self.rows.push(Row { policy: self.policy, name, depth, most });
    }
}
