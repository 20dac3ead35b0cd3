//! The traces that come with the program (see `data/README.md`).

/// One trace of a real kernel.
pub struct Shipped {
    /// Its name.
    pub name: &'static str,
    /// Events, gzip.
    pub trace: &'static [u8],
    /// `/proc/vmallocinfo` at its end.
    pub vmallocinfo: &'static [u8],
}

macro_rules! shipped {
    ($name:literal) => {
        Shipped {
            name: $name,
            trace: include_bytes!(concat!("../../../data/", $name, ".ftrace.gz")),
            vmallocinfo: include_bytes!(concat!("../../../data/", $name, ".vmallocinfo")),
        }
    };
}

/// All of them.
pub const TRACES: [Shipped; 5] = [
    shipped!("boot-smp1"),
    shipped!("fork-netns-smp1"),
    shipped!("fork-netns-smp4"),
    shipped!("tc-flower-smp1"),
    shipped!("test_vmalloc-mask127-smp1"),
];
