//! Time of a pair: a random area is freed, and another is allocated. Prints tab-separated rows: interface, live areas,
//! minimum and median of ours in nanoseconds, the same of the original, and the median ratio of a round.

use faces_bench::{Contender, LIVE, Load, for_each_face};
use std::time::Instant;

/// Rounds of each measurement; in each, ours and the original run in turn.
const ROUNDS: usize = 15;
/// Nanoseconds of one turn of the original, about.
const TURN_NS: u64 = 4_000_000;

fn main() {
    for live in LIVE {
        for_each_face!(measure, live);
    }
}

fn measure<Ours: Contender, Theirs: Contender>(name: &str, live: usize) {
    let (Some(mut ours), Some(mut theirs)) = (Load::<Ours>::new(live), Load::<Theirs>::new(live)) else {
        println!("{name}\t{live}\tfails");
        return;
    };
    // The original may take a hundred thousand times as long for many areas as for few.
    let mut pairs = 20;
    while pairs < 20_000 && nanoseconds(&mut theirs, pairs) * (pairs as f64) < TURN_NS as f64 {
        pairs *= 2;
    }
    nanoseconds(&mut ours, 2_000);
    let mut rounds: Vec<(f64, f64)> = Vec::new();
    for round in 0..ROUNDS {
        // Each begins half of the rounds.
        let mut turn = || (nanoseconds(&mut ours, pairs.max(500)), 0.0);
        let mut times = if round % 2 == 0 { turn() } else { (0.0, 0.0) };
        times.1 = nanoseconds(&mut theirs, pairs);
        if round % 2 == 1 {
            times.0 = turn().0;
        }
        rounds.push(times);
    }
    let ours: Vec<f64> = rounds.iter().map(|times| times.0).collect();
    let theirs: Vec<f64> = rounds.iter().map(|times| times.1).collect();
    let ratios: Vec<f64> = rounds.iter().map(|(ours, theirs)| theirs / ours).collect();
    println!(
        "{name}\t{live}\t{:.1}\t{:.1}\t{:.1}\t{:.1}\t{:.3}",
        sorted(&ours)[0],
        median(&ours),
        sorted(&theirs)[0],
        median(&theirs),
        median(&ratios)
    );
}

/// Returns the nanoseconds of one of `pairs` pairs.
fn nanoseconds<C: Contender>(load: &mut Load<C>, pairs: usize) -> f64 {
    let started = Instant::now();
    assert!(load.pairs(pairs), "the range has room for every area");
    started.elapsed().as_nanos() as f64 / pairs as f64
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn median(values: &[f64]) -> f64 {
    sorted(values)[values.len() / 2]
}
