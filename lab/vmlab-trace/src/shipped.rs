//! The traces that are built into the program (see `data/README.md`).

/// One trace of a real kernel.
#[derive(Debug)]
pub struct Shipped {
    /// Its name.
    pub name: &'static str,
    /// Description of the recording.
    pub about: &'static str,
    /// Events, gzip.
    pub trace: &'static [u8],
    /// `/proc/vmallocinfo` at its end.
    pub vmallocinfo: &'static [u8],
}

macro_rules! shipped {
    ($name:literal, $about:literal) => {
        Shipped {
            name: $name,
            about: $about,
            trace: include_bytes!(concat!("../data/", $name, ".ftrace.gz")),
            vmallocinfo: include_bytes!(concat!("../data/", $name, ".vmallocinfo")),
        }
    };
}

/// All of them.
pub const TRACES: [Shipped; 5] = [
    shipped!("boot-smp1", "Linux 6.12 booting on one CPU, then ten processes."),
    shipped!(
        "fork-netns-smp1",
        "One CPU: modules are loaded, 400 processes forked, network namespaces and 30 pairs of virtual links made."
    ),
    shipped!(
        "fork-netns-smp4",
        "The same on four CPUs, where the kernel also keeps freed areas in pools and purges on another CPU. Events show \
         neither, so that no index can be held to every address here: thread stacks (20 KiB, aligned to 16 KiB) come \
         from elsewhere than a search."
    ),
    shipped!(
        "tc-flower-smp1",
        "One CPU: modules are loaded, then 15,000 traffic filters added, each with an action, and all deleted. Nearly all \
         of its events are of the percpu allocator, inside chunks."
    ),
    shipped!(
        "test_vmalloc-mask127-smp1",
        "One CPU: the kernel's own vmalloc test module, seven of its tests, 300 loops each, run twice. Some of them ask for \
         alignments above a page, where Linux's search is not always the lowest fit."
    ),
];
