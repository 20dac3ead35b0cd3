//! A line of addresses with its long gaps folded.
//!
//! # Theory
//! A kernel's space has 32 TiB or more, of which some MiB are used, in a few ranges. Drawn to scale nothing is visible;
//! drawn area by area the distances are lost. So the line is cut at long gaps. What remains, the parts, is drawn to
//! scale, with a mark at each cut:
//!
//! ```text
//!   given   |AA.BBB..............................................CC.C...........................D|
//!   folded  |AA.BBB|  //  |CC.C|  //  |D|        parts to one scale, folds of a fixed width
//! ```
//!
//! A gap is folded if it would take more than a sixteenth of the width that is drawn with it. The longest are folded
//! first, until there are as many parts as the rule allows. The other gaps are drawn to scale: they are visible holes.
//!
//! # Invariants
//! - **FD1 covered** every byte of the input is in exactly one part.
//! - **FD2 apart** parts are not empty, ascend, and do not touch: between two of them is a fold, which has no byte of
//!   the input.
//! - **FD3 linear** on a [`Line`], equally many bytes of any parts have equal width.

/// Addresses `[start, end)`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Part {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
}

impl Part {
    /// Returns its bytes.
    pub fn bytes(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Returns its intersection with `other`; `None` if it is empty.
    pub fn cut(self, other: Self) -> Option<Self> {
        let cut = Self { start: self.start.max(other.start), end: self.end.min(other.end) };
        (cut.start < cut.end).then_some(cut)
    }
}

/// The limits of folding.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The most parts; any input has at least one.
    pub parts_max: usize,
    /// A gap is folded if it has more than one in `share` of the bytes that are drawn with it.
    pub share: u64,
    /// Gaps of fewer bytes are never folded.
    pub bytes_min: u64,
}

impl Default for Rule {
    fn default() -> Self {
        Self { parts_max: 16, share: 16, bytes_min: 1 << 20 }
    }
}

/// A folded line of addresses.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Fold {
    parts: Vec<Part>,
}

impl Fold {
    /// Folds the line of the ranges `given`, in any order. Ranges may touch or overlap; empty ones are ignored.
    ///
    /// Costs O(n log n) for n ranges.
    pub fn of(given: impl IntoIterator<Item = Part>, rule: Rule) -> Self {
        let mut given: Vec<Part> = given.into_iter().filter(|part| part.bytes() > 0).collect();
        given.sort_unstable();
        let mut runs: Vec<Part> = Vec::new();
        for part in given {
            match runs.last_mut() {
                Some(last) if part.start <= last.end => last.end = last.end.max(part.end),
                _ => runs.push(part),
            }
        }
        let mut gaps: Vec<(u64, usize)> =
            runs.windows(2).enumerate().map(|(at, pair)| (pair[1].start - pair[0].end, at)).collect();
        gaps.sort_unstable_by_key(|&(bytes, at)| (std::cmp::Reverse(bytes), at));
        let mut drawn = match (runs.first(), runs.last()) {
            (Some(first), Some(last)) => last.end - first.start,
            _ => return Self::default(),
        };
        let mut folds = Vec::new();
        for (bytes, at) in gaps.into_iter().take(rule.parts_max.saturating_sub(1)) {
            if bytes < rule.bytes_min.max(1) || bytes <= drawn / rule.share.max(1) {
                break;
            }
            drawn -= bytes;
            folds.push(at);
        }
        folds.sort_unstable();
        let mut parts = Vec::with_capacity(folds.len() + 1);
        let mut first = 0;
        for last in folds.into_iter().chain([runs.len() - 1]) {
            parts.push(Part { start: runs[first].start, end: runs[last].end });
            first = last + 1;
        }
        let fold = Self { parts };
        let inside = |run: &Part| fold.part_of(run.start).is_some_and(|at| run.end <= fold.parts[at].end);
        debug_assert!(runs.iter().all(inside), "FD1");
        fold
    }

    /// Creates a fold from the parts of an earlier one; `None` unless they ascend, are apart and not empty (FD2).
    pub fn of_parts(parts: Vec<Part>) -> Option<Self> {
        let apart = parts.windows(2).all(|pair| pair[0].end < pair[1].start);
        // Checks FD2.
        (apart && parts.iter().all(|part| part.bytes() > 0)).then_some(Self { parts })
    }

