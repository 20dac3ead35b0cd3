//! A plugin of QEMU: counts the instructions of a guest by their addresses, between two calls of a function.
//!
//! ```text
//! qemu-system-x86_64 -plugin file=libqemu_count.so,out=FILE,mark=ADDRESS ...
//! ```
//!
//! QEMU translates a guest in blocks of instructions. Each block has a counter here, to which QEMU adds one when the
//! block runs. When the block at `mark` runs, the counts since the last mark are written to `out`. That is a line
//! `mark`, and then lines with the address of a block in hexadecimal, how often it ran, and its instructions. `cargo
//! xtask linux profile` reads them.
//!
//! A block that ends early, by a fault or an interrupt, counts in full. One CPU of QEMU runs at a time with
//! `-icount`; with more at a time some additions are lost, and the counts are estimates.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The version of the interface, which QEMU reads.
#[unsafe(no_mangle)]
pub static qemu_plugin_version: c_int = 1;

/// A block that is being translated.
#[repr(C)]
pub struct Block {
    _opaque: [u8; 0],
}

type OnTranslation = extern "C" fn(u64, *mut Block);
type OnRun = extern "C" fn(c_uint, *mut c_void);

/// `QEMU_PLUGIN_INLINE_ADD_U64`.
const ADD: c_int = 0;
/// `QEMU_PLUGIN_CB_NO_REGS`.
const NO_REGISTERS: c_int = 0;

unsafe extern "C" {
    safe fn qemu_plugin_register_vcpu_tb_trans_cb(id: u64, call: OnTranslation);
    fn qemu_plugin_tb_n_insns(block: *const Block) -> usize;
    fn qemu_plugin_tb_vaddr(block: *const Block) -> u64;
    fn qemu_plugin_register_vcpu_tb_exec_inline(block: *mut Block, op: c_int, at: *mut c_void, add: u64);
    fn qemu_plugin_register_vcpu_tb_exec_cb(block: *mut Block, call: OnRun, flags: c_int, data: *mut c_void);
}

/// The counters of all blocks by address and length: a block that is translated again goes on with its counter.
struct Counters {
    of: HashMap<(u64, usize), &'static AtomicU64>,
    mark: u64,
    out: File,
}

static COUNTERS: Mutex<Option<Counters>> = Mutex::new(None);

/// Called by QEMU at its start. Returns 0, or -1 if an argument is wrong.
///
/// # Safety
/// `argv` has `argc` strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: u64,
    _info: *const c_void,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    let (mut mark, mut out) = (None, None);
    for nth in 0..argc as usize {
        // SAFETY: `nth` is below `argc`.
        let at = unsafe { argv.add(nth) };
        // SAFETY: one of the pointers, by this function's contract.
        let at = unsafe { *at };
        // SAFETY: a string, by this function's contract.
        let argument = unsafe { CStr::from_ptr(at) }.to_string_lossy();
        match argument.split_once('=') {
            Some(("mark", value)) => mark = u64::from_str_radix(value.trim_start_matches("0x"), 16).ok(),
            Some(("out", value)) => out = File::create(value).ok(),
            _ => return -1,
        }
    }
    let (Some(mark), Some(out), Ok(mut counters)) = (mark, out, COUNTERS.lock()) else { return -1 };
    *counters = Some(Counters { of: HashMap::new(), mark, out });
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    0
}

/// Lets QEMU add to the counter of a block each time that it runs.
extern "C" fn translated(_id: u64, block: *mut Block) {
    let Ok(mut counters) = COUNTERS.lock() else { return };
    let Some(Counters { of, mark, .. }) = &mut *counters else { return };
    // SAFETY: QEMU passes a block that lives during this call.
    let at = unsafe { qemu_plugin_tb_vaddr(block) };
    // SAFETY: the same block.
    let instructions = unsafe { qemu_plugin_tb_n_insns(block) };
    let counter: &'static AtomicU64 =
        of.entry((at, instructions)).or_insert_with(|| Box::leak(Box::default()));
    let word = counter.as_ptr().cast();
    // SAFETY: the same block; the word lives as long as QEMU, and is changed by QEMU and by atomic operations alone.
    unsafe { qemu_plugin_register_vcpu_tb_exec_inline(block, ADD, word, 1) }
    if at == *mark {
        // SAFETY: the same block; the call needs no data.
        unsafe { qemu_plugin_register_vcpu_tb_exec_cb(block, marked, NO_REGISTERS, std::ptr::null_mut()) }
    }
}

/// Writes the counts, and begins again.
extern "C" fn marked(_cpu: c_uint, _data: *mut c_void) {
    let Ok(mut counters) = COUNTERS.lock() else { return };
    let Some(Counters { of, out, .. }) = &mut *counters else { return };
    let mut text = String::from("mark\n");
    for ((at, instructions), counter) in of {
        let runs = counter.swap(0, Ordering::Relaxed);
        if runs > 0 {
            _ = writeln!(text, "{at:x} {runs} {instructions}");
        }
    }
    // A mark that is not there is missed by the reader.
    _ = out.write_all(text.as_bytes());
}
