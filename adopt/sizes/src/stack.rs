//! The depth of a call: a stack of its own is filled with a pattern, and the deepest word that changed is found.
//!
//! Only on x86-64 and Linux, which loads the program without changes: it has no relocations.

use crate::Row;
use core::arch::asm;
use core::cell::UnsafeCell;

const BYTES: usize = 16 << 10;
const PAINT: u8 = 0xa5;
/// Calls of each row, in turn.
const ROUNDS: usize = 20_000;
/// Most rows.
const ROWS: usize = 16;

#[repr(align(4096))]
struct Stack(UnsafeCell<[u8; BYTES]>);

// SAFETY: the program has one thread.
unsafe impl Sync for Stack {}

static STACK: Stack = Stack(UnsafeCell::new([0; BYTES]));

/// Makes the calls in turn, prints the depth of each in bytes, and ends the program.
pub(crate) fn run(rows: &[Row]) -> ! {
    let nothing = depth(|| ());
    let mut depths = [0; ROWS];
    for _ in 0..ROUNDS {
        for ((_, call), deepest) in rows.iter().zip(&mut depths) {
            *deepest = depth(*call).saturating_sub(nothing).max(*deepest);
        }
    }
    for ((name, _), depth) in rows.iter().zip(depths) {
        print(depth, name);
    }
    exit(if rows.len() <= ROWS { 0 } else { 1 })
}

/// Returns the bytes of stack that a call uses.
fn depth(call: fn()) -> usize {
    let base = STACK.0.get().cast::<u8>();
    // SAFETY: it is the memory of the stack, which no call uses now.
    unsafe { base.write_bytes(PAINT, BYTES) };
    // SAFETY: the end of the memory.
    let top = unsafe { base.add(BYTES) };
    // SAFETY: the call runs on memory of its own, aligned as calls are, and returns; the old stack is in a register
    // that a callee restores.
    unsafe {
        asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {call}",
            "mov rsp, r12",
            top = in(reg) top,
            call = in(reg) call,
            out("r12") _,
            clobber_abi("C"),
        );
    }
    let changed = |at: &usize| {
        // SAFETY: `at` is below the size of the memory, and a multiple of a word.
        let word = unsafe { base.add(*at) }.cast::<u64>();
        // SAFETY: the memory is initialised, and the call has returned. It wrote there behind the compiler's back.
        unsafe { word.read_volatile() != u64::from_ne_bytes([PAINT; 8]) }
    };
    BYTES - (0..BYTES).step_by(size_of::<u64>()).find(changed).unwrap_or(BYTES)
}

/// Prints a line of a number and a name.
pub(crate) fn print(number: usize, name: &str) {
    let mut line = [b' '; 80];
    let mut rest = number;
    for digit in line[..8].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let length = name.len().min(70);
    line[9..9 + length].copy_from_slice(&name.as_bytes()[..length]);
    line[9 + length] = b'\n';
    let (text, bytes) = (line.as_ptr(), 10 + length);
    // SAFETY: write(1, text, bytes) reads the line, and changes these registers alone.
    unsafe {
        asm!("syscall", inlateout("rax") 1_usize => _, in("rdi") 1_usize, in("rsi") text, in("rdx") bytes,
            out("rcx") _, out("r11") _);
    }
}

/// Ends the program.
pub(crate) fn exit(status: usize) -> ! {
    // SAFETY: exit_group(status) does not return.
    unsafe { asm!("syscall", in("rax") 231_usize, in("rdi") status, options(noreturn)) }
}
