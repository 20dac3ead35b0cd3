//! Tags: a heap with a word for each page that records the caller of the last allocation there.
//!
//! # Theory
//! A word is written when an area is allocated and read when areas are listed. A heap without tags never runs this
//! code. A word is the address of a location in the source, which is valid as long as the program, or the number of a
//! text. Texts are stored in a list that only grows.
//!
//! ```text
//!   word   0: none      | address of a Location, a multiple of 8 |    | number of a text, 1 |
//! ```
//!
//! The address range of all words is reserved at once. They are made readable and writable in steps, each when its
//! first word is written. So only as much memory is charged, or locked, as areas need. If a step fails, its areas have
//! no recorded caller. A location in the source is unloaded with its library. A program that unloads a library must
//! have freed the library's areas, or must not list areas any more.
//! # Invariants
//! - **TG1 lasting** a word is 0, the address of a `&'static Location`, or the number of a text whose slot in the list
//!   is written.
//! - **TG2 committed** the words of a step can be read and written from when its bit is set, for as long as the heap
//!   exists.
//!
//! # Locking
//! None: words are independent, and a slot in the list of texts is written once, by the thread that counted it.
//! # Source
//! Linux stores `vm_struct::caller` and prints it by `%pS` (`mm/vmalloc.c`, 6.12: `vmalloc_info_show`).

use crate::PAGE_BYTES;
use crate::arena::PAGES_MOST;
use crate::empty::{empty_value, write_empty};
use crate::error::CreateError;
use crate::heap::{Heap, Owned};
use core::fmt;
use core::ops::Deref;
use core::panic::Location;
use core::ptr::{NonNull, null_mut, with_exposed_provenance};
use core::sync::atomic::AtomicU64;
use va_base::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use vmalloc_os::os::{Call, Linux, Os, Span};

