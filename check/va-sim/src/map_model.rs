//! A reference model of areas with pages: a list of byte vectors.
//!
//! # Theory
//! The model does not choose addresses: it records the address of each area, and rejects impossible ones. Its state is
//! what callers may rely on: the bytes that exist, and their contents. Bytes that were neither written nor zeroed are
//! unknown. After each call the whole window is read through the map and compared, byte by byte.

use crate::pages::{Ladder, SimPages};
use std::collections::BTreeMap;
use va_base::{Machine, PAGE_SIZE, Pages, Va, VaRange};
use va_map::{AreaRequest, Fill, Kind, MapSpace, Piece};

/// An area, as the model has it.
#[derive(Clone, Debug)]
pub struct ModelArea {
    /// Its kind.
    pub kind: Kind,
    /// Bytes that were requested.
    pub requested: u64,
    /// The content of each byte of its pages, if it is known.
    pub bytes: Vec<Option<u8>>,
    /// Pages of a caller, in order; empty for pages of its own.
    pub frames: Vec<u64>,
}

/// All areas, by address.
#[derive(Clone, Debug, Default)]
pub struct MapModel {
    areas: BTreeMap<u64, ModelArea>,
}

fn whole(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE_SIZE) * PAGE_SIZE
}

fn known(fill: Fill) -> Option<u8> {
    match fill {
        Fill::Any => None,
        Fill::Zeros => Some(0),
    }
}

impl MapModel {
    /// Returns the areas of a kind, lowest first.
    #[must_use]
    pub fn starts(&self, kind: Kind) -> Vec<Va> {
        self.areas.iter().filter(|(_, area)| area.kind == kind).map(|(&at, _)| Va::new(at)).collect()
    }

    /// Returns the area that starts at an address.
    #[must_use]
    pub fn get(&self, at: Va) -> Option<&ModelArea> {
        self.areas.get(&at.get())
    }

    /// Adds an area with pages of its own.
    ///
    /// # Errors
    /// It cannot be there.
    pub fn vmalloc(&mut self, at: Va, request: &AreaRequest) -> Result<(), String> {
        let bytes = vec![known(request.fill); whole(request.bytes) as usize];
        if !at.is_aligned(request.align) {
            return Err(format!("{at} is not aligned to {:?}", request.align));
        }
        self.add(at, ModelArea { kind: Kind::Vmalloc, requested: request.bytes, bytes, frames: Vec::new() })
    }

    /// Adds a mapping of a caller's pages.
    ///
    /// # Errors
    /// It cannot be there.
    pub fn vmap(&mut self, at: Va, kind: Kind, frames: &[u64]) -> Result<(), String> {
        let requested = frames.len() as u64 * PAGE_SIZE;
        self.add(at, ModelArea { kind, requested, bytes: Vec::new(), frames: frames.to_vec() })
    }

    /// Resizes an area, which is at `to` now.
    ///
    /// # Errors
    /// It cannot be there.
    pub fn vrealloc(&mut self, at: Va, to: Va, bytes: u64, fill: Fill, usable: u64) -> Result<(), String> {
        let mut area = self.areas.remove(&at.get()).ok_or("no such area")?;
        let had = area.bytes.len() as u64;
        // Unneeded pages are freed, except the rest of a huge one.
        if usable < whole(bytes) || (usable > whole(bytes) && usable > had) {
            return Err(format!("{usable} bytes are usable for {bytes}, {had} were"));
        }
        area.bytes.resize(usable as usize, known(fill));
        if fill == Fill::Zeros {
            let from = area.requested.min(bytes) as usize..bytes as usize;
            area.bytes[from].fill(Some(0));
        }
        area.requested = bytes;
        self.add(to, area)
    }

    /// Removes an area.
    pub fn free(&mut self, at: Va) -> bool {
        self.areas.remove(&at.get()).is_some()
    }

    /// Records a written byte.
    pub fn write(&mut self, at: Va, offset: u64, byte: u8) {
        if let Some(area) = self.areas.get_mut(&at.get()) {
            area.bytes[offset as usize] = Some(byte);
        }
    }

    fn add(&mut self, at: Va, area: ModelArea) -> Result<(), String> {
        let pages = area.bytes.len().max(area.frames.len() * PAGE_SIZE as usize) as u64;
        let range = VaRange::from_size(at, pages).ok_or("past the address space")?;
        let below = self.areas.range(..range.end().get()).next_back();
        if let Some((&other, before)) = below {
            let size = before.bytes.len().max(before.frames.len() * PAGE_SIZE as usize) as u64;
            // At least one page after an area with a guard page is unused.
            let guard = if matches!(before.kind, Kind::Vmalloc | Kind::Vmap) { PAGE_SIZE } else { 0 };
            if other + size + guard > at.get() {
                return Err(format!("{range} begins in the area at {other:#x}, or on its guard page"));
            }
        }
        self.areas.insert(at.get(), area);
        Ok(())
    }

    /// Reads the whole window through the map and compares.
    ///
    /// # Errors
    /// The first difference.
    pub fn compare<P, C, L: Ladder>(
        &self,
        map: &MapSpace<P, &SimPages<'_, L>, C>,
        pages: &SimPages<'_, L>,
    ) -> Result<(), String>
    where
        P: Machine + Clone,
        C: va_block::Config,
    {
        map.validate().map_err(|broken| broken.to_string())?;
        if let Some(fault) = pages.faults().first() {
            return Err(fault.clone());
        }
        let window = map.extent();
        let mut at = window.start().get();
        let mut seen: BTreeMap<u64, (u64, Vec<u8>)> = BTreeMap::new();
        let mapped = map.read(window, |piece| match piece {
            Piece::Hole { bytes } => at += bytes,
            Piece::Page { frame, bytes, .. } => {
                seen.insert(at, (frame, pages.bytes(frame)));
                at += bytes;
            }
        });
        if at != window.end().get() {
            return Err(format!("the pieces end at {at:#x}, not {}", window.end()));
        }
        let mut own = 0;
        for (&start, area) in &self.areas {
            for (place, bytes) in area.bytes.chunks(PAGE_SIZE as usize).enumerate() {
                let page = start + place as u64 * PAGE_SIZE;
                let Some((_, found)) = seen.remove(&page) else {
                    return Err(format!("nothing at {page:#x}"));
                };
                own += 1;
                let differs =
                    bytes.iter().zip(&found).position(|(want, got)| want.is_some_and(|want| want != *got));
                if let Some(offset) = differs {
                    return Err(format!(
                        "{:?} and not {:?} at {page:#x} + {offset}",
                        found[offset], bytes[offset]
                    ));
                }
            }
            for (place, want) in area.frames.iter().enumerate() {
                let page = start + place as u64 * PAGE_SIZE;
                let found = seen.remove(&page).map(|(frame, _)| frame);
                if found != Some(*want) {
                    return Err(format!("page {found:?} and not {want} at {page:#x}"));
                }
            }
        }
        if let Some((page, _)) = seen.first_key_value() {
            return Err(format!("something at {page:#x}, where nothing is"));
        }
        let frames: u64 = self.areas.values().map(|area| area.frames.len() as u64).sum();
        let stats = map.stats();
        let counted = (stats.allocated_pages, stats.foreign_pages, pages.allocated(), mapped);
        let want = (Pages::new(own), Pages::new(frames), own, (own + frames) * PAGE_SIZE);
        if counted != want {
            return Err(format!("counts {counted:?} and not {want:?}"));
        }
        Ok(())
    }
}
