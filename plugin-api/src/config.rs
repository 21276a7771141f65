//! The configuration variables: a provider's declarations, the accepted values, and the values.

use crate::flags::config_kind::{BOOL, COUNT, DURATION, LIST, SIZE, TEXT};
use crate::{Failure, Status, units};
use std::borrow::Cow;
use std::time::Duration;

/// The accepted values of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepts<'a> {
    /// The kind of the value, [`crate::config_kind`].
    pub kind: u32,
    /// The least number: bytes, a count, or nanoseconds.
    pub least: u64,
    /// The greatest number; 0 for any.
    pub most: u64,
    /// The words, separated by bars. A text must be one of them; a value of another kind may be one of them instead.
    pub words: &'a str,
}

impl<'a> Accepts<'a> {
    /// Accepts every value of a kind.
    #[must_use]
    pub const fn any(kind: u32) -> Accepts<'a> {
        Accepts { kind, least: 0, most: 0, words: "" }
    }

    /// Reads a text. Returns the number, and the place among the words, starting at 1; 0 if the text is no word. Returns `None` if
    /// the variable does not accept the text. An empty text counts as not set, and is accepted.
    #[must_use]
    pub fn read(&self, text: &str) -> Option<(u64, u32)> {
        let text = text.trim();
        if text.is_empty() {
            return Some((0, 0));
        }
        if let Some(at) = self.words.split('|').position(|word| word.eq_ignore_ascii_case(text)) {
            return Some((0, at as u32 + 1));
        }
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let number = match self.kind {
            SIZE => units::size(text)? as u64,
            COUNT => units::count(text)?,
            DURATION => nanoseconds(units::duration(text)?),
            BOOL => return units::boolean(text).map(|yes| (u64::from(yes), 0)),
            TEXT if !self.words.is_empty() => return None,
            TEXT | LIST => return Some((0, 0)),
            _ => return None,
        };
        let most = if self.most == 0 { u64::MAX } else { self.most };
        (self.least..=most).contains(&number).then_some((number, 0))
    }

    /// Returns the value of a text, without an origin; `None` if the variable does not accept the text.
    #[must_use]
    pub fn value(&self, text: &str) -> Option<Value> {
        let (number, word) = self.read(text)?;
        let declared = self.words.split('|').nth((word as usize).wrapping_sub(1));
        let text = declared.unwrap_or(text.trim()).to_owned();
        Some(Value { number, word, text, ..Value::default() })
    }

    /// Returns the kind as reports name it: `size`, `count|all`, or the words of a text.
    #[must_use]
    pub fn name(&self) -> String {
        let kind = match self.kind {
            SIZE => "size",
            COUNT => "count",
            DURATION => "duration",
            BOOL => "bool",
            LIST => "list",
            _ => "text",
        };
        match (self.kind, self.words) {
            (_, "") => kind.to_owned(),
            (TEXT, words) => words.to_owned(),
            (_, words) => format!("{kind}|{words}"),
        }
    }

    /// Returns the accepted values, for the error of a refused value.
    #[must_use]
    pub fn accepted(&self) -> String {
        let words = self.words.replace('|', ", ");
        let kind = match self.kind {
            SIZE => {
                "a size is a whole number with k, m, g or t (powers of 1024), such as 4096, 64k or 2GiB"
            }
            COUNT => "a count is a whole number such as 16",
            DURATION => {
                "a duration is a whole number with ns, us, ms, s, min or h, such as 10ms or 1s"
            }
            BOOL => "accepted are y, yes, on, true, 1 and n, no, off, false, 0",
            TEXT if !words.is_empty() => return format!("accepted are {words}"),
            _ => return "any text is accepted".into(),
        };
        let number = |number: u64| match self.kind {
            SIZE => bytes(number),
            DURATION => format!("{:?}", Duration::from_nanos(number)),
            _ => number.to_string(),
        };
        let has_inf = self.most == 0 && matches!(self.kind, SIZE | COUNT | DURATION);
        let unlimited = if has_inf { ", or inf" } else { "" };
        let limits = match (self.least, self.most) {
            (0, 0) => String::new(),
            (least, 0) => format!("; it is at least {}", number(least)),
            (least, most) => format!("; it lies between {} and {}", number(least), number(most)),
        };
        let words = if words.is_empty() { words } else { format!("; accepted is also {words}") };
        format!("{kind}{unlimited}{limits}{words}")
    }
}

