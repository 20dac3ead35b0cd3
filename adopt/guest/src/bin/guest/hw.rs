//! Devices and registers of a PC: the serial port, the end of QEMU, the local APIC, the timer.

use crate::cpus::Pc;
use core::arch::asm;
use core::fmt::{Arguments, Write};
use core::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use va_base::sync::Mutex;
use vmalloc_guest::lock::WaitLock;

/// The ends of the program. QEMU's own status is twice the number plus one.
pub(crate) const GOOD: u32 = 0x10;
pub(crate) const STALE: u32 = 0x11;
pub(crate) const FAILED: u32 = 0x12;

const SERIAL: u16 = 0x3f8;
const APIC: usize = 0xfee0_0000;
/// Registers of the local APIC: identity, end of interrupt, switch, command and its target.
pub(crate) const APIC_ID: usize = 0x20;
pub(crate) const APIC_DONE: usize = 0xb0;
pub(crate) const APIC_SWITCH: usize = 0xf0;
const APIC_COMMAND: usize = 0x300;
const APIC_TARGET: usize = 0x310;

fn write_port(port: u16, value: u8) {
    // SAFETY: the ports in this file are those of devices that do not access memory.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack, preserves_flags)) };
}

fn read_port(port: u16) -> u8 {
    let value;
    // SAFETY: as above.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nomem, nostack, preserves_flags)) };
    value
}

pub(crate) fn end(how: u32) -> ! {
    // SAFETY: the device ends the program.
    unsafe { asm!("out dx, eax", "2: hlt", "jmp 2b", in("dx") 0xf4, in("eax") how, options(noreturn)) }
}

struct Serial;

impl Write for Serial {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        for byte in text.bytes() {
            while read_port(SERIAL + 5) & 0x20 == 0 {}
            write_port(SERIAL, byte);
        }
        Ok(())
    }
}

/// Prints a line, which lines of other CPUs do not interrupt.
pub(crate) fn print(line: Arguments<'_>) {
    static ONE: Mutex<WaitLock<Pc>, ()> = Mutex::new(());
    let _one = ONE.lock();
    let _ = writeln!(Serial, "{line}");
}

/// Prints a line, even if the holder of the lock never releases it, and ends the machine.
pub(crate) fn fail(line: Arguments<'_>) -> ! {
    let _ = writeln!(Serial, "FAILED {line}");
    end(FAILED)
}

pub(crate) fn read_apic(register: usize) -> u32 {
    // SAFETY: a register of the device, which the tables of the boot map.
    unsafe { with_exposed_provenance::<u32>(APIC + register).read_volatile() }
}

pub(crate) fn write_apic(register: usize, value: u32) {
    // SAFETY: as above.
    unsafe { with_exposed_provenance_mut::<u32>(APIC + register).write_volatile(value) };
}

/// Sends an interrupt to a CPU, or to those that the command names.
pub(crate) fn send(target: u32, command: u32) {
    write_apic(APIC_TARGET, target << 24);
    write_apic(APIC_COMMAND, command);
    // Bit 12 is set until the interrupt is on its way.
    while read_apic(APIC_COMMAND) & (1 << 12) != 0 {}
}

/// Masks the interrupts of all devices: those of the local APIC are the only ones.
pub(crate) fn mask_devices() {
    [0x21, 0xa1].into_iter().for_each(|port| write_port(port, 0xff));
}

/// Waits for at most 50 milliseconds, by the third counter of the interval timer: 1,193 ticks in each.
pub(crate) fn wait_ms(ms: u16) {
    let [low, high] = (ms * 1193).to_le_bytes();
    write_port(0x61, read_port(0x61) & !3 | 1);
    [(0x43, 0xb0), (0x42, low), (0x42, high)].into_iter().for_each(|(port, value)| write_port(port, value));
    while read_port(0x61) & 0x20 == 0 {}
}

pub(crate) fn cycles() -> u64 {
    // SAFETY: reads a counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}
