//! The ELF note that identifies a provider file before any of its code runs.

use crate::abi::{self, NoteDesc};

/// The note as it lies in the file: header, owner, record. 4-byte aligned, no pointers.
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
    /// A note for a provider that was built with this crate.
    #[must_use]
    pub const fn new(name: &str, version: &str, min_core_minor: u16, flags: u16) -> Note {
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
            },
        }
    }

    /// The record inside.
    #[must_use]
    pub const fn desc(&self) -> &NoteDesc {
        &self.desc
    }
}
