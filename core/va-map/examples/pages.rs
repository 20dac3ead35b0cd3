//! Areas with pages, over complete implementations of a page table and a source of pages.
//!
//! `cargo run -p va-map --example pages` allocates areas, grows one, and prints the pages of each.

use std::collections::BTreeMap;
use std::sync::Mutex;
use va_base::{HeapMachine, PAGE_SIZE, Va, VaRange};
use va_map::{
    AreaRequest, Entries, Fill, Leaf, MapSpace, PageRequest, PageSource, PageTable, Protection, Run, Stopped,
};
use va_space::VmapSpace;

const CPUS: u32 = 2;
/// Pages that the machine has.
const FRAMES: u64 = 64;

/// Records and tables from the heap, locks of a library, and a flush that ends at once, where a kernel interrupts CPUs.
type Machine = HeapMachine<parking_lot::RawMutex>;

/// The page that is mapped at each address, and the free pages.
struct Pages {
    mapped: Mutex<BTreeMap<u64, u64>>,
    free: Mutex<Vec<u64>>,
}

impl Pages {
    fn mapped(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, u64>> {
        self.mapped.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn free_list(&self) -> std::sync::MutexGuard<'_, Vec<u64>> {
        self.free.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl PageTable for Pages {
    // Entries of one page alone; a machine with large ones lists all sizes, as `[0, 9, 18]`.
    const LEAF_SIZES: &'static [u32] = &[0];

    fn map(&self, at: Va, Entries { run, .. }: Entries) -> Result<(), Stopped> {
        let mut mapped = self.mapped();
        for page in 0..run.pages {
            mapped.insert(at.page_floor() + page, run.first + page);
        }
        Ok(())
    }

    fn unmap(&self, range: VaRange, gone: &mut dyn FnMut(Leaf)) {
        let (from, to) = range.whole_pages();
        let leaves: Vec<u64> = {
            let mut mapped = self.mapped();
            let mut rest = mapped.split_off(&from);
            mapped.append(&mut rest.split_off(&to));
            rest.into_values().collect()
        };
        // Under no lock: the callback may free the page.
        leaves.into_iter().for_each(|first| gone(Leaf { first, pages_log2: 0 }));
    }

    fn leaf(&self, at: Va) -> Option<Leaf> {
        Some(Leaf { first: *self.mapped().get(&at.page_floor())?, pages_log2: 0 })
    }
}

impl PageSource for Pages {
    fn alloc(&self, frames: &mut [u64], _request: PageRequest) -> usize {
        // Pages are numbers in this example, so there is nothing to zero.
        frames
            .iter_mut()
            .zip(std::iter::from_fn(|| self.free_list().pop()))
            .map(|(to, page)| *to = page)
            .count()
    }

    fn alloc_run(&self, _pages_log2: u32, _request: PageRequest) -> Option<u64> {
        None
    }

    fn free(&self, run: Run) {
        self.free_list().extend(run.first..run.first + run.pages);
    }

    fn clear(&self, _frame: u64, _from: u64, _to: u64) {}
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (window, machine) = (VaRange::from_pages(0x1000, 0x10_0000).ok_or("no range")?, Machine::new(CPUS));
    let pages = Pages { mapped: Mutex::default(), free: Mutex::new((0..FRAMES).collect()) };
    let space = VmapSpace::<_>::new(window, window, &machine)?;
    let map = MapSpace::<_, _>::new(space, &machine, &pages)?;

    // Three bytes more than four pages, room to grow to sixteen, and a guard page.
    let request = AreaRequest::new(4 * PAGE_SIZE + 3).range_bytes(16 * PAGE_SIZE);
    let at = map.vmalloc(0, &request)?;
    println!("{:?}", map.info(at).ok_or("no area there")?);
    let grown = map.vrealloc(0, at, 12 * PAGE_SIZE, Fill::Zeros)?;
    println!(
        "{at} grew to {} pages at {grown}, {} pages of the machine are left",
        12,
        pages.free_list().len()
    );
    if grown != at || pages.free_list().len() as u64 != FRAMES - 12 {
        return Err("an area with room to grow moved, or pages were lost".into());
    }
    // The same pages at a second address, in another order.
    let behind: Vec<u64> = pages.mapped().values().rev().copied().collect();
    let view = map.vmap(0, &behind[..], Protection(1), 7)?;
    println!("page {} lies at {grown} and in {view} too", behind[behind.len() - 1]);
    map.vunmap(view)?;
    // More pages than the machine has: the steps so far are undone.
    match map.vmalloc(1, &AreaRequest::new(FRAMES * PAGE_SIZE)) {
        Err(why) => println!("more pages than are left: {why}"),
        Ok(at) => return Err(format!("{FRAMES} pages at {at}, of which 12 are elsewhere").into()),
    }
    map.vfree(grown)?;
    map.purge();
    println!("all back after {} flushes", machine.flushes());
    if pages.free_list().len() as u64 != FRAMES || !pages.mapped().is_empty() {
        return Err("a page was not freed".into());
    }
    map.validate()?;
    Ok(())
}
