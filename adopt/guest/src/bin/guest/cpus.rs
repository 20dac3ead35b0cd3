//! The CPUs: their data, their start, and work for all of them.

use crate::{hw, memory, traps};
use core::arch::asm;
use core::hint::spin_loop;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use port_check::Work;
use va_base::{Va, sync::Mutex};
use vmalloc_guest::{cpus::Cpus, frames, lock::WaitLock, shootdown::Shootdown};

/// The CPUs of this guest.
pub(crate) const CPUS: usize = 4;
/// The frame to which `others` of `boot.s` is copied, which is the vector of the start-up interrupt.
pub(crate) const START_FRAME: u64 = 8;
/// Commands of the local APIC: to all but the sender; reset, and start at a frame.
const OTHERS: u32 = 0b11 << 18 | 1 << 14;
const INIT: u32 = 0b101 << 8;
const START: u32 = 0b110 << 8 | START_FRAME as u32;
const GS_BASE: u32 = 0xc000_0101;

/// The data of a CPU, which `gs` leads to: the static section of its unit of per-CPU memory.
#[repr(C)]
pub(crate) struct CpuData {
    number: AtomicU32,
    apic_id: AtomicU32,
}

/// The flush of all CPUs.
pub(crate) static SHOOTDOWN: Shootdown<Pc> = Shootdown::new();
/// The CPUs that translate addresses of the windows, a bit each.
static ONLINE: AtomicU64 = AtomicU64::new(0);

/// The processors as the port sees them.
#[derive(Clone, Copy)]
pub(crate) enum Pc {}

impl Cpus for Pc {
    const POSSIBLE: usize = CPUS;

    fn online() -> u64 {
        ONLINE.load(Acquire)
    }
    fn this() -> usize {
        let number: u32;
        // SAFETY: `gs` leads to the data of a CPU, of which this is the first field.
        unsafe { asm!("mov {:e}, gs:[0]", out(reg) number, options(readonly, nostack, preserves_flags)) };
        number as usize
    }
    fn disable_interrupts() -> bool {
        let were_enabled = Self::takes_interrupts();
        // SAFETY: the caller enables them again if they were enabled. No access to memory moves before it.
        unsafe { asm!("cli", options(nostack)) };
        were_enabled
    }
    fn enable_interrupts() {
        // SAFETY: the gates are loaded before the first call.
        unsafe { asm!("sti", options(nostack)) };
    }
    fn takes_interrupts() -> bool {
        let flags: u64;
        // SAFETY: reads the flags.
        unsafe { asm!("pushfq", "pop {}", out(reg) flags, options(preserves_flags)) };
        flags & 1 << 9 != 0
    }
    fn interrupt(cpu: usize) {
        hw::send(data(cpu).apic_id.load(Relaxed), 1 << 14 | traps::FLUSH);
    }
    fn forget(at: Va) {
        // SAFETY: a CPU may forget any translation at any time.
        unsafe { asm!("invlpg [{}]", in(reg) at.get(), options(nostack, preserves_flags)) };
    }
    fn forget_all() {
        // SAFETY: as above; the root stays the same.
        unsafe { asm!("mov {0}, cr3", "mov cr3, {0}", out(reg) _, options(nostack, preserves_flags)) };
    }
}

fn data(cpu: usize) -> &'static CpuData {
    let at = core::ptr::with_exposed_provenance(memory::unit(cpu).get() as usize);
    // SAFETY: the static section is mapped before any CPU is online, zeroed, and for this use alone.
    unsafe { &*at }
}

/// Makes this CPU one of those that translate addresses.
pub(crate) fn join(cpu: usize) {
    let [low, high] = [0, 32].map(|shift| (memory::unit(cpu).get() >> shift) as u32);
    // SAFETY: the compiler does not use `gs`.
    unsafe { asm!("wrmsr", in("ecx") GS_BASE, in("eax") low, in("edx") high, options(nostack)) };
    traps::load(cpu);
    hw::write_apic(hw::APIC_SWITCH, 1 << 8 | traps::SPURIOUS);
    data(cpu).apic_id.store(hw::read_apic(hw::APIC_ID) >> 24, Relaxed);
    data(cpu).number.store(cpu as u32, Relaxed);
    // From here on it gets flushes. What it translated before may be old.
    ONLINE.fetch_or(1 << cpu, AcqRel);
    Pc::forget_all();
    Pc::enable_interrupts();
}

unsafe extern "C" {
    static others: u8;
    static others_end: u8;
}

/// Starts the other CPUs, and waits until they are online, but not for ever.
pub(crate) fn start_others() {
    let bytes = (&raw const others_end).addr() - (&raw const others).addr();
    // SAFETY: the frame is below all memory that is managed, and the code fits in it.
    unsafe { frames::direct(START_FRAME).copy_from_nonoverlapping(&raw const others, bytes) };
    for (command, ms) in [(INIT, 10), (START, 1), (START, 1)] {
        hw::send(0, OTHERS | command);
        hw::wait_ms(ms);
    }
    for _ in (0..1000).take_while(|_| Pc::online() != (1 << CPUS) - 1) {
        hw::wait_ms(1);
    }
    assert_eq!(Pc::online(), (1 << CPUS) - 1, "the CPUs that are online, a bit each");
}

/// The work that all CPUs do, its number, and how many of the others have done it.
static WORK: Mutex<WaitLock<Pc>, Option<Work<'static>>> = Mutex::new(None);
static WORK_NUMBER: AtomicUsize = AtomicUsize::new(0);
static WORK_DONE: AtomicUsize = AtomicUsize::new(0);

/// Calls `work` on every CPU with the CPU's number, and returns when all have returned. The first CPU calls it.
pub(crate) fn each(work: Work<'_>) {
    // SAFETY: no CPU has the reference after this function, which waits for all of them.
    *WORK.lock() = Some(unsafe { core::mem::transmute::<Work<'_>, Work<'static>>(work) });
    WORK_DONE.store(0, Relaxed);
    WORK_NUMBER.fetch_add(1, Release);
    hw::send(0, OTHERS | traps::WAKE);
    work(0);
    while WORK_DONE.load(Acquire) != CPUS - 1 {
        spin_loop();
    }
}

/// Does work as it comes, and sleeps in between.
pub(crate) fn serve(cpu: usize) -> ! {
    let mut done = 0;
    loop {
        Pc::disable_interrupts();
        if WORK_NUMBER.load(Acquire) == done {
            // SAFETY: interrupts are enabled after the next instruction, so none comes before the sleep.
            unsafe { asm!("sti", "hlt", options(nostack)) };
            continue;
        }
        Pc::enable_interrupts();
        done += 1;
        let work = *WORK.lock();
        work.inspect(|work| work(cpu));
        WORK_DONE.fetch_add(1, Release);
    }
}
