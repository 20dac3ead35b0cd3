//! The stack of a call: its depth, and a check that it fits. `adopt/faces/bench` measures with it, too.

use std::alloc::Layout;
use std::ffi::c_void;
use std::ptr::null_mut;

const PAINT: u8 = 0xa5;
const STACK_BYTES: usize = 512 << 10;

extern "C" fn trampoline(call: *mut c_void) -> *mut c_void {
    // SAFETY: `run_on` passes it and waits for the thread.
    let call = unsafe { &mut *call.cast::<&mut dyn FnMut()>() };
    call();
    null_mut()
}

/// Returns the bytes of stack down to the lowest that `call` and its thread wrote.
pub(crate) fn raw_depth(call: &mut dyn FnMut()) -> usize {
    let Ok(layout) = Layout::from_size_align(STACK_BYTES, 4096) else { panic!("layout") };
    // SAFETY: the size is not 0.
    let stack = unsafe { std::alloc::alloc(layout) };
    assert!(!stack.is_null());
    // SAFETY: the memory is of that size.
    unsafe { stack.write_bytes(PAINT, STACK_BYTES) };
    run_on(call, |attributes| {
        // SAFETY: initialised attributes; the stack is not otherwise used until the thread has ended.
        unsafe { libc::pthread_attr_setstack(attributes, stack.cast(), STACK_BYTES) }
    });
    // SAFETY: the thread has ended; every byte was painted.
    let bytes = unsafe { std::slice::from_raw_parts(stack, STACK_BYTES) };
    let lowest = bytes.iter().position(|&byte| byte != PAINT).unwrap_or(STACK_BYTES);
    // SAFETY: allocated above with that layout, and not used any more.
    unsafe { std::alloc::dealloc(stack, layout) };
    STACK_BYTES - lowest
}

/// Runs `call` on a thread with so much stack, and no more.
pub(crate) fn on_stack_of(bytes: usize, mut call: impl FnMut()) {
    // SAFETY: initialised attributes.
    run_on(&mut call, |attributes| unsafe { libc::pthread_attr_setstacksize(attributes, bytes) });
}

/// Runs `call` on a thread whose stack `set_stack` chooses, and waits for it.
fn run_on(mut call: &mut dyn FnMut(), set_stack: impl FnOnce(*mut libc::pthread_attr_t) -> i32) {
    let argument = (&raw mut call).cast::<c_void>();
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let attributes = attributes.as_mut_ptr();
    // SAFETY: memory for attributes.
    assert_eq!(unsafe { libc::pthread_attr_init(attributes) }, 0);
    assert_eq!(set_stack(attributes), 0);
    let mut thread = 0;
    // SAFETY: the attributes are initialised, and the argument outlives the thread, which is joined below.
    assert_eq!(unsafe { libc::pthread_create(&raw mut thread, attributes, trampoline, argument) }, 0);
    // SAFETY: created above, and joined once.
    assert_eq!(unsafe { libc::pthread_join(thread, null_mut()) }, 0);
    // SAFETY: initialised above, and not used any more.
    assert_eq!(unsafe { libc::pthread_attr_destroy(attributes) }, 0);
}