/// The most texts that are distinguished; further ones are listed as `other`.
#[cfg(not(loom))]
const TEXTS_MAX: usize = 256;
#[cfg(loom)]
const TEXTS_MAX: usize = 2;
/// Bytes of words that one step makes usable, those of 128 MiB of the arena, and the most steps.
const STEP_BYTES: usize = 256 << 10;
const STEPS_MAX: usize = PAGES_MOST as usize * size_of::<u64>() / STEP_BYTES;
const _: () = assert!(align_of::<Location<'static>>() > 1);

/// The caller of an allocation.
#[derive(Clone, Copy)]
pub(crate) enum Caller {
    Place(&'static Location<'static>),
    Text(&'static str),
}

/// A heap with the callers of its areas.
pub(crate) struct Tagged {
    heap: Owned<Linux>,
    tags: NonNull<Tags>,
}

// SAFETY: tags are accessed through a shared reference by their atomics only.
unsafe impl Send for Tagged {}
// SAFETY: as before.
unsafe impl Sync for Tagged {}

/// The tags, in the records of the heap.
struct Tags {
    words: Span,
    /// Page of the first word.
    first: u64,
    /// A bit for each step of the words (TG2). Protocol PR-READY.
    steps: [AtomicU64; STEPS_MAX.div_ceil(64)],
    texts: Texts,
}

/// The list of texts, which only grows.
pub(crate) struct Texts {
    /// Slots that threads have taken. Protocol PR-TEXT.
    count: AtomicUsize,
    texts: [Text; TEXTS_MAX],
}

/// A text. Without an address, it is being written. Protocol PR-TEXT.
struct Text {
    at: AtomicPtr<u8>,
    bytes: AtomicUsize,
}

impl Tags {
    empty_value!(Self {
        words: Span { at: 0, bytes: 0 },
        first: 0,
        steps: [const { AtomicU64::new(0) }; STEPS_MAX.div_ceil(64)],
        #[cfg(not(loom))]
        texts: Texts::EMPTY,
        #[cfg(loom)]
        texts: Texts::empty(),
    });
}

impl Tagged {
    /// Records the callers of allocations from `heap`.
    pub(crate) fn new(heap: Owned<Linux>) -> Result<Self, CreateError> {
        let place = heap.alloc_place::<Tags>().ok_or(CreateError::NoRecords)?;
        let arena = heap.arena();
        let (first, end) = arena.whole_pages();
        let bytes = ((end - first) as usize * size_of::<u64>()).next_multiple_of(PAGE_BYTES);
        let failed = |errno| CreateError::CallFailed { call: Call::Reserve, errno, bytes };
        let words = Span { at: heap.os().reserve(bytes).map_err(failed)?, bytes };
        write_empty!(Tags, place);
        // SAFETY: written above, and not shared yet.
        let tags: &mut Tags = unsafe { &mut *place.as_ptr() };
        (tags.words, tags.first) = (words, first);
        Ok(Self { heap, tags: place })
    }

    fn tags(&self) -> &Tags {
        // SAFETY: written by `new`, in records that live as long as the heap.
        unsafe { self.tags.as_ref() }
    }

    /// Allocates memory for a value in the heap's records, for as long as the heap lives.
    pub(crate) fn alloc_place<T>(&self) -> Option<NonNull<T>> {
        self.heap.alloc_place()
    }

    /// Records the caller that allocated the area at an address.
    pub(crate) fn note(&self, area: NonNull<u8>, caller: Caller) {
        let tags = self.tags();
        let page = (area.addr().get() / PAGE_BYTES) as u64;
        if !tags.has(page) && !tags.commit(page, self.heap.os()) {
            return;
        }
        let tag = match caller {
            Caller::Place(place) => (&raw const *place).expose_provenance() as u64,
            Caller::Text(text) => (tags.texts.number(text) as u64) << 1 | 1,
        };
        if let Some(word) = tags.word(page) {
            // Release pairs with `write`: a thread that reads a number also sees its text.
            word.store(tag, Ordering::Release);
        }
    }

    /// Writes a line for each area, with the caller that allocated it.
    pub(crate) fn write_info(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.heap.write_info_with(out, &|page, out| self.tags().write(page, out))
    }
}

impl Tags {
    /// Returns the offset of the word of a page, in bytes from the first word.
    fn place(&self, page: u64) -> Option<usize> {
        let place = usize::try_from(page.checked_sub(self.first)?).ok()?.checked_mul(size_of::<u64>())?;
        (place < self.words.bytes).then_some(place)
    }

    /// Returns true if the word of a page can be read and written.
    fn has(&self, page: u64) -> bool {
        let Some(step) = self.place(page).map(|place| place / STEP_BYTES) else { return false };
        // Acquire pairs with `commit`.
        self.steps[step / 64].load(Ordering::Acquire) >> (step % 64) & 1 != 0
    }

    /// Makes the word of a page readable and writable, with all others of its step. Returns `false` if the system call
    /// fails.
    #[cold]
    fn commit(&self, page: u64, os: &Linux) -> bool {
        let Some(step) = self.place(page).map(|place| place / STEP_BYTES) else { return false };
        let from = step * STEP_BYTES;
        let span = Span { at: self.words.at + from, bytes: STEP_BYTES.min(self.words.bytes - from) };
        // SAFETY: part of the reservation. Two threads that commit a step at the same time do the same.
        let done = unsafe { os.commit(span) }.is_ok();
        if done {
            // Release pairs with `has`. Checks TG2.
            self.steps[step / 64].fetch_or(1 << (step % 64), Ordering::Release);
        }
        done
    }

    /// Returns the word of a page, if its step is committed.
    fn word(&self, page: u64) -> Option<&AtomicU64> {
        let place = self.place(page).filter(|_| self.has(page))?;
        let word = with_exposed_provenance::<AtomicU64>(self.words.at + place);
        // SAFETY: inside the words, which are zeros at first, readable and writable as long as this lives (TG2), and
        // used as atomics only.
        Some(unsafe { &*word })
    }

    /// Writes a space and the caller that allocated the area of a page.
    fn write(&self, page: u64, out: &mut dyn fmt::Write) -> fmt::Result {
        let tag = self.word(page).map_or(0, |word| word.load(Ordering::Acquire));
        match (tag, tag & 1) {
            (0, _) => Ok(()),
            (_, 1) => {
                let text = self.texts.get((tag >> 1) as usize);
                write!(out, " {}", text.unwrap_or("other"))
            }
            _ => {
                // SAFETY: the address of a `Location` that is valid as long as the program, or the calling library
                // (TG1).
                let place = unsafe { with_exposed_provenance::<Location<'static>>(tag as usize).as_ref() };
                place.map_or(Ok(()), |place| write!(out, " {place}"))
            }
        }
    }
}

impl Texts {
    empty_value!(Self {
        count: AtomicUsize::new(0),
        #[cfg(not(loom))]
        texts: [const { Text { at: AtomicPtr::new(null_mut()), bytes: AtomicUsize::new(0) } }; TEXTS_MAX],
        #[cfg(loom)]
        texts: core::array::from_fn(|_| Text { at: AtomicPtr::new(null_mut()), bytes: AtomicUsize::new(0) }),
    });

    /// Returns the number of a text, a new one for an unknown text, or `TEXTS_MAX` if the list is full.
    pub(crate) fn number(&self, text: &'static str) -> usize {
        let count = self.count.load(Ordering::Acquire).min(TEXTS_MAX);
        let same = |&number: &usize| self.get(number).is_some_and(|other| core::ptr::eq(other, text));
        if let Some(number) = (0..count).find(same) {
            return number;
        }
        // Two threads that add the same text at the same time get two numbers for it, which is harmless.
        let counted = self.count.fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| {
            (count < TEXTS_MAX).then_some(count + 1)
        });
        let Ok(number) = counted else { return TEXTS_MAX };
        self.texts[number].bytes.store(text.len(), Ordering::Relaxed);
        // Release pairs with `get`: a thread that sees the address sees the length. Checks TG1: the number is returned
        // only after this.
        self.texts[number].at.store(text.as_ptr().cast_mut(), Ordering::Release);
        number
    }

    /// Returns the text with a number, if it is written.
    pub(crate) fn get(&self, number: usize) -> Option<&'static str> {
        let text = self.texts.get(number)?;
        let at = NonNull::new(text.at.load(Ordering::Acquire))?;
        let bytes = text.bytes.load(Ordering::Relaxed);
        // SAFETY: address and length of a `'static` text, each written once, the address last.
        let slice = unsafe { core::slice::from_raw_parts(at.as_ptr().cast_const(), bytes) };
        // SAFETY: the bytes are those of a `str`.
        Some(unsafe { core::str::from_utf8_unchecked(slice) })
    }
}

impl Deref for Tagged {
    type Target = Heap<Linux>;

    fn deref(&self) -> &Heap<Linux> {
        &self.heap
    }
}

impl Drop for Tagged {
    fn drop(&mut self) {
        // SAFETY: reserved by `new`; no thread reads or writes words any more.
        unsafe { self.heap.os().unmap(self.tags().words) };
    }
}
