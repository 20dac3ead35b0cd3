//! The parameters of the suite: the kernel module's names and defaults, and the arguments that its script accepts.
//!
//! # Source
//! Linux `lib/test_vmalloc.c` and `tools/testing/selftests/mm/test_vmalloc.sh` (6.12, 7.1).

use super::case::{Case, Suite};
use std::fmt;

/// The parameters of the suite. Counts are at least 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    /// The version of the suite.
    pub suite: Suite,
    /// Workers, at most 65,535.
    pub nr_threads: u32,
    /// True if tests run in the order of their bits; otherwise each worker shuffles them.
    pub sequential_test_order: bool,
    /// Number of executions of each test.
    pub test_repeat_count: u32,
    /// Loops of one execution.
    pub test_loop_count: u32,
    /// Pages of `fix_size_alloc_test`, `vm_map_ram_test` and `no_block_alloc_test`.
    pub nr_pages: u32,
    /// True if `fix_size_alloc_test` requests huge pages.
    pub use_huge: bool,
    /// The tests, by their bits.
    pub run_test_mask: u32,
    /// Objects of `pcpu_alloc_test`.
    pub nr_pcpu_objects: u32,
}

/// The most workers: a C `unsigned short`.
const NR_THREADS_MAX: u32 = 65_535;
/// The most pages, 4 GiB, and the most per-CPU objects. A kernel fails such a request for lack of memory; a process
/// must survive it.
const NR_PAGES_MAX: u32 = 1 << 20;
const NR_PCPU_OBJECTS_MAX: u32 = 1_000_000;

/// Names of parameters, in the order of the module; the last one was added after 6.12.
const KEYS: [&str; 8] = [
    "nr_threads",
    "sequential_test_order",
    "test_repeat_count",
    "test_loop_count",
    "nr_pages",
    "use_huge",
    "run_test_mask",
    "nr_pcpu_objects",
];

/// An error in an argument.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ParamError {
    /// It is neither a mode nor `key=value`.
    NoPair {
        /// The whole argument.
        argument: String,
    },
    /// The suite has no such parameter.
    NoKey {
        /// The text before the `=`.
        key: String,
        /// The suite.
        suite: Suite,
    },
    /// The value is not a whole number above 0.
    BadValue {
        /// The parameter.
        key: &'static str,
        /// The text after the `=`.
        value: String,
    },
    /// It is a switch, and the value is not 1.
    NoSwitch {
        /// The parameter.
        key: &'static str,
        /// The text after the `=`.
        value: String,
    },
    /// The value is larger than it may be.
    TooLarge {
        /// The parameter.
        key: &'static str,
        /// The number after the `=`.
        value: u64,
        /// The limit.
        max: u32,
    },
    /// A mode allows no other arguments.
    ModeNotAlone {
        /// The mode.
        mode: String,
    },
    /// No test has such a bit.
    NoTest {
        /// The mask.
        mask: u32,
        /// The suite.
        suite: Suite,
    },
}

impl fmt::Display for ParamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPair { argument } => {
                write!(f, "{argument:?} is neither performance, stress, smoke nor key=value")
            }
            Self::NoKey { key, suite } => {
                write!(f, "key is not correct: {key} (there are {})", keys(*suite).join(", "))
            }
            Self::BadValue { key, value } => {
                write!(f, "value is not correct: {key}={value} (a whole number from 1 to {})", i32::MAX)
            }
            Self::NoSwitch { key, value } => {
                write!(f, "value is not correct: {key}={value} (1 turns it on; without it, it is off)")
            }
            Self::TooLarge { key, value, max } => {
                write!(f, "value is not correct: {key}={value} (at most {max})")
            }
            Self::ModeNotAlone { mode } => write!(f, "{mode} takes no other arguments"),
            Self::NoTest { mask, suite } => {
                let all: u32 = suite.cases().iter().map(|case| case.bit()).sum();
                write!(
                    f,
                    "run_test_mask={mask} selects none of the tests of {} (all are {all})",
                    suite.name()
                )
            }
        }
    }
}

impl std::error::Error for ParamError {}

fn keys(suite: Suite) -> &'static [&'static str] {
    match suite {
        Suite::V7_1 => &KEYS,
        Suite::V6_12 => &KEYS[..7],
    }
}

impl Params {
    /// Returns the module's defaults.
    pub fn new(suite: Suite) -> Self {
        Self {
            suite,
            nr_threads: 1,
            sequential_test_order: false,
            test_repeat_count: 1,
            test_loop_count: 1_000_000,
            nr_pages: 1,
            use_huge: false,
            run_test_mask: suite.mask(),
            nr_pcpu_objects: 35_000,
        }
    }