    /// Returns the drawn parts in ascending order.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Iterates over the folded ranges between the parts in ascending order: one fewer than parts.
    pub fn folds(&self) -> impl Iterator<Item = Part> + '_ {
        self.parts.windows(2).map(|pair| Part { start: pair[0].end, end: pair[1].start })
    }

    /// Returns the bytes that are drawn.
    pub fn drawn_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes()).sum()
    }

    /// Returns the number of the part that contains an address.
    pub fn part_of(&self, address: u64) -> Option<usize> {
        let number = self.parts.partition_point(|part| part.end <= address);
        (self.parts.get(number)?.start <= address).then_some(number)
    }

    /// Places the parts side by side on `width` units, with folds of `fold` units between them. Folds become narrower
    /// if they would take more than a third of the width.
    pub fn line(&self, width: f64, fold: f64) -> Line<'_> {
        let folds = self.parts.len().saturating_sub(1) as f64;
        let fold = if folds * fold > width / 3.0 { width / 3.0 / folds } else { fold };
        let scale = (width - folds * fold) / self.drawn_bytes().max(1) as f64;
        let mut from = 0.0;
        let starts = self.parts.iter().map(|part| {
            let start = from;
            from += part.bytes() as f64 * scale + fold;
            start
        });
        let starts: Vec<f64> = starts.collect();
        // Parts and folds fill the width, to one scale.
        let filled = self.drawn_bytes() as f64 * scale + folds * fold;
        debug_assert!(starts.is_empty() || (filled - width).abs() <= width.abs() * 1e-9, "FD3");
        Line { starts, fold: self, scale, fold_width: fold }
    }
}

/// A fold on a line of some width, to one scale.
#[derive(Clone, Debug)]
pub struct Line<'a> {
    fold: &'a Fold,
    /// Start of each part.
    starts: Vec<f64>,
    /// Units for each byte.
    scale: f64,
    /// Units for each fold.
    fold_width: f64,
}

