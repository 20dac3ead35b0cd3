//! Exceptions and interrupts: a stub for each vector, one function for all, and reads that may fault.

use crate::cpus::{Pc, SHOOTDOWN};
use crate::hw;
use core::arch::{asm, global_asm};
use va_base::{Va, sync::Mutex};
use vmalloc_guest::lock::WaitLock;

/// Vectors with a gate: the exceptions, then ours.
const VECTORS: usize = 48;
const PAGE_FAULT: u32 = 14;
/// A CPU asks another for a flush.
pub(crate) const FLUSH: u32 = 32;
/// A CPU ends the sleep of another.
pub(crate) const WAKE: u32 = 33;
/// The local APIC takes an interrupt back: nothing to do.
pub(crate) const SPURIOUS: u32 = 47;

// Code for this target uses no vector registers and no red zone, so a stub saves the general registers on the stack of
// the interrupted code. The processor has aligned it, and 22 words keep that.
global_asm!(
    ".global stubs, read_or_fault, read_fault",
    ".set vector, 0",
    "stubs: .rept 48",
    ".balign 16",
    // The others push an error code.
    ".if (vector != 8) && (vector < 10 || vector > 14) && (vector != 17) && (vector != 21)",
    "pushq $0",
    ".endif",
    "pushq $vector; jmp save",
    ".set vector, vector + 1",
    ".endr",
    "save: .irp register, rax, rcx, rdx, rbx, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15",
    "pushq %\\register",
    ".endr",
    "cld; movq %rsp, %rdi; call trap",
    ".irp register, r15, r14, r13, r12, r11, r10, r9, r8, rdi, rsi, rbp, rbx, rdx, rcx, rax",
    "popq %\\register",
    ".endr",
    "addq $16, %rsp; iretq",
    // The value and 1; after a fault the address of the fault and 0.
    "read_or_fault: movq (%rdi), %rax; movl $1, %edx; ret",
    "read_fault: movq %cr2, %rax; xorl %edx, %edx; ret",
    options(att_syntax)
);

/// The registers that a stub and the processor saved.
#[repr(C)]
struct Frame {
    registers: [u64; 15],
    vector: u64,
    error: u64,
    rip: u64,
}

#[repr(C)]
struct Read(u64, u64);

unsafe extern "sysv64" {
    safe fn stubs();
    safe fn read_or_fault(at: u64) -> Read;
    safe fn read_fault() -> Read;
}

/// Reads a word. If that faults, returns the address that the processor reports as an error.
pub(crate) fn read(at: Va) -> Result<u64, Va> {
    match read_or_fault(at.get()) {
        Read(value, 1) => Ok(value),
        Read(address, _) => Err(Va::new(address)),
    }
}

/// The gates of all CPUs.
static GATES: Mutex<WaitLock<Pc>, [[u64; 2]; VECTORS]> = Mutex::new([[0; 2]; VECTORS]);

/// Loads the gates on this CPU. The first CPU makes them.
pub(crate) fn load(cpu: usize) {
    let mut gates = GATES.lock();
    for (vector, gate) in gates.iter_mut().enumerate().filter(|_| cpu == 0) {
        let at = stubs as *const () as u64 + 16 * vector as u64;
        // Code selector 8, an interrupt gate: interrupts are disabled in it.
        *gate = [at & 0xffff | 8 << 16 | 0x8e << 40 | (at >> 16 & 0xffff) << 48, at >> 32];
    }
    let at = (&raw mut *gates).expose_provenance() as u64;
    // 16 bits of the limit, 64 of the address.
    let pointer = [(at << 16) | (VECTORS as u64 * 16 - 1), at >> 48];
    // SAFETY: the gates are complete, and nothing changes them any more.
    unsafe { asm!("lidt [{}]", in(reg) &raw const pointer, options(readonly, nostack, preserves_flags)) };
}

/// Called by the stubs, with interrupts disabled.
// SAFETY: no other function of the program has this name.
#[unsafe(no_mangle)]
extern "sysv64" fn trap(frame: &mut Frame) {
    match frame.vector as u32 {
        PAGE_FAULT if frame.rip == read_or_fault as *const () as u64 => {
            frame.rip = read_fault as *const () as u64;
        }
        SPURIOUS => {}
        WAKE => hw::write_apic(hw::APIC_DONE, 0),
        FLUSH => {
            SHOOTDOWN.serve();
            hw::write_apic(hw::APIC_DONE, 0);
        }
        vector => {
            let (Frame { rip, error, .. }, Read(address, _)) = (frame, read_fault());
            hw::fail(format_args!("exception {vector} at {rip:#x}, error {error:#x}, address {address:#x}"));
        }
    }
}
