//! Dates as `strftime` of C and Python writes them, in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// The present time in the form of `format`.
pub(super) fn now(format: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    written(format, now.map_or(0, |since| since.as_secs()))
}

/// The time `seconds` after the begin of 1970 in the form of `format`. What is no known letter stays as it is.
fn written(format: &str, seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let month_name = MONTHS[(month as usize - 1) % 12];
    let day_name = DAYS[(days % 7) as usize];
    let twelve = if hour % 12 == 0 { 12 } else { hour % 12 };
    let (mut text, mut letters) = (String::new(), format.chars());
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        let mut of = letters.next();
        // `%-d` and its like have no zero in front.
        let is_bare = of == Some('-');
        if is_bare {
            of = letters.next();
        }
        let two = |n: u64| if is_bare { n.to_string() } else { format!("{n:02}") };
        text += &match of {
            Some('Y') => year.to_string(),
            Some('y') => two(year % 100),
            Some('m') => two(month),
            Some('d') => two(day),
            Some('e') => format!("{day:2}"),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('A') => day_name.to_owned(),
            Some('a') => day_name[..3].to_owned(),
            Some('H') => two(hour),
            Some('I') => two(twelve),
            Some('M') => two(minute),
            Some('S') => two(second),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('j') => {
                let before: u64 = days - days_before(year);
                if is_bare { (before + 1).to_string() } else { format!("{:03}", before + 1) }
            }
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            Some(other) => format!("%{other}"),
            None => "%".to_owned(),
        };
    }
    text
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

/// Days from the begin of 1970 to that of `year`.
fn days_before(year: u64) -> u64 {
    let leap_days = |year: u64| year / 4 - year / 100 + year / 400;
    (year - 1970) * 365 + leap_days(year - 1) - leap_days(1969)
}

/// Year, month and day of the day `days` after the first of 1970.
fn date(days: u64) -> (u64, u64, u64) {
    let mut year = 1970 + days / 366;
    while days_before(year + 1) <= days {
        year += 1;
    }
    let mut day = days - days_before(year);
    let lengths = [31, if is_leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    for (month, length) in (1..).zip(lengths) {
        if day < length {
            return (year, month, day + 1);
        }
        day -= length;
    }
    (year, 12, 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let all = "%Y-%m-%d %H:%M:%S %A %a %B %b %j %y %I %p %-d %% %Q";
        let want = "1970-01-01 00:00:00 Thursday Thu January Jan 001 70 12 AM 1 % %Q";
        assert_eq!(written(all, 0), want);
        let want = "2024-02-29 23:59:59 Thursday Thu February Feb 060 24 11 PM 29 % %Q";
        assert_eq!(written(all, 1_709_251_199), want);
        assert_eq!(written("%d %b %Y", 1_709_251_200), "01 Mar 2024");
        assert_eq!(written("%F %T", 4_102_444_799), "2099-12-31 23:59:59");
        assert_eq!(written("%d %b %Y", 951_782_400), "29 Feb 2000");
        assert_eq!(written("100%", 0), "100%");
        assert_eq!(now("%Y").len(), 4);
    }
}
