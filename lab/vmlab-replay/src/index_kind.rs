//! The indexes that a trace can be replayed on, by name.

use va_base::{AllocError, VaRange};
use va_sim::platform::HeapPlatform;
use va_tree::rb::{Exact, Linux};
use va_tree::{BTreeIndex, FreeIndex, RbIndex};
use vmlab_base::choice::Choice;
use vmlab_machine::list::ListIndex;

/// An index, by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndexKind {
    /// Red-black tree, searched as Linux 6.12 does
    RbLinux,
    /// Red-black tree, exact lowest fit
    RbExact,
    /// B+tree of holes, exact lowest fit (the default index of the library)
    Btree,
    /// The list of busy areas that Linux walked before 5.2
    List,
}

/// All of them, in the order of the tables.
pub const ALL: [IndexKind; 4] = [IndexKind::RbLinux, IndexKind::RbExact, IndexKind::Btree, IndexKind::List];

impl Choice for IndexKind {
    const CHOICES: &'static [Self] = &ALL;

    fn choice(self) -> &'static str {
        self.name()
    }

    fn about(self) -> &'static str {
        match self {
            Self::RbLinux => "Red-black tree, searched as Linux 6.12 does",
            Self::RbExact => "Red-black tree, exact lowest fit",
            Self::Btree => "B+tree of holes, exact lowest fit (the default index of the library)",
            Self::List => "The list of busy areas that Linux walked before 5.2",
        }
    }
}

/// An operation that is generic over the type of the index.
pub trait Visitor {
    /// The result.
    type Out;
    /// Runs the operation; `make` creates a fresh index.
    fn visit<I: FreeIndex>(self, make: impl Fn() -> Result<I, AllocError>) -> Self::Out;
}

impl IndexKind {
    /// The name on the command line and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::RbLinux => "rb-linux",
            Self::RbExact => "rb-exact",
            Self::Btree => "btree",
            Self::List => "list",
        }
    }

    /// Calls `visitor` with a function that makes this index for a space.
    pub fn visit<V: Visitor>(self, extent: VaRange, window: VaRange, visitor: V) -> V::Out {
        // One heap for all rounds: it reuses its slabs, so that rounds do not measure the allocation of memory.
        let heap = HeapPlatform::default();
        match self {
            Self::RbLinux => visitor.visit(|| RbIndex::<Linux, _>::new(extent, window, heap.clone())),
            Self::RbExact => visitor.visit(|| RbIndex::<Exact, _>::new(extent, window, heap.clone())),
            Self::Btree => visitor.visit(|| BTreeIndex::new(extent, window, heap.clone())),
            Self::List => visitor.visit(|| ListIndex::new(extent, window)),
        }
    }
}
