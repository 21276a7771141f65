//! Settings from TOML files, each with its line.
//!
//! ```toml
//! providers = "^shm-cma"          # TIELINE_PROVIDERS
//! TIELINE_STRICT = true           # the full name works too
//! [shm]
//! fastbox_size = "4k"             # TIELINE_SHM_FASTBOX_SIZE
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use tieline_plugin_api::Status;
use toml::Spanned;

use crate::{Error, Origin, Setting, vars};

/// A `name = value` line of a settings file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) value: String,
    pub(super) line: usize,
}

/// The maximum size of a settings file, in bytes.
pub(super) const MOST_BYTES: u64 = 1 << 20;

/// Reads the text of a regular file of at most `most` bytes. Other kinds of files are opened without blocking, and refused before a
/// byte is read: a FIFO would block the thread that opens a context, and a device might have no end.
pub(super) fn read_text(path: &Path, most: u64) -> io::Result<(String, Metadata)> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut bytes = Vec::new();
    let _ = file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let text = format!("it has more than {most} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let text = String::from_utf8(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))?;
    Ok((text, meta))
}

/// The beginnings of the lines of a text. The positions are found once per text: one search per key would cost the square of the
/// text's length.
struct LineStarts(Vec<usize>);

#[cfg(test)]
thread_local! {
    /// The number of bytes that this thread has scanned for lines.
    static LOOKED_AT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl LineStarts {
    fn of(text: &str) -> LineStarts {
        #[cfg(test)]
        LOOKED_AT.set(LOOKED_AT.get() + text.len());
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        LineStarts(std::iter::once(0).chain(ends.map(|(at, _)| at + 1)).collect())
    }

    /// Returns the line number of the byte at `at`, starting at 1.
    fn line_of(&self, at: usize) -> usize {
        self.0.partition_point(|start| *start <= at)
    }
}

/// Reads the settings of a file's text. A variable that is set twice, in any spelling, is an error.
pub(super) fn parse(path: &Path, text: &str) -> Result<Vec<Line>, Error> {
    let malformed = |line: usize, why: String| {
        let error = Error::new(
            Status::Invalid,
            format!("{}:{line} is not understood", path.display()),
            why,
            "correct the line; a setting looks like `providers = \"shm\"`",
        );
        let origin = Origin::File(path.to_owned(), line);
        error.about("", Setting { value: String::new(), origin })
    };
    let starts = LineStarts::of(text);
    let line_of = |at: usize| starts.line_of(at);
    let root: Table = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_of(span.start));
        malformed(line, error.message().trim().replace('\n', ", "))
    })?;

    let mut lines: Vec<Line> = Vec::new();
    let mut seen = BTreeMap::new();
    let mut open = vec![(String::from("TIELINE"), root)];
    while let Some((prefix, table)) = open.pop() {
        for (key, node) in table.0 {
            let line = line_of(key.span().start);
            let key = key.into_inner();
            let name = variable_name(&prefix, &key).ok_or_else(|| {
                malformed(line, format!("`{key}` cannot be part of a variable's name"))
            })?;
            match node {
                Node::Table(inner) => open.push((name, inner)),
                Node::Value(value, kind) => {
                    if let Some(kind) = kind.filter(|_| vars::holds_names(&name)) {
                        return Err(malformed(
                            line,
                            format!("{name} is a list of names, and {value} is {kind}"),
                        ));
                    }
                    if let Some(first) = seen.insert(name.clone(), line) {
                        return Err(malformed(
                            line.max(first),
                            format!("{name} is set already on line {}", first.min(line)),
                        ));
                    }
                    lines.push(Line { name, value, line });
                }
            }
        }
    }
    lines.sort_by_key(|line| line.line);
    Ok(lines)
}

/// Makes a variable's name: `[shm] fastbox-size` is `TIELINE_SHM_FASTBOX_SIZE`; a key that is a full name stays the same.
fn variable_name(prefix: &str, key: &str) -> Option<String> {
    let upper = key.to_ascii_uppercase().replace('-', "_");
    let sound = !upper.is_empty() && upper.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if !sound {
        None
    } else if upper.starts_with("TIELINE_") {
        Some(upper)
    } else {
        Some(format!("{prefix}_{upper}"))
    }
}

