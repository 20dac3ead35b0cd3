//! Tests that run themselves again in a process of their own, under conditions that the parent sets before the program
//! starts.

use std::alloc::Layout;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr::NonNull;
use vmalloc::Vmalloc;

/// The environment variable with the role of a child.
const ROLE: &str = "VMALLOC_TEST_ROLE";
/// The text that marks output for the parent.
const MARK: &str = "said: ";

/// Returns the role of this process, if a test started it.
pub(crate) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Sends a text to the parent.
pub(crate) fn say(text: &str) {
    println!("{MARK}{text}");
}

/// Runs the test `name` again with a role, after a call of `first` in the new process. Returns the text that it sent,
/// or the reason of its failure.
///
/// `first` must call only functions that are allowed after a fork.
pub(crate) fn run(
    name: &str,
    role: &str,
    first: impl Fn() -> std::io::Result<()> + Send + Sync + 'static,
) -> Result<String, String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    // SAFETY: it calls only allowed functions, by this function's contract.
    unsafe { command.pre_exec(first) };
    let output = command.output().map_err(|error| format!("not started: {error}"))?;
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        return Err(format!("{role}: {}\n{text}{errors}", output.status));
    }
    // libtest writes the name of the test on the same line.
    let said = text.lines().filter_map(|line| Some(line.split_once(MARK)?.1));
    Ok(said.collect::<Vec<_>>().join("\n"))
}

/// Reads a byte of our own area, inside it and initialized.
fn read(area: NonNull<u8>, at: usize) -> u8 {
    // SAFETY: inside the area.
    let place = unsafe { area.add(at) };
    // SAFETY: as before, and initialized.
    unsafe { place.read() }
}

/// Allocates, grows, shrinks, and frees in many sizes, and trims the memory now and then. Returns a sum of all bytes
/// read, which depends only on the seed.
pub(crate) fn work(memory: &Vmalloc, steps: u64, seed: u64) -> u64 {
    let layout = |bytes: usize| Layout::from_size_align(bytes, 1).unwrap();
    let mut areas: [Option<(NonNull<u8>, usize, u8)>; 12] = [None; 12];
    let (mut state, mut sum) = (seed | 1, 0u64);
    let mut random = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 33
    };
    for step in 0..steps {
        let bytes = match random() % 8 {
            0..3 => 1 + random() as usize % (200 << 10),
            3..5 => 1 + random() as usize % (2 << 20),
            _ => 1 + random() as usize % (12 << 20),
        };
        let slot = &mut areas[random() as usize % 12];
        let zeroed = random() % 2 == 0;
        let (area, from) = match slot.take() {
            Some((area, before, byte)) if random() % 3 > 0 => {
                // SAFETY: our own, and no reference to it exists.
                let area = unsafe { memory.grow_zeroed(area, layout(bytes)) }.unwrap();
                let kept = before.min(bytes);
                for at in (0..kept).step_by(4093) {
                    let found = read(area, at);
                    assert_eq!(found, byte, "step {step}, byte {at} of {bytes}, {before} before");
                    sum = sum.wrapping_mul(31).wrapping_add(u64::from(found));
                }
                (area, kept)
            }
            old => {
                if let Some((area, ..)) = old {
                    // SAFETY: as before.
                    unsafe { memory.free(area) }.unwrap();
                }
                let area =
                    if zeroed { memory.alloc_zeroed(layout(bytes)) } else { memory.alloc(layout(bytes)) };
                (area.unwrap(), if zeroed { 0 } else { bytes })
            }
        };
        for at in (from..bytes).step_by(511) {
            let found = read(area, at);
            assert_eq!(found, 0, "step {step}, byte {at} of {bytes}, {from} before");
        }
        let byte = (random() & 127) as u8 + 1;
        // SAFETY: our own.
        unsafe { area.write_bytes(byte, bytes) };
        *slot = Some((area, bytes, byte));
        if step % 64 == 63 {
            memory.trim();
        }
    }
    for (area, _, byte) in areas.into_iter().flatten() {
        sum = sum.wrapping_mul(31).wrapping_add(u64::from(byte));
        // SAFETY: as before.
        unsafe { memory.free(area) }.unwrap();
    }
    sum
}
