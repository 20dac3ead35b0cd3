//! Who is measured, in one place.

use super::kern::Kern;
use super::ours::{Bare, Magazines};
use super::subject::{Setup, Stream, Subject, Visitor};
use crate::bench::contender::{Contender, Exactness, Runner, Work};
use crate::bench::workload::Workload;
use crate::machine::{PlainLock, Watch};
use anyhow::{Context, Result};
use std::path::PathBuf;
use va_space::config::{Default as Ours, Linux69, OneLock52};

/// One who is measured.
#[derive(Clone)]
pub(super) enum Who {
    /// Our policies, each caller with a magazine.
    Ours,
    /// Our policies alone.
    OursBare,
    /// Linux's of 6.9 to 6.12.
    Linux69,
    /// Linux's of 5.2 to 6.8.
    OneLock52,
    /// A C library, and what it is called.
    Kern(&'static str, Kern),
}

impl Who {
    /// All of them, in the order of the tables.
    pub(super) fn all(libraries: &[(&'static str, Option<PathBuf>)]) -> Result<Vec<Self>> {
        let mut all = vec![Self::Ours, Self::OursBare, Self::Linux69, Self::OneLock52];
        for (name, path) in libraries {
            if let Some(path) = path {
                all.push(Self::Kern(name, Kern::load(path)?));
            }
        }
        Ok(all)
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::OursBare => "ours-bare",
            Self::Linux69 => "linux69",
            Self::OneLock52 => "onelock52",
            Self::Kern(name, _) => name,
        }
    }

    /// Makes an empty space with locks of make `L`, which a library does not let one choose, and hands it to `visitor`.
    pub(super) fn visit<L: Watch, V: Visitor>(&self, setup: &Setup, visitor: V) -> Result<V::Out> {
        fn keep<S: Subject>(subject: S) -> &'static S {
            Box::leak(Box::new(subject))
        }
        let what = || format!("{} with {} nodes", self.name(), setup.nodes);
        Ok(match self {
            Self::Ours => visitor.visit(keep(
                Magazines::<L, Ours>::new(setup).map_err(anyhow::Error::from).with_context(what)?,
            )),
            Self::OursBare => visitor
                .visit(keep(Bare::<L, Ours>::new(setup).map_err(anyhow::Error::from).with_context(what)?)),
            Self::Linux69 => visitor
                .visit(keep(Bare::<L, Linux69>::new(setup).map_err(anyhow::Error::from).with_context(what)?)),
            Self::OneLock52 => visitor.visit(keep(
                Bare::<L, OneLock52>::new(setup).map_err(anyhow::Error::from).with_context(what)?,
            )),
            Self::Kern(_, kern) => visitor.visit(keep(kern.begin(setup)?)),
        })
    }

    /// The contender that it is on streams.
    pub(super) fn contender(&self, setup: Setup) -> Contender {
        let who = self.clone();
        let make = move |workload: &Workload| who.visit::<PlainLock, _>(&setup, Run(workload)).ok();
        // Which address comes first from a pool is everybody's own affair.
        Contender {
            name: self.name(),
            aligns: true,
            windows: false,
            exactness: Exactness::Never,
            make: Box::new(make),
        }
    }
}

/// Makes what runs a workload.
struct Run<'a>(&'a Workload);

impl Visitor for Run<'_> {
    type Out = Box<dyn Runner>;
    fn visit<S: Subject>(self, subject: &'static S) -> Box<dyn Runner> {
        Box::new(Work::new(Stream::new(subject, 0), self.0))
    }
}
