//! The replacement of `rseq` on systems without sections: no thread has a number, and every operation reports that.

use core::ptr::null_mut;
#[cfg(not(loom))]
use core::sync::atomic::AtomicU64;
use va_base::sync::atomic::AtomicU32;

pub(super) fn restarts() -> u64 {
    0
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    #[expect(dead_code, reason = "as on x86-64")]
    pub(super) area: isize,
    #[expect(dead_code, reason = "as on x86-64")]
    pub(super) id: isize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Done,
    Beyond,
    Rejected,
}

pub(super) fn number(_: Area) -> Option<u32> {
    None
}

pub(super) unsafe fn add(_: Area, _: &AtomicU32, _: *mut u64, _: u64) -> State {
    State::Beyond
}

pub(super) unsafe fn swap(_: Area, _: &AtomicU32, _: *mut u64, _: u64) -> (State, u64) {
    (State::Beyond, 0)
}

pub(super) unsafe fn compare_exchange(_: Area, _: &AtomicU32, _: *mut u64, _: u64, _: u64) -> (State, u64) {
    (State::Beyond, 0)
}

pub(super) unsafe fn add_within(_: Area, _: &AtomicU32, _: *mut u64, _: i64, _: i64) -> State {
    State::Beyond
}

#[cfg(not(loom))]
pub(super) unsafe fn add_if_open(_: Area, _: &AtomicU32, _: *mut u64, _: u64, _: &AtomicU64) -> State {
    State::Beyond
}

pub(super) unsafe fn push(_: Area, _: &AtomicU32, _: *mut u64, _: *mut u64) -> State {
    State::Beyond
}

pub(super) unsafe fn pop(_: Area, _: &AtomicU32, _: *mut u64) -> (State, *mut u64) {
    (State::Beyond, null_mut())
}
