//! The policies that a space can have, and the releases of Linux that they stand for.

use va_space::config::{Config, Linux69};
use va_space::decay::Quarter;
use va_tree::RbIndex;
use va_tree::rb::Linux;
use vmlab_base::choice::Choice;
use vmlab_trace::Trace;

/// A policy of a space, by the name of its type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// Linux 6.9 to 6.15: nodes and pools
    Linux69,
    /// Linux since 6.16: small pools do not decay
    Linux616,
    /// Linux 5.2 to 6.8: one lock, no pools
    OneLock52,
    /// This project's: exact lowest fit, pools of all sizes
    Standard,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Linux69, Self::Linux616, Self::OneLock52, Self::Standard];

    /// The name on the command line and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Linux69 => "linux69",
            Self::Linux616 => "linux616",
            Self::OneLock52 => "onelock52",
            Self::Standard => "standard",
        }
    }

    /// Returns the policy of a release of Linux. Linux 6.12 stands for an empty text; `None` if it is no release.
    pub fn of_release(release: &str) -> Option<Self> {
        let mut numbers = release.split(['.', '-']).map(str::parse::<u32>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Some(match (major, minor) {
                (..6, _) | (6, ..9) => Self::OneLock52,
                (6, ..16) => Self::Linux69,
                _ => Self::Linux616,
            }),
            _ => release.is_empty().then_some(Self::Linux69),
        }
    }

    /// Returns the policy of the kernel of a trace.
    pub fn of(trace: &Trace) -> Self {
        Self::of_release(&trace.release).unwrap_or(Self::Linux69)
    }

    /// Returns the policies to compare with a kernel of this policy if none is named: this one, and the others without
    /// a second version of Linux's nodes.
    pub fn usual(self) -> [Self; 3] {
        match self {
            Self::OneLock52 => [self, Self::Linux69, Self::Standard],
            Self::Linux69 | Self::Linux616 => [self, Self::OneLock52, Self::Standard],
            Self::Standard => [self, Self::Linux69, Self::OneLock52],
        }
    }
}

impl Choice for Policy {
    const CHOICES: &'static [Self] = &Self::ALL;

    fn choice(self) -> &'static str {
        self.name()
    }

    fn about(self) -> &'static str {
        match self {
            Self::Linux69 => "Linux 6.9 to 6.15: nodes and pools",
            Self::Linux616 => "Linux since 6.16: small pools do not decay",
            Self::OneLock52 => "Linux 5.2 to 6.8: one lock, no pools",
            Self::Standard => "This project's: exact lowest fit, pools of all sizes",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_has_the_policy_of_its_time() {
        for (release, policy) in [
            ("5.15.0", Some(Policy::OneLock52)),
            ("6.8.1-rc1", Some(Policy::OneLock52)),
            ("6.9", Some(Policy::Linux69)),
            ("6.15.3", Some(Policy::Linux69)),
            ("6.16-rc1", Some(Policy::Linux616)),
            ("7.3.4+deb13", Some(Policy::Linux616)),
            ("", Some(Policy::Linux69)),
            ("six", None),
        ] {
            assert_eq!(Policy::of_release(release), policy, "{release}");
        }
        for policy in Policy::ALL {
            assert_eq!(policy.usual()[0], policy);
        }
    }
}
