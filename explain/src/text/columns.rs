//! The columns of a terminal. Only the last column is wrapped, so a long word or wide other columns may exceed the requested width.

use crate::is_plain;

/// The default width in columns.
pub(super) const WIDTH: usize = 100;
/// The minimum width of the last column; if less remains, the text exceeds the requested width.
const LEAST: usize = 12;

/// Lays out rows with the same number of cells. Columns are as wide as their widest cell; the last one wraps under its own
/// beginning. Control characters and invisible characters, which may come from another program, become blanks.
pub(super) fn columns(rows: &[Vec<String>], indent: usize, width: usize) -> String {
    lay_out(rows, indent, |hang| width.saturating_sub(hang).max(LEAST))
}

/// Lays out every row in one line of any length, for searches by line.
pub(super) fn lines(rows: &[Vec<String>], indent: usize) -> String {
    lay_out(rows, indent, |_| usize::MAX)
}

/// Lays out rows. `room` returns the width of the last column in a line that begins with this number of characters.
fn lay_out(rows: &[Vec<String>], indent: usize, room: impl Fn(usize) -> usize) -> String {
    let clean = |cell: &String| -> String {
        cell.chars().map(|c| if is_plain(c) { c } else { ' ' }).collect()
    };
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(clean).collect()).collect();
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = " ".repeat(indent);
        for (cell, width) in row.iter().zip(&widths).take(row.len().saturating_sub(1)) {
            line.push_str(cell);
            line.push_str(&" ".repeat(width + 2 - cell.chars().count()));
        }
        let hang = line.chars().count();
        let last = row.last().map_or("", String::as_str);
        for (place, part) in wrap(last, room(hang)).iter().enumerate() {
            if place > 0 {
                line = " ".repeat(hang);
            }
            line.push_str(part);
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
    text
}

/// Breaks text at white space into lines of at most `room` characters; a longer word stays whole.
#[must_use]
pub fn wrap(text: &str, room: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= room => {
                *line += " ";
                *line += word;
            }
            _ => lines.push(word.to_owned()),
        }
    }
    if lines.is_empty() { vec![String::new()] } else { lines }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|cell| (*cell).to_owned()).collect()
    }

    #[test]
    fn columns_stand_under_one_another() {
        let text = columns(&[row(&["a", "bb", "c"]), row(&["aaa", "b", ""])], 2, WIDTH);
        assert_eq!(text, "  a    bb  c\n  aaa  b\n");
    }

    #[test]
    fn a_line_is_filled_to_its_last_place() {
        assert_eq!(wrap("aa bb", 5), ["aa bb"]);
        assert_eq!(wrap("aa bb", 4), ["aa", "bb"]);
        assert_eq!(wrap("aa bb c", 5), ["aa bb", "c"]);
        assert_eq!(wrap("ää bb", 5), ["ää bb"], "characters count, not bytes");
        assert_eq!(wrap("aaaa bb", 3), ["aaaa", "bb"], "no empty line before a longer word");
        assert_eq!(wrap("aa bb c", 7), ["aa bb c"]);
        assert_eq!(wrap("aa bb c", 6), ["aa bb", "c"]);
        assert_eq!(wrap("  aa \n bb", 4), ["aa", "bb"]);
        assert_eq!(wrap("", 3), [""]);
    }

    #[test]
    fn the_last_column_wraps_under_its_beginning() {
        let long = "word ".repeat(40);
        let text = columns(&[row(&["subject", &long])], 0, WIDTH);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines.len() > 1);
        assert!(lines.iter().all(|line| line.len() <= WIDTH), "{text}");
        assert!(lines[1].starts_with("         word"), "{text}");
    }

    #[test]
    fn lines_are_not_broken() {
        let long = "word ".repeat(40);
        assert_eq!(lines(&[row(&["subject", &long])], 2), format!("  subject  {}\n", long.trim()));
    }

    #[test]
    fn a_word_that_is_too_long_stays_whole() {
        let path = "/".repeat(200);
        assert!(columns(&[row(&["x", &path])], 0, WIDTH).contains(&path));
    }

    #[test]
    fn control_characters_of_others_do_not_reach_the_terminal() {
        assert_eq!(columns(&[row(&["a\u{1b}[2J", "b\nc"])], 0, WIDTH), "a [2J  b c\n");
    }
}
