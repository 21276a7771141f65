//! The present date, in the formats of changelogs.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];

const LAST_DAY: u64 = 2_932_896;

pub(super) struct Date {
    weekday: &'static str,
    day: u64,
    month: &'static str,
    pub(super) year: u64,
}

impl Date {
    pub(super) fn today() -> Date {
        let named =
            std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|seconds| seconds.parse().ok());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        Date::from_second(named.unwrap_or(now))
    }

    /// Returns the date of a time, in seconds after the beginning of 1970. A time after the year 9999 gives the last day of 9999.
    fn from_second(second: u64) -> Date {
        Date::of((second / 86400).min(LAST_DAY))
    }

    /// Returns the date of a number of days after the first of January 1970.
    fn of(days: u64) -> Date {
        let weekday = DAYS[(days % 7) as usize];
        let (mut year, mut left) = (1970, days);
        while left >= 365 + u64::from(is_leap(year)) {
            left -= 365 + u64::from(is_leap(year));
            year += 1;
        }
        let february = 28 + u64::from(is_leap(year));
        let mut month = 0;
        for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
            if left < length {
                break;
            }
            left -= length;
            month += 1;
        }
        Date { weekday, day: left + 1, month: MONTHS[month % 12], year }
    }

    pub(super) fn debian(&self) -> String {
        let Date { weekday, day, month, year } = self;
        format!("{weekday}, {day:02} {month} {year} 12:00:00 +0000")
    }

    pub(super) fn rpm(&self) -> String {
        let Date { weekday, day, month, year } = self;
        format!("{weekday} {month} {day:02} {year}")
    }
}

fn is_leap(year: u64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (days, rpm) in [
            (0, "Thu Jan 01 1970"),
            (59, "Sun Mar 01 1970"),
            (11_016, "Tue Feb 29 2000"),
            (11_017, "Wed Mar 01 2000"),
            (20_782, "Wed Nov 25 2026"),
            (20_818, "Thu Dec 31 2026"),
        ] {
            assert_eq!(Date::of(days).rpm(), rpm);
        }
        for later in [LAST_DAY * 86400, u64::MAX] {
            assert_eq!(Date::from_second(later).rpm(), "Fri Dec 31 9999");
        }
        assert_eq!(Date::of(20_782).debian(), "Wed, 25 Nov 2026 12:00:00 +0000");
    }
}
