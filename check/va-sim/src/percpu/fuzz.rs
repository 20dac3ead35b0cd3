//! The body of the fuzz target of per-CPU memory, also run as a test over its saved inputs.

use super::magazines::{self, MagazineOp};
use super::{Harness, Op};
use va_percpu::Config;
use va_percpu::config::{Linux612, Runs, Scan, Standard};

/// Operations of one input at most.
const OPS_MAX: usize = 400;
/// Bytes of an operation.
const OP_BYTES: usize = 6;

/// Decodes one operation: sizes and alignments are near those of programs, sometimes arbitrary.
fn decode(code: &[u8]) -> Op {
    let [kind, shape, a, b, c, d] = *code else { return Op::Tick };
    let word = u32::from_le_bytes([a, b, c, d]);
    match kind % 16 {
        0..=6 => Op::Alloc {
            size: match shape % 4 {
                0 | 1 => 1 + word % 80,
                2 => 1 + word % 9000,
                _ => word % 33_000,
            },
            align: match shape / 4 % 4 {
                0 => word >> 20,
                _ => 1 << (shape / 16 % 14),
            },
            atomic: kind & 0x10 != 0,
            reserved: kind & 0xe0 == 0xe0,
        },
        7..=11 => Op::Free(word),
        12 if kind & 0x80 != 0 => {
            Op::Place { which: word >> 8, behind: u32::from(shape) * 4, size: 1 << (word % 15) }
        }
        12 => Op::Wrong(word, u32::from(shape)),
        13 => Op::Tick,
        14 => Op::Balance,
        _ => Op::FailAfter(if shape < 200 { shape % 8 } else { u8::MAX }),
    }
}

/// Decodes one operation on magazines: mostly of few sizes, so that batches fill and empty.
fn decode_for_magazines(code: &[u8]) -> MagazineOp {
    let [kind, shape, a, b, c, d] = *code else { return MagazineOp::Tick };
    let (word, owner, count) = (u32::from_le_bytes([a, b, c, d]), shape % 4, 1 + c % 90);
    match kind % 16 {
        0..=4 => MagazineOp::Alloc {
            owner,
            size: if d < 200 { 1 + u32::from(a % 70) } else { word % 1200 },
            align: if shape & 0x80 == 0 { 1 << (shape / 16) } else { 3 },
            atomic: kind & 0x80 != 0,
            count,
        },
        5..=9 => MagazineOp::Free { owner, which: word, count },
        10 => MagazineOp::Wrong { owner, which: word, behind: u32::from(shape >> 2) },
        11 => MagazineOp::Place(word),
        12 => MagazineOp::Drain(owner),
        13 => MagazineOp::End(owner),
        14 => {
            if kind & 0x10 == 0 {
                MagazineOp::Tick
            } else {
                MagazineOp::Balance
            }
        }
        _ => {
            let after = if shape < 200 { shape % 8 } else { u8::MAX };
            if kind & 0x10 == 0 { MagazineOp::FailAfter(after) } else { MagazineOp::TablesAfter(after) }
        }
    }
}

/// Decodes operations, runs them under every policy, and checks everything. The first byte is the frequency of walks
/// over every invariant; its highest bit selects magazines under the standard policy.
///
/// # Panics
/// At the first broken guarantee or invariant.
#[inline]
pub fn percpu_ops(data: &[u8]) {
    let Some((&selector, bytes)) = data.split_first() else { return };
    let every = [1, 4, 16, 64][usize::from(selector % 4)];
    if selector & 0x80 != 0 {
        let ops = bytes.chunks_exact(OP_BYTES).take(OPS_MAX).map(decode_for_magazines);
        magazines::run::<Standard>(ops, every);
        return;
    }
    fn run<C: Config>(bytes: &[u8], every: usize) {
        let mut harness: Harness<C> = Harness::new();
        let walk = |harness: &Harness<C>| {
            if let Err(broken) = harness.space.validate() {
                panic!("{broken}");
            }
        };
        for (nth, code) in bytes.chunks_exact(OP_BYTES).take(OPS_MAX).enumerate() {
            harness.apply(decode(code));
            if nth % every == 0 {
                walk(&harness);
            }
        }
        walk(&harness);
    }
    run::<Standard>(bytes, every);
    run::<Runs>(bytes, every);
    run::<Scan>(bytes, every);
    run::<Linux612>(bytes, every);
}
