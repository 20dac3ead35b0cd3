//! A reserve: objects set aside for callers that cannot wait.
//!
//! # Theory
//! A caller that cannot wait is served from populated pages alone, and the balance keeps two to four spare ones. That is
//! enough for small objects, now and then. Suppose that a packet filter allocates a counter of 64 bytes for each new
//! flow, in interrupts, and that 500 flows may come before its worker runs. With a reserve of 500 such objects none of
//! these requests fails, whatever the state of memory.
//!
//! The objects of a reserve are allocated and zero. Its allocs try the populated pages first, so a reserve is used up
//! only while these have no room. A caller that can wait fills it again. When the reserve ends, its objects are freed.
//!
//! # Locking
//! One lock for the list, under which no other is taken and nothing is called.
//!
//! # Source
//! None in Linux's per-CPU memory: `bpf_mem_alloc`, nft and vxlan keep lists of their own (6.12).

use super::PercpuSpace;
use crate::backend::Backend;
use crate::bitmap::Word;
use crate::config::{Config, Standard};
use crate::error::AllocError;
use crate::offset::Offset;
use crate::request::{Context, Request};
use crate::rows::Row;
use va_base::sync::atomic::Ordering;
use va_base::sync::{Mutex, MutexGuard};
use va_base::{LockClass, Machine, Record};

/// The objects that are set aside.
struct List {
    objects: Row<Word>,
    len: usize,
}

/// Objects of one size that are set aside for callers that cannot wait, on any CPU; see
/// [`PercpuSpace::reserve`]. Dropping it frees them.
pub struct Reserve<'s, P: Machine, B: Backend, C: Config = Standard> {
    space: &'s PercpuSpace<P, B, C>,
    request: Request,
    count: u32,
    list: Mutex<P::Lock, List>,
}

impl<P: Machine, B: Backend, C: Config> core::fmt::Debug for Reserve<'_, P, B, C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Reserve")
            .field("request", &self.request)
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

impl<P: Machine, B: Backend, C: Config> PercpuSpace<P, B, C> {
    /// Sets `count` objects aside, so that as many later allocs of the reserve succeed without a wait. They count as
    /// live.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc), or [`AllocError::NoList`] if the machine has no memory for the list of 8 bytes an
    /// object. Nothing is set aside then.
    /// # Locks
    /// Those of [`alloc`](Self::alloc), one object after the other.
    pub fn reserve(&self, request: &Request, count: u32) -> Result<Reserve<'_, P, B, C>, AllocError> {
        request.want()?;
        let objects = match count {
            0 => Record::EMPTY,
            _ => Row::alloc(count, &self.machine).ok_or(AllocError::NoList { count })?,
        };
        let list = Mutex::new(List { objects, len: 0 });
        let reserve = Reserve { space: self, request: *request, count, list };
        reserve.refill()?;
        Ok(reserve)
    }
}

impl<P: Machine, B: Backend, C: Config> Reserve<'_, P, B, C> {
    fn lock(&self) -> MutexGuard<'_, P::Lock, List> {
        self.space.machine.locking(LockClass::Owner);
        self.list.lock()
    }

    /// Allocates an object, zero on every CPU, without a wait: from populated pages, or else one that was set aside. Free
    /// it in the space, as any other. Then the balance is due, and [`refill`](Self::refill) if you rely on the next ones.
    ///
    /// # Errors
    /// As [`PercpuSpace::alloc`] for a caller that cannot wait, once no object is set aside.
    /// # Locks
    /// `chunks`, and the lock of the reserve. Cost: the engine's.
    pub fn alloc(&self) -> Result<Offset, AllocError> {
        let request = self.request.context(Context::Atomic);
        if let Ok(object) = self.space.alloc_once(&request) {
            return Ok(object);
        }
        let Some(object) = self.take() else { return self.space.alloc(&request) };
        // As after a failure: the balance populates pages.
        self.space.failed.store(true, Ordering::Relaxed);
        self.space.call_for_balance();
        Ok(object)
    }

    /// Returns the objects that are set aside at the moment.
    pub fn held(&self) -> u32 {
        self.lock().len as u32
    }

    /// Sets objects aside again, up to the number that was requested, in at most as many allocs. The caller can wait if
    /// the request says so.
    ///
    /// # Errors
    /// As [`PercpuSpace::alloc`]; those set aside before the failure remain.
    /// # Locks
    /// Those of [`PercpuSpace::alloc`], and the lock of the reserve.
    pub fn refill(&self) -> Result<(), AllocError> {
        // A bound: others may allocate meanwhile.
        for _ in 0..self.count {
            if self.held() >= self.count {
                break;
            }
            let object = self.space.alloc(&self.request)?;
            if !self.put(object) {
                // Another thread filled it meanwhile.
                let _freed = self.space.free(object);
                break;
            }
        }
        Ok(())
    }

    /// Adds an object. `false` if the reserve is full.
    fn put(&self, object: Offset) -> bool {
        let mut list = self.lock();
        let List { objects, len } = &mut *list;
        let Some(place) =
            objects.records_mut().get_mut(..self.count as usize).and_then(|all| all.get_mut(*len))
        else {
            return false;
        };
        *place = Word(object.get());
        *len += 1;
        true
    }

    /// Takes an object.
    fn take(&self) -> Option<Offset> {
        let mut list = self.lock();
        let top = list.len.checked_sub(1)?;
        list.len = top;
        list.objects.records_mut().get(top).map(|word| Offset::new(word.0))
    }
}

impl<P: Machine, B: Backend, C: Config> Drop for Reserve<'_, P, B, C> {
    fn drop(&mut self) {
        while let Some(object) = self.take() {
            // An error means that a caller freed it by an old offset. It is like any live object then: no call can tell
            // who has its bytes now (`docs/protocols.md`).
            let _freed = self.space.free(object);
        }
        let objects = core::mem::replace(&mut self.list.get_mut().objects, Record::EMPTY);
        objects.free(&self.space.machine);
    }
}
