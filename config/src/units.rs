//! Values as people write them: `64k`, `2GiB`, `10ms`, `on`.

use std::time::Duration;

/// What a variable's value may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes: `64k`, `2GiB`, `inf`.
    Size,
    /// A number: `16`, `inf`.
    Count,
    /// A number that may be negative.
    Integer,
    /// `10ms`, `1s`, `inf`.
    Duration,
    /// `on`, `off` and their usual spellings.
    Bool,
    /// Anything.
    Text,
    /// Names with commas between them.
    List,
    /// The selection grammar.
    Selection,
    /// Absolute directories with colons between them.
    Path,
    /// One of these words.
    OneOf(&'static [&'static str]),
}

impl Kind {
    /// The kind that a provider named; what is not known is taken as text.
    pub fn from_name(name: &str) -> Kind {
        match name {
            "size" => Kind::Size,
            "count" => Kind::Count,
            "integer" => Kind::Integer,
            "duration" => Kind::Duration,
            "bool" => Kind::Bool,
            "list" => Kind::List,
            _ => Kind::Text,
        }
    }

    /// Its name in reports: `size`, or the words with bars between them.
    pub fn name(self) -> String {
        match self {
            Kind::Size => "size".into(),
            Kind::Count => "count".into(),
            Kind::Integer => "integer".into(),
            Kind::Duration => "duration".into(),
            Kind::Bool => "bool".into(),
            Kind::Text => "text".into(),
            Kind::List => "list".into(),
            Kind::Selection => "selection".into(),
            Kind::Path => "path".into(),
            Kind::OneOf(words) => words.join("|"),
        }
    }

    /// What is accepted, for the error of a value that is not.
    pub fn accepted(self) -> String {
        match self {
            Kind::Size => "a size is a whole number with k, m, g or t (powers of 1024), such as \
                           4096, 64k or 2GiB, or inf"
                .into(),
            Kind::Count => "a count is a whole number such as 16, or inf".into(),
            Kind::Integer => "an integer is a whole number such as 50 or -1".into(),
            Kind::Duration => "a duration is a whole number with ns, us, ms, s, min or h, such as \
                               10ms or 1s, or inf"
                .into(),
            Kind::Bool => "accepted are y, yes, on, true, 1 and n, no, off, false, 0".into(),
            Kind::Path => "accepted are absolute directories with colons between them".into(),
            Kind::Selection => {
                "accepted is a comma list of names or globs, with ^ in front of the \
                                whole list to exclude"
                    .into()
            }
            Kind::Text | Kind::List => "any text is accepted".into(),
            Kind::OneOf(words) => format!("accepted are {}", words.join(", ")),
        }
    }

    /// Whether `text` is a value of this kind. A selection is checked where it is parsed.
    pub fn admits(self, text: &str) -> bool {
        match self {
            Kind::Size => size(text).is_some(),
            Kind::Count => count(text).is_some(),
            Kind::Integer => text.parse::<i32>().is_ok(),
            Kind::Duration => duration(text).is_some(),
            Kind::Bool => boolean(text).is_some(),
            Kind::Text | Kind::List | Kind::Selection => true,
            Kind::Path => text.split(':').all(|part| part.is_empty() || part.starts_with('/')),
            Kind::OneOf(words) => words.iter().any(|word| word.eq_ignore_ascii_case(text)),
        }
    }
}

/// Bytes. `k`, `kb` and `kib` all mean 1024, in any case; `inf` is the largest number.
pub(crate) fn size(text: &str) -> Option<usize> {
    if text.eq_ignore_ascii_case("inf") {
        return Some(usize::MAX);
    }
    let (number, unit) = number_and_unit(text)?;
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return None,
    };
    usize::try_from(number.checked_mul(1 << shift)?).ok()
}

/// A whole number; `inf` is the largest one.
pub(crate) fn count(text: &str) -> Option<u64> {
    if text.eq_ignore_ascii_case("inf") {
        return Some(u64::MAX);
    }
    let (number, unit) = number_and_unit(text)?;
    if unit.is_empty() { Some(number) } else { None }
}

/// A time. A bare number other than 0 has no meaning; `inf` is [`Duration::MAX`].
pub(crate) fn duration(text: &str) -> Option<Duration> {
    if text.eq_ignore_ascii_case("inf") {
        return Some(Duration::MAX);
    }
    let (number, unit) = number_and_unit(text)?;
    match unit {
        "" if number == 0 => Some(Duration::ZERO),
        "ns" => Some(Duration::from_nanos(number)),
        "us" | "µs" => Some(Duration::from_micros(number)),
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "min" => Some(Duration::from_secs(number.checked_mul(60)?)),
        "h" => Some(Duration::from_secs(number.checked_mul(3600)?)),
        _ => None,
    }
}

/// Yes or no, in the usual spellings.
pub(crate) fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "y" | "yes" | "on" | "true" | "1" => Some(true),
        "n" | "no" | "off" | "false" | "0" => Some(false),
        _ => None,
    }
}

/// `64 KiB` as (64, `KiB`).
fn number_and_unit(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    Some((number.parse().ok()?, unit.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_units() {
        for (text, bytes) in [
            ("0", Some(0)),
            ("4096", Some(4096)),
            ("64k", Some(64 << 10)),
            ("64 KiB", Some(64 << 10)),
            ("2GiB", Some(2 << 30)),
            ("1T", Some(1 << 40)),
            ("inf", Some(usize::MAX)),
            ("", None),
            ("k", None),
            ("-1", None),
            ("64q", None),
            ("1.5m", None),
            ("99999999999999999999", None),
            ("17179869184t", None),
        ] {
            assert_eq!(size(text), bytes, "{text}");
        }
    }

    #[test]
    fn durations_need_a_unit() {
        for (text, time) in [
            ("10ms", Some(Duration::from_millis(10))),
            ("2us", Some(Duration::from_micros(2))),
            ("2µs", Some(Duration::from_micros(2))),
            ("1s", Some(Duration::from_secs(1))),
            ("3min", Some(Duration::from_secs(180))),
            ("0", Some(Duration::ZERO)),
            ("inf", Some(Duration::MAX)),
            ("10", None),
            ("1m", None),
            ("s", None),
            ("9999999999999999999h", None),
        ] {
            assert_eq!(duration(text), time, "{text}");
        }
    }

    #[test]
    fn yes_and_no_have_their_usual_spellings() {
        for text in ["y", "YES", "on", "True", "1"] {
            assert_eq!(boolean(text), Some(true));
        }
        for text in ["n", "No", "OFF", "false", "0"] {
            assert_eq!(boolean(text), Some(false));
        }
        assert_eq!(boolean("2"), None);
        assert_eq!(boolean(""), None);
    }

    #[test]
    fn a_kind_admits_what_its_parser_reads() {
        assert!(Kind::OneOf(&["fallback", "prefer"]).admits("Prefer"));
        assert!(!Kind::OneOf(&["fallback", "prefer"]).admits("always"));
        assert!(Kind::Path.admits("/a:/b"));
        assert!(!Kind::Path.admits("/a:b"));
        assert!(Kind::Integer.admits("-1"));
    }
}
