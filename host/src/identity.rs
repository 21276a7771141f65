//! A provider's origin and identity: the identity note, checked against the core and the file's name.

use crate::elf::{self, OpenFile};
use std::fs::File;
use std::path::PathBuf;
use tieline_plugin_api::OUT_OF_BAND;
use tieline_plugin_api::abi::{ABI_MAJOR, ABI_MINOR, NoteDesc};
use tieline_plugin_api::note_flags;
use tieline_trial::Unfit;

/// A provider's identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name: `shm-cma`.
    pub name: String,
    /// The version of the provider.
    pub version: semver::Version,
    /// The ABI minor version for which the provider was built.
    pub abi_minor: u16,
    /// The flags of the note, of which a later minor version may have more.
    pub flags: u16,
    /// The least minor version of a core that can use the provider.
    pub min_core_minor: u16,
    /// Whether the provider was built in Rust with `panic = "abort"`, so that a panic in it ends the process.
    pub aborts: bool,
}

/// The length of the note's record in ABI 1.0. A later minor version may have a longer record; no record of this major version is
/// shorter.
const FIRST_LENGTH: usize = 76;
const _: () = assert!(size_of::<NoteDesc>() >= FIRST_LENGTH);

/// The origin of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The provider is linked into the core or the program.
    BuiltIn,
    /// The provider is a file.
    File(PathBuf),
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::BuiltIn => f.write_str("built in"),
            Origin::File(path) => path.display().fmt(f),
        }
    }
}

/// A refusal, and the step at which it happened.
pub type Refusal = (&'static str, Unfit);

/// Returns the provider name in a file's name: `shm_cma` for `libtieline_shm_cma.so`; `None` for another file.
pub(crate) fn name_in_file(file_name: &str) -> Option<&str> {
    let name = file_name.strip_prefix("libtieline_")?.strip_suffix(".so")?;
    (!name.is_empty()).then_some(name)
}

/// Checks the structure of a provider's file, and returns the descriptor of its note. None of its code runs.
///
/// # Errors
/// The file cannot be read, or is no shared object that the loader could use.
pub fn note_of(file: &File) -> Result<Option<Vec<u8>>, Refusal> {
    let unreadable = |error: std::io::Error| -> Refusal {
        ("search", Unfit { expected: "a file that can be read".into(), found: error.to_string() })
    };
    let len = file.metadata().map_err(unreadable)?.len();
    let image = elf::read(&OpenFile { file, len }).map_err(|unfit| ("elf", unfit))?;
    Ok(image.note)
}

/// Checks the descriptor of the note, and that its name is that in the name of the file, if it is given.
///
/// # Errors
/// The note is missing, or a part of it is one that this core cannot accept.
pub fn check_note(desc: Option<&[u8]>, in_file: Option<&str>) -> Result<Identity, Refusal> {
    let Some(desc) = desc else {
        return refuse("note", "a note of owner `tieline` (.note.tieline.provider)", "none");
    };
    let known = FIRST_LENGTH;
    if desc.len() < 12 {
        return refuse(
            "note",
            format!("a record of {known} bytes"),
            format!("{} bytes", desc.len()),
        );
    }
    let number = |at: usize| u16::from_ne_bytes([desc[at], desc[at + 1]]);
    let (desc_len, note_rev, abi_major, abi_minor, min_core_minor, flags) =
        (number(0), number(2), number(4), number(6), number(8), number(10));
    if usize::from(desc_len) > desc.len() || usize::from(desc_len) < known {
        return refuse(
            "note",
            format!("a record of {known} bytes or more"),
            format!("one that says {desc_len} in a note of {} bytes", desc.len()),
        );
    }
    if note_rev != 1 {
        return refuse("note", "note revision 1", format!("revision {note_rev}"));
    }
    let core = format!("{ABI_MAJOR}.{ABI_MINOR}");
    if abi_major != ABI_MAJOR {
        return refuse(
            "abi",
            format!("provider ABI {ABI_MAJOR}.x (the core speaks {core})"),
            format!("provider ABI {abi_major}.{abi_minor}"),
        );
    }
    if min_core_minor > ABI_MINOR {
        return refuse(
            "abi",
            format!("a provider that works with a core of provider ABI {core}"),
            format!("one that needs {abi_major}.{min_core_minor} or newer"),
        );
    }
    let name = text(&desc[12..44]).filter(|name| is_name(name));
    let Some(name) = name else {
        return refuse(
            "note",
            "a name of a-z, 0-9 and `-`, of at most 31 bytes",
            format!("`{}`", desc[12..44].escape_ascii().to_string().trim_end_matches("\\x00")),
        );
    };
    if name == OUT_OF_BAND {
        return refuse(
            "note",
            "a name that no module of the core has",
            format!("`{OUT_OF_BAND}`, which is the application's own datagrams"),
        );
    }
    let plain = |name: &str| name.replace('-', "_");
    if let Some(in_file) = in_file.filter(|in_file| plain(in_file) != plain(name)) {
        return refuse(
            "note",
            format!("the name in the file's name, `{in_file}`"),
            format!("`{name}` in the note"),
        );
    }
    let version = text(&desc[44..76]).unwrap_or("(not text)");
    let Ok(version) = semver::Version::parse(version) else {
        return refuse("note", "a version such as 1.2.0", format!("`{}`", version.escape_debug()));
    };
    Ok(Identity {
        name: name.to_string(),
        version,
        abi_minor,
        flags,
        min_core_minor,
        aborts: flags & (note_flags::RUST | note_flags::UNWIND) == note_flags::RUST,
    })
}

/// Returns the name and the version that a note states, whether valid or not. Returns `None` if the record is too short or they are
/// no texts.
#[must_use]
pub fn stated(desc: &[u8]) -> Option<(&str, &str)> {
    Some((text(desc.get(12..44)?)?, text(desc.get(44..76)?)?))
}

fn refuse<T>(
    phase: &'static str,
    expected: impl Into<String>,
    found: impl Into<String>,
) -> Result<T, Refusal> {
    Err((phase, Unfit { expected: expected.into(), found: found.into() }))
}

/// Parses zero-padded text: a terminating zero, followed by zeros only.
fn text(bytes: &[u8]) -> Option<&str> {
    let end = bytes.iter().position(|&b| b == 0)?;
    let (text, padding) = bytes.split_at(end);
    if padding.iter().any(|&b| b != 0) {
        return None;
    }
    std::str::from_utf8(text).ok()
}

fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_lowercase())
        && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}
