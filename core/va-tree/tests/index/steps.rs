//! Requests of alignments whose rows are being built, in steps, between frees and allocs: each answer is the model's.

use std::fmt::Debug;
use va_base::{Align, AllocError, PAGE_SIZE, Request, Va, VaRange};
use va_certify::Certified;
use va_sim::effort::some;
use va_sim::model::ModelIndex;
use va_sim::op::Rng;
use va_sim::platform::{Fail, FailingPlatform, HeapPlatform};
use va_sim::soak::seeds;
use va_tree::btree::{BTree, Key};
use va_tree::certify::Certify;
use va_tree::{FreeIndex, Supplied};

/// Pages of a space: holes of two pages in eight at first, and all sizes later.
const PAGES: u64 = 12_000;

fn space() -> VaRange {
    VaRange::from_pages(3, 3 + PAGES).unwrap()
}

/// An index and its model, which do everything together.
struct Pair<I> {
    index: I,
    model: ModelIndex,
    out: Vec<VaRange>,
    /// Steps that were not the last of their request.
    steps: u64,
}

impl<I: FreeIndex> Pair<I> {
    fn new(index: I) -> Self {
        let model = ModelIndex::new(space(), space()).unwrap();
        let mut pair = Self { index, model, out: Vec::new(), steps: 0 };
        for n in 0..PAGES / 8 - 1 {
            pair.take(VaRange::from_pages(3 + 8 * n, 8 + 8 * n).unwrap());
            pair.take(VaRange::from_pages(10 + 8 * n, 11 + 8 * n).unwrap());
        }
        pair
    }

    fn take(&mut self, range: VaRange) {
        let taken = self.index.take(range);
        assert_eq!(taken, self.model.take(range), "{range}");
        if taken.is_ok() {
            self.out.push(range);
        }
    }

    fn free(&mut self, rng: &mut Rng) {
        let range = self.out.swap_remove(rng.below(self.out.len() as u64) as usize);
        assert_eq!(self.index.free(range), self.model.free(range), "{range}");
    }

    /// Compares the end of a request.
    fn got(&mut self, request: &Request, got: Result<Va, AllocError>, want: Result<Va, AllocError>) {
        assert_eq!(got, want, "{request:?}");
        if let Ok(at) = got {
            self.out.push(VaRange::from_size(at, request.size().get() * PAGE_SIZE).unwrap());
        }
    }

    fn one(&mut self, rng: &mut Rng) {
        let align = Align::new(PAGE_SIZE << (1 + rng.below(4))).unwrap();
        let mut request = Request::pages(1 + rng.below(4)).unwrap().aligned(align);
        if rng.below(3) == 0 {
            let (a, b) = (3 + rng.below(PAGES), 3 + rng.below(PAGES));
            request = request.within(VaRange::from_pages(a.min(b), a.max(b)).unwrap());
        }
        match rng.below(12) {
            // A single step: what it has built stays, and other calls come before the next.
            0..4 => match self.index.alloc_step(&request).transpose() {
                Some(got) => {
                    let want = self.model.alloc(&request);
                    self.got(&request, got, want);
                }
                None => self.steps += 1,
            },
            4 => match self.index.alloc_highest_step(&request).transpose() {
                Some(got) => {
                    let want = self.model.alloc_highest(&request);
                    self.got(&request, got, want);
                }
                None => self.steps += 1,
            },
            5 => {
                let (got, want) = (self.index.alloc(&request), self.model.alloc(&request));
                self.got(&request, got, want);
            }
            6 => {
                assert_eq!(self.index.would_fit(&request), self.model.would_fit(&request));
                assert_eq!(self.index.highest_fit(&request), self.model.highest_fit(&request));
            }
            7 => {
                let unaligned = Request::pages(1 + rng.below(9)).unwrap();
                let (got, want) = (self.index.alloc(&unaligned), self.model.alloc(&unaligned));
                self.got(&unaligned, got, want);
            }
            8 => {
                let start = 3 + rng.below(PAGES - 3);
                self.take(VaRange::from_pages(start, start + 1 + rng.below(3)).unwrap());
            }
            _ => self.free(rng),
        }
    }
}