    /// Parses arguments in the form of the script: a mode, or any number of `key=value`. The last value of a key
    /// counts. `cpus` is the number of workers of `stress`.
    ///
    /// # Errors
    /// [`ParamError`].
    pub fn parse(suite: Suite, cpus: u32, arguments: &[String]) -> Result<Self, ParamError> {
        let mut params = Self::new(suite);
        if let Some(mode) = arguments.iter().find(|argument| params.set_mode(argument, cpus)) {
            return match arguments.len() {
                1 => Ok(params),
                _ => Err(ParamError::ModeNotAlone { mode: mode.clone() }),
            };
        }
        for argument in arguments {
            let Some((key, value)) = argument.split_once('=') else {
                return Err(ParamError::NoPair { argument: argument.clone() });
            };
            let Some(&key) = keys(suite).iter().find(|&&known| known == key) else {
                return Err(ParamError::NoKey { key: key.to_string(), suite });
            };
            params.set(key, value)?;
        }
        if params.cases().next().is_none() {
            return Err(ParamError::NoTest { mask: params.run_test_mask, suite });
        }
        Ok(params)
    }

    /// Sets the parameters of a mode; returns false if `mode` is none.
    fn set_mode(&mut self, mode: &str, cpus: u32) -> bool {
        match mode {
            "performance" => (self.sequential_test_order, self.test_repeat_count) = (true, 3),
            "stress" => (self.nr_threads, self.test_repeat_count) = (cpus.clamp(1, NR_THREADS_MAX), 20),
            "smoke" => (self.test_loop_count, self.test_repeat_count) = (10_000, 10),
            _ => return false,
        }
        true
    }

    fn set(&mut self, key: &'static str, value: &str) -> Result<(), ParamError> {
        let number = number(value).filter(|&number| number > 0 && number <= i32::MAX as u64);
        let bad = || ParamError::BadValue { key, value: value.to_string() };
        let number = number.ok_or_else(bad)?;
        let small = number as u32;
        let switch = || match small {
            1 => Ok(true),
            _ => Err(ParamError::NoSwitch { key, value: value.to_string() }),
        };
        let up_to = |max: u32| match small {
            _ if small <= max => Ok(small),
            _ => Err(ParamError::TooLarge { key, value: number, max }),
        };
        match key {
            // The module also clamps it.
            "nr_threads" => self.nr_threads = small.min(NR_THREADS_MAX),
            "sequential_test_order" => self.sequential_test_order = switch()?,
            "test_repeat_count" => self.test_repeat_count = small,
            "test_loop_count" => self.test_loop_count = small,
            "nr_pages" => self.nr_pages = up_to(NR_PAGES_MAX)?,
            "use_huge" => self.use_huge = switch()?,
            "run_test_mask" => self.run_test_mask = small,
            _ => self.nr_pcpu_objects = up_to(NR_PCPU_OBJECTS_MAX)?,
        }
        Ok(())
    }

    /// Returns the selected tests, in the order of their bits.
    pub fn cases(&self) -> impl Iterator<Item = Case> + use<> {
        let mask = self.run_test_mask;
        self.suite.cases().iter().copied().filter(move |case| mask & case.bit() != 0)
    }
}

/// Parses a number as the kernel does: decimal, hexadecimal after `0x`, octal after `0`.
fn number(text: &str) -> Option<u64> {
    let digits = |text: &str, radix| {
        let all_digits = text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        all_digits.then(|| u64::from_str_radix(text, radix).ok())?
    };
    match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(hex) => digits(hex, 16),
        None if text.len() > 1 && text.starts_with('0') => digits(&text[1..], 8),
        None => digits(text, 10),
    }
}

/// Prints the differences from the defaults of the module, as `key=value`.
impl fmt::Display for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = Self::new(self.suite);
        let pairs = |of: &Self| {
            [
                of.nr_threads,
                of.sequential_test_order.into(),
                of.test_repeat_count,
                of.test_loop_count,
                of.nr_pages,
                of.use_huge.into(),
                of.run_test_mask,
                of.nr_pcpu_objects,
            ]
        };
        let mut gap = "";
        for ((key, value), usual) in KEYS.iter().zip(pairs(self)).zip(pairs(&usual)) {
            if value != usual {
                write!(f, "{gap}{key}={value}")?;
                gap = " ";
            }
        }
        if gap.is_empty() { f.write_str("none") } else { Ok(()) }
    }
}
