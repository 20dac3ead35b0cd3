//! An area that is freed when its handle is dropped.

use super::{Release, VmapSpace};
use crate::area::Area;
use crate::config::{Config, Standard};
use crate::error::SpaceError;
use va_base::{Context, Machine, Request, VaRange};

/// A busy area that is freed when this handle is dropped, whatever size it has by then ([`Release::Resized`]).
///
/// For example, an area of 4 pages that [`grow_at`](VmapSpace::grow_at) made 5 is freed with all 5. Of one that was
/// split the lower part is freed. A drop changes nothing if the area was freed by its address before, or joined to the
/// one below it. Do not drop it while another call resizes or notes the area: that call has the area then, and the drop
/// cannot wait for it. The area stays busy, to be freed by its start. A drop frees in the caller's context, which must be
/// one that may call `free`.
///
/// ```
/// # use va_base::{HeapMachine, Request, VaRange};
/// # use va_space::{VmapSpace, config::Standard};
/// # let (window, machine) = (VaRange::from_pages(16, 64).unwrap(), HeapMachine::<parking_lot::RawMutex>::new(1));
/// let space = VmapSpace::<_, Standard>::new(window, window, &machine)?;
/// let first = space.alloc_owned(0, &Request::pages(3)?)?;
/// let start = first.range().start();
/// assert!(space.find(start).is_some());
/// drop(first);
/// assert!(space.find(start).is_none());
/// // A handle that is not dropped: the caller frees it.
/// let area = space.alloc_owned(0, &Request::pages(3)?)?.into_area();
/// space.free(area)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "an area is freed when its handle is dropped"]
pub struct OwnedArea<'s, P: Machine + Clone, C: Config = Standard> {
    space: &'s VmapSpace<P, C>,
    area: Area,
    /// False once [`into_area`](Self::into_area) returned the area.
    frees: bool,
}

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    /// Allocates an area that is freed when the returned handle is dropped.
    ///
    /// # Errors
    /// Those of [`alloc`](Self::alloc), and so are locks and cost.
    pub fn alloc_owned(&self, cpu: u32, request: &Request) -> Result<OwnedArea<'_, P, C>, SpaceError> {
        let area = self.alloc(cpu, request)?;
        Ok(OwnedArea { space: self, area, frees: true })
    }
}

impl<P: Machine + Clone, C: Config> OwnedArea<'_, P, C> {
    /// Returns the range of addresses that was allocated.
    #[must_use]
    pub fn range(&self) -> VaRange {
        self.area.range()
    }

    /// Returns the plain handle, which its holder frees.
    pub fn into_area(mut self) -> Area {
        self.frees = false;
        self.handle()
    }

    fn handle(&self) -> Area {
        let Area { page, pages, generation } = self.area;
        Area { page, pages, generation }
    }
}

impl<P: Machine + Clone, C: Config> Drop for OwnedArea<'_, P, C> {
    fn drop(&mut self) {
        if self.frees {
            // An error says that it was freed by its address, is a part of another area, or is being changed.
            let _freed_before = self.space.free_as(Release::Resized(self.handle()), Context::Sleeping);
        }
    }
}
