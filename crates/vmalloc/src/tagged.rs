//! Who allocated what: a heap beside which a word for each page says who had it last.
//!
//! # Theory
//! The words are written when an area is given out and read when areas are listed, nowhere else; whoever has a heap without tags never
//! comes here. A word is the address of a place in the source, which lives as long as the program, or the number of a text that was
//! told, kept in a list that only grows.
//!
//! ```text
//!   word   0: nobody    | address of a Location, a multiple of 8 |    | number of a text, 1 |
//! ```
//! # Invariants
//! - **TG1 lasting** a word is 0, the address of a `&'static Location`, or the number of a text whose place in the list is written.
//!
//! # Locking
//! None: a word stands alone, and a place in the list of texts is written once, by who counted it.
//! # Source
//! Linux keeps `vm_struct::caller` and prints it by `%pS` (`mm/vmalloc.c`, 6.12: `vmalloc_info_show`).

use crate::PAGE_BYTES;
use crate::error::CreateError;
use crate::heap::{Heap, Owned};
use crate::os::{Call, Linux};
use crate::vmap::os::{self, MapOs, Span};
use core::fmt;
use core::ops::Deref;
use core::panic::Location;
use core::ptr::{NonNull, null_mut, with_exposed_provenance};
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Texts that can be told apart; others are said to be `other`.
const TEXTS_MAX: usize = 256;
const _: () = assert!(align_of::<Location<'static>>() > 1);

/// Who asks.
#[derive(Clone, Copy)]
pub(crate) enum Caller {
    Place(&'static Location<'static>),
    Text(&'static str),
}

/// A heap, and who has its areas.
pub(crate) struct Tagged {
    heap: Owned<Linux>,
    tags: NonNull<Tags>,
}

// SAFETY: tags are shared by their atomics, whoever owns them.
unsafe impl Send for Tagged {}
// SAFETY: as before.
unsafe impl Sync for Tagged {}

/// In the records of the heap.
struct Tags {
    words: Span,
    /// Page of the first word.
    first: u64,
    count: AtomicUsize,
    texts: [Text; TEXTS_MAX],
}

/// A text; without an address, it is being written.
struct Text {
    at: AtomicPtr<u8>,
    bytes: AtomicUsize,
}

impl Tagged {
    /// Keeps who allocates from `heap`.
    pub(crate) fn new(heap: Owned<Linux>) -> Result<Self, CreateError> {
        let place = heap.lend_place::<Tags>().ok_or(CreateError::NoRecords)?;
        let arena = heap.arena();
        let (first, end) = arena.whole_pages();
        let bytes = ((end - first) as usize * size_of::<u64>()).next_multiple_of(PAGE_BYTES);
        let refused = |errno| CreateError::Refused { call: Call::Reserve, errno, bytes };
        let words = Span { at: os::Linux.words(bytes).map_err(refused)?, bytes };
        let text = || Text { at: AtomicPtr::new(null_mut()), bytes: AtomicUsize::new(0) };
        let texts = core::array::from_fn(|_| text());
        // SAFETY: lent for tags, and nobody else is given it.
        unsafe { place.write(Tags { words, first, count: AtomicUsize::new(0), texts }) };
        Ok(Self { heap, tags: place })
    }

    fn tags(&self) -> &Tags {
        // SAFETY: written by `new`, in records that live as long as the heap.
        unsafe { self.tags.as_ref() }
    }

    /// Takes a place in the heap's own records, for as long as the heap lives.
    pub(crate) fn lend_place<T>(&self) -> Option<NonNull<T>> {
        self.heap.lend_place()
    }

    /// Notes who has the area that begins at an address.
    pub(crate) fn note(&self, area: NonNull<u8>, caller: Caller) {
        let tags = self.tags();
        let tag = match caller {
            Caller::Place(place) => (&raw const *place).expose_provenance() as u64,
            Caller::Text(text) => (tags.number(text) as u64) << 1 | 1,
        };
        if let Some(word) = tags.word((area.addr().get() / PAGE_BYTES) as u64) {
            // Release pairs with `write`: whoever reads a number finds its text.
            word.store(tag, Ordering::Release);
        }
    }

    /// Writes a line for each area, with who asked for it.
    pub(crate) fn write_info(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.heap.write_info_with(out, &|page, out| self.tags().write(page, out))
    }
}

impl Tags {
    fn word(&self, page: u64) -> Option<&AtomicU64> {
        let index = page.checked_sub(self.first)? as usize;
        if index >= self.words.bytes / size_of::<u64>() {
            return None;
        }
        let place = with_exposed_provenance::<AtomicU64>(self.words.at + index * size_of::<u64>());
        // SAFETY: inside the words, which are zeros at first, mapped as long as this lives, and used as atomics only.
        Some(unsafe { &*place })
    }

    /// The number of a text, a new one if it was not told before; `TEXTS_MAX` if there are too many.
    fn number(&self, text: &'static str) -> usize {
        let told = self.count.load(Ordering::Acquire).min(TEXTS_MAX);
        let same = |place: &Text| self.read(place).is_some_and(|other| core::ptr::eq(other, text));
        if let Some(number) = self.texts[..told].iter().position(same) {
            return number;
        }
        // Two who tell the same text at a time get two numbers for it, which does no harm.
        let counted = self.count.fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| {
            (count < TEXTS_MAX).then_some(count + 1)
        });
        let Ok(number) = counted else { return TEXTS_MAX };
        self.texts[number].bytes.store(text.len(), Ordering::Relaxed);
        // Release pairs with `read`: whoever sees the address sees the length. Checks TG1: only now is the number told.
        self.texts[number].at.store(text.as_ptr().cast_mut(), Ordering::Release);
        number
    }

    fn read(&self, text: &Text) -> Option<&'static str> {
        let at = NonNull::new(text.at.load(Ordering::Acquire))?;
        let bytes = text.bytes.load(Ordering::Relaxed);
        // SAFETY: address and length of a text that lives as long as the program, written once, the address last.
        let slice = unsafe { core::slice::from_raw_parts(at.as_ptr().cast_const(), bytes) };
        // SAFETY: it was a `str`.
        Some(unsafe { core::str::from_utf8_unchecked(slice) })
    }

    /// Writes who has the area of a page, after a space.
    fn write(&self, page: u64, out: &mut dyn fmt::Write) -> fmt::Result {
        let tag = self.word(page).map_or(0, |word| word.load(Ordering::Acquire));
        match (tag, tag & 1) {
            (0, _) => Ok(()),
            (_, 1) => {
                let text = self.texts.get((tag >> 1) as usize).and_then(|text| self.read(text));
                write!(out, " {}", text.unwrap_or("other"))
            }
            _ => {
                // SAFETY: the address of a place that lives as long as the program (TG1).
                let place = unsafe { with_exposed_provenance::<Location<'static>>(tag as usize).as_ref() };
                place.map_or(Ok(()), |place| write!(out, " {place}"))
            }
        }
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
        // SAFETY: nobody writes or reads words any more.
        unsafe { os::Linux.release(self.tags().words) };
    }
}
