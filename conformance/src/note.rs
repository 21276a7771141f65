//! Reads a provider's note from the bytes of its file, as the core does before it loads one.

use tieline_plugin_api::abi::{NOTE_OWNER, NOTE_SECTION, NOTE_TYPE, fixed_str};

/// The length of the note's record in ABI 1.0, which no provider's is below.
pub(crate) const FIRST_LENGTH: usize = 76;

/// What the note says.
#[derive(Debug)]
pub(crate) struct Note {
    pub(crate) desc_len: usize,
    pub(crate) revision: u16,
    pub(crate) abi_major: u16,
    pub(crate) abi_minor: u16,
    pub(crate) min_core_minor: u16,
    pub(crate) flags: u16,
    pub(crate) name: String,
    pub(crate) version: String,
}

/// Finds the section by name in a 64-bit little-endian ELF file.
pub(crate) fn read(file: &[u8]) -> Result<Note, String> {
    if file.get(..6) != Some(b"\x7fELF\x02\x01") {
        return Err("the file is no 64-bit little-endian ELF file".to_string());
    }
    let broken = || "the file's section headers are broken".to_string();
    let (table, size) =
        (u64_at(file, 40).ok_or_else(broken)?, u16_at(file, 58).ok_or_else(broken)?);
    let (count, names) =
        (u16_at(file, 60).ok_or_else(broken)?, u16_at(file, 62).ok_or_else(broken)?);
    let header = |index: u16| {
        let start =
            usize::try_from(table).ok()?.checked_add(usize::from(index) * usize::from(size))?;
        file.get(start..start.checked_add(64)?)
    };
    let content = |header: &[u8]| {
        let start = usize::try_from(u64_at(header, 24)?).ok()?;
        let len = usize::try_from(u64_at(header, 32)?).ok()?;
        file.get(start..start.checked_add(len)?)
    };
    let strings = header(names).and_then(content).ok_or_else(broken)?;
    for index in 0..count {
        let header = header(index).ok_or_else(broken)?;
        let name = strings.get(u32_at(header, 0).ok_or_else(broken)? as usize..).unwrap_or(&[]);
        if name.strip_prefix(NOTE_SECTION.as_bytes()).is_some_and(|rest| rest.first() == Some(&0)) {
            let note = content(header).ok_or_else(broken)?;
            return parse(note)
                .ok_or_else(|| format!("section {NOTE_SECTION} holds no valid note"));
        }
    }
    Err(format!("the file has no section {NOTE_SECTION}"))
}

fn parse(note: &[u8]) -> Option<Note> {
    let desc_len = u32_at(note, 4)? as usize;
    let owned =
        u32_at(note, 0)? == 8 && u32_at(note, 8)? == NOTE_TYPE && &note[12..20] == NOTE_OWNER;
    let desc = note.get(20..20 + desc_len.min(note.len()))?;
    if !owned || desc.len() < FIRST_LENGTH {
        return None;
    }
    let text = |at: usize| fixed_str(&desc[at..at + 32]).map(str::to_string);
    Some(Note {
        desc_len: usize::from(u16_at(desc, 0)?),
        revision: u16_at(desc, 2)?,
        abi_major: u16_at(desc, 4)?,
        abi_minor: u16_at(desc, 6)?,
        min_core_minor: u16_at(desc, 8)?,
        flags: u16_at(desc, 10)?,
        name: text(12)?,
        version: text(44)?,
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_truncation_of_a_file_is_taken_for_a_note_or_panics() {
        let file = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(read(&file).unwrap_err().contains("no section"));
        for len in (0..file.len()).step_by(file.len() / 50 + 1).chain(0..300) {
            assert!(read(&file[..len]).is_err());
        }
    }
}