impl Line<'_> {
    /// Returns the position of an address, in units from the line's start; `None` if it is folded. A part does not
    /// include its end.
    pub fn at(&self, address: u64) -> Option<f64> {
        let number = self.fold.part_of(address)?;
        Some(self.starts[number] + (address - self.fold.parts[number].start) as f64 * self.scale)
    }

    /// Iterates over the positions of a range: start and width, once for each part that it intersects.
    pub fn spans(&self, range: Part) -> impl Iterator<Item = (f64, f64)> + '_ {
        let first = self.fold.parts.partition_point(|part| part.end <= range.start);
        let parts = self.fold.parts[first..].iter().zip(&self.starts[first..]);
        parts.take_while(move |(part, _)| part.start < range.end).filter_map(move |(part, &start)| {
            let cut = part.cut(range)?;
            Some((start + (cut.start - part.start) as f64 * self.scale, cut.bytes() as f64 * self.scale))
        })
    }

    /// Iterates over the positions of the folds: start and width of each mark, and the folded range.
    pub fn folds(&self) -> impl Iterator<Item = (f64, f64, Part)> + '_ {
        let begins = self.starts.iter().skip(1).map(|start| start - self.fold_width);
        begins.zip(self.fold.folds()).map(|(begin, fold)| (begin, self.fold_width, fold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use va_sim::op::Rng;

    fn part(start: u64, end: u64) -> Part {
        Part { start, end }
    }

    /// Returns ranges at all scales, some of which overlap.
    fn some(rng: &mut Rng) -> Vec<Part> {
        let count = rng.below(40) + 1;
        (0..count)
            .map(|_| {
                let start = rng.next_u64() >> rng.below(60);
                part(start, start.saturating_add(rng.next_u64() >> (20 + rng.below(43))))
            })
            .collect()
    }

    #[test]
    fn fd1_every_byte_given_is_in_one_part_and_fd2_parts_are_apart() {
        let mut rng = Rng::new(7);
        let mut folded = 0;
        for round in 0..2000 {
            let given = some(&mut rng);
            let rule =
                Rule { parts_max: 1 + round % 9, share: 1 + rng.below(20), bytes_min: rng.below(1 << 30) };
            let fold = Fold::of(given.iter().copied(), rule);
            assert!(fold.parts().len() <= rule.parts_max);
            assert_eq!(Fold::of_parts(fold.parts().to_vec()).as_ref(), Some(&fold), "FD2");
            for range in given.iter().filter(|range| range.bytes() > 0) {
                let inside = fold.parts().iter().filter(|part| part.cut(*range).is_some());
                let whole = fold.parts().iter().filter(|part| part.cut(*range) == Some(*range));
                assert_eq!((inside.count(), whole.count()), (1, 1), "FD1: {range:?} in {fold:?}");
            }
            for gap in fold.folds() {
                assert!(gap.bytes() >= rule.bytes_min.max(1), "{gap:?}");
                folded += 1;
            }
            // Each end of a part is the end of some range.
            for part in fold.parts() {
                assert!(given.iter().any(|range| range.start == part.start));
                assert!(given.iter().any(|range| range.end == part.end));
            }
        }
        assert!(folded > 1000, "{folded}");
    }

    #[test]
    fn fd2_parts_that_touch_or_are_empty_are_no_fold() {
        assert!(Fold::of_parts(vec![part(1, 2), part(3, 4)]).is_some());
        assert_eq!(Fold::of_parts(vec![part(1, 3), part(3, 4)]), None);
        assert_eq!(Fold::of_parts(vec![part(5, 6), part(3, 4)]), None);
        assert_eq!(Fold::of_parts(vec![part(3, 3)]), None);
        assert_eq!(Fold::of([], Rule::default()), Fold::default());
    }

    #[test]
    fn a_gap_is_folded_if_it_is_long_beside_what_is_drawn() {
        let mib = |start: u64, end: u64| part(start << 20, end << 20);
        // The gap of 60 TiB is folded first. Of the remaining 23 MiB, the gap of 10 is too long. The gap of 1 MiB is
        // below the minimum.
        let given = [mib(0, 5), mib(6, 8), mib(18, 21), mib(21, 22), mib(60 << 20, (60 << 20) + 1)];
        let rule = Rule { bytes_min: 2 << 20, ..Rule::default() };
        let fold = Fold::of(given, rule);
        assert_eq!(fold.parts(), [mib(0, 8), mib(18, 22), mib(60 << 20, (60 << 20) + 1)]);
        assert_eq!(fold.folds().map(Part::bytes).collect::<Vec<_>>(), [10 << 20, ((60 << 20) - 22) << 20]);
        assert_eq!(fold.drawn_bytes(), 13 << 20);
        let one = Fold::of(given, Rule { parts_max: 1, ..Rule::default() });
        assert_eq!(one.parts(), [mib(0, (60 << 20) + 1)]);
        assert_eq!([0, 8 << 20, 18 << 20].map(|at| fold.part_of(at)), [Some(0), None, Some(1)]);
    }

    #[test]
    fn fd3_equal_bytes_take_equal_width_on_a_line_and_folds_have_room() {
        let fold = Fold::of_parts(vec![part(100, 200), part(1000, 1300), part(9000, 9100)]).unwrap();
        let line = fold.line(540.0, 20.0);
        for (range, want) in [
            (part(100, 150), vec![(0.0, 50.0)]),
            (part(150, 1100), vec![(50.0, 50.0), (120.0, 100.0)]),
            (part(0, 10_000), vec![(0.0, 100.0), (120.0, 300.0), (440.0, 100.0)]),
            (part(200, 1000), vec![]),
            (part(9050, 9051), vec![(490.0, 1.0)]),
        ] {
            assert_eq!(line.spans(range).collect::<Vec<_>>(), want, "FD3: {range:?}");
        }
        assert_eq!([100, 199, 200, 1299].map(|at| line.at(at)), [Some(0.0), Some(99.0), None, Some(419.0)]);
        let folds: Vec<_> = line.folds().collect();
        assert_eq!(folds, [(100.0, 20.0, part(200, 1000)), (420.0, 20.0, part(1300, 9000))]);
        // Wide folds use at most a third of the width.
        let narrow = fold.line(300.0, 500.0);
        assert_eq!(narrow.spans(part(0, 10_000)).map(|span| span.1).sum::<f64>(), 200.0);
    }
}
