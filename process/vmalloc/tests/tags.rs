//! The callers of allocations, in the format of `/proc/vmallocinfo`.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::alloc::Layout;
use vmalloc::{Options, Vmalloc};

fn layout(pages: usize) -> Layout {
    Layout::from_size_align(pages * 4096, 4096).unwrap()
}

/// Returns the line of an area of that many pages.
fn line(memory: &Vmalloc, pages: usize) -> String {
    let text = memory.vmallocinfo().to_string();
    let end = format!(" pages={pages} vmalloc");
    let mut found = text.lines().filter(|line| line.ends_with(&end)).map(str::to_owned);
    let line = found.next().unwrap_or_else(|| panic!("no area of {pages} pages in\n{text}"));
    assert_eq!(found.next(), None);
    line
}

#[test]
fn tg1_each_area_has_the_tag_of_its_last_caller() {
    let memory = Vmalloc::new(Options::default().caller_tags(true)).unwrap();
    let placed = (memory.alloc(layout(3)).unwrap(), line!());
    let tagged = memory.alloc_tagged(layout(5), "frame buffers").unwrap();
    let buffer = (memory.buffer(7 * 4096).unwrap(), line!());
    let whole = format!(
        "{:#018x}-{:#018x} {:>7} {}:{}:",
        placed.0.addr(),
        placed.0.addr().get() + 3 * 4096,
        3 * 4096,
        file!(),
        placed.1
    );
    assert!(line(&memory, 3).starts_with(&whole), "{} is not\n{whole}", line(&memory, 3));
    assert!(line(&memory, 5).contains("   20480 frame buffers pages="), "{}", line(&memory, 5));
    assert!(line(&memory, 7).contains(&format!(" {}:{}:", file!(), buffer.1)), "{}", line(&memory, 7));
    // A resize records its caller.
    // SAFETY: our own.
    let (grown, by) = (unsafe { memory.grow(tagged, layout(11)) }.unwrap(), line!());
    assert!(line(&memory, 11).contains(&format!(" {}:{by}:", file!())), "{}", line(&memory, 11));
    // A free removes the caller, and the next allocation records a new one.
    // SAFETY: our own, and no reference to it exists.
    unsafe { memory.free(grown) }.unwrap();
    let again = memory.alloc_tagged(layout(11), "again").unwrap();
    assert!(line(&memory, 11).contains(" again pages=11 "));
    // More texts than can be distinguished.
    for number in 0..300 {
        let text: &'static str = Box::leak(format!("text {number}").into_boxed_str());
        let area = memory.alloc_tagged(layout(13), text).unwrap();
        let listed = line(&memory, 13);
        let want = if number < 254 { text } else { "other" };
        assert!(listed.contains(&format!(" {want} pages=13 ")), "{listed}, text {number}");
        // SAFETY: our own, and no reference to it exists.
        unsafe { memory.free(area) }.unwrap();
    }
    for area in [placed.0, again] {
        // SAFETY: our own, and no reference to it exists.
        unsafe { memory.free(area) }.unwrap();
    }
    drop(buffer);
    assert!(!memory.vmallocinfo().to_string().contains(file!()));
    // A double free is still detected.
    // SAFETY: no reference to it exists.
    assert!(unsafe { memory.free(again) }.is_err());
}

#[test]
fn without_the_option_nothing_is_recorded() {
    let memory = Vmalloc::new(Options::default()).unwrap();
    let area = memory.alloc_tagged(layout(5), "unrecorded").unwrap();
    let listed = line(&memory, 5);
    assert!(listed.ends_with("   20480 pages=5 vmalloc") && !listed.contains("unrecorded"), "{listed}");
    // SAFETY: our own, and no reference to it exists.
    unsafe { memory.free(area) }.unwrap();
}