fn run<K: Key, const F: usize>(seed: u64) -> u64
where
    BTree<K, F, HeapPlatform>: Debug,
{
    let tree = BTree::<K, F, _>::new(space(), space(), HeapPlatform::default()).unwrap();
    let (mut pair, mut rng) = (Pair::new(tree), Rng::new(seed));
    let mut half_built = 0;
    for _ in 0..some(4_000) {
        pair.one(&mut rng);
        // The classes whose rows are whole.
        half_built += u64::from(pair.index.has_rows() && format!("{:?}", pair.index).contains("Classes(0)"));
        if rng.below(20) == 0 {
            pair.index.validate().unwrap();
        }
    }
    pair.index.validate().unwrap();
    assert!(pair.index.holes().eq(pair.model.holes()));
    assert!(half_built > 20 && pair.steps > 4, "{half_built} states, {} steps", pair.steps);
    half_built
}

#[test]
fn bt7_half_built_rows_answer_as_the_model() {
    for seed in 0..seeds(3) {
        run::<u64, 4>(seed);
        run::<u64, 8>(seed);
        run::<u32, 8>(seed);
    }
}

#[test]
fn bt7_answers_from_half_built_rows_have_certificates() {
    fn certified<I: FreeIndex + Certify>(index: I, seed: u64) {
        let (mut pair, mut rng) = (Pair::new(Certified::new(index)), Rng::new(seed));
        (0..some(1_500)).for_each(|_| pair.one(&mut rng));
        pair.index.validate().unwrap();
    }
    for seed in 0..seeds(2) {
        certified(BTree::<u64, 4, _>::new(space(), space(), HeapPlatform::default()).unwrap(), seed);
        certified(BTree::<u64, 8, _>::new(space(), space(), HeapPlatform::default()).unwrap(), seed);
    }
}

#[test]
fn sp4_steps_without_memory_answer_as_the_model() {
    for granted in (0..60).step_by(3) {
        let platform = FailingPlatform::new(Fail::Never);
        let tree = BTree::<u64, 4, _>::new(space(), space(), platform.clone()).unwrap();
        let (mut pair, mut rng) = (Pair::new(tree), Rng::new(granted));
        // Enough for all areas to come, so that only rows lack memory.
        pair.index.reserve_splits(2_000).unwrap();
        pair.model.reserve_splits(2_000).unwrap();
        platform.set(Fail::After(granted));
        (0..some(300)).for_each(|_| pair.one(&mut rng));
        pair.index.validate().unwrap();
    }
}

#[test]
fn bt7_half_built_rows_go_with_a_shrink_and_become_all_rows() {
    for (seed, always) in [(5, false), (6, true)] {
        let tree = BTree::<u64, 4, _>::new(space(), space(), HeapPlatform::default()).unwrap();
        let (mut pair, mut rng) = (Pair::new(tree), Rng::new(seed));
        // No hole but the 512th begins at a multiple of 4,096 pages. The first step asks for memory.
        let request = Request::pages(2).unwrap().aligned(Align::new(PAGE_SIZE << 12).unwrap());
        assert_eq!([(); 2].map(|()| pair.index.alloc_step(&request)), [Ok(None); 2]);
        assert!(pair.index.has_rows() && format!("{:?}", pair.index).contains("Classes(0)"), "half-built");
        if always {
            pair.index.add_all_rows().unwrap();
        } else {
            pair.index.shrink(usize::MAX);
        }
        assert_eq!(pair.index.has_rows(), always);
        pair.index.validate().unwrap();
        (0..some(300)).for_each(|_| pair.one(&mut rng));
        pair.index.validate().unwrap();
    }
}

#[test]
fn the_same_steps_give_the_same_tree() {
    let run = || {
        let tree = BTree::<u64, 4, _>::new(space(), space(), HeapPlatform::default()).unwrap();
        let (mut pair, mut rng) = (Pair::new(tree), Rng::new(11));
        (0..some(1_000)).for_each(|_| pair.one(&mut rng));
        let mut shape = Vec::new();
        pair.index.shape(&mut |number| shape.push(number));
        (shape, pair.out, pair.steps)
    };
    assert_eq!(run(), run());
}
