//! Simulated files and mappings in place of `Linux`, under Miri, which makes no system calls.
//!
//! # Theory
//! Miri has one address for each byte, so a frame that is mapped twice cannot be one memory. Each mapped page has its own,
//! from the simulated system of `vmalloc-os`, and the file has one more copy. A call that concerns a frame first makes all
//! copies equal. A word that differs from what was last seen in its page was written there. It goes into the file, and
//! from there into the other pages. So a write is seen through other addresses after the next call that concerns its
//! frame, where the kernel shows it at once.
//!
//! All else is as there: a page outside of mappings is inaccessible, and an access to it an error. So is one to a page
//! beyond the end of the file. A call accesses all pages of its frames, so Miri reports a race where another thread writes
//! to them meanwhile.
//! # Locking
//! One lock for all files and pages, as in a kernel.

use super::os::{File, MapOs, Span};
use crate::PAGE_BYTES;
use core::ffi::c_int;
use core::ops::Range;
use core::ptr::with_exposed_provenance_mut;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use vmalloc_os::os::{Errno, Linux as Memory, Os};

const WORD: usize = size_of::<u64>();
const WORDS: usize = PAGE_BYTES / WORD;

type Words = [u64; WORDS];

/// A page that shows a frame of a file.
struct Page {
    file: c_int,
    frame: usize,
    /// The page when it was last made equal to its frame.
    seen: Box<Words>,
}

#[derive(Default)]
struct System {
    /// The frames of each file.
    files: BTreeMap<c_int, Vec<Words>>,
    /// Mapped pages by their addresses.
    pages: BTreeMap<usize, Page>,
}

static SYSTEM: Mutex<Option<System>> = Mutex::new(None);

/// Calls `with` with the files and pages.
fn system<T>(with: impl FnOnce(&mut System) -> T) -> T {
    let mut held: MutexGuard<'_, Option<System>> = SYSTEM.lock().unwrap_or_else(PoisonError::into_inner);
    with(held.get_or_insert_default())
}

/// Returns the words of an open page. They are valid while the caller holds the lock under which pages are closed.
fn words_at(at: usize) -> *mut Words {
    with_exposed_provenance_mut(at)
}

/// Returns the frames that contain a range of bytes.
fn frames(offset: u64, bytes: usize) -> Range<usize> {
    let first = offset as usize / PAGE_BYTES;
    first..(offset as usize + bytes).div_ceil(PAGE_BYTES).max(first)
}

/// Returns the word of a file that contains a byte.
fn word_of(contents: &mut [Words], at: usize) -> &mut u64 {
    &mut contents[at / PAGE_BYTES][at % PAGE_BYTES / WORD]
}

impl System {
    fn file(&mut self, file: c_int) -> Result<&mut Vec<Words>, Errno> {
        self.files.get_mut(&file).ok_or(Errno(libc::EBADF))
    }

    /// Puts the words that were written through pages into their frames.
    fn collect(&mut self, file: c_int, frames: &Range<usize>) {
        let Some(contents) = self.files.get_mut(&file) else { return };
        let shown =
            self.pages.iter_mut().filter(|(_, page)| page.file == file && frames.contains(&page.frame));
        for (&at, page) in shown {
            // SAFETY: an open page.
            let now = unsafe { words_at(at).read() };
            if now == *page.seen {
                continue;
            }
            for ((now, seen), word) in now.iter().zip(&*page.seen).zip(&mut contents[page.frame]) {
                if now != seen {
                    *word = *now;
                }
            }
            *page.seen = now;
        }
    }

    /// Shows frames as they are in the file through all their pages.
    fn show(&mut self, file: c_int, frames: &Range<usize>) {
        let Some(contents) = self.files.get(&file) else { return };
        let shown =
            self.pages.iter_mut().filter(|(_, page)| page.file == file && frames.contains(&page.frame));
        for (&at, page) in shown {
            let frame = contents[page.frame];
            if frame != *page.seen {
                *page.seen = frame;
                // SAFETY: an open page.
                unsafe { words_at(at).write(frame) };
            }
        }
    }

    /// Makes all copies of frames equal, calls `change` with the words of the file, and shows what that changed.
    fn change<T>(
        &mut self,
        file: c_int,
        frames: &Range<usize>,
        change: impl FnOnce(&mut [Words]) -> T,
    ) -> Result<T, Errno> {
        self.collect(file, frames);
        let contents = self.file(file)?;
        if frames.end > contents.len() {
            return Err(Errno(libc::EIO));
        }
        let answer = change(contents);
        self.show(file, frames);
        Ok(answer)
    }

