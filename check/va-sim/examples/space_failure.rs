//! Measures a request that cannot be met while 40,000 areas wait in magazines, pools and lazy lists: the first time,
//! again, and if it is impossible.
//!
//! Run: `cargo run --profile dist -p va-sim --example space_failure`

use std::hint::black_box;
use std::time::Instant;
use va_base::{Request, VaRange};
use va_sim::machine::SimMachine;
use va_space::config::Standard;
use va_space::{Area, Magazine, SpaceError, VmapSpace};

const AREAS: u64 = 40_000;
/// 1 GiB, with a busy page each 16 MiB: nothing of 20 MiB fits.
const PAGES: u64 = 1 << 18;
const FIRST: u64 = 0xf_ffc9_0000_0000;
const ROUNDS: usize = 15;
const REPEATS: u32 = 1000;

fn ask(pages: u64) -> Request {
    match Request::pages(pages) {
        Ok(request) => request,
        Err(error) => panic!("{error}"),
    }
}

fn alloc(magazine: &mut Magazine<'_, &SimMachine, Standard>, request: &Request) -> Area {
    match magazine.alloc(request) {
        Ok(area) => area,
        Err(error) => panic!("{error}"),
    }
}

/// Returns nanoseconds of the first failure, of a repeat, and of an impossible request just after the frees.
fn round(cpus: u32) -> [f64; 3] {
    let machine = SimMachine::new(cpus);
    let window = VaRange::from_pages(FIRST, FIRST + PAGES).unwrap_or_default();
    let Ok(space) = VmapSpace::<_, Standard>::new(window, window, &machine) else { panic!("no space") };
    let Ok(mut magazine) = space.magazine(0) else { panic!("no magazine") };
    for n in 0..PAGES >> 12 {
        let at = FIRST + (n << 12) + 2048;
        let _area = alloc(&mut magazine, &ask(1).within(VaRange::from_pages(at, at + 1).unwrap_or_default()));
    }
    let mut areas: Vec<Area> = (0..AREAS).map(|n| alloc(&mut magazine, &ask(1 + n % 8))).collect();
    let mut random = 7u64;
    while !areas.is_empty() {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let area = areas.swap_remove((random >> 33) as usize % areas.len());
        let _freed = magazine.free(area);
    }
    let mut time = |request: &Request, times: u32| {
        let start = Instant::now();
        for _ in 0..times {
            let got = black_box(magazine.alloc(black_box(request)));
            assert!(
                matches!(got, Err(SpaceError::NoSpace { .. } | SpaceError::Impossible { .. })),
                "{got:?}"
            );
        }
        start.elapsed().as_nanos() as f64 / f64::from(times)
    };
    let impossible = time(&ask(PAGES + 1), 1);
    let first = time(&ask(5120), 1);
    [first, time(&ask(5120), REPEATS), impossible]
}

fn main() {
    for cpus in [1, 16] {
        let rounds: Vec<[f64; 3]> = (0..ROUNDS).map(|_| round(cpus)).collect();
        let least = |what: usize| rounds.iter().map(|round| round[what]).fold(f64::INFINITY, f64::min);
        println!(
            "{cpus:>2} CPUs: first failure {:.0} us, its repeat {:.0} ns, impossible {:.0} ns (one call, the clock included)",
            least(0) / 1e3,
            least(1),
            least(2)
        );
    }
}
