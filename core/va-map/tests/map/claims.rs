//! Two callers that unmap one large mapping, and a third that maps another at its address.

use std::collections::BTreeMap;
use std::sync::Mutex;
use va_base::{LockClass, Pages, Va, VaRange};
use va_map::{Entries, FreeError, Leaf, MapSpace, PageTable, Protection, Stopped};
use va_sim::pause::Pause;
use va_space::VmapSpace;

#[derive(Default)]
struct Table(Mutex<BTreeMap<u64, u64>>);

impl PageTable for Table {
    const LEAF_SIZES: &'static [u32] = &[0];

    fn map(&self, at: Va, Entries { run, .. }: Entries) -> Result<(), Stopped> {
        self.0.lock().unwrap().extend((0..run.pages).map(|nth| (at.page_floor() + nth, run.first + nth)));
        Ok(())
    }

    fn unmap(&self, range: VaRange, gone: &mut dyn FnMut(Leaf)) {
        let (first, end) = range.whole_pages();
        for at in first..end {
            let frame = self.0.lock().unwrap().remove(&at);
            frame.into_iter().for_each(|first| gone(Leaf { first, pages_log2: 0 }));
        }
    }

    fn leaf(&self, at: Va) -> Option<Leaf> {
        self.0.lock().unwrap().get(&at.page_floor()).map(|&first| Leaf { first, pages_log2: 0 })
    }
}

#[test]
fn two_calls_that_unmap_one_mapping_take_no_mapping_of_another_size() {
    let pages: Vec<u64> = (0..120).collect();
    for stops in 0..3 {
        let machine = Pause::machine(1);
        let window = VaRange::from_pages(0x1000, 0x9000).unwrap();
        let space = VmapSpace::new(window, window, &machine).unwrap();
        let map = MapSpace::<_, _>::new(space, &machine, Table::default()).unwrap();
        let at = map.vm_map_ram(0, &pages[..100], Protection(0)).unwrap();
        let unmaps = || map.vm_unmap_ram(0, at, 100);
        let (first, second) = machine.watcher.beside(LockClass::Records, stops, unmaps, || {
            let second = map.vm_unmap_ram(0, at, 100);
            map.purge();
            assert_eq!(map.vm_map_ram(0, &pages[..], Protection(0)).unwrap(), at);
            second
        });
        assert!(first.is_ok() != second.is_ok(), "{stops}: {first:?} {second:?}");
        let (count, mapped) = (Pages::new(100), Pages::new(120));
        assert_eq!(map.vm_unmap_ram(0, at, 100), Err(FreeError::WrongCount { at, pages: count, mapped }));
        assert_eq!(map.table().unwrap().0.lock().unwrap().len(), 120, "{stops}");
        assert_eq!((map.vm_unmap_ram(0, at, 120), map.validate()), (Ok(()), Ok(())));
    }
}