    /// Forgets the pages of a span, after what was written through them is in the file.
    fn forget(&mut self, span: Span) {
        let range = span.at..span.at + span.bytes;
        let gone: Vec<_> = self.pages.range(range).map(|(&at, page)| (at, page.file, page.frame)).collect();
        for &(_, file, frame) in &gone {
            self.collect(file, &(frame..frame + 1));
        }
        for (at, file, frame) in gone {
            self.pages.remove(&at);
            self.show(file, &(frame..frame + 1));
        }
    }
}

/// The simulated system. It has the name of the one that it replaces.
pub(crate) struct Linux;

impl MapOs for Linux {
    fn reserve(&self, bytes: usize) -> Result<usize, Errno> {
        Memory.reserve(bytes)
    }

    fn words(&self, bytes: usize) -> Result<usize, Errno> {
        Memory.map(bytes)
    }

    unsafe fn release(&self, span: Span) {
        system(|system| {
            system.forget(span);
            // SAFETY: this function's contract.
            unsafe { Memory.unmap(span) }
        });
    }

    fn create(&self) -> Result<File, Errno> {
        system(|system| {
            // Above the descriptors of Miri.
            let file = system.files.last_key_value().map_or(1 << 20, |(&file, _)| file + 1);
            system.files.insert(file, Vec::new());
            Ok(File { number: file, device: 0, inode: 0 })
        })
    }

    fn close(&self, File { number: file, .. }: File) {
        system(|system| system.files.remove(&file));
    }

    fn size(&self, File { number: file, .. }: File, bytes: u64) -> Result<(), Errno> {
        system(|system| {
            let contents = system.file(file)?;
            let frames = bytes as usize / PAGE_BYTES;
            // The seal.
            if frames < contents.len() {
                return Err(Errno(libc::EPERM));
            }
            contents.resize(frames, [0; WORDS]);
            Ok(())
        })
    }

    unsafe fn map(
        &self,
        span: Span,
        File { number: file, .. }: File,
        offset: u64,
        _writable: bool,
    ) -> Result<(), Errno> {
        system(|system| {
            let shown = frames(offset, span.bytes);
            let inside = shown.start..shown.end.min(system.file(file)?.len());
            system.forget(span);
            if !inside.is_empty() {
                let opened = Span { at: span.at, bytes: inside.len() * PAGE_BYTES };
                // SAFETY: a part of the caller's reservation, to which no reference exists.
                unsafe { Memory.renew(opened) }?;
            }
            system.collect(file, &inside);
            for (at, frame) in (span.at..).step_by(PAGE_BYTES).zip(inside.clone()) {
                system.pages.insert(at, Page { file, frame, seen: Box::new([0; WORDS]) });
            }
            system.show(file, &inside);
            Ok(())
        })
    }

    unsafe fn unmap(&self, span: Span) -> Result<(), Errno> {
        system(|system| {
            system.forget(span);
            // SAFETY: this function's contract.
            unsafe { Memory.reset(span) }
        })
    }

    unsafe fn mend(&self, _: Span) {}

    fn populate(&self, File { number: file, .. }: File, offset: u64, bytes: u64) -> Result<(), Errno> {
        system(|system| system.change(file, &frames(offset, bytes as usize), |_| ()))
    }

    fn punch(&self, File { number: file, .. }: File, offset: u64, bytes: u64) -> Result<(), Errno> {
        let punched = frames(offset, bytes as usize);
        system(|system| system.change(file, &punched, |contents| contents[punched.clone()].fill([0; WORDS])))
    }

    fn read(&self, File { number: file, .. }: File, offset: u64, to: &mut [u8]) -> Result<(), Errno> {
        let range = frames(offset, to.len());
        system(|system| {
            system.change(file, &range, |contents| {
                for (at, byte) in (offset as usize..).zip(to) {
                    *byte = word_of(contents, at).to_ne_bytes()[at % WORD];
                }
            })
        })
    }

    fn write(&self, File { number: file, .. }: File, offset: u64, from: &[u8]) -> Result<(), Errno> {
        system(|system| {
            system.change(file, &frames(offset, from.len()), |contents| {
                for (at, byte) in (offset as usize..).zip(from) {
                    let word = word_of(contents, at);
                    let mut bytes = word.to_ne_bytes();
                    bytes[at % WORD] = *byte;
                    *word = u64::from_ne_bytes(bytes);
                }
            })
        })
    }
}
