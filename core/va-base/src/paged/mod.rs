//! An array of records in pieces of one page, or in larger ones if the platform has them.
//!
//! # Theory
//! The platform allocates the memory of the core's records piece by piece ([`Platform::alloc_meta`]). A structure that
//! needs one long piece, or has a fixed number of places for pieces, stops for ever when memory is fragmented. So this
//! array needs no piece larger than a page ([`PIECE_BYTES`]), and has no directory that fills. It takes larger pieces
//! if they exist, since then a lookup reads one table entry.
//!
//! Records are numbered from 0. They are in *buckets*, each as long as all before it together; the first two have one
//! page each. A bucket is either one piece (*whole*), or pieces of a page (*paged*). A radix tree of three levels finds
//! the latter by number, as an inode finds its blocks. The first 256 pieces are found directly, 65,536 by one more
//! level, then by two. Each node of that tree is a page too. If the platform's page is longer, the first node holds as
//! many pieces as fit there: then its length alone says where a piece is. When a bucket begins, the array requests a
//! whole one, and if that fails a page. So after a shortage the next bucket is whole again.
//!
//! ```text
//!   number    0 1 2 3 | 4 5 6 7 | 8 ...... 15 | 16 ................ 31 |       4 records a page
//!   bucket       0    |    1    |      2      |           3           |
//!             [whole]   [whole]   [page][page]  [whole                ]
//!                                   |     |
//!   near      [ -  -  * - * - - - - - - ...]        pieces 2 and 3
//! ```
//!
//! An *id* names a record as five bits of bucket and 27 of slot. [`at`](PagedArray::at) needs a shift, a mask and one
//! table entry for a record of a whole bucket. [`id`](PagedArray::id) computes it from the number.
//!
//! The array does not allocate. [`next`](PagedArray::next) returns the memory that it needs to grow. [`Next::alloc`]
//! requests that from the platform, with or without locks held, and [`add`](PagedArray::add) uses it. In the other
//! direction [`remove_last`](PagedArray::remove_last) shortens the array by the piece at its end.
//!
//! # Invariants
//! - **PA1 held** every record below the length is found, and none at or above it.
//!
//! # Cost
//! 568 bytes. A record of a whole bucket: about eight instructions; of a paged one about thirty, up to three loads
//! more. Nodes take 1/256 of the memory of paged pieces.
//! # Source
//! Our own; the levels are those of an inode's block map.

use crate::{InvariantViolation, Meta, Platform, Record, Va};

/// Bits of an id that name the slot.
const SLOT_BITS: u32 = 27;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;
/// Buckets that an id can name.
const BUCKETS: usize = 1 << (u32::BITS - SLOT_BITS);
/// Entries of a node, a power of two. A page of them where a pointer has 64 bits.
const NODE: usize = 256;
const NODE_BITS: u32 = NODE.ilog2();

/// The id of no record.
pub const NO_ID: u32 = u32::MAX;

/// Returns a slice of no records, in constants too.
const fn nothing<T>() -> Memory<T> {
    Meta::new(&mut [])
}

/// A piece of memory that an array owns, or an empty one.
struct Piece<T: Record>(Memory<T>);

impl<T: Record> Clone for Piece<T> {
    /// Returns an empty piece: memory has one owner.
    fn clone(&self) -> Self {
        Self::EMPTY
    }
}

impl<T: Record> Record for Piece<T> {
    const EMPTY: Self = Self(nothing());
}

/// Memory for records, or an empty slice.
type Memory<T> = Meta<&'static mut [T]>;
type Node<T> = Memory<Piece<T>>;
type Middle<T> = Memory<Piece<Piece<T>>>;
type Far<T> = Memory<Piece<Piece<Piece<T>>>>;

/// An array of records that grows and shrinks piece by piece, at its end. See the module.
///
/// Its owner frees the memory with [`clear`](Self::clear); dropped without, the memory is leaked.
pub struct PagedArray<T: Record> {
    whole: [Piece<T>; BUCKETS],
    /// Pieces below [`near_len`](Self::near_len), by number of the piece.
    near: Node<T>,
    /// Pieces below 2^16.
    middle: Middle<T>,
    /// Pieces below 2^24.
    far: Far<T>,
    /// Place of the next record.
    end: Place,
}

impl<T: Record> core::fmt::Debug for PagedArray<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PagedArray").finish_non_exhaustive()
    }
}

/// A bucket and a slot in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    bucket: u32,
    slot: u32,
}

/// The memory that an array needs to become longer by one piece. Plain data, valid until the array changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Next {
    end: Place,
    /// Missing nodes of the path to the next paged piece.
    near: bool,
    middle: bool,
    far: bool,
}

