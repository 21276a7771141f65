//! The record of every decision: what was found, what was not used and why.
//!
//! A [`Record`] names its subject (`provider`, and where they apply `domain`, `module`, `peer`) and holds
//! one [`Verdict`]. `tieline info --why`, the text of "no usable path" and the JSON are three views of the
//! same list.

use serde::Serialize;

/// One decision about one subject.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Record {
    /// Provider name.
    pub provider: String,
    /// Domain, when the decision is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Module, when the decision is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// Peer, when the decision is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// What was decided.
    pub verdict: Verdict,
}

/// What was decided, with the facts that decided it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
#[non_exhaustive]
pub enum Verdict {
    /// It is there.
    Found {
        /// A file's path, or `built in`.
        origin: String,
        /// Its version.
        version: String,
    },
    /// Asked for by name, and not there.
    NotFound {
        /// Where was looked.
        looked: String,
        /// The nearest name that is there.
        nearest: Option<String>,
    },
    /// There, and not fit for use.
    Refused {
        /// At which step: `search`, `permissions`, `elf`, `note`, `abi`, `probe`, `dlopen`, `symbol`, `init`, `layout`, `tables`, `open`.
        phase: String,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// Left out by a variable.
    Filtered {
        /// The variable, with its value.
        by: String,
    },
    /// Cannot do what the role needs.
    LacksCapability {
        /// The capability.
        capability: String,
        /// The role it was considered for.
        role: String,
    },
    /// Another one was better.
    OutrankedBy {
        /// The better one.
        winner: String,
        /// By which rule: `priority 50 over 30`, `cost`, `first of its name`.
        rule: String,
    },
    /// Cannot reach that peer.
    Unreachable {
        /// Why.
        because: String,
    },
    /// Not needed by any path, and closed again.
    NotNeeded {
        /// Why not.
        because: String,
    },
    /// Disabled, with the reason.
    Disabled {
        /// Why.
        because: String,
    },
    /// In use.
    ChosenFor {
        /// Roles: `message`, `RMA`, `atomic`, `connection`.
        roles: Vec<String>,
        /// Why it won.
        because: String,
    },
}

impl Record {
    /// A record about a provider as a whole.
    #[must_use]
    pub fn provider(provider: impl Into<String>, verdict: Verdict) -> Record {
        Record { provider: provider.into(), domain: None, module: None, peer: None, verdict }
    }

    /// A record about one module of one domain.
    #[must_use]
    pub fn module(
        provider: impl Into<String>,
        domain: impl Into<String>,
        module: impl Into<String>,
        verdict: Verdict,
    ) -> Record {
        Record {
            provider: provider.into(),
            domain: Some(domain.into()),
            module: Some(module.into()),
            peer: None,
            verdict,
        }
    }
}