/// Formats a number of bytes, such as `64k`: the number with the largest unit that leaves a whole number.
fn bytes(number: u64) -> String {
    let whole = |shift: u32| number != 0 && number % (1 << shift) == 0;
    match [(40, 't'), (30, 'g'), (20, 'm'), (10, 'k')].into_iter().find(|unit| whole(unit.0)) {
        Some((shift, unit)) => format!("{}{unit}", number >> shift),
        None => number.to_string(),
    }
}

/// One configuration variable of a provider.
///
/// ```
/// use tieline_plugin_api::ConfigDoc;
/// const VARIABLES: &[ConfigDoc] = &[
///     ConfigDoc::size("TIELINE_MINE_BUFFER", "64k", "Bytes that are queued for one peer.").between(4 << 10, 1 << 30),
///     ConfigDoc::text("TIELINE_MINE_MODE", "auto", "When it is used.").one_of("auto|on|off"),
/// ];
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ConfigDoc {
    /// The variable's name: `TIELINE_SHM_FASTBOX_SIZE`.
    pub name: &'static str,
    /// The default, as a user would write it: `4k`.
    pub default: &'static str,
    /// The variable's effect, in one sentence.
    pub doc: &'static str,
    /// The variable's accepted values.
    pub accepts: Accepts<'static>,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $kind:ident;)*) => { $(
        $(#[$doc])*
        #[must_use]
        pub const fn $name(name: &'static str, default: &'static str, doc: &'static str) -> ConfigDoc {
            ConfigDoc { name, default, doc, accepts: Accepts::any($kind) }
        }
    )* };
}

impl ConfigDoc {
    kinds! {
        /// Makes a variable whose value is a number of bytes: `64k`.
        size = SIZE;
        /// Makes a variable whose value is a whole number: `16`.
        count = COUNT;
        /// Makes a variable whose value is a time: `10ms`.
        duration = DURATION;
        /// Makes a variable whose value is yes or no.
        flag = BOOL;
        /// Makes a variable whose value is any text, unless [`ConfigDoc::one_of`] restricts it.
        text = TEXT;
        /// Makes a variable whose value is names separated by commas.
        list = LIST;
    }

    /// Sets the limits of the number: bytes, a count, or nanoseconds. A `most` of 0 means no upper limit.
    #[must_use]
    pub const fn between(mut self, least: u64, most: u64) -> ConfigDoc {
        (self.accepts.least, self.accepts.most) = (least, most);
        self
    }

    /// Sets the words, separated by bars. A text must be one of them; a value of another kind may be one of them instead.
    #[must_use]
    pub const fn one_of(mut self, words: &'static str) -> ConfigDoc {
        self.accepts.words = words;
        self
    }

    /// Returns the value of a text.
    ///
    /// # Errors
    /// A sentence that names the variable and the accepted values.
    pub fn read(&self, text: &str) -> Result<Value, Failure> {
        self.accepts.value(text).ok_or_else(|| {
            let (name, text) = (self.name, shown(self.name, text));
            let why = format!("{name}={text} is not valid: {}", self.accepts.accepted());
            Failure::new(Status::Invalid, why)
        })
    }
}

/// The value of a variable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Value {
    /// The number: bytes, a count, nanoseconds, or 0 and 1 for no and yes; `inf` is the largest number.
    pub number: u64,
    /// The place among the variable's words, starting at 1; 0 if the value is no word.
    pub word: u32,
    /// The text as it was written, without blanks around it. A word has the spelling of its declaration, regardless of the case in
    /// which it was written.
    pub text: String,
    /// The value's origin, in words: `environment`, `/etc/tieline/tieline.toml:3`, `default`.
    pub origin: String,
    /// Whether the value is the default.
    pub is_default: bool,
}

impl Value {
    /// Returns a number of bytes, or a count.
    #[must_use]
    pub fn size(&self) -> usize {
        usize::try_from(self.number).unwrap_or(usize::MAX)
    }

    /// Returns a time that can be added to the time of a clock: at most [`units::FOREVER`].
    #[must_use]
    pub fn duration(&self) -> Duration {
        Duration::from_nanos(self.number).min(units::FOREVER)
    }

    /// Checks whether the value is yes.
    #[must_use]
    pub fn is_yes(&self) -> bool {
        self.number != 0
    }
}

