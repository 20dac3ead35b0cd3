//! Instructions of a program or a library, by their addresses: which of them lock the bus.
//!
//! A locked read-modify-write has the prefix `lock`, or is an exchange with memory, which locks without it. Callgrind
//! names instructions by their addresses in the file, so the file suffices.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;

/// A file of machine code.
pub(super) struct Code {
    bytes: Vec<u8>,
    /// Address in memory, offset in the file, and bytes of each loaded segment.
    parts: Vec<(u64, u64, u64)>,
}

impl Code {
    /// Reads a little-endian ELF file of 64 bits.
    pub(super) fn open(path: &Path) -> Result<Self> {
        Self::of(fs::read(path).with_context(|| format!("cannot read {}", path.display()))?)
            .with_context(|| path.display().to_string())
    }

    fn of(bytes: Vec<u8>) -> Result<Self> {
        ensure!(bytes.starts_with(b"\x7fELF\x02\x01"), "not an ELF file of 64 bits");
        let number = |at: usize, size: usize| -> Option<u64> {
            let mut eight = [0; 8];
            eight[..size].copy_from_slice(bytes.get(at..at + size)?);
            Some(u64::from_le_bytes(eight))
        };
        // The table of program headers: its offset, and their size and number.
        let of_head = || Some((number(32, 8)? as usize, number(54, 2)? as usize, number(56, 2)? as usize));
        let (table, size, count) = of_head().context("it ends in its head")?;
        let mut parts = Vec::new();
        for at in (0..count).map(|n| table + n * size) {
            let part =
                || Some((number(at, 4)?, (number(at + 16, 8)?, number(at + 8, 8)?, number(at + 32, 8)?)));
            let (kind, part) = part().context("it ends in its table")?;
            if kind == 1 {
                parts.push(part);
            }
        }
        Ok(Self { bytes, parts })
    }

    /// Returns true if the instruction at an address locks. Returns `None` if the file has nothing there.
    pub(super) fn is_locked(&self, address: u64) -> Option<bool> {
        let &(from, offset, _) =
            self.parts.iter().find(|&&(from, _, bytes)| (from..from + bytes).contains(&address))?;
        Some(is_locked(self.bytes.get((address - from + offset) as usize..)?))
    }
}

/// Returns true if the instruction at the start of these bytes locks.
fn is_locked(code: &[u8]) -> bool {
    let mut rest = code.iter().copied();
    let mut byte = rest.next();
    while let Some(0x66 | 0xf2 | 0xf3 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65 | 0x67) = byte {
        byte = rest.next();
    }
    if byte == Some(0xf0) {
        return true;
    }
    if let Some(0x40..=0x4f) = byte {
        byte = rest.next();
    }
    // xchg with memory: the operand is no register.
    matches!(byte, Some(0x86 | 0x87)) && rest.next().is_some_and(|operand| operand >> 6 != 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_instructions_are_distinguished_from_others() {
        for (code, locked) in [
            (&[0xf0, 0x48, 0x83, 0x05, 0, 0, 0, 0, 1][..], true), // lock addq $1, x(%rip)
            (&[0x66, 0xf0, 0x0f, 0xb1, 0x0b], true),              // lock cmpxchg %cx, (%rbx)
            (&[0x48, 0x87, 0x05, 0, 0, 0, 0], true),              // xchg %rax, x(%rip)
            (&[0x86, 0x07], true),                                // xchg %al, (%rdi)
            (&[0x48, 0x87, 0xdb], false),                         // xchg %rbx, %rbx
            (&[0x48, 0x83, 0x05, 0, 0, 0, 0, 1], false),          // addq $1, x(%rip)
            (&[0xf3, 0x0f, 0x1e, 0xfa], false),                   // endbr64
            (&[], false),
        ] {
            assert_eq!(is_locked(code), locked, "{code:x?}");
        }
    }

    #[test]
    fn this_program_is_read_and_nothing_else() {
        let code = Code::open(&std::env::current_exe().unwrap()).unwrap();
        let &(from, ..) = code.parts.first().unwrap();
        assert!(code.is_locked(from).is_some() && code.is_locked(u64::MAX / 2).is_none());
        assert!(Code::of(b"#!/bin/sh".to_vec()).is_err() && Code::of(b"\x7fELF\x02\x01".to_vec()).is_err());
    }
}
