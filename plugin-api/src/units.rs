//! Values of variables as users write them: one parser for sizes, times and the like, for the core and every provider.

use std::time::Duration;

/// A time of 30 years, which is short enough to be added to the time of a clock.
pub const FOREVER: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// Parses a number of bytes. `k`, `kb` and `kib` all mean 1024, in any case; `inf` is the largest number.
#[must_use]
pub fn size(text: &str) -> Option<usize> {
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

/// Parses a whole number; `inf` is the largest one.
#[must_use]
pub fn count(text: &str) -> Option<u64> {
    if text.eq_ignore_ascii_case("inf") {
        return Some(u64::MAX);
    }
    let (number, unit) = number_and_unit(text)?;
    if unit.is_empty() { Some(number) } else { None }
}

/// Parses a time. A bare number other than 0 has no meaning; `inf` is [`Duration::MAX`].
#[must_use]
pub fn duration(text: &str) -> Option<Duration> {
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

/// Parses yes or no, in the usual spellings.
#[must_use]
pub fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "y" | "yes" | "on" | "true" | "1" => Some(true),
        "n" | "no" | "off" | "false" | "0" => Some(false),
        _ => None,
    }
}

/// Splits a text: `64 KiB` becomes (64, `KiB`).
fn number_and_unit(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    Some((number.parse().ok()?, unit.trim_start()))
}

/// Parses a time like [`duration`], for a caller that adds it to a clock: at most [`FOREVER`].
#[must_use]
pub fn time_limit(text: &str) -> Option<Duration> {
    Some(duration(text)?.min(FOREVER))
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
    fn a_time_limit_can_be_added_to_a_clock() {
        for text in ["inf", "18446744073709551615s", "1000000h"] {
            let limit = time_limit(text).unwrap();
            assert!(std::time::Instant::now().checked_add(limit).is_some(), "{text}");
        }
        assert_eq!(time_limit("20s"), Some(Duration::from_secs(20)));
        assert_eq!(time_limit("20"), None);
    }

    #[test]
    fn every_unit_has_its_spellings() {
        for (texts, bytes) in [
            (["1", "1b", "1B"], 1),
            (["1k", "1kb", "1KiB"], 1 << 10),
            (["1m", "1mb", "1MiB"], 1 << 20),
            (["1g", "1gb", "1GiB"], 1 << 30),
            (["1t", "1tb", "1TiB"], 1 << 40),
        ] {
            assert_eq!(texts.map(size), [Some(bytes); 3]);
        }
        assert_eq!(size("INF"), Some(usize::MAX));
        assert_eq!(
            ["0", "16", "inf", "16k", "", "x"].map(count),
            [Some(0), Some(16), Some(u64::MAX), None, None, None]
        );
        let times = ["5ns", "2h", "0s", "307445734561825860min", "307445734561825861min"];
        let s = Duration::from_secs;
        assert_eq!(
            times.map(duration),
            [
                Some(Duration::from_nanos(5)),
                Some(s(7200)),
                Some(s(0)),
                Some(s(307_445_734_561_825_860 * 60)),
                None
            ]
        );
    }
}
