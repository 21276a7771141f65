//! The error for a context in which no module carries messages. The likely cause is first, and providers that no list names are
//! last.

use crate::compose;
use crate::explain::{Record, Verdict};
use crate::select::UNNAMED;
use crate::{Error, Status};

/// Composes the error; `decisions` are all decisions that were made while the context was opened.
pub(super) fn error(decisions: &[&Record]) -> Error {
    let mut ordered: Vec<&Record> = decisions.to_vec();
    // A name without a match is probably a mistake. Otherwise a provider that is present and unusable is probably the cause. The
    // last ones are providers that were excluded, or that are for other machines.
    ordered.sort_by_key(|record| match &record.verdict {
        Verdict::NotFound { nearest: Some(_), .. } => 0,
        Verdict::NotFound { .. } => 1,
        Verdict::Disabled { because } if because != compose::PATH_IS_DISABLED => 2,
        Verdict::Refused { .. } => 3,
        Verdict::Filtered { .. } if record.domain.is_none() => 4,
        _ => 5,
    });
    let mut why: Vec<String> = Vec::new();
    let mut unnamed: Vec<(&str, Vec<String>)> = Vec::new();
    for r in &ordered {
        if let Verdict::Filtered { by } = &r.verdict {
            if let Some(list) = by.strip_suffix(UNNAMED) {
                let subject = r.subject();
                match unnamed.iter_mut().find(|(known, _)| *known == list) {
                    Some((_, names)) if names.contains(&subject) => {}
                    Some((_, names)) => names.push(subject),
                    None => unnamed.push((list, vec![subject])),
                }
                continue;
            }
        }
        let line = format!("{}: {}", r.subject(), r.verdict);
        let told = matches!(r.verdict, Verdict::Found { .. } | Verdict::ChosenFor { .. });
        // A provider that is both built in and in a file may be refused twice for one reason, which is listed once.
        if !told && !why.contains(&line) {
            why.push(line);
        }
    }
    why.extend(
        unnamed.iter().map(|(list, names)| format!("{list} does not name {}", names.join(", "))),
    );
    let meant = ordered.iter().find_map(|r| match &r.verdict {
        Verdict::NotFound { nearest: Some(near), .. } => Some((r.subject(), near)),
        _ => None,
    });
    let fix = match meant {
        Some((name, near)) => format!("write {near} for {name}"),
        None => {
            "install a provider or loosen TIELINE_PROVIDERS, TIELINE_DOMAINS and TIELINE_MODULES"
                .to_owned()
        }
    };
    let why = match why.is_empty() {
        true => "no provider was found".to_owned(),
        false => why.join("; "),
    };
    Error::new(Status::NoDevice, "no module that carries messages is usable", why, fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmatched_name_comes_first_and_unlisted_providers_last() {
        let by = || Verdict::Filtered { by: format!("TIELINE_PROVIDERS=shmm{UNNAMED}") };
        let looked = "/a, for TIELINE_PROVIDERS=shmm".to_owned();
        let slip = Verdict::NotFound { looked, nearest: Some("shm".into()) };
        let gone = Verdict::NotFound { looked: "/a".into(), nearest: None };
        let refused =
            Verdict::Refused { phase: "elf".into(), expected: "a".into(), found: "b".into() };
        let records = [
            Record::provider("tcp", by()),
            Record::provider("shm", by()),
            Record::provider("shm", by()),
            Record::provider("x", refused),
            Record::provider("gone", gone),
            Record::provider("shmm", slip),
        ];
        let error = error(&records.iter().collect::<Vec<_>>());
        assert_eq!(
            error.why(),
            "shmm: not found: did you mean shm? looked in /a, for TIELINE_PROVIDERS=shmm; gone: not found: looked in \
             /a; x: refused: elf: b; expected a; TIELINE_PROVIDERS=shmm does not name tcp, shm"
        );
        assert_eq!(error.fix(), "write shm for shmm");
    }

    #[test]
    fn without_any_decision_nothing_was_found() {
        let error = error(&[]);
        assert_eq!(error.why(), "no provider was found");
        assert!(error.fix().starts_with("install a provider"), "{error}");
    }
}
