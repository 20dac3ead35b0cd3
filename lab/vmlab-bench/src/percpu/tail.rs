//! The longest pairs: instructions of each pair of a caller, while the balance runs and others allocate.
//!
//! # Method
//! Between two pairs another caller allocates or frees objects of a page or so, and the balance runs a step. So pages
//! are populated and depopulated, and chunks created and destroyed, all the time. Only the pair itself is counted
//! (`steps`), in one thread: the same run counts the same.

use super::steps::Steps;
use super::subject::{Numbers, Standard, USUAL};
use anyhow::{Context as _, Result};
use va_percpu::config::{Linux612, Standard as Slabs};
use va_percpu::{Config, Magazine, Offset, PercpuSpace, Progress, Request};
use va_sim::op::Rng;
use va_sim::percpu::netmix;
use vmlab_machine::{LabMachine, SpinLock};

/// Pairs before those that are counted.
const WARM_UP: usize = 5000;
/// Objects of the counted caller that live in the mixed load.
const LIVE: usize = 500;
/// Objects of the other caller.
const OTHERS: usize = 300;

type Machine = LabMachine<SpinLock>;

/// The instructions of a pair.
#[derive(Clone, Copy, Debug)]
pub struct Tail {
    pub load: &'static str,
    pub contender: &'static str,
    pub median: u64,
    pub p99: u64,
    pub p999: u64,
    pub most: u64,
    /// Steps of the balance that did something, for each pair.
    pub balance: f64,
}

/// A caller whose pairs are counted.
trait Caller {
    fn alloc(&mut self, request: &Request) -> Option<Offset>;
    fn free(&mut self, object: Offset) -> bool;
}

impl<C: Config> Caller for Magazine<'_, Machine, Numbers, C> {
    #[inline(always)]
    fn alloc(&mut self, request: &Request) -> Option<Offset> {
        Magazine::alloc(self, request).ok()
    }

    #[inline(always)]
    fn free(&mut self, object: Offset) -> bool {
        Magazine::free(self, object).is_ok()
    }
}

impl<C: Config> Caller for &PercpuSpace<Machine, Numbers, C> {
    #[inline(always)]
    fn alloc(&mut self, request: &Request) -> Option<Offset> {
        PercpuSpace::alloc(self, request).ok()
    }

    #[inline(always)]
    fn free(&mut self, object: Offset) -> bool {
        PercpuSpace::free(self, object).is_ok()
    }
}

/// Runs a load, and returns the instructions of each pair and the steps of the balance that did something.
fn run<C: Config>(
    steps: &Steps,
    space: &PercpuSpace<Machine, Numbers, C>,
    mut caller: impl Caller,
    mixed: bool,
    pairs: usize,
) -> Result<(Vec<u64>, u64)> {
    let mut rng = Rng::new(17);
    let (mut others, mut live) = (Vec::new(), Vec::new());
    let (mut counted, mut balance) = (Vec::with_capacity(pairs), 0);
    for nth in 0..WARM_UP + pairs {
        for _ in 0..4 {
            if rng.below(2) == 0 && others.len() < OTHERS {
                let request = Request::new(1024 + rng.below(8192) as usize, 8);
                others.push(space.alloc(&request).context("the other caller's request")?);
            } else if !others.is_empty() {
                let object = others.swap_remove(rng.below(others.len() as u64) as usize);
                space.free(object).context("the other caller's object")?;
            }
        }
        let due = space.is_balance_due();
        let more = space.tick() == Progress::More;
        let (size, align) = if mixed { netmix(&mut rng) } else { (16, 8) };
        let request = Request::new(size as usize, align as usize);
        let which = if mixed { rng.below(LIVE as u64) as usize } else { 0 };
        let fills = mixed && live.len() < LIVE;
        let mut freed = true;
        let mut object = None;
        let pair = || {
            object = caller.alloc(&request);
            if let Some(new) = object
                && !fills
            {
                freed = caller.free(live.get_mut(which).map_or(new, |old| std::mem::replace(old, new)));
            }
        };
        if nth < WARM_UP {
            let mut pair = pair;
            pair();
        } else {
            counted.push(steps.count(pair));
            balance += u64::from(due || more);
        }
        let object = object.filter(|_| freed).context("a pair failed")?;
        if fills {
            live.push(object);
        }
    }
    for object in live {
        caller.free(object);
    }
    Ok((counted, balance))
}

fn on<C: Config>(
    steps: &Steps,
    contender: &'static str,
    cached: bool,
    mixed: bool,
    pairs: usize,
) -> Result<Tail> {
    let subject = Standard::<C>::new(USUAL)?;
    let space = subject.space();
    let (mut counted, balance) = match cached {
        true => {
            let magazine = space.magazine(0).context("no memory for a magazine")?;
            run(steps, space, magazine, mixed, pairs)?
        }
        false => run(steps, space, space, mixed, pairs)?,
    };
    counted.sort_unstable();
    let at = |share: f64| counted[((counted.len() - 1) as f64 * share) as usize];
    Ok(Tail {
        load: if mixed { "netmix, 500 live, one replaced" } else { "a pair of 16 B" },
        contender,
        median: at(0.5),
        p99: at(0.99),
        p999: at(0.999),
        most: at(1.0),
        balance: balance as f64 / pairs as f64,
    })
}

/// Counts both loads on all contenders, with a tenth of the pairs for those without magazines, which take much longer
/// to count. Nothing if instructions cannot be counted here.
///
/// # Errors
/// If a space cannot be created, or a request fails.
pub fn measure(pairs: usize) -> Result<Vec<Tail>> {
    let Some(steps) = Steps::begin() else { return Ok(Vec::new()) };
    let mut tails = Vec::new();
    for mixed in [false, true] {
        tails.push(on::<Slabs>(&steps, "cached", true, mixed, pairs)?);
        tails.push(on::<Slabs>(&steps, "ours", false, mixed, pairs / 10)?);
        tails.push(on::<Linux612>(&steps, "linux612", false, mixed, pairs / 10)?);
    }
    Ok(tails)
}
