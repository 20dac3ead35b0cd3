//! `VMALLOC_CONF`: the options of the preload.
//!
//! ```text
//!   VMALLOC_CONF=threshold:256K,budget:512M,stats:true
//! ```
//! | key | value | default |
//! |---|---|---|
//! | `threshold` | the least size that this library serves; 4K at least | 128K |
//! | `budget` | the most cached memory; 0 caches none | 512M |
//! | `decay` | time after which unused cached memory is released, by the program's own calls: `500ms`, `2s`, `never` | `10s` |
//! | `background_thread` | `true`: a thread performs `decay`, so that an idle process caches nothing | `false` |
//! | `huge` | huge pages for areas: `never`, `auto` (from 64K on), `system` (by the settings of the system and the program), `always` | `system` |
//! | `hardened` | `true`: overflows and uses after free of large memory fault, with a line unless the program handles `SIGSEGV` itself | `false` |
//! | `zero_on_free` | `true`: freed large memory is zeroed at once, so that no caller gets the data of another thread | `false` |
//! | `calls` | `plain`: only the system calls of the C library's malloc, for programs under a filter that kills; `all` | `all` |
//! | `stats` | `true`: a line of statistics at the end | `false` |
//!
//! Sizes are bytes, or have a suffix K, M or G. Times are numbers of `ms` or `s`, an hour at most. An invalid key is
//! reported on standard error and ignored.

use core::fmt;
use core::time::Duration;
use vmalloc::HugePages;

/// The options of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Conf {
    /// The least size that this library serves.
    pub(crate) threshold_bytes: usize,
    /// The most cached memory.
    pub(crate) budget_bytes: usize,
    /// The time for which unused freed memory is cached.
    pub(crate) decay: Option<Duration>,
    /// A background thread performs the decay.
    pub(crate) background_thread: bool,
    /// The areas that use huge pages.
    pub(crate) huge_pages: HugePages,
    /// Makes only system calls that the C library's malloc makes.
    pub(crate) plain: bool,
    /// Prints a line of statistics at the end.
    pub(crate) statistics: bool,
    /// Zeros freed memory at once.
    pub(crate) zero_on_free: bool,
    /// Makes overflows and uses after free fault, at the cost of system calls for each area.
    pub(crate) hardened: bool,
}

/// The least threshold: areas are whole pages.
const THRESHOLD_MIN: usize = 4096;
/// The longest decay time.
const DECAY_MAX: Duration = Duration::from_secs(3600);

/// An invalid setting in the text, and the reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bad<'a> {
    part: &'a [u8],
    why: Why,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Why {
    NoColon,
    NoKey,
    NoSize,
    TooSmall,
    NoTruth,
    NoTime,
    NoHuge,
    NoCalls,
}

impl fmt::Display for Bad<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.why {
            Why::NoColon => "is not of the form key:value",
            Why::NoKey => {
                "has no known key: there are threshold, budget, decay, background_thread, huge, hardened, zero_on_free, calls and stats"
            }
            Why::NoSize => "has no size: a number of bytes, or one with K, M or G behind it",
            Why::TooSmall => "is too small: a threshold is 4K at least",
            Why::NoTime => "has no time: a number of ms or s, from 1ms to 3600s, or never",
            Why::NoHuge => "is none of never, system, auto and always",
            Why::NoCalls => "is neither all nor plain",
            Why::NoTruth => "is neither true nor false",
        };
        write!(f, "VMALLOC_CONF: \"{}\" {why}; the default stays", self.part.escape_ascii())
    }
}

impl Conf {
    /// The default options.
    ///
    /// Cached memory is used before new memory of the system, so a large budget does not raise the peak. It saves the
    /// faults of programs that free hundreds of megabytes and allocate them again at once.
    ///
    /// Memory that no caller needed for ten seconds is released. Faulting in the whole budget again takes about a tenth
    /// of a second. So a program that reuses it just after each release loses a hundredth of its time; with one second
    /// it would lose a tenth.
    ///
    /// No thread: an unmodified program does not expect one, and some calls (unshare) fail in programs with two
    /// threads.
    pub(crate) const DEFAULT: Self = Self {
        threshold_bytes: 128 << 10,
        budget_bytes: 512 << 20,
        decay: Some(Duration::from_secs(10)),
        background_thread: false,
        huge_pages: HugePages::System,
        plain: false,
        statistics: false,
        zero_on_free: false,
        hardened: false,
    };

    /// Parses the variable. Calls `complain` for each invalid setting.
    pub(crate) fn read<'a>(text: &'a [u8], mut complain: impl FnMut(Bad<'a>)) -> Self {
        let mut conf = Self::DEFAULT;
        for part in text.split(|&byte| byte == b',').filter(|part| !part.is_empty()) {
            if let Err(why) = conf.take(part) {
                complain(Bad { part, why });
            }
        }
        conf
    }

