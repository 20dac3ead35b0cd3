//! The ranges of an old chunk that were free before the trace, as far as the trace itself proves.
//!
//! # Theory
//! No table lists the objects of a chunk. The events do, in part. The range of an allocation was free. An object that
//! is freed and was not allocated in the trace existed from the beginning, with unknown length. So a bit was free
//! before the trace if the first event that touches it is an allocation. The exception is an object of unknown length,
//! freed before, that may have reached that far.
//!
//! ```text
//!   events:   free at 3      then take 8..10       then take 14..16
//!             ...X????????|                              X ends at the latest where another object was
//!                         allocated while it lived, or at the largest size of an object
//!             3 = known free from now on; ???? = unknown until an object is allocated there
//! ```
//! Everything else is assumed to be in use. That can hide an offset from a search, but never offers one in use.

use super::{Touch, Touched};

/// Bits of the largest object.
const OBJECT_BITS_MAX: usize = 32 << 10 >> 2;

/// Returns for each of `bits` bits whether it is known to be free before the first event.
pub fn free_before(touches: &[Touched], bits: u32) -> Vec<bool> {
    /// The state of a bit while events are read.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Bit {
        Untouched,
        /// An object of unknown length, now freed, may have reached here.
        Shadow,
        WasFree,
        WasNotOrUnknown,
    }
    let mut map = vec![Bit::Untouched; bits as usize];
    let mut live = std::collections::BTreeSet::new();
    for touched in touches {
        match touched.touch {
            Touch::Alloc { at, end, .. } => {
                live.insert(at);
                for bit in &mut map[at as usize..end as usize] {
                    *bit = match *bit {
                        Bit::Untouched => Bit::WasFree,
                        Bit::Shadow => Bit::WasNotOrUnknown,
                        known => known,
                    };
                }
            }
            Touch::Free { at } if !live.remove(&at) => {
                let at = at as usize;
                let behind = map.get_mut(at..).unwrap_or_default();
                let limit = behind.len().min(OBJECT_BITS_MAX);
                let touched = |bit: &&mut Bit| matches!(**bit, Bit::WasFree | Bit::WasNotOrUnknown);
                let (first, rest) = behind[..limit].split_at_mut(limit.min(1));
                for bit in first.iter_mut().filter(|bit| !touched(bit)) {
                    *bit = Bit::WasNotOrUnknown;
                }
                for bit in rest.iter_mut().take_while(|bit| !touched(bit)) {
                    *bit = Bit::Shadow;
                }
            }
            Touch::Free { .. } => {}
        }
    }
    map.into_iter().map(|bit| bit == Bit::WasFree).collect()
}
