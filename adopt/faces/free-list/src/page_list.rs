//! The free pages, as units of the index.

use crate::{AllocError, PAGE_SIZE, PageLayout, PageRange};
use core::fmt;
use va_compat::InlineUnits;

/// A set of free pages.
pub(crate) struct PageList<const N: usize> {
    list: InlineUnits<N>,
}

impl<const N: usize> PageList<N> {
    pub(crate) const fn new() -> Self {
        Self { list: InlineUnits::new() }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = PageRange> + use<'_, N> {
        self.list.iter().filter_map(|(start, end)| range(start, end))
    }

    pub(crate) fn add(&mut self, range: PageRange) -> Result<(), AllocError> {
        let (start, end) = pages(range);
        self.list.add(start, end).map_err(|_| AllocError)
    }

    pub(crate) fn remove(&mut self, range: PageRange) -> Result<(), AllocError> {
        let (start, end) = pages(range);
        if self.list.take(start, end) { Ok(()) } else { Err(AllocError) }
    }

    /// Takes the lowest range with a layout within the addresses `[low, high)`.
    pub(crate) fn take_lowest(
        &mut self,
        layout: PageLayout,
        low: usize,
        high: usize,
    ) -> Result<PageRange, AllocError> {
        let (len, align) = (layout.size() / PAGE_SIZE, layout.align() / PAGE_SIZE);
        let window = ((low / PAGE_SIZE) as u64, (high / PAGE_SIZE) as u64);
        let start = self.list.take_lowest(len as u64, align.trailing_zeros(), window.0, window.1);
        start.and_then(|start| range(start, start + len as u64)).ok_or(AllocError)
    }

    pub(crate) fn free_space(&self) -> usize {
        // All of the pages have addresses, so their sum fits.
        self.list.total() as usize * PAGE_SIZE
    }
}

/// Returns the numbers of the first page and of the page after the last.
fn pages(range: PageRange) -> (u64, u64) {
    ((range.start() / PAGE_SIZE) as u64, (range.end() / PAGE_SIZE) as u64)
}

/// Returns the range of pages with these numbers, which are those of a range that was added.
fn range(start: u64, end: u64) -> Option<PageRange> {
    PageRange::new(start as usize * PAGE_SIZE, end as usize * PAGE_SIZE).ok()
}

impl<const N: usize> fmt::Debug for PageList<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<const N: usize> fmt::Display for PageList<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, range) in self.iter().enumerate() {
            let line_end = if at == 0 { "" } else { "\n" };
            write!(f, "{line_end}{range:#}")?;
        }
        Ok(())
    }
}
