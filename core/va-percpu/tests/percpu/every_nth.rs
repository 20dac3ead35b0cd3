//! Every n-th request for memory fails, in every call that makes some: `va_sim::every_nth` has the rules. A slab is
//! records of the machine; the backend creates and populates chunks.

use va_percpu::config::{Linux612, Runs, Scan, Standard};
use va_percpu::{AllocError, Config, Context, NewError, Offset, PercpuSpace, Place, Request, Sizes};
use va_sim::every_nth::{Subject, every_nth};
use va_sim::machine::SimMachine;
use va_sim::percpu::{Harness, Live, Op, SIZES, SimChunks};

/// The smallest unit, so that a chunk is soon full.
const SMALL: Sizes = Sizes { unit: 32 << 10, atom: 32 << 10, alloc: 64 << 10, ..SIZES };
/// The size of a chunk, and of the largest object.
const WHOLE: usize = 32 << 10;

/// The offset of an object, where it is compared with that of a call without failures.
type Answer = Result<Option<Offset>, AllocError>;

struct Run<'m, C: Config> {
    machine: &'m SimMachine,
    harness: Harness<C, &'m SimMachine>,
    /// Free bytes in a page that is not populated.
    spare: Offset,
    fresh_free_bytes: u64,
}

fn fresh<C: Config>(machine: &SimMachine) -> Run<'_, C> {
    machine.fail_after(u64::MAX, u64::MAX);
    let mut harness = Harness::<C, _>::on(machine, SMALL);
    let fresh_free_bytes = harness.space.stats().free_bytes;
    // More than the first chunk has, and a chunk whose last pages were never used.
    while harness.space.stats().chunks < 3 {
        harness.alloc(&Request::new(2900, 8)).unwrap();
    }
    let last = harness.alloc(&Request::new(5000, 4096)).unwrap();
    let in_chunk = harness.space.find(last).unwrap().off;
    let spare = Offset::new(last.get() + u64::from(SMALL.unit - 4096 - in_chunk));
    Run { machine, harness, spare, fresh_free_bytes }
}

impl<C: Config> Subject for Run<'_, C> {
    type Seen = (Vec<Live>, u64);
    type Error = AllocError;
    const KINDS: &'static [&'static str] = &["slab", "table", "chunk or population"];

    fn seen(&self) -> Self::Seen {
        let space = &self.harness.space;
        assert_eq!(space.validate(), Ok(()));
        let live: Vec<Live> = self.harness.live().copied().collect();
        assert!(live.iter().all(|live| space.find(live.offset).is_some()));
        (live, space.stats().live)
    }

    fn is_of_memory(error: &AllocError) -> bool {
        matches!(
            error,
            AllocError::NoMeta { .. } | AllocError::NoChunk { .. } | AllocError::NotPopulated { .. }
        )
    }

    fn machine(&self) -> &SimMachine {
        self.machine
    }

    fn fail(&self, kind: usize, granted: u64, count: u64) {
        match kind {
            2 => self.harness.space.backend().fail_some(granted, count),
            _ => self.machine.fail_kind(kind, granted, count),
        }
    }

    fn fail_all(&self) {
        self.machine.fail_after(0, 0);
        self.harness.space.backend().fail_after(0);
    }

    fn denials(&self) -> u64 {
        self.machine.denials() + self.harness.space.backend().denials()
    }

    fn end(mut self) {
        while self.harness.live().next().is_some() {
            self.harness.apply(Op::Free(0));
        }
        self.harness.apply(Op::Balance);
        assert_eq!(self.seen().0, []);
        let stats = self.harness.space.stats();
        assert!(stats.chunks <= 3 && stats.slabs == 0, "{stats:?}");
        // Each chunk is wholly free.
        let chunks = u64::from(stats.chunks - 1) * u64::from(SMALL.unit);
        assert_eq!(stats.free_bytes, self.fresh_free_bytes + chunks, "{stats:?}");
        drop(self.harness);
        assert_eq!(self.machine.allocated(), 0, "memory is lost");
    }
}

fn new_error(error: NewError) -> AllocError {
    assert_eq!(error, NewError::NoMeta);
    AllocError::NoMeta { chunks: 0 }
}

/// Makes all calls. Returns how many failed for lack of records, and how many for lack of chunks and pages.
fn all<C: Config>() -> [u64; 2] {
    let machine = SimMachine::new(2);
    let mut errors = [0; 2];
    let mut try_call = |name: &str, call: &dyn Fn(&mut Run<'_, C>) -> Answer| {
        let failed = every_nth(name, || fresh::<C>(&machine), call);
        errors = [errors[0] + failed[0] + failed[1], errors[1] + failed[2]];
    };
    // Objects of slabs are elsewhere if there is no memory for one, so their addresses are not compared.
    try_call("alloc, small", &|run| run.harness.alloc(&Request::new(24, 8)).map(|_| None));
    try_call("alloc", &|run| run.harness.alloc(&Request::new(5000, 4096)).map(Some));
    try_call("alloc, a chunk", &|run| run.harness.alloc(&Request::new(WHOLE, 4096)).map(Some));
    try_call("alloc, reserved", &|run| {
        run.harness.alloc(&Request::new(100, 4).place(Place::Reserved)).map(Some)
    });
    try_call("alloc, atomic", &|run| {
        let request = Request::new(24, 8).context(Context::Atomic);
        match run.harness.alloc(&request) {
            Ok(_) | Err(AllocError::NoneInReach { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    });
    try_call("alloc_at", &|run| {
        let space = &run.harness.space;
        space.alloc_at(run.spare, 4096)?;
        // The harness does not know it.
        space.free(run.spare).unwrap();
        Ok(None)
    });
    try_call("magazine", &|run| {
        let mut magazine = run.harness.space.magazine(1).map_err(new_error)?;
        for size in [24, 24, 700, WHOLE] {
            let at = magazine.alloc(&Request::new(size, 8))?;
            magazine.free(at).unwrap();
        }
        Ok(None)
    });
    try_call("new", &|run| {
        let geometry = *run.harness.space.geometry();
        let other = PercpuSpace::<_, _, C>::new(geometry, run.machine, SimChunks::default());
        let other = other.map_err(new_error)?;
        assert_eq!(other.validate(), Ok(()));
        Ok(Some(Offset::new(other.stats().free_bytes)))
    });
    try_call("balance", &|run| {
        run.harness.apply(Op::Free(3));
        run.harness.apply(Op::Balance);
        Ok(None)
    });
    errors
}

#[test]
fn every_nth_request_for_memory_may_fail() {
    let errors = [all::<Standard>(), all::<Runs>(), all::<Scan>(), all::<Linux612>()];
    assert!(errors.iter().flatten().all(|&errors| errors > 2), "too few calls failed: {errors:?}");
}