/// Returns a function that returns the value of a variable by name, without a host. `set` returns the text that a variable was set
/// to, if it was.
///
/// # Errors
/// The first value that is not valid.
pub fn values(
    variables: &[ConfigDoc],
    set: impl Fn(&str) -> Option<String>,
) -> Result<impl Fn(&str) -> Value, Failure> {
    let read = |doc: &ConfigDoc| {
        let text = set(doc.name);
        let value = doc.read(text.as_deref().unwrap_or(doc.default))?;
        Ok((doc.name, Value { is_default: text.is_none(), ..value }))
    };
    let values = variables.iter().map(read).collect::<Result<Vec<_>, Failure>>()?;
    Ok(move |name: &str| {
        values.iter().find(|value| value.0 == name).map(|value| value.1.clone()).unwrap_or_default()
    })
}

/// Returns a variable's value in a form that is safe to show in a line. A job's secret that is set is replaced, and control
/// characters are escaped (`\n`).
#[must_use]
pub fn shown<'a>(name: &str, value: &'a str) -> Cow<'a, str> {
    if name == shared::SECRET.name && !value.is_empty() {
        return "(set)".into();
    }
    if !value.contains(char::is_control) {
        return value.into();
    }
    let plain = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.into() };
    value.chars().map(plain).collect()
}

/// The variables of the core that providers read, too. A provider declares those that it reads; the core's own declaration applies.
pub mod shared {
    use super::ConfigDoc;

    /// The job's secret.
    pub const SECRET: ConfigDoc = ConfigDoc::text("TIELINE_SECRET", "", "The core's.");
    /// The interfaces that connections over TCP may use.
    pub const TCP_INTERFACES: ConfigDoc =
        ConfigDoc::list("TIELINE_TCP_INTERFACES", "", "The core's.");
    /// The ports to listen on for connections over TCP.
    pub const TCP_PORTS: ConfigDoc = ConfigDoc::text("TIELINE_TCP_PORTS", "0", "The core's.");
    /// The time that a peer or the connection to it may be silent.
    pub const FAILURE_TIMEOUT: ConfigDoc =
        ConfigDoc::duration("TIELINE_FAILURE_TIMEOUT", "20s", "The core's.");
    /// The time that forming one connection may take.
    pub const CONNECT_TIMEOUT: ConfigDoc =
        ConfigDoc::duration("TIELINE_CONNECT_TIMEOUT", "30s", "The core's.");
    /// The maximum time for which closing an interface waits for its peers.
    pub const CLOSE_TIMEOUT: ConfigDoc =
        ConfigDoc::duration("TIELINE_CLOSE_TIMEOUT", "1s", "The core's.");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_read_in_its_unit_and_within_its_limits() {
        let size = ConfigDoc::size("TIELINE_X", "4k", "").between(1 << 10, 1 << 20);
        assert_eq!(size.read(" 64k ").unwrap().size(), 64 << 10);
        for text in ["512", "2m", "lots", "inf"] {
            let failure = size.read(text).unwrap_err();
            let expected = format!("TIELINE_X={text} is not valid: a size is");
            assert!(failure.text.starts_with(&expected), "{}", failure.text);
            assert!(failure.text.ends_with("it lies between 1k and 1m"), "{}", failure.text);
            assert!(!failure.text.contains("or inf"), "it is refused: {}", failure.text);
        }
        let time = ConfigDoc::duration("TIELINE_X", "", "").between(1_000_000, 0);
        assert_eq!(time.read("2ms").unwrap().duration(), Duration::from_millis(2));
        assert_eq!(time.read("inf").unwrap().duration(), units::FOREVER);
        assert!(time.read("1us").unwrap_err().text.ends_with("it is at least 1ms"));
        assert_eq!(time.read("").unwrap().number, 0, "an empty text says nothing");
    }

    #[test]
    fn a_value_that_is_refused_stays_in_its_line() {
        let size = ConfigDoc::size("TIELINE_X", "4k", "");
        let failure = size.read("5\nall is well\u{1b}[2J").unwrap_err();
        let expected = "TIELINE_X=5\\nall is well\\u{1b}[2J is not valid: ";
        assert!(failure.text.starts_with(expected), "{}", failure.text);
        assert_eq!(shown("TIELINE_SECRET", "hunter\n2"), "(set)");
        assert_eq!(shown("TIELINE_X", "über 5k"), "über 5k");
    }

