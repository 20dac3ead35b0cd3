//! The policies that a replay can have, and the releases of Linux that they stand for.

use va_space::config::{Config, Linux69};
use va_space::decay::Quarter;
use va_tree::RbIndex;
use va_tree::rb::Linux;
use vmlab_base::choice::Choice;

/// The policies that a space can have, by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// Linux 6.9 to 6.15, or since 6.16 where the trace is of such a kernel: nodes and pools
    Linux,
    /// This project's: exact lowest fit, pools of all sizes
    Default,
    /// Linux 5.2 to 6.8: one lock, no pools
    OneLock,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Linux, Self::OneLock, Self::Default];

    /// The name on the command line and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Linux => "linux",
            Self::Default => "default",
            Self::OneLock => "one-lock",
        }
    }
}

impl Choice for Policy {
    const CHOICES: &'static [Self] = &[Self::Linux, Self::Default, Self::OneLock];

    fn choice(self) -> &'static str {
        self.name()
    }

    fn about(self) -> &'static str {
        match self {
            Self::Linux => {
                "Linux 6.9 to 6.15, or since 6.16 where the trace is of such a kernel: nodes and pools"
            }
            Self::Default => "This project's: exact lowest fit, pools of all sizes",
            Self::OneLock => "Linux 5.2 to 6.8: one lock, no pools",
        }
    }
}

/// Linux since 6.16: as 6.9, but a drain does not shrink pools of one to three areas.
#[derive(Clone, Copy, Debug)]
pub struct Linux616;

impl Config for Linux616 {
    type Base = Linux69;
    type Index<P: va_base::Platform + Clone + Send> = RbIndex<Linux, P>;
    type Zone = va_space::node::RoundRobinZones;
    type Decay = Quarter;
    type Lookup<P: va_base::Machine> = <Linux69 as Config>::Lookup<P>;
}

/// Returns true if a release is 6.16 or later, and false for an empty text; `None` if it is no release.
pub fn since_616(release: &str) -> Option<bool> {
    let mut numbers = release.split(['.', '-']).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor) >= (6, 16)),
        _ => release.is_empty().then_some(false),
    }
}
