//! Interleavings of magazines: refill, flush, drain by another thread, and frees of one object by two.
//!
//! Batches are of up to four objects here. `settle` checks MC1 to MC4 at the end of each.
//!
//! # Weakenings
//! Each model was seen to fail by code that was broken for it, with three preemptions:
//!
//! | model | broken |
//! |---|---|
//! | two refills | a refill leaves the bits of its slots free |
//! | two first refills | a span is added although there is one of the same addresses |
//! | two frees, by magazines | a free stores the state that it read, instead of the compare-exchange |
//! | two frees, by a magazine and the space | the same in a free of the space |
//! | a drain beside an owner | objects stay on the dirty stack while they are zeroed |
//! | a flush beside a refill and a drain | flushed objects stay on their stack |
//! | a request that fails | a flush clears the states of its objects after it released `chunks` |
//! | tables beside a destruction | a span is added for an address that is in no chunk |
//! | tables beside a refill | a refill keeps the objects whose tables are missing, and holds them nowhere |

use super::{Arc, Chunks, Space, free, join, model, settle, space, spawn};
use crate::Magazine;
use crate::config::Standard;
use crate::offset::Offset;
use crate::request::{Context, Request};
use crate::space::magazine::state::Lacks;
use va_base::HeapMachine;

type Own<'s> = Magazine<'s, HeapMachine<parking_lot::RawMutex>, Chunks, Standard>;

pub(super) fn magazine(space: &Space<Standard>, cpu: u32) -> Own<'_> {
    match space.magazine(cpu) {
        Ok(magazine) => magazine,
        Err(error) => panic!("{error}"),
    }
}

fn alloc(magazine: &mut Own<'_>) -> Offset {
    match magazine.alloc(&Request::new(16, 8)) {
        Ok(offset) => offset,
        Err(error) => panic!("{error}"),
    }
}

fn put(magazine: &mut Own<'_>, offset: Offset) {
    if let Err(error) = magazine.free(offset) {
        panic!("{error}");
    }
}

/// Returns a space with a slab that has free slots, and the tables of its states.
fn warm() -> Arc<Space<Standard>> {
    let space = Arc::new(space::<Standard>());
    let mut first = magazine(&space, 0);
    let object = alloc(&mut first);
    put(&mut first, object);
    let object = alloc(&mut first);
    put(&mut first, object);
    drop(first);
    settle(&space, 1);
    space
}

#[test]
fn mc1_two_refills_take_different_objects() {
    model(|| {
        let space = warm();
        let theirs = space.clone();
        let other = spawn(move || alloc(&mut magazine(&theirs, 1)));
        let mine = alloc(&mut magazine(&space, 0));
        let theirs = join(other);
        assert_ne!(mine, theirs);
        settle(&space, 3);
        free(&space, mine);
        free(&space, theirs);
        settle(&space, 1);
    });
}

#[test]
fn mc1_two_first_refills_add_each_table_once() {
    model(|| {
        let space = Arc::new(space::<Standard>());
        let theirs = space.clone();
        let other = spawn(move || {
            let mut own = magazine(&theirs, 1);
            let object = alloc(&mut own);
            put(&mut own, object);
        });
        let mine = alloc(&mut magazine(&space, 0));
        join(other);
        settle(&space, 2);
        free(&space, mine);
    });
}

#[test]
fn mc1_one_of_two_frees_of_an_object_fails_by_magazines() {
    model(|| {
        let space = warm();
        let object = alloc(&mut magazine(&space, 0));
        let theirs = space.clone();
        let other = spawn(move || {
            let mut own = magazine(&theirs, 1);
            let freed = own.free(object).is_ok();
            // The object is in this magazine, or in none.
            assert!(!freed || own.free(object).is_err());
            freed
        });
        let mine = magazine(&space, 0).free(object).is_ok();
        assert_ne!(mine, join(other));
        settle(&space, 1);
    });
}

#[test]
fn mc1_one_of_two_frees_of_an_object_fails_by_a_magazine_and_the_space() {
    model(|| {
        let space = warm();
        let object = alloc(&mut magazine(&space, 0));
        let theirs = space.clone();
        let other = spawn(move || theirs.free(object).is_ok());
        let mine = magazine(&space, 0).free(object).is_ok();
        assert_ne!(mine, join(other));
        settle(&space, 1);
    });
}

