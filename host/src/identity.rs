//! A provider's origin and identity: the identity note, checked against the core and the file's name.

use crate::elf::{self, OpenFile, Windows};
use std::fs::File;
use std::mem::offset_of;
use std::ops::Range;
use std::path::PathBuf;
use tieline_explain::is_plain;
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
    /// The paths of which the provider needs one; empty if it needs none.
    pub needs: Vec<PathBuf>,
    /// The reason to report if there is none of them.
    pub reason: String,
}

impl Identity {
    /// Returns the reason that the provider has no device: none of the paths that it needs exists. A path that this process may not
    /// look up counts as one that exists.
    #[must_use]
    pub fn missing(&self) -> Option<&str> {
        let is_missing = |path: &PathBuf| {
            let error = path.metadata().err().and_then(|error| error.raw_os_error());
            matches!(error, Some(libc::ENOENT | libc::ENOTDIR))
        };
        (!self.needs.is_empty() && self.needs.iter().all(is_missing)).then_some(&*self.reason)
    }
}

/// The length of the note's record in ABI 1.0. A later minor version may have a longer record; no record of this major version is
/// shorter.
const FIRST_LENGTH: usize = 76;
const _: () = assert!(size_of::<NoteDesc>() >= FIRST_LENGTH);
/// The places of the paths and of the reason. A shorter record has neither.
const NEEDS: Range<usize> = offset_of!(NoteDesc, needs)..offset_of!(NoteDesc, reason);
const REASON: Range<usize> = offset_of!(NoteDesc, reason)..size_of::<NoteDesc>();

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
    let mut memory = Windows::default();
    let len = file.metadata().map_err(unreadable)?.len();
    let file = OpenFile::new(file.try_clone().map_err(unreadable)?, len, &mut memory);
    Ok(elf::read(&file).map_err(|unfit| ("elf", unfit))?.note)
}

/// Reads the identity of a file whose name contains this one. The parts that only the loader needs are left to
/// [`check_structure`], because most files that are left out never reach the loader.
pub(crate) fn identity_in(file: &OpenFile<'_>, in_file: &str) -> Result<Identity, Refusal> {
    let note = elf::note(file).map_err(|unfit| ("elf", unfit))?;
    // A damaged file may well have a damaged note.
    check_note(note.as_deref(), Some(in_file))
        .map_err(|refusal| check_structure(file).err().unwrap_or(refusal))
}

/// Checks the parts of a file that the loader relies on without checking them.
pub(crate) fn check_structure(file: &OpenFile<'_>) -> Result<(), Refusal> {
    elf::read(file).map(|_| ()).map_err(|unfit| ("elf", unfit))
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
    let (needs, reason) = needs(&desc[..usize::from(desc_len)])?;
    Ok(Identity {
        needs,
        reason,
        name: name.to_string(),
        version,
        abi_minor,
        flags,
        min_core_minor,
        aborts: flags & (note_flags::RUST | note_flags::UNWIND) == note_flags::RUST,
    })
}

/// Reads the paths of which the provider needs one, and the reason to report if there is none. A record without this part needs
/// nothing.
fn needs(record: &[u8]) -> Result<(Vec<PathBuf>, String), Refusal> {
    let (Some(paths), Some(reason)) = (record.get(NEEDS), record.get(REASON)) else {
        return Ok((Vec::new(), String::new()));
    };
    let shown = |bytes: &[u8]| {
        let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        format!("`{}`", bytes[..end].escape_ascii())
    };
    let plain = |bytes| text(bytes).filter(|text| text.chars().all(is_plain));
    let is_path = |path: &str| path.starts_with('/');
    let paths = match plain(paths) {
        Some("") => return Ok((Vec::new(), String::new())),
        Some(paths) if paths.split(':').all(is_path) => paths.split(':').map(PathBuf::from),
        _ => {
            return refuse(
                "note",
                "absolute paths of at most 63 bytes, with `:` between",
                shown(paths),
            );
        }
    };
    match plain(reason).filter(|reason| !reason.trim().is_empty()) {
        Some(reason) => Ok((paths.collect(), reason.to_string())),
        None => refuse("note", "a reason of 1 to 191 bytes beside the paths", shown(reason)),
    }
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
