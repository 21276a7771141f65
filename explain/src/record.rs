//! The record of a decision about a provider, domain, module or peer, with its reason.
//!
//! A [`Record`] names its subject (`provider`, and, if the decision is about one, `domain`, `module` and `peer`) and holds one
//! [`Verdict`]. `tieline info --why`, the text of "no usable path" and the JSON are made from the same list of records.

use serde::Serialize;

/// One decision about one subject.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Record {
    /// The name of the provider.
    pub provider: String,
    /// The name of the domain, if the decision is about a domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The name of the module, if the decision is about a module.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// The name of the peer, if the decision is about a peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The decision.
    pub verdict: Verdict,
}

/// A decision, with the facts that decided it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
#[non_exhaustive]
pub enum Verdict {
    /// The subject was found.
    Found {
        /// The path of a file, or `built in`.
        origin: String,
        /// The version of the subject.
        version: String,
    },
    /// The subject was requested by name, and was not found.
    NotFound {
        /// The places that were searched.
        looked: String,
        /// The nearest existing name, if one is similar.
        nearest: Option<String>,
    },
    /// The subject was found, but is not usable.
    Refused {
        /// The step that failed: `search`, `permissions`, `elf`, `note`, `abi`, `static`, `fork`, `probe`, `dlopen`, `symbol`,
        /// `init`, `value` (a setting that the provider refuses), `layout`, `tables`, `open`, `selftest`.
        phase: String,
        /// The expected value.
        expected: String,
        /// The found value.
        found: String,
    },
    /// A variable excludes the subject.
    Filtered {
        /// The variable, with its value.
        by: String,
    },
    /// The subject lacks a capability of the role.
    LacksCapability {
        /// The missing capability.
        capability: String,
        /// The role for which the subject was considered.
        role: String,
    },
    /// Another subject was preferred.
    OutrankedBy {
        /// The preferred subject.
        winner: String,
        /// The rule that decided: `priority 80 over 60`, `first of its name`, or a comparison of costs.
        rule: String,
    },
    /// The subject cannot reach the peer.
    Unreachable {
        /// The reason.
        because: String,
    },
    /// The subject is usable, but this host lacks something that it needs.
    NotUsed {
        /// The missing part: `no device in /sys/class/infiniband`.
        because: String,
    },
    /// No path needs the subject, which was closed again.
    NotNeeded {
        /// The reason.
        because: String,
    },
    /// The subject is disabled.
    Disabled {
        /// The reason.
        because: String,
    },
    /// The subject is in use.
    ChosenFor {
        /// The roles of the subject: `message`, `RMA`, `atomic`, `connection`, or a part of one, such as `RMA of up to 64 bytes`.
        roles: Vec<String>,
        /// The reason why it was chosen.
        because: String,
    },
}

impl Record {
    /// Makes a record about a provider, without a domain, module or peer.
    #[must_use]
    pub fn provider(provider: impl Into<String>, verdict: Verdict) -> Record {
        Record { provider: provider.into(), domain: None, module: None, peer: None, verdict }
    }

    /// Makes a record about one module of one domain.
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

impl Record {
    /// Returns the name of the subject: `shm`, `verbs:mlx5_0`, `verbs:mlx5_0/rc`, followed by the peer if the record is about a
    /// peer.
    #[must_use]
    pub fn subject(&self) -> String {
        let mut subject = match (&self.domain, &self.module) {
            (Some(domain), Some(module)) => format!("{domain}/{module}"),
            (Some(domain), None) => domain.clone(),
            (None, _) => self.provider.clone(),
        };
        if let Some(peer) = &self.peer {
            subject.push_str(" to ");
            subject.push_str(peer);
        }
        subject
    }
}

impl Verdict {
    /// Returns the decision in a word or two: `used`, `left out` (excluded), `refused`.
    #[must_use]
    pub fn state(&self) -> &'static str {
        match self {
            Verdict::Found { .. } => "found",
            Verdict::NotFound { .. } => "not found",
            Verdict::Refused { .. } => "refused",
            Verdict::Filtered { .. } => "left out",
            Verdict::LacksCapability { .. } => "unfit",
            Verdict::OutrankedBy { .. } => "outranked",
            Verdict::Unreachable { .. } => "unreachable",
            Verdict::NotUsed { .. } => "not used",
            Verdict::NotNeeded { .. } => "not needed",
            Verdict::Disabled { .. } => "disabled",
            Verdict::ChosenFor { .. } => "used",
        }
    }