/// Two threads free one object, the second one by `free`, while a third one's magazine takes objects from the chunks, so
/// perhaps this one. One free fails, unless the third thread allocated the object again before: then the later free is
/// that of its object.
fn two_frees_and_a_refill(free_again: fn(&Space<Standard>, Offset) -> bool) {
    model(move || {
        let space = warm();
        let mut first = magazine(&space, 0);
        let object = alloc(&mut first);
        drop(first);
        let (a, b) = (space.clone(), space.clone());
        let one = spawn(move || a.free(object).is_ok());
        let other = spawn(move || free_again(&b, object));
        let mut own = magazine(&space, 0);
        let mine = alloc(&mut own);
        let freed = u64::from(join(one)) + u64::from(join(other));
        let lost = freed == 2;
        assert!(freed == 1 || lost && mine == object, "{freed} frees of {object}, and {mine}");
        settle(&space, 1 + u64::from(!lost));
        assert_ne!(own.free(mine).is_ok(), lost);
        drop(own);
        settle(&space, 1);
    });
}

#[test]
fn mc1_one_of_two_frees_in_the_space_fails_beside_a_refill() {
    two_frees_and_a_refill(|space, object| space.free(object).is_ok());
}

#[test]
fn mc1_one_of_two_frees_by_the_space_and_a_magazine_fails_beside_a_refill() {
    two_frees_and_a_refill(|space, object| magazine(space, 1).free(object).is_ok());
}

#[test]
fn mc4_a_drain_loses_nothing_of_an_owner_that_allocates_and_frees() {
    model(|| {
        let space = warm();
        let mut own = magazine(&space, 0);
        let object = alloc(&mut own);
        let theirs = space.clone();
        let other = spawn(move || theirs.drain_cpu(0));
        put(&mut own, object);
        let again = alloc(&mut own);
        join(other);
        settle(&space, 2);
        put(&mut own, again);
        settle(&space, 1);
    });
}

#[test]
fn mc3_a_flush_beside_a_refill_and_a_drain() {
    model(|| {
        let space = warm();
        let mut own = magazine(&space, 0);
        let objects: [Offset; 5] = core::array::from_fn(|_| alloc(&mut own));
        // The stack of dirty objects is full, so the next free flushes.
        objects[..4].iter().for_each(|&object| put(&mut own, object));
        let theirs = space.clone();
        let other = spawn(move || {
            let object = alloc(&mut magazine(&theirs, 1));
            theirs.drain_magazines();
            object
        });
        put(&mut own, objects[4]);
        let theirs = join(other);
        settle(&space, 2);
        free(&space, theirs);
        settle(&space, 1);
    });
}

#[test]
fn mc4_a_request_that_fails_takes_what_an_idle_magazine_holds() {
    model(|| {
        let space = warm();
        let mut own = magazine(&space, 0);
        let object = alloc(&mut own);
        put(&mut own, object);
        let theirs = space.clone();
        // The bytes are free to a caller that places an object there, once the magazine is drained.
        let other = spawn(move || theirs.alloc_at(object, 4).is_ok());
        let mine = alloc(&mut own);
        let placed = join(other);
        assert!(!placed || mine != object);
        settle(&space, 2 + u64::from(placed));
    });
}

/// Tables are made for chunks of which the balance destroys one: none is left for a chunk that is gone.
#[test]
fn mc1_no_table_is_added_for_a_chunk_that_is_destroyed() {
    model(|| {
        let space = Arc::new(space::<Standard>());
        drop(magazine(&space, 0));
        let objects = [(); 2].map(|()| super::alloc(&space, 32 << 10, 4));
        objects.iter().for_each(|&object| free(&space, object));
        let chunks = objects.map(|object| object.at(space.geometry().base()));
        let theirs = space.clone();
        let other = spawn(move || {
            for _ in 0..3 {
                let _more = theirs.tick();
            }
        });
        chunks.iter().for_each(|&base| space.make_tables(base, 3..4));
        join(other);
        for (base, object) in chunks.into_iter().zip(objects) {
            let page = base.get() + 3 * va_base::PAGE_SIZE;
            assert!(space.find(object).is_some() || space.states.lacks(page) == Lacks::Span);
        }
        settle(&space, 1);
    });
}

/// The tables of a page are made while a caller that cannot wait takes objects there: those without are put back.
#[test]
fn mc4_a_refill_beside_the_tables_of_its_page() {
    model(|| {
        let space = Arc::new(space::<Standard>());
        // Populated before there is a magazine.
        let object = super::alloc(&space, 16, 16);
        let page = object.at(space.geometry().base());
        let theirs = space.clone();
        let other = spawn(move || {
            let mut own = magazine(&theirs, 0);
            let object = own.alloc(&Request::new(16, 16).context(Context::Atomic));
            let freed = object.is_ok_and(|object| own.free(object).is_ok());
            assert!(freed);
        });
        space.make_tables(page, 0..1);
        join(other);
        settle(&space, 2);
        free(&space, object);
        settle(&space, 1);
    });
}
