//! Omitting passes, to find the one that causes a difference.

use std::collections::BTreeSet;

use super::{PIPELINE, Pass};

/// Omitted passes; none by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PassSelection {
    without: BTreeSet<&'static str>,
    last: Option<&'static str>,
}

/// Why a pass cannot be left out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PassError {
    /// There is no such pass.
    #[error("there is no pass {name:?}; in their order they are {}", known.join(", "))]
    Unknown {
        /// The name given.
        name: String,
        /// All passes.
        known: Vec<&'static str>,
    },
    /// The pass is necessary for every plan.
    #[error("pass {name:?} cannot be left out, because {reason}; those that can be are {}", optional.join(", "))]
    Needed {
        /// The pass.
        name: &'static str,
        /// Why it is necessary.
        reason: &'static str,
        /// Passes that may be left out.
        optional: Vec<&'static str>,
    },
}

impl PassSelection {
    /// Leaves out the pass `name`.
    ///
    /// # Errors
    /// [`PassError`].
    pub fn without(mut self, name: &str) -> Result<Self, PassError> {
        let pass = find(name)?;
        if let Some(reason) = pass.needed {
            return Err(PassError::Needed {
                name: pass.name,
                reason,
                optional: names(|p| p.needed.is_none()),
            });
        }
        self.without.insert(pass.name);
        Ok(self)
    }

    /// Leaves out every optional pass after `name`.
    ///
    /// # Errors
    /// [`PassError::Unknown`].
    pub fn stop_after(mut self, name: &str) -> Result<Self, PassError> {
        self.last = Some(find(name)?.name);
        Ok(self)
    }

    /// Whether `pass` runs where it applies.
    pub(super) fn includes(&self, pass: &Pass) -> bool {
        let position = |name: &str| PIPELINE.iter().position(|p| p.name == name);
        let early = self.last.is_none_or(|last| position(pass.name) <= position(last));
        pass.needed.is_some() || (early && !self.without.contains(pass.name))
    }
}

fn find(name: &str) -> Result<&'static Pass, PassError> {
    let unknown = || PassError::Unknown { name: name.to_owned(), known: names(|_| true) };
    PIPELINE.iter().find(|p| p.name == name).ok_or_else(unknown)
}

fn names(which: impl Fn(&Pass) -> bool) -> Vec<&'static str> {
    PIPELINE.iter().filter(|p| which(p)).map(|p| p.name).collect()
}