/// Memory that makes one array longer by one piece, or that was removed from it.
#[must_use]
pub struct Supply<T: Record> {
    end: Place,
    whole: bool,
    piece: Memory<T>,
    near: Option<Node<T>>,
    middle: Option<Middle<T>>,
    far: Option<Far<T>>,
}

impl<T: Record> core::fmt::Debug for Supply<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Supply").finish_non_exhaustive()
    }
}

impl<T: Record> PagedArray<T> {
    /// Creates an empty array whose smallest piece has [`Record::PIECE_LOG2`] records.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            whole: [Piece::EMPTY; BUCKETS],
            near: nothing(),
            middle: nothing(),
            far: nothing(),
            end: Place { bucket: 0, slot: 0 },
        }
    }

    /// Returns the number of records for which the array has memory.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        number(self.end, T::PIECE_LOG2) as usize
    }

    /// Returns true if the array has no memory.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.end.bucket == 0 && self.end.slot == 0
    }

    /// Returns the records of the smallest piece.
    #[inline]
    #[must_use]
    pub const fn piece_len(&self) -> usize {
        1 << T::PIECE_LOG2
    }

    /// Returns the id of record `number`, whether the array is that long or not.
    #[inline(always)]
    #[must_use]
    pub const fn id(&self, number: u32) -> u32 {
        let pieces = number >> T::PIECE_LOG2;
        let bucket = u32::BITS - pieces.leading_zeros();
        (bucket << SLOT_BITS) | (number - first_number(bucket, T::PIECE_LOG2))
    }

    /// Returns the number of the record with this id.
    #[inline]
    #[must_use]
    pub const fn number(&self, id: u32) -> u32 {
        number(Place { bucket: id >> SLOT_BITS, slot: id & SLOT_MASK }, T::PIECE_LOG2)
    }

    /// Returns the id that follows `id` in the order of numbers.
    #[inline]
    #[must_use]
    pub const fn id_after(&self, id: u32) -> u32 {
        let (bucket, slot) = (id >> SLOT_BITS, id & SLOT_MASK);
        if slot + 1 == bucket_len(bucket, T::PIECE_LOG2) { (bucket + 1) << SLOT_BITS } else { id + 1 }
    }

    /// Returns the id that precedes `id`; that of record 0 has none.
    #[inline]
    #[must_use]
    pub const fn id_before(&self, id: u32) -> u32 {
        if id & SLOT_MASK > 0 || id == 0 {
            return id.wrapping_sub(1);
        }
        let bucket = (id >> SLOT_BITS) - 1;
        (bucket << SLOT_BITS) | (bucket_len(bucket, T::PIECE_LOG2) - 1)
    }

    /// Returns the record with this id if its bucket is whole; [`at`](Self::at) finds the others too.
    #[inline(always)]
    #[must_use]
    pub fn at_whole(&self, id: u32) -> Option<&T> {
        self.whole[(id >> SLOT_BITS) as usize].0.get((id & SLOT_MASK) as usize)
    }

    /// Returns the record with this id, if the array is that long.
    #[inline(always)]
    #[must_use]
    pub fn at(&self, id: u32) -> Option<&T> {
        match self.at_whole(id) {
            Some(record) => Some(record),
            None => self.at_paged(id),
        }
    }

    /// Returns the record with this id if its bucket is paged and its piece in the first node: in place, for a lookup
    /// that is itself a call.
    #[inline(always)]
    #[must_use]
    pub fn at_near(&self, id: u32) -> Option<&T> {
        let (at, slot) = self.piece_and_slot(id);
        self.near.get(at)?.0.get(slot)
    }

    /// Returns that record mutably.
    #[inline(always)]
    pub fn at_near_mut(&mut self, id: u32) -> Option<&mut T> {
        let (at, slot) = self.piece_and_slot(id);
        self.near.get_mut(at)?.0.get_mut(slot)
    }

    /// Returns the record with this id mutably.
    #[inline(always)]
    pub fn at_mut(&mut self, id: u32) -> Option<&mut T> {
        let (bucket, slot) = ((id >> SLOT_BITS) as usize, (id & SLOT_MASK) as usize);
        // A length first, and then the borrow: a borrow in the condition would last for both branches.
        if slot < self.whole[bucket].0.len() {
            return self.whole[bucket].0.get_mut(slot);
        }
        self.at_paged_mut(id)
    }

    /// Returns record `number`, as [`at`](Self::at) does.
    #[inline(always)]
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&T> {
        self.at(self.id(number))
    }

    /// Returns record `number` mutably.
    #[inline(always)]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.at_mut(self.id(number))
    }

    /// Apart from [`at`](Self::at), which is in place wherever a record is read.
    #[inline(never)]
    fn at_paged(&self, id: u32) -> Option<&T> {
        let (at, slot) = self.piece_and_slot(id);
        match self.near.get(at) {
            Some(piece) => piece.0.get(slot),
            None => self.far_node(at)?.get(at % NODE)?.0.get(slot),
        }
    }

    #[inline(never)]
    fn at_paged_mut(&mut self, id: u32) -> Option<&mut T> {
        let (at, slot) = self.piece_and_slot(id);
        if at < self.near.len() {
            return self.near.get_mut(at)?.0.get_mut(slot);
        }
        let (node, entry) = self.node_mut(at)?;
        node.get_mut(entry)?.0.get_mut(slot)
    }

    /// Returns the number of the page that would hold this id, and where in it the record begins.
    #[inline(always)]
    fn piece_and_slot(&self, id: u32) -> (usize, usize) {
        (Self::piece_of(id, T::PIECE_LOG2), id as usize & (self.piece_len() - 1))
    }

    /// Number of the piece of a page that would hold this id.
    #[inline(always)]
    const fn piece_of(id: u32, piece_log2: u32) -> usize {
        let (bucket, slot) = (id >> SLOT_BITS, id & SLOT_MASK);
        // All buckets before have as many pieces together as this one; the first has no bucket before it.
        (((1u64 << bucket) >> 1) + (slot >> piece_log2) as u64) as usize
    }

    /// Returns the number of pieces that are near, or will be: 256, or as many as the slab has.
    ///
    /// Lookups decide by the length of the slab. It does not change while a piece is in it or beyond it.
    #[inline]
    fn near_len(&self) -> usize {
        self.near.len().max(NODE)
    }

    /// Returns the node whose entries are the pieces around number `at`, which are not near.
    #[cold]
    fn far_node(&self, at: usize) -> Option<&Node<T>> {
        Some(if at < 1 << (2 * NODE_BITS) {
            &self.middle.get(at >> NODE_BITS)?.0
        } else {
            &self.far.get(at >> (2 * NODE_BITS))?.0.get((at >> NODE_BITS) % NODE)?.0
        })
    }

    /// Returns the node of piece `at`, and its entry there.
    #[cold]
    fn node_mut(&mut self, at: usize) -> Option<(&mut Node<T>, usize)> {
        if at < self.near_len() {
            return Some((&mut self.near, at));
        }
        let node = if at < 1 << (2 * NODE_BITS) {
            &mut self.middle.get_mut(at >> NODE_BITS)?.0
        } else {
            &mut self.far.get_mut(at >> (2 * NODE_BITS))?.0.get_mut((at >> NODE_BITS) % NODE)?.0
        };
        Some((node, at % NODE))
    }

    /// Returns the memory that the array needs for one more piece; `None` if ids cannot name more records.
    #[must_use]
    pub fn next(&self) -> Option<Next> {
        let Place { bucket, slot } = self.end;
        if bucket > last_bucket(T::PIECE_LOG2) {
            return None;
        }
        let at = Self::piece_of((bucket << SLOT_BITS) | slot, T::PIECE_LOG2);
        let (near, middle, far) = if at < self.near_len() {
            (self.near.is_empty(), false, false)
        } else if at < 1 << (2 * NODE_BITS) {
            let below = self.middle.get(at >> NODE_BITS);
            (below.is_none_or(|node| node.0.is_empty()), self.middle.is_empty(), false)
        } else {
            let middle = self.far.get(at >> (2 * NODE_BITS)).filter(|node| !node.0.is_empty());
            let below = middle.and_then(|node| node.0.get((at >> NODE_BITS) % NODE));
            (below.is_none_or(|node| node.0.is_empty()), middle.is_none(), self.far.is_empty())
        };
        Some(Next { end: self.end, near, middle, far })
    }

    /// Lengthens the array by the memory of [`Next::alloc`]. New records have any values.
    ///
    /// # Errors
    /// The memory itself, if the array changed since [`next`](Self::next). The caller frees it.
    pub fn add(&mut self, supply: Supply<T>) -> Result<(), Supply<T>> {
        let Some(next) = self.next() else { return Err(supply) };
        let missing = (next.near, next.middle, next.far);
        let brought = (supply.near.is_some(), supply.middle.is_some(), supply.far.is_some());
        let Place { bucket, slot } = self.end;
        // At the same place every supply is as long: the type of its records decides.
        if supply.end != self.end || (!supply.whole && missing != brought) {
            return Err(supply);
        }
        if supply.whole {
            self.whole[bucket as usize].0 = supply.piece;
            self.end = Place { bucket: bucket + 1, slot: 0 };
            return Ok(());
        }
        let at = Self::piece_of((bucket << SLOT_BITS) | slot, T::PIECE_LOG2);
        if let Some(far) = supply.far {
            self.far = far;
        }
        if let Some(middle) = supply.middle {
            match self.far.get_mut(at >> (2 * NODE_BITS)) {
                Some(place) if at >= 1 << (2 * NODE_BITS) => place.0 = middle,
                _ => self.middle = middle,
            }
        }
        if let Some((node, entry)) = self.node_mut(at) {
            if let Some(near) = supply.near {
                *node = near;
            }
            if let Some(place) = node.get_mut(entry) {
                place.0 = supply.piece;
            }
        }
        let slot = slot + (1 << T::PIECE_LOG2);
        self.end = if slot == bucket_len(bucket, T::PIECE_LOG2) {
            Place { bucket: bucket + 1, slot: 0 }
        } else {
            Place { bucket, slot }
        };
        Ok(())
    }

    /// Returns the length after [`remove_last`](Self::remove_last), or `None` if the array has no memory.
    #[must_use]
    pub fn len_without_last(&self) -> Option<usize> {
        self.last().map(|(place, _)| number(place, T::PIECE_LOG2) as usize)
    }

    /// Returns the beginning of the last piece, and whether it is a whole bucket.
    fn last(&self) -> Option<(Place, bool)> {
        let Place { bucket, slot } = self.end;
        let piece = 1 << T::PIECE_LOG2;
        if slot > 0 {
            return Some((Place { bucket, slot: slot - piece }, false));
        }
        let bucket = bucket.checked_sub(1)?;
        let whole = !self.whole[bucket as usize].0.is_empty();
        let slot = if whole { 0 } else { bucket_len(bucket, T::PIECE_LOG2) - piece };
        Some((Place { bucket, slot }, whole))
    }

    /// Removes the last piece from the array, with the nodes that no other piece needs. Its records are lost.
    pub fn remove_last(&mut self) -> Option<Supply<T>> {
        let (end, whole) = self.last()?;
        self.end = end;
        let bucket = end.bucket as usize;
        let mut supply = Supply { end, whole, piece: nothing(), near: None, middle: None, far: None };
        if whole {
            supply.piece = core::mem::take(&mut self.whole[bucket].0);
            return Some(supply);
        }
        let at = Self::piece_of((end.bucket << SLOT_BITS) | end.slot, T::PIECE_LOG2);
        let is_near = at < self.near_len();
        if let Some((node, entry)) = self.node_mut(at) {
            if let Some(place) = node.get_mut(entry) {
                supply.piece = core::mem::take(&mut place.0);
            }
            if is_unused(node) {
                supply.near = Some(core::mem::take(node));
            }
        }
        if supply.near.is_some() && !is_near {
            if at < 1 << (2 * NODE_BITS) {
                if is_unused(&self.middle) {
                    supply.middle = Some(core::mem::take(&mut self.middle));
                }
            } else if let Some(place) = self.far.get_mut(at >> (2 * NODE_BITS))
                && is_unused(&place.0)
            {
                supply.middle = Some(core::mem::take(&mut place.0));
                if is_unused(&self.far) {
                    supply.far = Some(core::mem::take(&mut self.far));
                }
            }
        }
        Some(supply)
    }

    /// Makes the array at least `len` records long, with memory from `platform`, piece by piece.
    ///
    /// # Errors
    /// The number of missing records. Pieces that were added before a failure remain.
    pub fn reserve(&mut self, len: usize, platform: &impl Platform) -> Result<(), usize> {
        while self.len() < len {
            let missing = len - self.len();
            let supply = self.next().and_then(|next| next.alloc(platform)).ok_or(missing)?;
            if let Err(unused) = self.add(supply) {
                unused.free(platform);
                return Err(missing);
            }
        }
        Ok(())
    }

    /// Frees all memory. The array is empty afterwards.
    pub fn clear(&mut self, platform: &impl Platform) {
        while let Some(supply) = self.remove_last() {
            supply.free(platform);
        }
    }

    /// Checks PA1 with a walk over the pieces.
    ///
    /// # Errors
    /// [`InvariantViolation`].
    pub fn validate(&self) -> Result<(), InvariantViolation> {
        let (len, piece) = (self.len() as u32, self.piece_len() as u32);
        for number in (0..len).step_by(piece as usize) {
            let held = self.get(number).is_some() && self.get(number + piece - 1).is_some();
            InvariantViolation::check(held, "PA1", Va::ZERO, u64::from(len), u64::from(number))?;
        }
        let past = self.next().is_some() && self.get(len).is_some();
        InvariantViolation::check(!past, "PA1", Va::ZERO, u64::from(len), u64::from(len) + 1)
    }
}

