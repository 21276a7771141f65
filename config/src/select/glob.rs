//! Globs that match a whole name: `*`, `?`, `[a-c]`, `[!x]`.

/// A parsed pattern. A name without `*`, `?` or `[` matches only itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Glob(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    One(char),
    Any,
    Rest,
    Among { ranges: Vec<(char, char)>, inverted: bool },
}

impl Glob {
    /// Parses a pattern.
    ///
    /// # Errors
    /// Returns the reason why the pattern is invalid.
    pub(super) fn parse(pattern: &str) -> Result<Glob, &'static str> {
        let mut pieces = Vec::new();
        let mut chars = pattern.chars();
        while let Some(c) = chars.next() {
            match c {
                '*' if pieces.last() == Some(&Piece::Rest) => {}
                '*' => pieces.push(Piece::Rest),
                '?' => pieces.push(Piece::Any),
                '[' => {
                    let rest = chars.as_str();
                    let end = rest.find(']').ok_or("a `[` has no `]`")?;
                    pieces.push(among(&rest[..end])?);
                    chars = rest[end + 1..].chars();
                }
                ']' => return Err("a `]` has no `[`"),
                c => pieces.push(Piece::One(c)),
            }
        }
        Ok(Glob(pieces))
    }

    /// Checks whether the pattern matches the whole name.
    pub(super) fn fits(&self, name: &str) -> bool {
        // Backtracking returns only to the last `*`: linear in practice, never exponential.
        let name: Vec<char> = name.chars().collect();
        let (mut at, mut piece) = (0, 0);
        let mut star: Option<(usize, usize)> = None;
        while at < name.len() {
            match self.0.get(piece) {
                Some(Piece::Rest) => {
                    star = Some((piece, at));
                    piece += 1;
                }
                Some(single) if single.fits(name[at]) => {
                    at += 1;
                    piece += 1;
                }
                _ => {
                    let Some((back, taken)) = star else { return false };
                    star = Some((back, taken + 1));
                    piece = back + 1;
                    at = taken + 1;
                }
            }
        }
        self.0[piece..].iter().all(|rest| *rest == Piece::Rest)
    }
}

impl Piece {
    fn fits(&self, c: char) -> bool {
        match self {
            Piece::One(one) => *one == c,
            Piece::Any | Piece::Rest => true,
            Piece::Among { ranges, inverted } => {
                ranges.iter().any(|(low, high)| (*low..=*high).contains(&c)) != *inverted
            }
        }
    }
}

/// Parses the inside of `[...]`.
fn among(inside: &str) -> Result<Piece, &'static str> {
    let (inverted, inside) = match inside.strip_prefix('!') {
        Some(rest) => (true, rest),
        None => (false, inside),
    };
    let chars: Vec<char> = inside.chars().collect();
    if chars.is_empty() {
        return Err("a `[]` is empty");
    }
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        let is_range = at + 2 < chars.len() && chars[at + 1] == '-';
        let high = if is_range { chars[at + 2] } else { chars[at] };
        if high < chars[at] {
            return Err("a range in `[]` runs backwards");
        }
        ranges.push((chars[at], high));
        at += if is_range { 3 } else { 1 };
    }
    Ok(Piece::Among { ranges, inverted })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glob_fits_the_whole_name() {
        for (pattern, name, fits) in [
            ("shm", "shm", true),
            ("shm", "shm-cma", false),
            ("shm*", "shm-cma", true),
            ("*cma", "shm-cma", true),
            ("*", "", true),
            ("?", "", false),
            ("s?m", "shm", true),
            ("verbs:mlx5_[0-3]", "verbs:mlx5_2", true),
            ("verbs:mlx5_[0-3]", "verbs:mlx5_4", false),
            ("verbs:mlx5_[!0]", "verbs:mlx5_4", true),
            ("verbs:*/rc", "verbs:mlx5_0/rc", true),
            ("*a*b*c", "xxaxxbxxbc", true),
            ("*a*b*c", "xxaxxbxxcb", false),
            ("[a-]", "-", true),
            ("[a-]", "b", false),
            ("[-a]", "-", true),
            ("[a-c]", "a", true),
            ("[a-c]", "c", true),
            ("[a-c]", "d", false),
            ("[a-cx]", "x", true),
            ("[a-cx]", "-", false),
            ("[b-b]", "b", true),
            ("[!a-c]x", "dx", true),
            ("[!a-c]x", "bx", false),
            ("a[bc]d", "acd", true),
            ("a[bc]d", "ac", false),
            ("a**", "a", true),
            ("a**b", "axb", true),
            ("a*?", "a", false),
            ("a*?", "ab", true),
            ("ä?", "äö", true),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(Glob::parse(pattern).unwrap().fits(name), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn a_broken_glob_says_what_is_wrong() {
        for pattern in ["a[b", "a]b", "a[]", "[z-a]", "[!]"] {
            assert!(Glob::parse(pattern).is_err(), "{pattern}");
        }
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        let pattern = "*a".repeat(60) + "b";
        assert!(!Glob::parse(&pattern).unwrap().fits(&"a".repeat(5000)));
    }
}