    fn take(&mut self, part: &[u8]) -> Result<(), Why> {
        let colon = part.iter().position(|&byte| byte == b':').ok_or(Why::NoColon)?;
        let (key, value) = (&part[..colon], &part[colon + 1..]);
        match key {
            b"threshold" => {
                let bytes = size(value).ok_or(Why::NoSize)?;
                if bytes < THRESHOLD_MIN {
                    return Err(Why::TooSmall);
                }
                self.threshold_bytes = bytes;
            }
            b"budget" => self.budget_bytes = size(value).ok_or(Why::NoSize)?,
            b"decay" => self.decay = time(value)?,
            b"background_thread" => self.background_thread = truth(value)?,
            b"huge" => self.huge_pages = huge(value)?,
            b"hardened" => self.hardened = truth(value)?,
            b"zero_on_free" => self.zero_on_free = truth(value)?,
            b"calls" => {
                self.plain = match value {
                    b"plain" => true,
                    b"all" => false,
                    _ => return Err(Why::NoCalls),
                };
            }
            b"stats" => self.statistics = truth(value)?,
            _ => return Err(Why::NoKey),
        }
        Ok(())
    }
}

fn truth(text: &[u8]) -> Result<bool, Why> {
    match text {
        b"true" => Ok(true),
        b"false" => Ok(false),
        _ => Err(Why::NoTruth),
    }
}

fn huge(text: &[u8]) -> Result<HugePages, Why> {
    match text {
        b"never" => Ok(HugePages::Never),
        b"auto" => Ok(HugePages::Auto),
        b"system" => Ok(HugePages::System),
        b"always" => Ok(HugePages::Always),
        _ => Err(Why::NoHuge),
    }
}

/// Parses a time, or `never`.
fn time(text: &[u8]) -> Result<Option<Duration>, Why> {
    if text == b"never" {
        return Ok(None);
    }
    let time = match (text.strip_suffix(b"ms"), text.strip_suffix(b"s")) {
        (Some(digits), _) => number(digits).map(|number| Duration::from_millis(number as u64)),
        (None, Some(digits)) => number(digits).map(|number| Duration::from_secs(number as u64)),
        (None, None) => None,
    };
    time.filter(|&time| time > Duration::ZERO && time <= DECAY_MAX).map(Some).ok_or(Why::NoTime)
}

/// Parses a number of digits only, without a sign.
fn number(digits: &[u8]) -> Option<usize> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    core::str::from_utf8(digits).ok()?.parse().ok()
}

/// Parses a number of bytes.
fn size(text: &[u8]) -> Option<usize> {
    let (digits, shift) = match text.split_last()? {
        (b'K' | b'k', digits) => (digits, 10),
        (b'M' | b'm', digits) => (digits, 20),
        (b'G' | b'g', digits) => (digits, 30),
        _ => (text, 0),
    };
    number(digits)?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Conf, Vec<String>) {
        let mut complaints = Vec::new();
        let conf = Conf::read(text.as_bytes(), |bad| complaints.push(bad.to_string()));
        (conf, complaints)
    }

    #[test]
    fn every_key_is_read_and_the_last_of_a_kind_holds() {
        let (conf, bad) = read(
            "threshold:256K,budget:1G,stats:true,hardened:true,threshold:65536,decay:500ms,background_thread:true,huge:never,calls:plain,zero_on_free:true",
        );
        let want = Conf {
            threshold_bytes: 65_536,
            budget_bytes: 1 << 30,
            decay: Some(Duration::from_millis(500)),
            background_thread: true,
            huge_pages: HugePages::Never,
            plain: true,
            statistics: true,
            zero_on_free: true,
            hardened: true,
        };
        assert_eq!(conf, want);
        assert_eq!(read("decay:3600s").0.decay, Some(DECAY_MAX));
        assert_eq!(read("decay:2s,decay:never").0.decay, None);
        assert_eq!(read("huge:always").0.huge_pages, HugePages::Always);
        assert_eq!(read("huge:never,huge:auto").0.huge_pages, HugePages::Auto);
        assert_eq!(read("huge:never,huge:system").0, Conf::DEFAULT);
        assert!(bad.is_empty(), "{bad:?}");
        assert_eq!(read(""), (Conf::DEFAULT, vec![]));
        assert_eq!(read("budget:0,,").0.budget_bytes, 0);
    }

    #[test]
    fn a_bad_part_is_one_line_and_the_default_and_the_others_hold() {
        for (part, why) in [
            ("threshold", "form key:value"),
            ("treshold:1M", "no known key"),
            ("threshold:", "no size"),
            ("threshold:K", "no size"),
            ("threshold:-1", "no size"),
            ("threshold:+1M", "no size"),
            ("threshold:1Q", "no size"),
            ("threshold:99999999999G", "no size"),
            ("threshold:99999999999999999999999", "no size"),
            ("threshold:4095", "too small"),
            ("decay:0s", "no time"),
            ("decay:3601s", "no time"),
            ("decay:5", "no time"),
            ("decay:ms", "no time"),
            ("decay:-1s", "no time"),
            ("decay:99999999999999999999s", "no time"),
            ("calls:few", "neither all nor plain"),
            ("huge:yes", "none of never"),
            ("huge:", "none of never"),
            ("background_thread:2s", "neither true nor false"),
            ("hardened:1", "neither true nor false"),
            ("zero_on_free:", "neither true nor false"),
            ("budget:lots", "no size"),
            ("stats:yes", "neither true nor false"),
            ("\u{fc}:\n1", "no known key"),
        ] {
            let (conf, bad) = read(&format!("budget:3M,{part}"));
            assert_eq!(conf, Conf { budget_bytes: 3 << 20, ..Conf::DEFAULT }, "{part}");
            assert_eq!(bad.len(), 1, "{part}");
            assert!(bad[0].contains(why) && !bad[0].contains('\n'), "{part}: {}", bad[0]);
        }
    }
}
