//! The kinds of values of variables.

use tieline_plugin_api::config::Accepts;
use tieline_plugin_api::config_kind;

/// The kind of a variable's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind<'a> {
    /// A kind that providers may declare too.
    Value(Accepts<'a>),
    /// A number that may be negative.
    Integer,
    /// The selection grammar.
    Selection,
    /// Absolute directories separated by colons.
    Path,
}

impl<'a> Kind<'a> {
    /// Bytes: `64k`, `2GiB`, `inf`.
    pub const SIZE: Kind<'a> = Kind::Value(Accepts::any(config_kind::SIZE));
    /// `16`, `inf`.
    pub const COUNT: Kind<'a> = Kind::Value(Accepts::any(config_kind::COUNT));
    /// `10ms`, `1s`, `inf`.
    pub const DURATION: Kind<'a> = Kind::Value(Accepts::any(config_kind::DURATION));
    /// `on`, `off` and their usual spellings.
    pub const BOOL: Kind<'a> = Kind::Value(Accepts::any(config_kind::BOOL));
    /// Anything.
    pub const TEXT: Kind<'a> = Kind::Value(Accepts::any(config_kind::TEXT));
    /// Names separated by commas.
    pub const LIST: Kind<'a> = Kind::Value(Accepts::any(config_kind::LIST));

    /// One of these words, which are separated by bars.
    pub const fn one_of(words: &'a str) -> Kind<'a> {
        Kind::Value(Accepts { words, ..Accepts::any(config_kind::TEXT) })
    }

    /// Its name in reports: `size`, or the words, separated by bars.
    pub fn name(self) -> String {
        match self {
            Kind::Value(accepts) => accepts.name(),
            Kind::Integer => "integer".into(),
            Kind::Selection => "selection".into(),
            Kind::Path => "path".into(),
        }
    }

    /// The accepted values, for the error of a refused value.
    pub fn accepted(self) -> String {
        match self {
            Kind::Value(accepts) => accepts.accepted(),
            Kind::Integer => "an integer is a whole number such as 50 or -1".into(),
            Kind::Path => "accepted are absolute directories with colons between them".into(),
            Kind::Selection => "accepted is a comma list of names or globs, with ^ in front of the whole list to exclude".into(),
        }
    }

    /// Whether `text` is a value of this kind. The parser of selections checks those.
    pub fn admits(self, text: &str) -> bool {
        match self {
            Kind::Value(accepts) => accepts.read(text).is_some(),
            Kind::Integer => text.parse::<i32>().is_ok(),
            Kind::Selection => true,
            Kind::Path => text.split(':').all(|part| part.is_empty() || part.starts_with('/')),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_admits_what_its_parser_reads() {
        assert!(Kind::one_of("fallback|prefer").admits("Prefer"));
        assert!(!Kind::one_of("fallback|prefer").admits("always"));
        assert!(Kind::Path.admits("/a:/b"));
        assert!(!Kind::Path.admits("/a:b"));
        assert!(Kind::Integer.admits("-1"));
        assert!(!Kind::Integer.admits("1.5") && !Kind::Integer.admits(""));
        assert!(Kind::Path.admits("/a::/b") && !Kind::Path.admits("a:/b"));
        assert!(Kind::Selection.admits("a,^b"), "it is checked where it is read");
    }

    #[test]
    fn a_kind_has_a_name_and_says_what_it_accepts() {
        let of = |kind: Kind| (kind.name(), kind.accepted());
        let word = |name: &str, accepted: &str| (name.to_owned(), accepted.to_owned());
        assert_eq!(
            of(Kind::Integer),
            word("integer", "an integer is a whole number such as 50 or -1")
        );
        assert_eq!(
            of(Kind::Path),
            word("path", "accepted are absolute directories with colons between them")
        );
        let selection = "accepted is a comma list of names or globs, with ^ in front of the whole list to exclude";
        assert_eq!(of(Kind::Selection), word("selection", selection));
        assert_eq!(of(Kind::one_of("a|b")), word("a|b", "accepted are a, b"));
    }
}
