//! The error text for a peer that no message module reaches. Modules that would help and are missing on this side come first, each
//! with the reason, then the failed attempts.

use crate::explain::{Record, Verdict};

/// The explicit requests of the configuration, for error texts.
pub(super) struct Asks<'a> {
    /// Whether the configuration requests connections by modules of this provider.
    pub(super) connects: &'a dyn Fn(&str) -> bool,
    /// Whether the list of providers names this provider.
    pub(super) named: &'a dyn Fn(&str) -> bool,
}

/// Composes the error text. `tried` are the decisions about this peer, `decided` those about this process, and `theirs` the
/// providers and modules of the peer.
pub(super) fn why(
    tried: &[Record],
    decided: &[&Record],
    theirs: &[(&str, &str)],
    asks: &Asks<'_>,
) -> String {
    let lines = hindrances(tried, decided, theirs, asks);
    if lines.is_empty() {
        return "this context has no module that carries messages".to_string();
    }
    lines.join("; ")
}

/// Returns the reasons of [`why`] as separate lines; empty if nothing is missing.
pub(super) fn hindrances(
    tried: &[Record],
    decided: &[&Record],
    theirs: &[(&str, &str)],
    asks: &Asks<'_>,
) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut add = |line: String| {
        if !lines.contains(&line) {
            lines.push(line);
        }
    };
    let mut told: Vec<&str> = Vec::new();
    let left_out = || {
        let such =
            decided.iter().filter(|r| is_missing(&r.verdict) && (asks.connects)(&r.provider));
        such.map(|r| format!("{}: {}", r.provider, r.verdict)).collect::<Vec<_>>()
    };
    let reason = |record: &Record| match &record.verdict {
        // No module forms the connections of the disabled path, so the text names the module that could and is missing on this
        // side, and the reason.
        Verdict::Disabled { .. } => {
            let parts = std::iter::once(record.verdict.to_string()).chain(left_out());
            parts.collect::<Vec<_>>().join(", ")
        }
        verdict => verdict.to_string(),
    };
    for (provider, module) in theirs {
        let was_tried =
            |r: &Record| r.provider == *provider && r.module.as_deref() == Some(*module);
        if tried.iter().any(was_tried) {
            continue;
        }
        let because = match about(decided, provider).find(|r| is_missing(&r.verdict)) {
            Some(record) => reason(record),
            None if about(decided, provider).next().is_none() => "not installed".to_string(),
            None => "not used".to_string(),
        };
        told.push(provider);
        add(format!("{provider}/{module}: the peer has it; here: {because}"));
    }
    for record in decided {
        let unfit = match &record.verdict {
            Verdict::Refused { .. } | Verdict::Disabled { .. } => true,
            // A missing device is not an error unless the configuration names its provider.
            Verdict::NotUsed { .. } => record.domain.is_none() && (asks.named)(&record.provider),
            _ => false,
        };
        let is_used = || about(decided, &record.provider).any(|r| r.verdict.is_used());
        if unfit
            && is_missing(&record.verdict)
            && !told.contains(&record.provider.as_str())
            && !is_used()
        {
            told.push(&record.provider);
            add(format!("{}: {}", record.provider, reason(record)));
        }
    }
    for record in tried {
        if let Verdict::Unreachable { because } = &record.verdict {
            let domain = record.domain.as_deref().unwrap_or(&record.provider);
            add(format!("{domain}/{}: {because}", record.module.as_deref().unwrap_or("")));
        }
    }
    lines
}

fn about<'a>(decided: &'a [&'a Record], provider: &'a str) -> impl Iterator<Item = &'a Record> {
    decided.iter().copied().filter(move |record| record.provider == provider)
}

/// Checks whether the verdict contains the reason for the absence.
fn is_missing(verdict: &Verdict) -> bool {
    match verdict {
        Verdict::Refused { .. } | Verdict::Filtered { .. } | Verdict::NotUsed { .. } => true,
        Verdict::Disabled { because } => because != crate::compose::PATH_IS_DISABLED,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> Verdict {
        let text = |text: &str| text.to_string();
        Verdict::Refused { phase: text("elf"), expected: text("all of it"), found: text("a half") }
    }

    fn other_host() -> Vec<Record> {
        let verdict = Verdict::Unreachable { because: "another host".into() };
        vec![Record::module("shm", "shm", "ring", verdict)]
    }

    const NOBODY: Asks<'static> = Asks { connects: &|_| false, named: &|_| false };
    const THEIRS: &[(&str, &str)] = &[("shm", "ring"), ("tcp", "stream")];

    #[test]
    fn module_refused_here_comes_first_with_reason() {
        let record = Record::provider("tcp", refused());
        let text = why(&other_host(), &[&record], THEIRS, &NOBODY);
        assert_eq!(
            text,
            "tcp/stream: the peer has it; here: refused: elf: a half; expected all of it; \
             shm/ring: another host"
        );
    }

    #[test]
    fn missing_module_is_reported_as_not_installed() {
        let text = why(&other_host(), &[], THEIRS, &NOBODY);
        assert!(text.starts_with("tcp/stream: the peer has it; here: not installed; "), "{text}");
    }

    #[test]
    fn path_without_connections_names_missing_connector_and_cause() {
        let because = "nobody carries its addresses".to_string();
        let mut path = Record::provider("tcp", Verdict::Disabled { because });
        path.domain = Some("tcp".into());
        let by = "TIELINE_PROVIDERS=tcp,shm (environment)".to_string();
        let filtered = Record::provider("tcp-connect", Verdict::Filtered { by });
        // The other side has the same setting, and therefore lacks the same module.
        let asks = Asks { connects: &|name| name == "tcp-connect", ..NOBODY };
        let text = why(&other_host(), &[&filtered, &path], &THEIRS[..1], &asks);
        assert!(text.starts_with("tcp: disabled: nobody carries its addresses, "), "{text}");
        let cause = "tcp-connect: left out by TIELINE_PROVIDERS=tcp,shm (environment)";
        assert!(text.contains(cause), "{text}");
        assert!(text.ends_with("shm/ring: another host"), "{text}");
    }

    #[test]
    fn provider_without_device_is_hindrance_only_if_configured() {
        let unused = Verdict::NotUsed { because: "there is no /dev/knem".into() };
        let record = Record::provider("shm-knem", unused);
        let said = |asks: &Asks<'_>| hindrances(&[], &[&record], &[], asks);
        assert_eq!(said(&NOBODY), [""; 0]);
        let asks = Asks { named: &|name| name == "shm-knem", ..NOBODY };
        assert_eq!(said(&asks), ["shm-knem: not used: there is no /dev/knem"]);
    }

    #[test]
    fn a_file_whose_place_another_one_took_is_no_cause() {
        let record = Record::provider("shm", refused());
        let because = "alone".to_string();
        let used = Verdict::ChosenFor { roles: vec!["message".into()], because };
        let used = Record::module("shm", "shm", "ring", used);
        let text = why(&other_host(), &[&record, &used], &THEIRS[..1], &NOBODY);
        assert_eq!(text, "shm/ring: another host");
    }
}
