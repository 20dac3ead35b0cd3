//! Measures mapping and unmapping a list of frames, compared with plain `mmap` and `munmap` of a memory file, in one
//! run.
//!
//! `cargo run --profile dist -p vmalloc-vmap --example vmap` prints the tables of `results/vmap.md`: nanoseconds a pair,
//! minimum and median of rounds taken in turn. Plain means direct calls: one `mmap` for the range, one for each run of
//! frames over it, one `munmap` for all. The range has a guard page if ours has one.

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::time::Instant;
use vmalloc_vmap::{Frame, Frames, Mappings, Protection};

const PAGE: usize = 4096;
/// Many short rounds, so that some are not interrupted on a machine with other work.
const ROUNDS: usize = 151;
/// Runs mapped in a round.
const RUNS: usize = 128;
/// The least number of pairs of a round.
const PAIRS_MIN: usize = 8;
const FRAMES: usize = 256;

type Failed = Box<dyn std::error::Error>;

/// The method that maps pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Contender {
    Plain,
    Vmap,
    VmMapRam,
}

/// A file of its own, for the plain method.
struct Plain {
    file: c_int,
}

impl Plain {
    fn new() -> Result<Self, Failed> {
        // SAFETY: reads the name.
        let file = unsafe { libc::memfd_create(c"plain".as_ptr(), libc::MFD_CLOEXEC) };
        // SAFETY: a file of our own.
        let sized = unsafe { libc::ftruncate(file, (FRAMES * PAGE) as libc::off_t) };
        let page = [1u8; PAGE];
        for frame in 0..FRAMES {
            // SAFETY: reads the page.
            let put =
                unsafe { libc::pwrite(file, page.as_ptr().cast(), PAGE, (frame * PAGE) as libc::off_t) };
            if sized != 0 || put != PAGE as isize {
                return Err(std::io::Error::last_os_error().into());
            }
        }
        Ok(Self { file })
    }

    fn pair(&self, list: &[usize], touch: bool) -> Result<(), Failed> {
        let bytes = (list.len() + 1) * PAGE;
        let none = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping.
        let at = checked(unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, none, -1, 0) })?;
        let mut place = 0;
        while place < list.len() {
            let run = 1 + list[place..].windows(2).take_while(|pair| pair[1] == pair[0] + 1).count();
            let (access, how) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
            let offset = (list[place] * PAGE) as libc::off_t;
            let to = at.wrapping_byte_add(place * PAGE);
            // SAFETY: over the range mapped above.
            checked(unsafe { libc::mmap(to, run * PAGE, access, how, self.file, offset) })?;
            place += run;
        }
        if touch {
            for page in 0..list.len() {
                // SAFETY: mapped above.
                black_box(unsafe { at.wrapping_byte_add(page * PAGE).cast::<u8>().read_volatile() });
            }
        }
        // SAFETY: the range mapped above.
        let _gone = unsafe { libc::munmap(at, bytes) };
        Ok(())
    }
}

fn checked(at: *mut c_void) -> Result<*mut c_void, Failed> {
    if at == libc::MAP_FAILED { Err(std::io::Error::last_os_error().into()) } else { Ok(at) }
}

struct Standard<'m> {
    mappings: &'m Mappings,
    frames: &'m Frames<'m>,
}

impl Standard<'_> {
    fn pair(
        &self,
        contender: Contender,
        list: &[usize],
        chosen: &[Frame<'_>],
        touch: bool,
    ) -> Result<(), Failed> {
        let view = match contender {
            Contender::VmMapRam => self.mappings.vm_map_ram(chosen, Protection::ReadWrite)?,
            _ => self.frames.vmap(list, Protection::ReadWrite)?,
        };
        if touch {
            for word in view.words()?.iter().step_by(PAGE / 8) {
                black_box(word.load(std::sync::atomic::Ordering::Relaxed));
            }
        }
        Ok(())
    }
}

/// Returns a list of consecutive frames, or of scattered ones.
fn list(count: usize, scattered: bool) -> Vec<usize> {
    (0..count).map(|n| if scattered { n * 3 % FRAMES } else { n }).collect()
}

fn main() -> Result<(), Failed> {
    let plain = Plain::new()?;
    let mappings = Mappings::new(usize::MAX)?;
    let frames = mappings.frames(FRAMES)?;
    frames.write(0, &vec![1; FRAMES * PAGE])?;
    let ours = Standard { mappings: &mappings, frames: &frames };
    for touch in [true, false] {
        println!("\n{}\n", if touch { "Each page read once:" } else { "No page touched:" });
        println!(
            "| frames | mmap + munmap | vmap | vm_map_ram | vmap, times faster | vm_map_ram, times faster |"
        );
        println!("|---|---:|---:|---:|---:|---:|");
        for scattered in [true, false] {
            for count in [1, 4, 16, 64] {
                let list = list(count, scattered);
                let chosen: Vec<Frame<'_>> = list.iter().filter_map(|&nth| frames.frame(nth)).collect();
                let pairs = (if scattered { RUNS / count } else { RUNS }).max(PAIRS_MIN);
                let mut times: [Vec<f64>; 3] = Default::default();
                for _ in 0..ROUNDS {
                    for (contender, times) in
                        [Contender::Plain, Contender::Vmap, Contender::VmMapRam].into_iter().zip(&mut times)
                    {
                        let begun = Instant::now();
                        for _ in 0..pairs {
                            match contender {
                                Contender::Plain => plain.pair(&list, touch)?,
                                _ => ours.pair(contender, &list, &chosen, touch)?,
                            }
                        }
                        // The flush is part of the measured time.
                        if contender != Contender::Plain {
                            mappings.flush();
                        }
                        times.push(begun.elapsed().as_nanos() as f64 / pairs as f64);
                    }
                }
                times.iter_mut().for_each(|times| times.sort_by(f64::total_cmp));
                let [plain, vmap, ram] = &times;
                let both = |times: &[f64]| format!("{:.0} ({:.0})", times[0], times[times.len() / 2]);
                let what = if scattered { "scattered" } else { "in a row" };
                println!(
                    "| {count} {what} | {} | {} | {} | {:.2} | {:.2} |",
                    both(plain),
                    both(vmap),
                    both(ram),
                    plain[0] / vmap[0],
                    plain[0] / ram[0]
                );
            }
        }
    }
    Ok(())
}
