//! Values as people write them: `64k`, `2GiB`, `10ms`, `on`.

use tieline_plugin_api::units::{boolean, count, duration, size};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_admits_what_its_parser_reads() {
        assert!(Kind::OneOf(&["fallback", "prefer"]).admits("Prefer"));
        assert!(!Kind::OneOf(&["fallback", "prefer"]).admits("always"));
        assert!(Kind::Path.admits("/a:/b"));
        assert!(!Kind::Path.admits("/a:b"));
        assert!(Kind::Integer.admits("-1"));
    }
}
