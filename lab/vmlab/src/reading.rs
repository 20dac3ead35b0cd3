//! Reads of files: one that takes more than a second shows on a terminal how far it is.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vmlab_trace::{decompress, of_known_version};

/// The time after which a read shows its progress.
const QUIET: Duration = Duration::from_secs(1);
/// The longest wait for input, between two looks at the flag.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Opens a file, or standard input by the name -, as [`vmlab_trace::open`] does.
///
/// # Errors
/// As that.
pub(crate) fn open(path: &Path) -> io::Result<Box<dyn Read>> {
    if path == Path::new("-") {
        return text(io::stdin(), None);
    }
    let file = File::open(path)?;
    let bytes = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|data| data.len());
    text(file, bytes)
}

/// Returns the text of an input of so many bytes, if that is known.
fn text(input: impl Read + 'static, bytes: Option<u64>) -> io::Result<Box<dyn Read>> {
    of_known_version(decompress(Watched::new(input, bytes))?)
}

/// As [`open`], but the input ends once `stop` is set, also while a pipe has nothing to read.
///
/// # Errors
/// As [`open`].
pub(crate) fn open_until(path: &Path, stop: &Arc<AtomicBool>) -> io::Result<Box<dyn Read>> {
    let input = if path == Path::new("-") {
        File::from(io::stdin().as_fd().try_clone_to_owned()?)
    } else {
        // Opening a pipe without a writer, and reading one that is quiet, would block.
        OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)?
    };
    let data = input.metadata()?;
    let bytes = data.is_file().then_some(data.len());
    text(Stoppable { input, waits: !data.is_file(), stop: Arc::clone(stop) }, bytes)
}

/// A file that ends once a flag is set. A signal that sets the flag interrupts the wait, and not a read: the system
/// restarts reads.
struct Stoppable {
    input: File,
    /// True of what is no file: a read without waiting could block, or find no writer yet.
    waits: bool,
    stop: Arc<AtomicBool>,
}

impl Stoppable {
    /// Waits until the input can be read, for a while at most. Returns true if it can.
    fn is_ready(&self) -> io::Result<bool> {
        match poll(&mut [PollFd::new(&self.input, PollFlags::IN)], Some(&WAIT)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Read for Stoppable {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while !self.stop.load(Ordering::Relaxed) {
            if self.waits && !self.is_ready()? {
                continue;
            }
            match self.input.read(buffer) {
                // The kernel's trace_pipe is a file, and is ready only once its buffers are half full.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => _ = self.is_ready()?,
                read => return read,
            }
        }
        Ok(0)
    }
}

/// A reader with a bar on stderr. The bar goes when the reader does.
struct Watched<R> {
    input: R,
    bar: ProgressBar,
    begun: Instant,
    shown: bool,
}

impl<R> Watched<R> {
    /// `bytes` is the length of the input, if it is known.
    fn new(input: R, bytes: Option<u64>) -> Self {
        let template = match bytes {
            Some(_) => "{bar:32} {bytes} of {total_bytes}, {eta} left",
            None => "{spinner} {bytes} read, {elapsed}",
        };
        let bar = ProgressBar::with_draw_target(bytes, ProgressDrawTarget::hidden());
        bar.set_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        Self { input, bar, begun: Instant::now(), shown: false }
    }
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        if !self.shown && self.begun.elapsed() > QUIET {
            self.shown = true;
            // On no terminal nothing is drawn.
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.inc(count as u64);
        Ok(count)
    }
}

impl<R> Drop for Watched<R> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_whole_and_shows_itself_after_a_second() {
        for (seconds, shown) in [(0, false), (2, true)] {
            let mut input = Watched::new(&b"abc"[..], Some(3));
            input.begun = input.begun.checked_sub(Duration::from_secs(seconds)).unwrap_or(input.begun);
            let mut text = String::new();
            assert!(input.read_to_string(&mut text).is_ok_and(|count| count == 3));
            assert_eq!((text.as_str(), input.bar.position(), input.shown), ("abc", 3, shown));
        }
    }
}
