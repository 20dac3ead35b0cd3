//! The list of contenders.

use super::kernel_lib::KernelLib;
use super::ours::{Bare, Magazines};
use super::subject::{Setup, Stream, Subject, Visitor};
use crate::stream::contender::{Contender, Exactness, Home, Make, Runner, Work};
use crate::stream::workload::Workload;
use anyhow::Result;
use std::path::PathBuf;
use va_space::config::{Linux69, OneLock52, Standard};
use vmlab_machine::{PlainLock, Watch};

/// A measured space.
#[derive(Clone)]
pub enum SpaceContender {
    /// Our policies, each caller with a magazine.
    Standard,
    /// Our policies alone.
    OursBare,
    /// Linux's policies of 6.9 to 6.12.
    Linux69,
    /// Linux's policies of 5.2 to 6.8.
    OneLock52,
    /// A C library, and its name.
    KernelLib(&'static str, KernelLib),
}

impl SpaceContender {
    /// Returns all of them, in the order of the tables.
    pub fn all(libraries: &[(&'static str, Option<PathBuf>)]) -> Result<Vec<Self>> {
        let mut all = vec![Self::Standard, Self::OursBare, Self::Linux69, Self::OneLock52];
        for (name, path) in libraries {
            if let Some(path) = path {
                all.push(Self::KernelLib(name, KernelLib::load(path)?));
            }
        }
        Ok(all)
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Standard => "ours",
            Self::OursBare => "ours-bare",
            Self::Linux69 => "linux69",
            Self::OneLock52 => "onelock52",
            Self::KernelLib(name, _) => name,
        }
    }

    /// Creates an empty space with locks of type `L`, which a library ignores, and calls `visitor` with it.
    pub(crate) fn visit<L: Watch, V: Visitor>(&self, setup: &Setup, visitor: V) -> Result<V::Out> {
        Ok(match self {
            Self::Standard => visitor.visit(Magazines::<L, Standard>::new(setup)?),
            Self::OursBare => visitor.visit(Bare::<L, Standard>::new(setup)?),
            Self::Linux69 => visitor.visit(Bare::<L, Linux69>::new(setup)?),
            Self::OneLock52 => visitor.visit(Bare::<L, OneLock52>::new(setup)?),
            Self::KernelLib(_, kernel_lib) => visitor.visit(kernel_lib.begin(setup)?),
        })
    }

    /// Returns the contender that runs streams of operations on it.
    pub fn contender(&self, setup: Setup) -> Contender {
        // The order of addresses from a pool is unspecified.
        Contender {
            name: self.name(),
            aligns: true,
            windows: false,
            exactness: Exactness::Never,
            make: Box::new(Player { contender: self.clone(), setup }),
        }
    }
}

/// A measured space, with a setup.
struct Player {
    contender: SpaceContender,
    setup: Setup,
}

impl Make for Player {
    fn make<'a>(&self, workload: &Workload, home: &'a Home) -> Option<Box<dyn Runner + 'a>> {
        self.contender.visit::<PlainLock, _>(&self.setup, Run { workload, home }).ok()?
    }
}

/// Creates the runner of a workload.
struct Run<'w, 'a> {
    workload: &'w Workload,
    home: &'a Home,
}

impl<'a> Visitor for Run<'_, 'a> {
    type Out = Option<Box<dyn Runner + 'a>>;
    fn visit<S: Subject>(self, subject: S) -> Self::Out {
        let stream = Stream::new(self.home.store(subject)?, 0);
        Some(Box::new(Work::new(stream, self.workload)))
    }
}
