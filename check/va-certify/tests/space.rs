//! A space of few pages on two CPUs: every sequence of so many allocs, frees and purges, and
//! every order of frees. Each area is free and inside,
//! and a request fails only if no hole has room for it. The long form runs by
//! `cargo test --release -p va-certify --test space -- --ignored --nocapture`.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use va_base::{Request, VaRange};
use va_certify::{Checker, Run};
use va_sim::machine::SimMachine;
use va_space::config::{Linux69, Standard};
use va_space::{Area, Config, Purge, VmapSpace};

const FIRST: u64 = 0xf_ffc9_0000_0001;
const PAGES: u64 = 6;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Call {
    /// So many pages, by that CPU.
    Alloc { cpu: u32, pages: u64 },
    /// The area of that number among those that are left.
    Free(usize),
    /// Flush all lazy areas.
    Purge,
}

const CALLS: [Call; 9] = [
    Call::Alloc { cpu: 0, pages: 1 },
    Call::Alloc { cpu: 1, pages: 1 },
    Call::Alloc { cpu: 0, pages: 2 },
    Call::Alloc { cpu: 1, pages: 3 },
    Call::Free(0),
    Call::Free(1),
    Call::Free(2),
    Call::Free(3),
    Call::Purge,
];

fn pages(area: &Area) -> Run {
    area.range().whole_pages()
}

/// Makes the calls on a new space. Returns false if the last one has no area to free.
fn run<C: Config>(calls: &[Call]) -> bool {
    let machine = SimMachine::new(2);
    let window = VaRange::from_pages(FIRST, FIRST + PAGES).unwrap();
    let space = VmapSpace::<_, C>::new(window, window, &machine).unwrap();
    let (mut checker, mut areas) = (Checker::new(FIRST, FIRST + PAGES), Vec::new());
    for call in calls {
        match *call {
            Call::Alloc { cpu, pages: size } => match space.alloc(cpu, &Request::pages(size).unwrap()) {
                Ok(area) => {
                    assert_eq!(pages(&area).1 - pages(&area).0, size, "{calls:?}");
                    checker.occupy(pages(&area)).unwrap_or_else(|lie| panic!("{lie}: {calls:?}"));
                    areas.push(area);
                }
                Err(error) => assert!(checker.longest() < size, "{error}: {calls:?}"),
            },
            Call::Free(at) if at < areas.len() => {
                let area: Area = areas.remove(at);
                checker.vacate(pages(&area)).unwrap_or_else(|lie| panic!("{lie}: {calls:?}"));
                space.free(area).unwrap();
            }
            Call::Free(_) => return false,
            Call::Purge => _ = space.purge(Purge::Drain),
        }
    }
    // Whatever the order, all of it is there again.
    areas.into_iter().for_each(|area| space.free(area).unwrap());
    let all = space.alloc(1, &Request::pages(PAGES).unwrap());
    assert_eq!(all.as_ref().map(pages), Ok((FIRST, FIRST + PAGES)), "{calls:?}");
    space.validate().unwrap_or_else(|broken| panic!("{broken}: {calls:?}"));
    true
}

/// Runs every sequence of at most `more` calls after these; returns how many.
fn all<C: Config>(calls: &mut Vec<Call>, more: usize) -> u64 {
    let mut count = 0;
    for call in CALLS {
        // Two purges in a row do what one does.
        if call == Call::Purge && matches!(calls.last(), None | Some(Call::Purge)) {
            continue;
        }
        calls.push(call);
        if run::<C>(calls) {
            count += 1;
            if more > 1 {
                count += all::<C>(calls, more - 1);
            }
        }
        calls.pop();
    }
    count
}

#[test]
fn every_sequence_of_few_calls_on_two_cpus() {
    let counts = [all::<Standard>(&mut Vec::new(), 4), all::<Linux69>(&mut Vec::new(), 4)];
    println!("space: sequences of up to 4 calls: {counts:?}");
    assert!(counts[0] == counts[1] && counts[0] > 1000, "{counts:?}");
}

/// Four areas that fill the space, allocated by each choice of CPUs, freed in each order, with each choice of purges
/// between the frees; returns how many.
fn every_order<C: Config>() -> u64 {
    let mut count = 0;
    for cpus in 0..16 {
        let allocs = [1, 2, 1, 2].into_iter().enumerate();
        let allocs = allocs.map(|(n, pages)| Call::Alloc { cpu: cpus >> n & 1, pages });
        for order in 0..24 {
            for purges in 0..8 {
                let mut calls: Vec<Call> = allocs.clone().collect();
                // The number of an order, digit by digit: which of those left.
                for (n, at) in [order / 6, order / 2 % 3, order % 2, 0].into_iter().enumerate() {
                    calls.push(Call::Free(at));
                    calls.extend((purges >> n & 1 == 1).then_some(Call::Purge));
                }
                assert!(run::<C>(&calls));
                count += 1;
            }
        }
    }
    count
}

#[test]
#[ignore = "seconds, and memory: what a machine of a test frees stays allocated"]
fn every_sequence_of_five_calls_on_two_cpus() {
    let counts = [all::<Standard>(&mut Vec::new(), 5), all::<Linux69>(&mut Vec::new(), 5)];
    let orders = [every_order::<Standard>(), every_order::<Linux69>()];
    println!("space: sequences of up to 5 calls: {counts:?}, orders of frees: {orders:?}");
}
