//! Reads a provider's note from the bytes of its file, as the core does before it loads the file.

use tieline_plugin_api::abi::{NOTE_OWNER, NOTE_SECTION, NOTE_TYPE};

/// The length of the note's record in ABI 1.0, in bytes: the shortest that a provider may have.
pub(crate) const FIRST_LENGTH: usize = 76;

/// The contents of the note.
#[derive(Debug)]
pub(crate) struct Note {
    /// The stated length of the note's record.
    pub(crate) desc_len: usize,
    /// The actual length of the note's record.
    pub(crate) held: usize,
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
            return parse(note);
        }
    }
    Err(format!("the file has no section {NOTE_SECTION}"))
}

fn parse(note: &[u8]) -> Result<Note, String> {
    let invalid = || format!("section {NOTE_SECTION} holds no valid note");
    let number = |at: usize| u32_at(note, at).ok_or_else(invalid);
    let owned = number(0)? == 8 && number(8)? == NOTE_TYPE && note.get(12..20) == Some(NOTE_OWNER);
    let held = number(4)? as usize;
    let desc = note.get(20..).and_then(|rest| rest.get(..held)).ok_or_else(invalid)?;
    if !owned || held < FIRST_LENGTH {
        return Err(invalid());
    }
    let number = |at: usize| u16_at(desc, at).ok_or_else(invalid);
    let text = |at: usize, what: &str| {
        let found = padded(&desc[at..at + 32]).map(str::to_string);
        found.ok_or_else(|| {
            format!("{what} in the note is no text of at most 31 bytes with zeros behind it")
        })
    };
    Ok(Note {
        desc_len: usize::from(number(0)?),
        held,
        revision: number(2)?,
        abi_major: number(4)?,
        abi_minor: number(6)?,
        min_core_minor: number(8)?,
        flags: number(10)?,
        name: text(12, "the name")?,
        version: text(44, "the version")?,
    })
}

/// Returns the text that ends with a zero, followed only by zeros.
fn padded(bytes: &[u8]) -> Option<&str> {
    let (text, padding) = bytes.split_at(bytes.iter().position(|&byte| byte == 0)?);
    padding.iter().all(|&byte| byte == 0).then(|| std::str::from_utf8(text).ok())?
}

/// Checks whether this is a semantic version.
pub(crate) fn is_version(version: &str) -> bool {
    let (rest, build) = version.split_once('+').map_or((version, None), |(a, b)| (a, Some(b)));
    let (numbers, before) = rest.split_once('-').map_or((rest, None), |(a, b)| (a, Some(b)));
    let is_word = |word: &str| {
        !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    let is_number = |word: &str| word.bytes().all(|b| b.is_ascii_digit());
    let begins_well = |word: &str| !is_number(word) || word == "0" || !word.starts_with('0');
    numbers.split('.').count() == 3
        && numbers
            .split('.')
            .all(|word| word.parse::<u64>().is_ok() && is_number(word) && begins_well(word))
        && before
            .is_none_or(|words| words.split('.').all(|word| is_word(word) && begins_well(word)))
        && build.is_none_or(|words| words.split('.').all(is_word))
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

    /// Returns a note with these values and this stated length of its record.
    fn note(len: u16, name: &[u8], version: &[u8]) -> Vec<u8> {
        let words = [8, 76, NOTE_TYPE].map(u32::to_le_bytes).concat();
        let numbers = [len, 1, 1, 0, 0, 0].map(u16::to_le_bytes).concat();
        let mut bytes = [&words[..], NOTE_OWNER, &numbers, name].concat();
        bytes.resize(20 + 44, 0);
        bytes.extend(version);
        bytes.resize(20 + 76, 0);
        bytes
    }

    #[test]
    fn a_note_is_read_as_the_core_reads_it_and_no_cut_of_it_is_one_or_panics() {
        let whole = note(76, b"mine", b"1.0.0");
        let read = parse(&whole).unwrap();
        assert_eq!((&*read.name, &*read.version, read.held), ("mine", "1.0.0", 76));
        assert!((0..whole.len()).all(|len| parse(&whole[..len]).is_err()));
        // The maximum is 31 bytes and a zero, and all bytes after the zero are zero.
        for name in [&[b'm'; 32][..], b"mine\0x"] {
            assert!(parse(&note(76, name, b"1.0.0")).unwrap_err().contains("the name"));
        }
        for version in [&b"1.0.0-rc.1+build.20261128.abcdef"[..], b"1.0.0\0x"] {
            assert!(parse(&note(76, b"mine", version)).unwrap_err().contains("the version"));
        }
    }

    #[test]
    fn a_version_is_what_the_core_takes_for_one() {
        for good in
            ["0.0.0", "1.2.3-rc.1-x+b-1.01", "1.0.0-0a.0", "1.0.0+007", "18446744073709551615.0.1"]
        {
            assert!(is_version(good), "{good}");
        }
        for bad in [
            "",
            "1.0",
            "1.0.0.0",
            "01.0.0",
            "1.0.0abc",
            "1.0.0-",
            "1.0.0-01",
            "1.0.0-a..b",
            "1.0.0+",
            "+1.0.0",
            "1.0.0\n",
            "18446744073709551616.0.1",
            "1.0.0+a+b",
        ] {
            assert!(!is_version(bad), "{bad}");
        }
    }

    #[test]
    fn no_truncation_of_a_file_is_taken_for_a_note_or_panics() {
        let file = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(read(&file).unwrap_err().contains("no section"));
        for len in (0..file.len()).step_by(file.len() / 50 + 1).chain(0..300) {
            assert!(read(&file[..len]).is_err());
        }
    }
}
