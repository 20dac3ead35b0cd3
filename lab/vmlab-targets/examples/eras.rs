//! Prints where each version of Linux places the same four areas, in pages from the first.

use vmlab_targets::{Ask, Era, Setup};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for era in Era::ALL {
        let target = era.make(&Setup { cpus: 2, kernel_lib: None, kernel_lib_percpu: None })?;
        let mut worker = target.worker(0);
        let mut places = Vec::new();
        for pages in [1, 3, 1, 3] {
            places.push(worker.vmalloc(&Ask::bytes(pages << 12)).ok_or("no address")?);
        }
        let first = places[0];
        let shown: Vec<u64> = places.iter().map(|at| at.wrapping_sub(first) >> 12).collect();
        println!("{}: {shown:?}", era.name());
        places.into_iter().for_each(|at| worker.vfree(at));
        drop(worker);
        target.settle()?;
    }
    Ok(())
}
