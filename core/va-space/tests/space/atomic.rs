//! A request that may not wait, where the index has no record for it.

use crate::{Standard, ask, space};
use va_base::{AllocError, Context};
use va_sim::machine::SimMachine;
use va_space::{Purge, SpaceError};

#[test]
fn an_atomic_request_asks_for_metadata_once_under_the_lock_and_no_more() {
    let machine = SimMachine::new(1);
    let space = space::<Standard>(&machine, 1 << 20);
    let large = ask(300);
    // The page map has leaves for all of these addresses from here on, and the index no memory.
    let areas: Vec<_> = (0..3000).map(|_| space.alloc(0, &large).unwrap()).collect();
    areas.into_iter().for_each(|area| space.free(area).unwrap());
    space.purge(Purge::Full);
    while space.shrink_index(1000) > 0 {}
    machine.fail_after(0, u64::MAX);
    let mut magazine = space.magazine(0).unwrap();
    let atomic = large.context(Context::Atomic);
    let mut failed = [0; 2];
    for n in 0..6000 {
        let before = machine.denials();
        let got = if n % 2 == 0 { space.alloc(0, &atomic) } else { magazine.alloc(&atomic) };
        let denied = machine.denials() - before;
        match got {
            Ok(_) => assert_eq!(denied, 0),
            Err(SpaceError::Index(AllocError::NoMeta { .. })) => {
                assert!(denied <= 1, "{denied} requests for memory");
                failed[n % 2] += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(failed.into_iter().min() > Some(0), "{failed:?}");
    // One that may wait asks again, with no lock held.
    let before = machine.denials();
    assert!(space.alloc(0, &large).is_err());
    assert!(machine.denials() - before > 1);
}
