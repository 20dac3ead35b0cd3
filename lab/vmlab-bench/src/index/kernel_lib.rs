//! A kernel's own code behind a C interface of three functions, as one more contender.
//!
//! ```c
//! int      ki_init(uint64_t start, uint64_t end);                        /* all of [start, end) is free; 0 */
//! uint64_t ki_alloc(uint64_t size, uint64_t align, uint64_t vstart, uint64_t vend);      /* 0: nothing fits */
//! int      ki_free(uint64_t addr, uint64_t size);                        /* 0 */
//! ```
//! Everything is in bytes. The library has one space; each workload begins with a fresh one. The user decides what it
//! was built from: none of it belongs to this project.

use crate::indexes::Holes;
use crate::library::{function, load};
use crate::stream::contender::{Contender, Exactness, Runner, Work};
use crate::stream::workload::Workload;
use anyhow::Result;
use libloading::Library;
use std::path::Path;
use std::sync::Arc;
use va_base::PAGE_SIZE;

type Init = unsafe extern "C" fn(u64, u64) -> i32;
type Alloc = unsafe extern "C" fn(u64, u64, u64, u64) -> u64;
type Free = unsafe extern "C" fn(u64, u64) -> i32;

struct KernelLib {
    alloc: Alloc,
    free: Free,
    /// Keeps the code of both functions loaded.
    _library: Arc<Library>,
}

/// The space begins here, since address 0 means failure.
const BASE: u64 = 1 << 40;

impl Holes for KernelLib {
    #[inline(always)]
    fn alloc(&mut self, size: u64, align_log2: u32, (low, high): (u64, u64)) -> Option<u64> {
        let (low, high) = (BASE + low * PAGE_SIZE, BASE + high * PAGE_SIZE);
        // SAFETY: the function is loaded (`_library`), has integer parameters, and by its contract accesses only its
        // own space.
        let at = unsafe { (self.alloc)(size * PAGE_SIZE, PAGE_SIZE << align_log2, low, high) };
        (at != 0).then(|| (at - BASE) / PAGE_SIZE)
    }

    #[inline(always)]
    fn free(&mut self, start: u64, size: u64) {
        // SAFETY: as above; `alloc` returned the range, which is freed once.
        let _ = unsafe { (self.free)(BASE + start * PAGE_SIZE, size * PAGE_SIZE) };
    }
}

/// Loads the library at `path`.
pub(super) fn contender(path: &Path) -> Result<Contender> {
    let (library, init, alloc, free) = load(path, |library| {
        let init: Init = function(library, "ki_init")?;
        let (alloc, free) = (function::<Alloc>(library, "ki_alloc")?, function::<Free>(library, "ki_free")?);
        Ok((Arc::clone(library), init, alloc, free))
    })?;
    let make = move |workload: &Workload| -> Option<Box<dyn Runner>> {
        // SAFETY: the function is loaded (`library`), and one benchmark at a time uses its space.
        let ready = unsafe { init(BASE, BASE + workload.pages * PAGE_SIZE) };
        let kernel_lib = KernelLib { alloc, free, _library: Arc::clone(&library) };
        (ready == 0).then(|| Box::new(Work::new(kernel_lib, workload)) as Box<dyn Runner>)
    };
    Ok(Contender {
        name: "kern",
        aligns: true,
        windows: true,
        exactness: Exactness::UpToPage,
        make: Box::new(make),
    })
}
