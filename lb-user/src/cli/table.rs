//! Aligned tables, numbers and colours for people; no colours when standard output is not a terminal.

use std::io::{self, IsTerminal, Write};

/// Whether and how to colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paint {
    on: bool,
}

impl Paint {
    pub const PLAIN: Self = Self { on: false };

    /// Colours on a terminal, unless `NO_COLOR` is set (no-color.org).
    pub fn for_stdout() -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            on: io::stdout().is_terminal() && !refused,
        }
    }

    pub fn good(self, text: &str) -> String {
        self.wrap("32", text)
    }

    pub fn warn(self, text: &str) -> String {
        self.wrap("33", text)
    }

    pub fn bad(self, text: &str) -> String {
        self.wrap("1;31", text)
    }

    pub fn head(self, text: &str) -> String {
        self.wrap("1", text)
    }

    pub fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.on {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// Which side a column's cells stand on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Left,
    Right,
}

/// Rows under headings, each column as wide as its widest cell.
#[derive(Debug)]
pub struct Table {
    columns: Vec<(&'static str, Side)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Headings; one that starts with `>` names a column of numbers.
    pub fn new(headings: &[&'static str]) -> Self {
        let columns = headings.iter().map(|heading| match heading.strip_prefix('>') {
            Some(rest) => (rest, Side::Right),
            None => (*heading, Side::Left),
        });
        Self {
            columns: columns.collect(),
            rows: Vec::new(),
        }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as lines, each indented by `indent` spaces.
    pub fn render(&self, indent: usize, paint: Paint) -> String {
        let widths: Vec<usize> = (0..self.columns.len()).map(|column| self.width(column)).collect();
        let headings: Vec<String> = self
            .columns
            .iter()
            .map(|(heading, _)| (*heading).to_owned())
            .collect();
        let mut text = paint.head(&self.line(&headings, &widths, indent));
        text.push('\n');
        for row in &self.rows {
            text.push_str(&self.line(row, &widths, indent));
            text.push('\n');
        }
        text
    }

    fn width(&self, column: usize) -> usize {
        let cells = self
            .rows
            .iter()
            .filter_map(|row| row.get(column))
            .map(|cell| visible(cell));
        cells.chain([visible(self.columns[column].0)]).max().unwrap_or(0)
    }

    fn line(&self, cells: &[String], widths: &[usize], indent: usize) -> String {
        let mut line = " ".repeat(indent);
        for (index, (cell, width)) in cells.iter().zip(widths).enumerate() {
            let space = " ".repeat(width.saturating_sub(visible(cell)));
            if index > 0 {
                line.push_str("  ");
            }
            match self.columns[index].1 {
                Side::Left => line.extend([cell.as_str(), &space]),
                Side::Right => line.extend([space.as_str(), cell]),
            }
        }
        line.truncate(line.trim_end().len());
        line
    }
}

/// Characters that take room on the screen: colours take none.
fn visible(text: &str) -> usize {
    let mut count = 0;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter == '\x1b' {
            letters.by_ref().find(|letter| *letter == 'm');
        } else {
            count += 1;
        }
    }
    count
}

/// `12,345,678`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1.2 GiB`.
pub fn octets(number: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if number < 1024 {
        return format!("{number} B");
    }
    let mut value = number as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// `33.3%`.
pub fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

/// An absent value.
pub fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// A moment as `2026-01-31 14:05:09` UTC, from milliseconds since 1970.
pub fn utc(time_ms: u64) -> String {
    let seconds = time_ms / 1000;
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// Year, month and day of a day since 1970-01-01, in the Gregorian calendar counted from March.
fn civil(day: u64) -> (u64, u64, u64) {
    let shifted = day + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, of_year - (153 * from_march + 2) / 5 + 1)
}

/// Writes to standard output; a closed pipe is an error, not a panic.
pub fn write_stdout(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_colours_take_no_room() {
        let mut table = Table::new(&["name", ">flows", "state"]);
        let paint = Paint { on: true };
        table.row(["web".into(), count(1_234_567), paint.good("serving")]);
        table.row(["a-long-name".into(), count(7), "down".into()]);
        let text = table.render(2, Paint::PLAIN);
        assert_eq!(
            text,
            "  name             flows  state\n  web          1,234,567  \x1b[32mserving\x1b[0m\n  \
             a-long-name          7  down\n"
        );
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1000), "1,000");
        assert_eq!(octets(1023), "1023 B");
        assert_eq!(octets(1536), "1.5 KiB");
        assert_eq!(octets(u64::MAX), "16.0 EiB");
        assert_eq!(percent(0.3333), "33.3%");
    }

    #[test]
    fn moments_are_shown_in_utc() {
        assert_eq!(utc(0), "1970-01-01 00:00:00");
        assert_eq!(utc(951_782_399_000), "2000-02-28 23:59:59");
        assert_eq!(utc(951_782_400_000), "2000-02-29 00:00:00");
        assert_eq!(utc(1_767_225_599_999), "2025-12-31 23:59:59");
    }
}
