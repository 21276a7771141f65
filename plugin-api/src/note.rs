//! The ELF notes: the note that identifies a provider file before any of its code runs, and the core's own.

use crate::abi::{self, NoteDesc};

/// The note in its file format: header, owner, record. It is 4-byte aligned and has no pointers.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug)]
pub struct Note {
    owner_len: u32,
    desc_len: u32,
    note_type: u32,
    owner: [u8; 8],
    desc: NoteDesc,
}

impl Note {
    /// Makes a note for a provider that was built with this crate.
    ///
    /// # Panics
    /// If the name or the version is too long for a note. In a constant this panic is an error when the provider is compiled.
    #[must_use]
    pub const fn new(name: &str, version: &str, min_core_minor: u16, flags: u16) -> Note {
        assert!(name.len() < 32, "the name of a provider has at most 31 bytes");
        assert!(version.len() < 32, "the version of a provider has at most 31 bytes");
        Note {
            owner_len: 8,
            desc_len: size_of::<NoteDesc>() as u32,
            note_type: abi::NOTE_TYPE,
            owner: *abi::NOTE_OWNER,
            desc: NoteDesc {
                desc_len: size_of::<NoteDesc>() as u16,
                note_rev: 1,
                abi_major: abi::ABI_MAJOR,
                abi_minor: abi::ABI_MINOR,
                min_core_minor,
                flags,
                name: abi::fixed(name),
                version: abi::fixed(version),
                needs: [0; 64],
                reason: [0; 192],
            },
        }
    }

    /// Adds the paths without which the provider has no device, separated by `:`. The core loads the file only if one of them
    /// exists, or if a setting names the provider. Otherwise reports state `reason`, so the words are those of the provider itself.
    ///
    /// # Panics
    /// If a text is too long for the note, a path is not absolute, or there is no reason. In a constant this panic is an error when
    /// the provider is compiled.
    #[must_use]
    pub const fn needing(mut self, paths: &str, reason: &str) -> Note {
        assert!(paths.len() < 64, "the paths of a note have at most 63 bytes");
        assert!(reason.len() < 192 && !reason.is_empty(), "a reason has 1 to 191 bytes");
        let (bytes, mut at, mut is_start) = (paths.as_bytes(), 0, true);
        while at < bytes.len() {
            assert!(!is_start || bytes[at] == b'/', "the paths of a note are absolute");
            is_start = bytes[at] == b':';
            at += 1;
        }
        assert!(!is_start, "each path of a note has at least one byte");
        self.desc.needs = abi::fixed(paths);
        self.desc.reason = abi::fixed(reason);
        self
    }

    /// Returns the record inside the note.
    #[must_use]
    pub const fn desc(&self) -> &NoteDesc {
        &self.desc
    }
}

/// The note of a file that contains a core: the library or a program. The note states the ABI of this core. Package managers
/// compare it with the ABI major and the least minor that a provider's note requires.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug)]
pub struct CoreNote {
    owner_len: u32,
    desc_len: u32,
    note_type: u32,
    owner: [u8; 8],
    record_len: u16,
    note_rev: u16,
    abi_major: u16,
    abi_minor: u16,
}

impl CoreNote {
    /// Makes the note of a core that was built with this crate.
    #[must_use]
    #[allow(clippy::new_without_default)] // a note is made in a constant, where a default could not be used
    pub const fn new() -> CoreNote {
        CoreNote {
            owner_len: 8,
            desc_len: 8,
            note_type: abi::CORE_NOTE_TYPE,
            owner: *abi::NOTE_OWNER,
            record_len: 8,
            note_rev: 1,
            abi_major: abi::ABI_MAJOR,
            abi_minor: abi::ABI_MINOR,
        }
    }
}

/// The note of a file that opens libraries at run time. The note lists these libraries, with a priority each. Owner, type and JSON
/// are those that distributions' tools read (the "ELF dlopen metadata" of the UAPI group).
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug)]
pub struct DlopenNote<const N: usize> {
    owner_len: u32,
    desc_len: u32,
    note_type: u32,
    owner: [u8; 4],
    json: [u8; N],
}

impl<const N: usize> DlopenNote<N> {
    /// Makes a note with this text.
    #[must_use]
    pub const fn new(json: &[u8; N]) -> DlopenNote<N> {
        DlopenNote {
            owner_len: 4,
            desc_len: N as u32,
            note_type: 0x407c_0c0a,
            owner: *b"FDO\0",
            json: *json,
        }
    }
}
