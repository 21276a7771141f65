//! The kinds of values of variables.

use tieline_plugin_api::config::Accepts;
use tieline_plugin_api::config_kind;

/// The kind of a variable's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind<'a> {
    /// A kind that providers may also declare.
    Value(Accepts<'a>),
    /// A number that may be negative.
    Integer,
    /// A list in the selection grammar.
    Selection,
    /// A list of absolute directories, separated by colons.
    Path,
}

impl<'a> Kind<'a> {
    /// The kind of a number of bytes: `64k`, `2GiB`, `inf`.
    pub const SIZE: Kind<'a> = Kind::Value(Accepts::any(config_kind::SIZE));
    /// The kind of a number: `16`, `inf`.
    pub const COUNT: Kind<'a> = Kind::Value(Accepts::any(config_kind::COUNT));
    /// The kind of a duration: `10ms`, `1s`, `inf`.
    pub const DURATION: Kind<'a> = Kind::Value(Accepts::any(config_kind::DURATION));
    /// The kind of a switch: `on`, `off` and their usual spellings.
    pub const BOOL: Kind<'a> = Kind::Value(Accepts::any(config_kind::BOOL));
    /// The kind of any text.
    pub const TEXT: Kind<'a> = Kind::Value(Accepts::any(config_kind::TEXT));
    /// The kind of a list of names, separated by commas.
    pub const LIST: Kind<'a> = Kind::Value(Accepts::any(config_kind::LIST));

    /// Makes the kind of a word out of `words`, which are separated by bars.
    pub const fn one_of(words: &'a str) -> Kind<'a> {
        Kind::Value(Accepts { words, ..Accepts::any(config_kind::TEXT) })
    }

    /// Returns the name of the kind in reports: `size`, or the words, separated by bars.
    pub fn name(self) -> String {
        match self {
            Kind::Value(accepts) => accepts.name(),
            Kind::Integer => "integer".into(),
            Kind::Selection => "selection".into(),
            Kind::Path => "path".into(),
        }
    }

    /// Describes the accepted values, for the error about a refused value.
    pub fn accepted(self) -> String {
        match self {
            Kind::Value(accepts) => accepts.accepted(),
            Kind::Integer => "an integer is a whole number such as 50 or -1".into(),
            Kind::Path => "accepted are absolute directories with colons between them".into(),
            Kind::Selection => "accepted is a comma list of names or globs, with ^ in front of the whole list to exclude".into(),
        }
    }

    /// Checks whether `text` is a value of this kind. The check accepts every selection, because a selection has its own parser.
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
