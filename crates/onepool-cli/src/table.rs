//! Tables of text, and numbers as people read them.

use std::fmt;

/// Rows of cells under a head. Columns of numbers are set flush right.
#[derive(Clone, Debug)]
pub(super) struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub(super) fn new<S: Into<String>>(head: impl IntoIterator<Item = S>) -> Self {
        Table { head: head.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// Adds a row.
    pub(super) fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }
}

/// Whether a cell holds a number, with or without a unit.
fn is_number(cell: &str) -> bool {
    cell.is_empty() || cell == "-" || cell.starts_with(|c: char| c.is_ascii_digit())
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.head.len();
        let width = |c: usize| {
            let cells = self.rows.iter().chain([&self.head]).filter_map(|r| r.get(c));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let right: Vec<bool> = (0..columns)
            .map(|c| !self.rows.is_empty() && self.rows.iter().filter_map(|r| r.get(c)).all(|s| is_number(s)))
            .collect();
        for row in [&self.head].into_iter().chain(&self.rows) {
            let mut line = String::new();
            for ((cell, &width), &right) in row.iter().zip(&widths).zip(&right) {
                let pad = " ".repeat(width - cell.chars().count());
                line += &if right { pad + cell } else { cell.clone() + &pad };
                line += "  ";
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A number of bytes with a binary unit: `1.5 MiB`.
pub(super) fn bytes(n: u64) -> String {
    scaled(n, 1024.0, &[" B", " KiB", " MiB", " GiB", " TiB"])
}

/// A large number with a decimal prefix: `3.4 G`.
pub(super) fn si(n: u64) -> String {
    scaled(n, 1000.0, &["", " k", " M", " G", " T", " P"])
}

/// A number in the largest of `units`, each `step` times the one before it, that leaves it at least 1.
fn scaled(n: u64, step: f64, units: &[&str]) -> String {
    let (mut unit, mut value) = (0, n as f64);
    while value >= step - 0.05 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    if unit == 0 { format!("{n}{}", units[0]) } else { format!("{value:.1}{}", units[unit]) }
}

/// A time: `12.3 us`, `4.56 ms`.
pub(super) fn time(nanos: u64) -> String {
    let n = nanos as f64;
    match nanos {
        0..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{:.1} us", n / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", n / 1e6),
        _ => format!("{:.2} s", n / 1e9),
    }
}

/// A number of things: `1 node`, `2 nodes`.
pub(super) fn count(n: usize, what: &str) -> String {
    count_as(n, what, &format!("{what}s"))
}

/// A number of things whose name does not take an s: `2 dispatches`.
pub(super) fn count_as(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_numbers_stand_right() {
        let mut t = Table::new(["name", "bytes"]);
        t.row(["x", "9"]);
        t.row(["longer", "1024"]);
        assert_eq!(t.to_string(), "name    bytes\nx           9\nlonger   1024\n");
    }

    #[test]
    fn a_short_row_and_an_empty_table_print() {
        let mut t = Table::new(["a", "b"]);
        assert_eq!(t.to_string(), "a  b\n");
        t.row(["only"]);
        assert_eq!(t.to_string(), "a     b\nonly\n");
    }

    #[test]
    fn numbers_take_units() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(24 << 20), "24.0 MiB");
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
        assert_eq!(si(999), "999");
        assert_eq!(si(1_000), "1.0 k");
        assert_eq!(si(3_400_000_000), "3.4 G");
        assert_eq!((count(1, "node"), count_as(0, "box", "boxes")), ("1 node".into(), "0 boxes".into()));
        assert_eq!(time(999), "999 ns");
        assert_eq!(time(12_345), "12.3 us");
        assert_eq!(time(4_560_000), "4.56 ms");
        assert_eq!(time(61_000_000_000), "61.00 s");
    }
}
