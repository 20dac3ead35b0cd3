//! A space of few pages on two CPUs: every sequence of so many allocs, frees and purges, and every order of frees. Each
//! area is free and inside, and a request fails only if no hole has room for it. The long form runs by
//! `cargo xtask ci --full --only states`, or with its numbers by
//! `cargo test --release -p va-certify --test space -- --ignored --nocapture`.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use va_base::{Request, VaRange};
use va_certify::{Checker, Run};
use va_space::config::{Linux69, Standard};
use va_space::{Area, Config, Purge, VmapSpace};
use vmlab_machine::{LabMachine, PlainLock, Work};

const FIRST: u64 = 0xf_ffc9_0000_0001;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Call {
    /// So many pages, by that CPU.
    Alloc { cpu: u32, pages: u64 },
    /// The area of that number among those that are left.
    Free(usize),
    /// Flush all lazy areas.
    Purge,
}

/// A space of so many pages, and the sizes of its areas.
#[derive(Clone, Copy)]
struct Scope {
    pages: u64,
    sizes: &'static [u64],
}

const SIX: Scope = Scope { pages: 6, sizes: &[1, 2, 3] };
const TWELVE: Scope = Scope { pages: 12, sizes: &[1, 2, 3, 7] };

fn pages(area: &Area) -> Run {
    area.range().whole_pages()
}

/// Makes the calls on a new space. Returns false if the last one has no area to free.
fn run<C: Config>(size: u64, calls: &[Call]) -> bool {
    // It frees all memory, which millions of spaces need.
    let machine = LabMachine::<PlainLock>::new(2, 2, Work::Here);
    let window = VaRange::from_pages(FIRST, FIRST + size).unwrap();
    let space = VmapSpace::<_, C>::new(window, window, machine).unwrap();
    let (mut checker, mut areas) = (Checker::new(FIRST, FIRST + size), Vec::new());
    for call in calls {
        match *call {
            Call::Alloc { cpu, pages: len } => match space.alloc(cpu, &Request::pages(len).unwrap()) {
                Ok(area) => {
                    assert_eq!(pages(&area).1 - pages(&area).0, len, "{calls:?}");
                    checker.occupy(pages(&area)).unwrap_or_else(|lie| panic!("{lie}: {calls:?}"));
                    areas.push(area);
                }
                Err(error) => assert!(checker.longest() < len, "{error}: {calls:?}"),
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
    let all = space.alloc(1, &Request::pages(size).unwrap());
    assert_eq!(all.as_ref().map(pages), Ok((FIRST, FIRST + size)), "{calls:?}");
    space.validate().unwrap_or_else(|broken| panic!("{broken}: {calls:?}"));
    true
}

/// Runs every sequence of at most `more` calls after these; returns how many.
fn all<C: Config>(scope: Scope, calls: &mut Vec<Call>, more: usize) -> u64 {
    let allocs = scope.sizes.iter().flat_map(|&pages| [0, 1].map(|cpu| Call::Alloc { cpu, pages }));
    let frees = (0..calls.len()).map(Call::Free);
    let mut count = 0;
    for call in allocs.chain(frees).chain([Call::Purge]) {
        // Two purges in a row do what one does.
        if call == Call::Purge && matches!(calls.last(), None | Some(Call::Purge)) {
            continue;
        }
        calls.push(call);
        if run::<C>(scope.pages, calls) {
            count += 1;
            if more > 1 {
                count += all::<C>(scope, calls, more - 1);
            }
        }
        calls.pop();
    }
    count
}

fn sequences(scope: Scope, most: usize) {
    let ours = all::<Standard>(scope, &mut Vec::new(), most);
    let linux = all::<Linux69>(scope, &mut Vec::new(), most);
    println!(
        "space: {} pages, up to {most} calls: {ours} sequences, {linux} with Linux's policy",
        scope.pages
    );
    assert!(ours == linux && ours > 1000);
}

#[test]
fn every_sequence_of_few_calls_on_two_cpus() {
    sequences(SIX, 4);
}

#[test]
#[ignore = "minutes: every sequence of six calls"]
fn all_sequences_of_six_calls() {
    sequences(SIX, 6);
}

#[test]
#[ignore = "minutes: every sequence of six calls"]
fn all_sequences_of_six_calls_in_twelve_pages() {
    sequences(TWELVE, 6);
}

/// Areas of these sizes that fill the space, allocated by each choice of CPUs, freed in each order, with each choice of
/// purges between the frees; returns how many.
fn every_order<C: Config>(sizes: &[u64]) -> u64 {
    let (size, areas) = (sizes.iter().sum(), sizes.len());
    let orders: usize = (1..=areas).product();
    let mut count = 0;
    for cpus in 0..1u32 << areas {
        let allocs = sizes.iter().enumerate();
        let allocs = allocs.map(|(n, &pages)| Call::Alloc { cpu: cpus >> n & 1, pages });
        for order in 0..orders {
            for purges in 0..1u32 << (areas - 1) {
                let (mut calls, mut order): (Vec<Call>, _) = (allocs.clone().collect(), order);
                // The number of an order, digit by digit: which of those left.
                for n in 0..areas {
                    calls.push(Call::Free(order % (areas - n)));
                    order /= areas - n;
                    calls.extend((purges >> n & 1 == 1).then_some(Call::Purge));
                }
                assert!(run::<C>(size, &calls));
                count += 1;
            }
        }
    }
    count
}

#[test]
#[ignore = "minutes: every order of six frees, with every choice of purges"]
fn all_orders_of_frees() {
    for sizes in [&[1, 2, 1, 2][..], &[1, 2, 3, 2, 4], &[1, 2, 3, 1, 2, 3]] {
        let counts = [every_order::<Standard>(sizes), every_order::<Linux69>(sizes)];
        println!("space: areas of {sizes:?} pages, orders of frees: {counts:?}");
    }
}