    /// Returns the facts of the decision as text.
    #[must_use]
    pub fn detail(&self) -> String {
        match self {
            Verdict::Found { origin, version } => format!("version {version}, {origin}"),
            Verdict::NotFound { looked, nearest: Some(near) } => {
                format!("did you mean {near}? looked in {looked}")
            }
            Verdict::NotFound { looked, nearest: None } => format!("looked in {looked}"),
            Verdict::Refused { phase, expected, found } => {
                format!("{phase}: {found}; expected {expected}")
            }
            Verdict::Filtered { by } => format!("by {by}"),
            Verdict::LacksCapability { capability, role } => {
                format!("for {role}: lacks {capability}")
            }
            Verdict::OutrankedBy { winner, rule } => format!("by {winner}: {rule}"),
            Verdict::Unreachable { because }
            | Verdict::NotUsed { because }
            | Verdict::NotNeeded { because }
            | Verdict::Disabled { because } => because.clone(),
            Verdict::ChosenFor { roles, because } => format!("for {}: {because}", roles.join(", ")),
        }
    }

    /// Checks whether the subject is in use.
    #[must_use]
    pub fn is_used(&self) -> bool {
        matches!(self, Verdict::ChosenFor { .. })
    }
}

impl std::fmt::Display for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.subject(), self.verdict)
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let joint = match self {
            Verdict::Filtered { .. } | Verdict::OutrankedBy { .. } | Verdict::ChosenFor { .. } => {
                " "
            }
            _ => ": ",
        };
        write!(f, "{}{joint}{}", self.state(), self.detail())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_decision_has_its_words() {
        let because = || "why".to_owned();
        let (name, roles) = (|| "it".to_owned(), vec!["message".to_owned(), "RMA".to_owned()]);
        for (verdict, words) in [
            (Verdict::Found { origin: name(), version: "1.2".into() }, "found: version 1.2, it"),
            (
                Verdict::NotFound { looked: "/a".into(), nearest: Some(name()) },
                "not found: did you mean it? looked in /a",
            ),
            (Verdict::NotFound { looked: "/a".into(), nearest: None }, "not found: looked in /a"),
            (
                Verdict::Refused { phase: "elf".into(), expected: "a".into(), found: "b".into() },
                "refused: elf: b; expected a",
            ),
            (Verdict::Filtered { by: name() }, "left out by it"),
            (
                Verdict::LacksCapability { capability: "put".into(), role: "RMA".into() },
                "unfit: for RMA: lacks put",
            ),
            (Verdict::OutrankedBy { winner: name(), rule: because() }, "outranked by it: why"),
            (Verdict::Unreachable { because: because() }, "unreachable: why"),
            (Verdict::NotUsed { because: because() }, "not used: why"),
            (Verdict::NotNeeded { because: because() }, "not needed: why"),
            (Verdict::Disabled { because: because() }, "disabled: why"),
            (Verdict::ChosenFor { roles, because: because() }, "used for message, RMA: why"),
        ] {
            assert_eq!(verdict.to_string(), words);
            assert_eq!(verdict.is_used(), words.starts_with("used"), "{words}");
        }
    }

    #[test]
    fn a_record_is_about_the_smallest_thing_that_it_names() {
        let verdict = || Verdict::NotUsed { because: "why".into() };
        let mut record = Record::module("verbs", "verbs:mlx5_0", "rc", verdict());
        assert_eq!(record.to_string(), "verbs:mlx5_0/rc: not used: why");
        record.peer = Some("p1".into());
        assert_eq!(record.subject(), "verbs:mlx5_0/rc to p1");
        record.module = None;
        assert_eq!(record.subject(), "verbs:mlx5_0 to p1");
        assert_eq!(Record::provider("verbs", verdict()).subject(), "verbs");
    }
}
