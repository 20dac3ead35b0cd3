//! The programs of per-CPU data and of mappings, whose entry points are safe.

use crate::tracer::{Mark, mark};
use crate::work::{Area, MIB, PAGE, Sink, attempt, check_zeros, inside, layout, mapped_bytes};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use vmalloc::percpu::{self, PerCpuCounter, PerCpuList, PerCpuRef, RefMode, Word};
use vmalloc::{Mappings, Protection};

/// Per-CPU data: objects, words, counters, references, lists.
pub(super) fn per_cpu() {
    let before = mapped_bytes();
    if let Some(space) = attempt("Space::new", || percpu::Space::new(percpu::Options::default())) {
        let words: Vec<_> = (0..300).filter_map(|_| attempt("zeroed", || space.zeroed::<Word>())).collect();
        for (amount, word) in (1..).zip(&words) {
            inside(|| word.word().add(amount - 1));
            inside(|| word.word().add(1));
            assert_eq!(word.word().sum(), amount);
        }
        let boxes: Vec<_> = [1, 100, 4096, 32 << 10]
            .into_iter()
            .filter_map(|bytes| attempt("Space::alloc", || space.alloc(layout(bytes, 8))))
            .collect();
        for object in &boxes {
            for unit in 0..space.units() {
                let at = inside(|| object.as_ptr(unit)).unwrap();
                check_zeros(at, 0, object.layout().size());
                Area::new(at, object.layout().size(), unit as u8 + 1);
            }
        }
        let made = attempt("with_init", || space.with_init(|unit| u64::from(unit) * 3));
        let sum = |units: u64| 3 * units * (units - 1) / 2;
        if let Some(made) = &made {
            assert_eq!(made.iter().sum::<u64>(), sum(u64::from(made.units())));
        }
        counters(&space);
        references(&space);
        lists(&space);
        inside(|| drop(boxes));
        inside(|| space.trim());
        mark(Mark::Calm);
        for (amount, word) in (1..).zip(&words) {
            assert_eq!(word.word().sum(), amount);
        }
        drop((words, made));
        space.trim();
        space.validate().unwrap();
        assert_eq!(space.counts().0, 0);
        let object = space.alloc(layout(32 << 10, 64)).unwrap();
        check_zeros(object.as_ptr(0).unwrap(), 0, 32 << 10);
        drop(object);
        drop(space);
    }
    mark(Mark::Calm);
    println!("leak {}", mapped_bytes().saturating_sub(before));
    let space = percpu::Space::new(percpu::Options::default()).unwrap();
    assert_eq!(space.zeroed::<Word>().unwrap().word().sum(), 0);
}

fn counters(space: &percpu::Space) {
    let counter = inside(|| PerCpuCounter::new(space, 5));
    inside(|| counter.add(10));
    let is_percpu = attempt("promote", || counter.promote()).is_some();
    assert_eq!(counter.is_percpu(), is_percpu);
    for _ in 0..100 {
        inside(|| counter.add(3));
    }
    assert!(inside(|| counter.limited_add(1000, 1)));
    assert!(!inside(|| counter.limited_add(100, 1)));
    inside(|| counter.sync());
    assert_eq!(inside(|| counter.sum()), 316);
    inside(|| drop(counter));
}

fn references(space: &percpu::Space) {
    let released = AtomicU64::new(0);
    let release = || _ = released.fetch_add(1, Ordering::Relaxed);
    let made = attempt("PerCpuRef::new", || PerCpuRef::new(space, RefMode::PerCpu, release));
    let Some(count) = made else { return };
    inside(|| count.get());
    let killed = attempt("kill", || count.kill()).is_some();
    assert_eq!(count.is_dying(), killed);
    inside(|| count.put());
    if killed {
        assert!(count.is_zero() && released.load(Ordering::Relaxed) == 1);
        let _live = attempt("reinit", || count.reinit());
        inside(|| count.switch_to_percpu());
    }
    assert!(inside(|| count.try_get()));
    let _atomic = attempt("switch_to_atomic", || count.switch_to_atomic());
    inside(|| count.put());
    assert_eq!(released.load(Ordering::Relaxed), u64::from(killed));
    inside(|| drop(count));
}

fn lists(space: &percpu::Space) {
    let Some(mut list) = attempt("PerCpuList::new", || PerCpuList::<u64>::new(space)) else { return };
    for value in 0..10 {
        let node = Box::new(percpu::Node::new(value));
        inside(|| list.push(node));
    }
    // Of this unit; the thread may have moved since.
    let popped = inside(|| list.pop());
    let mut sum = popped.map_or(0, |node| node.value);
    inside(|| list.drain(|node| sum += node.value));
    assert_eq!(sum, 45);
    inside(|| drop(list));
}

/// Mappings of chosen frames.
pub(super) fn mappings() {
    let before = mapped_bytes();
    if let Some(mappings) = attempt("Mappings::new", || Mappings::new(256 * MIB)) {
        let frames: Vec<_> =
            [3, 200].into_iter().filter_map(|count| attempt("frames", || mappings.frames(count))).collect();
        let known: Vec<_> = frames.iter().map(|frames| frame_round(&mappings, frames)).collect();
        inside(|| mappings.flush());
        let mut lines = Sink::default();
        inside(|| write!(lines, "{}", mappings.vmallocinfo())).unwrap();
        mark(Mark::Calm);
        for (frames, known) in frames.iter().zip(known) {
            let mut word = [0; 8];
            frames.read(PAGE, &mut word).unwrap();
            assert_eq!(u64::from_ne_bytes(word), known);
        }
        drop(frames);
        mappings.flush();
        let stats = mappings.stats();
        assert_eq!((stats.frames, stats.mapped_bytes), (0, 0), "{stats:?}");
        let frames = mappings.frames(4).unwrap();
        let mut bytes = [1; 4 * PAGE];
        frames.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 0));
        assert_eq!(frame_round(&mappings, &frames), 8);
        drop(frames);
        drop(mappings);
    }
    mark(Mark::Calm);
    println!("leak {}", mapped_bytes().saturating_sub(before));
}

/// Maps frames in two orders, and writes by one mapping what the other reads. Returns the word at the second frame.
fn frame_round(mappings: &Mappings, frames: &vmalloc::Frames<'_>) -> u64 {
    let mut known = 0;
    if attempt("Frames::write", || frames.write(PAGE, &7u64.to_ne_bytes())).is_some() {
        known = 7;
    }
    let _may_fail = attempt("populate", || frames.populate());
    let all = [0, 1, 2].map(|nth| frames.frame(nth).unwrap());
    let turned = [2, 1, 0, 1].map(|nth| frames.frame(nth).unwrap());
    let straight = attempt("vmap", || mappings.vmap(&all, Protection::ReadWrite));
    let other = attempt("vm_map_ram", || mappings.vm_map_ram(&turned, Protection::Read));
    if let Some(straight) = &straight {
        let word = &straight.words().unwrap()[PAGE / 8];
        assert_eq!(word.load(Ordering::Relaxed), known);
        word.store(8, Ordering::Relaxed);
        known = 8;
    }
    if let Some(other) = &other {
        for page in [1, 3] {
            let mut word = [0; 8];
            other.read(page * PAGE, &mut word).unwrap();
            assert_eq!(u64::from_ne_bytes(word), known, "page {page}");
        }
        let mut seen = [0; 8];
        let count = inside(|| mappings.vread(other.as_ptr().as_ptr().wrapping_add(PAGE), &mut seen));
        assert!(count == 0 || u64::from_ne_bytes(seen) == known);
    }
    inside(|| drop(other));
    inside(|| drop(straight));
    known
}