/// Returns the path of the user's settings file. `environment` returns the values of `XDG_CONFIG_HOME` and `HOME`. Relative values
/// are ignored, so that the current directory has no effect.
pub(super) fn user_file(environment: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let absolute = |name: &str| environment(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let directory = absolute("XDG_CONFIG_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".config")))?;
    Some(directory.join("tieline").join("tieline.toml"))
}

/// A TOML table in the order of the file, with the position of each key.
struct Table(Vec<(Spanned<String>, Node)>);

enum Node {
    Table(Table),
    /// The value as text, and its kind if it is not a string.
    Value(String, Option<&'static str>),
}

impl<'de> Deserialize<'de> for Table {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Table, D::Error> {
        match deserializer.deserialize_any(NodeVisitor)? {
            Node::Table(table) => Ok(table),
            Node::Value(..) => Err(de::Error::custom("expected a table")),
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text, a number, true, false, a list of text or a table")
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Value(value.to_owned(), None))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Value(value.to_string(), Some("a number")))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Value(value.to_string(), Some("a number")))
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Value(value.to_string(), Some("no text")))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let (mut parts, mut other) = (Vec::new(), None);
        while let Some(part) = seq.next_element::<Node>()? {
            match part {
                Node::Value(text, kind) => {
                    parts.push(text);
                    other = other.or(kind.map(|_| "a list with a value that is no text"));
                }
                Node::Table(_) => return Err(de::Error::custom("a list holds text, not tables")),
            }
        }
        Ok(Node::Value(parts.join(","), other))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry::<Spanned<String>, Node>()? {
            entries.push(entry);
        }
        Ok(Node::Table(Table(entries)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Line>, Error> {
        parse(Path::new("t.toml"), text)
    }

    #[test]
    fn a_list_of_names_is_text_and_neither_a_number_nor_a_truth() {
        for (text, why) in [
            ("providers = 5", "TIELINE_PROVIDERS is a list of names, and 5 is a number"),
            ("domains = 1.5", "TIELINE_DOMAINS is a list of names, and 1.5 is a number"),
            (
                "[connect]\nverbs = true",
                "TIELINE_CONNECT_VERBS is a list of names, and true is no text",
            ),
            (
                "modules = [\"shm/ring\", 5]",
                "TIELINE_MODULES is a list of names, and shm/ring,5 is a list with a value that is no text",
            ),
            ("provider_path = 5", "TIELINE_PROVIDER_PATH is a list of names, and 5 is a number"),
        ] {
            let error = read(text).unwrap_err();
            assert_eq!(error.why(), why);
            assert!(error.what().starts_with("t.toml:"), "{error}");
        }
        assert!(read("queue_bytes = 5\nstrict = true\nproviders = [\"5\"]").is_ok());
    }

    #[test]
    fn tables_and_keys_join_into_the_variables_name() {
        let lines = read(
            "providers = \"shm\"\nTIELINE_STRICT = true\n\n[shm]\nfastbox_size = \"4k\"\n\
             [priority]\nshm-cma = 10\n[a.b]\nc = [\"x\", \"y\"]\n",
        )
        .unwrap();
        let flat: Vec<_> =
            lines.iter().map(|l| (l.name.as_str(), l.value.as_str(), l.line)).collect();
        assert_eq!(
            flat,
            [
                ("TIELINE_PROVIDERS", "shm", 1),
                ("TIELINE_STRICT", "true", 2),
                ("TIELINE_SHM_FASTBOX_SIZE", "4k", 5),
                ("TIELINE_PRIORITY_SHM_CMA", "10", 7),
                ("TIELINE_A_B_C", "x,y", 9),
            ]
        );
    }

    #[test]
    fn a_byte_stands_on_the_line_that_counting_would_find() {
        for text in ["", "\n", "a", "a\nbc\n\n\nd", "\n\n"] {
            let starts = LineStarts::of(text);
            for at in 0..=text.len() {
                let counted = 1 + text.as_bytes()[..at].iter().filter(|b| **b == b'\n').count();
                assert_eq!(starts.line_of(at), counted, "{text:?} at {at}");
            }
        }
    }

    /// The largest accepted file is full of keys. The test counts the bytes that were scanned for the keys' lines, not the time.
    #[test]
    fn lines_of_largest_file_are_scanned_once_for_all_keys() {
        let mut text = String::new();
        let mut keys = 0;
        while text.len() as u64 + 16 < MOST_BYTES {
            text.push_str(&format!("k{keys} = 1\n"));
            keys += 1;
        }
        let before = LOOKED_AT.get();
        let lines = read(&text).unwrap();
        assert_eq!(LOOKED_AT.get() - before, text.len());
        assert_eq!(lines.len(), keys);
        assert_eq!(lines.last().map(|line| line.line), Some(keys));
    }

    #[test]
    fn only_a_regular_file_of_bounded_length_is_read() {
        let path = std::env::temp_dir().join(format!("tieline-read-{}", std::process::id()));
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read_text(&path, 5).unwrap().0, "12345");
        let error = read_text(&path, 4).unwrap_err();
        assert!(error.to_string().contains("more than 4 bytes"), "{error}");
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(read_text(&path, 4).unwrap_err().to_string().contains("UTF-8"));
        std::fs::remove_file(&path).unwrap();
        for odd in ["/dev/zero", "/dev/null", "/"] {
            let error = read_text(Path::new(odd), 4).unwrap_err();
            assert!(error.to_string().contains("not a regular file"), "{odd}: {error}");
        }
        // `/proc/self/maps` is a file that reports the length 0.
        assert!(read_text(Path::new("/proc/self/maps"), 16).is_err());
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let (said, hears) = std::sync::mpsc::channel();
        let fifo = path.clone();
        let reader = std::thread::spawn(move || said.send(read_text(&fifo, 4).map(drop)));
        let heard = hears.recv_timeout(std::time::Duration::from_secs(20));
        // If a reader waits for a writer, this open ends its wait, so that the test ends.
        let _ = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&path);
        std::fs::remove_file(&path).unwrap();
        reader.join().unwrap().unwrap();
        let error = heard.expect("nobody waits for a FIFO's writer").unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }

    #[test]
    fn an_error_names_file_and_line() {
        let error = read("providers = \"shm\"\n\nstrict = = true\n").unwrap_err();
        assert!(error.what().starts_with("t.toml:3 "), "{error}");
        let error = read("a = 1979-05-27\n").unwrap_err();
        assert!(error.what().starts_with("t.toml:1 "), "{error}");
        let error = read("ok = 1\n\"a b\" = 1\n").unwrap_err();
        assert!(error.what().starts_with("t.toml:2 "), "{error}");
    }

    #[test]
    fn a_variable_set_twice_under_two_spellings_is_an_error() {
        let error = read("TIELINE_SHM_X = 1\n[shm]\nx = 2\n").unwrap_err();
        assert!(error.to_string().contains("t.toml:3"), "{error}");
        assert!(error.to_string().contains("TIELINE_SHM_X is set already on line 1"), "{error}");
    }

    #[test]
    fn a_relative_home_is_not_followed() {
        let with = |xdg: &'static str, home: &'static str| {
            user_file(move |name| {
                Some(if name == "HOME" { home } else { xdg }.to_owned()).filter(|v| !v.is_empty())
            })
        };
        assert_eq!(with("/x", "/h"), Some("/x/tieline/tieline.toml".into()));
        assert_eq!(with("", "/h"), Some("/h/.config/tieline/tieline.toml".into()));
        assert_eq!(with("x", "h"), None);
    }

    proptest::proptest! {
        #[test]
        fn no_file_however_odd_ends_the_process(text in "([a-c_.=\\[\\]\"'0-9 \n{},-]|\\PC){0,40}") {
            let _ = read(&text);
        }
    }
}