impl<T: Record> Default for PagedArray<T> {
    fn default() -> Self {
        Self::new()
    }
}
/// Returns whether no entry of a node holds anything, O(256).
fn is_unused<T: Record>(node: &[Piece<T>]) -> bool {
    node.iter().all(|entry| entry.0.is_empty())
}

/// Records of a bucket.
#[inline(always)]
const fn bucket_len(bucket: u32, piece_log2: u32) -> u32 {
    // The first is as long as the second.
    (((1u64 << bucket) >> 1) as u32 | (bucket == 0) as u32) << piece_log2
}

/// Number of the first record of a bucket.
#[inline(always)]
const fn first_number(bucket: u32, piece_log2: u32) -> u32 {
    (((1u64 << bucket) >> 1) as u32) << piece_log2
}

#[inline(always)]
const fn number(place: Place, piece_log2: u32) -> u32 {
    first_number(place.bucket, piece_log2) + place.slot
}

/// Returns the last bucket that ids and nodes can name: 2^24 pieces, and slots below 2^27.
const fn last_bucket(piece_log2: u32) -> u32 {
    let by_slots = SLOT_BITS - piece_log2;
    if by_slots < 3 * NODE_BITS { by_slots } else { 3 * NODE_BITS }
}

impl Next {
    /// Requests the memory from `platform`: for the whole bucket, if one begins and is longer than a page, else for a
    /// page and the nodes to find it. `None` if the platform has neither. `T` is the record of the array.
    pub fn alloc<T: Record>(&self, platform: &impl Platform) -> Option<Supply<T>> {
        let piece = 1usize << T::PIECE_LOG2;
        let mut supply =
            Supply { end: self.end, whole: false, piece: nothing(), near: None, middle: None, far: None };
        if self.end.slot == 0 {
            let len = bucket_len(self.end.bucket, T::PIECE_LOG2) as usize;
            if let Some(whole) = alloc_exact(platform, len) {
                return Some(Supply { whole: true, piece: whole, ..supply });
            }
            if len == piece {
                return None;
            }
        }
        supply.piece = alloc_exact(platform, piece)?;
        supply.near = if self.near { alloc_node(platform) } else { None };
        supply.middle = if self.middle { alloc_node(platform) } else { None };
        supply.far = if self.far { alloc_node(platform) } else { None };
        let brought = (supply.near.is_some(), supply.middle.is_some(), supply.far.is_some());
        if brought != (self.near, self.middle, self.far) {
            supply.free(platform);
            return None;
        }
        Some(supply)
    }

