//! The time of day in the format of the results.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY: u64 = 24 * 60 * 60;

/// This time in UTC in the format of RFC 3339, with nanoseconds. A time before 1970 becomes the
/// first moment of 1970.
pub(super) fn rfc_3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let (days, second) = (since.as_secs() / DAY, since.as_secs() % DAY);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:09}Z", since.subsec_nanos())
}

/// The year, month and day in the Gregorian calendar, this many days after 1970-01-01.
///
/// Here a year begins in March, so that the leap day is its last day. Each month then begins on day
/// `(153 * month + 2) / 5`, where March is month 0. An era is 400 years, after which the calendar
/// repeats.
fn date(days_since_1970: u64) -> (u64, u64, u64) {
    const DAYS_OF_ERA: u64 = 146_097;
    const FROM_MARCH_OF_YEAR_0_TO_1970: u64 = 719_468;
    let days = days_since_1970 + FROM_MARCH_OF_YEAR_0_TO_1970;
    let (era, day) = (days / DAYS_OF_ERA, days % DAYS_OF_ERA);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (400 * era + year + next_year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_known_times() {
        for (seconds, nanoseconds, expected) in [
            (0, 0, "1970-01-01T00:00:00.000000000Z"),
            (951_782_400, 0, "2000-02-29T00:00:00.000000000Z"),
            (951_868_799, 5, "2000-02-29T23:59:59.000000005Z"),
            (951_868_800, 0, "2000-03-01T00:00:00.000000000Z"),
            (1_709_164_800, 0, "2024-02-29T00:00:00.000000000Z"),
            (1_735_689_599, 999_999_999, "2024-12-31T23:59:59.999999999Z"),
            (4_107_542_400, 0, "2100-03-01T00:00:00.000000000Z"),
        ] {
            assert_eq!(rfc_3339(UNIX_EPOCH + Duration::new(seconds, nanoseconds)), expected);
        }
        assert_eq!(rfc_3339(UNIX_EPOCH - Duration::from_secs(1)), "1970-01-01T00:00:00.000000000Z");
    }

    #[test]
    fn dates_follow_each_other_for_two_eras() {
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..2 * 146_097 {
            assert_eq!(date(days), (year, month, day), "day {days}");
            let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let last = match month {
                2 if is_leap => 29,
                2 => 28,
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day += 1;
            if day > last {
                (month, day) = (month + 1, 1);
            }
            if month > 12 {
                (year, month) = (year + 1, 1);
            }
        }
    }
}
