//! Sizes of values.

use va_base::NoSlabs;
use va_space::VmapSpace;
use va_tree::rb::Exact;
use va_tree::{BTree, BTreeIndex, BTreeIndex32, FlatIndex, RbIndex, TrackedIndex};

/// Returns the name of each type and the bytes of a value.
pub(crate) fn all() -> [(&'static str, usize); 10] {
    [
        ("`BTreeIndex`", size_of::<BTreeIndex<NoSlabs>>()),
        ("`BTreeIndex32`", size_of::<BTreeIndex32<NoSlabs>>()),
        ("`BTree<u32, 8, _>`", size_of::<BTree<u32, 8, NoSlabs>>()),
        ("`FlatIndex<24>`", size_of::<FlatIndex<24>>()),
        ("`RbIndex`", size_of::<RbIndex<Exact, NoSlabs>>()),
        ("`TrackedIndex<BTreeIndex<_>, _>`", size_of::<TrackedIndex<BTreeIndex<NoSlabs>, NoSlabs>>()),
        ("`VmapSpace`, `Standard`", size_of::<VmapSpace<crate::space::Kernel>>()),
        ("Hermit: `VirtualPages`", size_of::<ports::hermit::VirtualPages>()),
        ("Asterinas: `RangeAllocator`", size_of::<ports::asterinas::RangeAllocator>()),
        ("COCONUT-SVSM: `VirtualRange`", size_of::<ports::svsm::VirtualRange>()),
    ]
}