    /// Returns the bytes of the smallest memory that is enough, the nodes included.
    #[must_use]
    pub const fn bytes<T: Record>(&self) -> usize {
        let nodes = self.near as usize + self.middle as usize + self.far as usize;
        let first = self.end.slot == 0 && self.end.bucket < 2;
        let node_bytes = NODE * size_of::<Piece<T>>();
        (size_of::<T>() << T::PIECE_LOG2) + if first { 0 } else { nodes * node_bytes }
    }
}

/// Requests a slab of at least `len` records, and at least one, from `platform`. `None` if it has none; a shorter slab
/// is freed.
#[cold]
#[inline(never)]
pub fn alloc_exact<T: Record>(platform: &impl Platform, len: usize) -> Option<Meta<&'static mut [T]>> {
    let slab = Meta::new(platform.alloc_meta::<T>(len)?);
    if slab.len() < len || slab.is_empty() {
        platform.free_meta(slab);
        return None;
    }
    Some(slab)
}

/// Returns a node without entries: a slab may hold any values.
fn alloc_node<T: Record>(platform: &impl Platform) -> Option<Node<T>> {
    let mut node = alloc_exact(platform, NODE)?;
    node.fill(Piece::EMPTY);
    Some(node)
}

impl<T: Record> Supply<T> {
    /// Frees the memory.
    pub fn free(self, platform: &impl Platform) {
        platform.free_meta(self.piece);
        if let Some(node) = self.near {
            platform.free_meta(node);
        }
        if let Some(node) = self.middle {
            platform.free_meta(node);
        }
        if let Some(node) = self.far {
            platform.free_meta(node);
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