    #[test]
    fn words_are_told_by_their_place_and_stand_beside_numbers() {
        let mode = ConfigDoc::text("TIELINE_X", "auto", "").one_of("auto|on|off");
        assert_eq!(["auto", "On", "off"].map(|text| mode.read(text).unwrap().word), [1, 2, 3]);
        let texts = ["AUTO", " On ", "off"].map(|text| mode.read(text).unwrap().text);
        assert_eq!(texts, ["auto", "on", "off"], "as they are declared");
        assert!(mode.read("maybe").unwrap_err().text.ends_with("accepted are auto, on, off"));
        let rails = ConfigDoc::count("TIELINE_X", "1", "").between(1, 8).one_of("all");
        let read = |text| rails.read(text).map(|value| (value.number, value.word)).ok();
        assert_eq!([read("all"), read("8"), read("9")], [Some((0, 1)), Some((8, 0)), None]);
        assert_eq!(rails.accepts.name(), "count|all");
        let flag = ConfigDoc::flag("TIELINE_X", "auto", "").one_of("auto");
        assert_eq!(
            ["auto", "yes", "off"].map(|t| flag.read(t).unwrap().is_yes()),
            [false, true, false]
        );
    }

    #[test]
    fn set_value_replaces_default() {
        let list = [ConfigDoc::count("TIELINE_A", "3", ""), ConfigDoc::count("TIELINE_B", "4", "")];
        let values = values(&list, |name| (name == "TIELINE_B").then(|| "5".into())).unwrap();
        let (a, b) = (values("TIELINE_A"), values("TIELINE_B"));
        assert_eq!(((a.number, a.is_default), (b.number, b.is_default)), ((3, true), (5, false)));
    }

    #[test]
    fn bytes_are_said_with_the_largest_unit_that_leaves_a_whole_number() {
        for (number, words) in [
            (0, "0"),
            (1023, "1023"),
            (1 << 10, "1k"),
            (1025, "1025"),
            (3 << 10, "3k"),
            (1 << 20, "1m"),
            (5 << 30, "5g"),
            (1 << 40, "1t"),
            (1025 << 10, "1025k"),
        ] {
            assert_eq!(bytes(number), words);
        }
    }

    #[test]
    fn accepted_values_are_described_with_limits_and_words() {
        let of = |doc: ConfigDoc| (doc.accepts.name(), doc.accepts.accepted());
        let word = |name: &str, accepted: &str| (name.to_owned(), accepted.to_owned());
        let doc =
            |make: fn(&'static str, &'static str, &'static str) -> ConfigDoc| make("X", "", "");
        let count = "a count is a whole number such as 16";
        assert_eq!(of(doc(ConfigDoc::count)), word("count", &format!("{count}, or inf")));
        let (least, both) = (
            format!("{count}, or inf; it is at least 2"),
            format!("{count}; it lies between 2 and 9; accepted is also all"),
        );
        assert_eq!(of(doc(ConfigDoc::count).between(2, 0)), word("count", &least));
        assert_eq!(of(doc(ConfigDoc::count).between(2, 9).one_of("all")), word("count|all", &both));
        assert_eq!(
            of(doc(ConfigDoc::count).between(0, 9)).1,
            format!("{count}; it lies between 0 and 9")
        );
        let time =
            "a duration is a whole number with ns, us, ms, s, min or h, such as 10ms or 1s, or inf";
        assert_eq!(of(doc(ConfigDoc::duration)), word("duration", time));
        let flag = "accepted are y, yes, on, true, 1 and n, no, off, false, 0";
        assert_eq!(of(doc(ConfigDoc::flag)), word("bool", flag));
        assert_eq!(of(doc(ConfigDoc::list)), word("list", "any text is accepted"));
        assert_eq!(of(doc(ConfigDoc::text)), word("text", "any text is accepted"));
        assert_eq!(of(doc(ConfigDoc::text).one_of("a|b")), word("a|b", "accepted are a, b"));
    }

    #[test]
    fn limits_belong_to_what_is_accepted() {
        let read = |doc: ConfigDoc, text: &str| doc.read(text).ok().map(|value| value.number);
        let count = ConfigDoc::count("X", "", "").between(2, 9);
        assert_eq!(
            ["1", "2", "9", "10"].map(|text| read(count, text)),
            [None, Some(2), Some(9), None]
        );
        let least = ConfigDoc::count("X", "", "").between(2, 0);
        assert_eq!(
            ["1", "2", "inf"].map(|text| read(least, text)),
            [None, Some(2), Some(u64::MAX)]
        );
        let time = ConfigDoc::duration("X", "", "");
        assert_eq!(
            ["1us", "1", "inf"].map(|text| read(time, text)),
            [Some(1000), None, Some(u64::MAX)]
        );
        assert_eq!(
            read(ConfigDoc { accepts: Accepts::any(99), ..time }, "x"),
            None,
            "no such kind"
        );
    }
}
