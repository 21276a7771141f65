//! Checks those parts of an ELF file that the loader relies on without checking them, and reads its identity note. No code of the
//! file runs.
//!
//! dlopen maps and accesses the ranges that the program headers state. If the file is shorter than they claim, the process may die
//! of SIGBUS inside dlopen. So the headers, the loadable, dynamic and note segments, and the sections with contents are compared
//! with the file's length first. The bytes are untrusted: reads are bounds-checked, and tables have a maximum length.

mod dynamic;
mod window;

pub(crate) use window::{OpenFile, Windows};

use tieline_plugin_api::abi::{NOTE_OWNER, NOTE_SECTION, NOTE_TYPE};
use tieline_trial::Unfit;

/// A source of bytes that can be read at an offset: a file, or a slice in tests.
pub(crate) trait Bytes {
    /// Returns the length in bytes.
    fn len(&self) -> u64;
    /// Fills `out` from `offset`; `false` if the source does not contain the whole range.
    fn read(&self, offset: u64, out: &mut [u8]) -> bool;
}

impl Bytes for [u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> bool {
        let Ok(start) = usize::try_from(offset) else { return false };
        let Some(end) = start.checked_add(out.len()) else { return false };
        match self.get(start..end) {
            Some(part) => {
                out.copy_from_slice(part);
                true
            }
            None => false,
        }
    }
}

fn unfit<T>(expected: impl Into<String>, found: impl Into<String>) -> Result<T, Unfit> {
    Err(Unfit { expected: expected.into(), found: found.into() })
}

/// The result of reading the file: the descriptor of the identity note, if there is one.
pub(crate) struct Image {
    pub(crate) note: Option<Vec<u8>>,
}

const EHDR: usize = 64;
const PHDR: u64 = 56;
const SHDR: u64 = 64;
const ET_DYN: u16 = 3;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_NOTE: u32 = 4;
const PT_GNU_RELRO: u32 = 0x6474_e552;
const SHT_NULL: u32 = 0;
const SHT_NOBITS: u32 = 8;
/// The maximum number of sections, above that of any real shared object.
const MOST_HEADERS: u64 = 65_536;
/// The maximum length of the notes of one segment or section; longer ones are not searched.
const MOST_NOTE_BYTES: u64 = 64 * 1024;

/// The machine number and its name for this build; `None` if the table has no entry for it.
const MACHINE: Option<(u16, &str)> = if cfg!(target_arch = "x86_64") {
    Some((62, "x86-64"))
} else if cfg!(target_arch = "aarch64") {
    Some((183, "AArch64"))
} else if cfg!(target_arch = "riscv64") {
    Some((243, "RISC-V"))
} else if cfg!(target_arch = "powerpc64") {
    Some((21, "PowerPC64"))
} else if cfg!(target_arch = "s390x") {
    Some((22, "S/390"))
} else if cfg!(target_arch = "loongarch64") {
    Some((258, "LoongArch"))
} else {
    None
};

fn machine_name(machine: u16) -> String {
    let name = match machine {
        3 => "i386",
        8 => "MIPS",
        20 => "PowerPC",
        21 => "PowerPC64",
        22 => "S/390",
        40 => "Arm",
        62 => "x86-64",
        183 => "AArch64",
        243 => "RISC-V",
        258 => "LoongArch",
        _ => return format!("machine number {machine}"),
    };
    name.to_string()
}

/// Checks headers, segments and sections, and reads the note.
pub(crate) fn read(bytes: &(impl Bytes + ?Sized)) -> Result<Image, Unfit> {
    let header = Header::read(bytes)?;
    let note = segments(bytes, &header)?;
    let by_name = sections(bytes, &header, note.is_none())?;
    Ok(Image { note: note.or(by_name) })
}

/// Reads the note of a file whose other parts are not checked yet. Without a note in a segment, the whole file is checked.
pub(crate) fn note(bytes: &(impl Bytes + ?Sized)) -> Result<Option<Vec<u8>>, Unfit> {
    let header = Header::read(bytes)?;
    for i in 0..header.segments {
        let mut raw = [0; PHDR as usize];
        if !bytes.read(header.segments_at + i * PHDR, &mut raw) {
            break;
        }
        let field = Fields(&raw);
        if field.u32(0) == PT_NOTE {
            let note = find_note(bytes, field.u64(8), field.u64(32), field.u64(48));
            if note.is_some() {
                return Ok(note);
            }
        }
    }
    read(bytes).map(|image| image.note)
}

/// Checks whether `len` bytes at `offset` lie inside a file of `total` bytes.
fn inside(offset: u64, len: u64, total: u64) -> bool {
    offset.checked_add(len).is_some_and(|end| end <= total)
}

/// The fields of a header that was read completely; the offsets are constants within the header's length.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u16(&self, at: usize) -> u16 {
        self.array(at).map_or(0, u16::from_ne_bytes)
    }
    fn u32(&self, at: usize) -> u32 {
        self.array(at).map_or(0, u32::from_ne_bytes)
    }
    fn u64(&self, at: usize) -> u64 {
        self.array(at).map_or(0, u64::from_ne_bytes)
    }
    fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..at.checked_add(N)?)?.try_into().ok()
    }
}

struct Header {
    segments_at: u64,
    segments: u64,
    sections_at: u64,
    sections: u64,
    names_index: u64,
}

impl Header {
    fn read(bytes: &(impl Bytes + ?Sized)) -> Result<Header, Unfit> {
        let mut raw = [0; EHDR];
        let mut magic = [0; 4];
        if !bytes.read(0, &mut magic) || magic != *b"\x7fELF" {
            return unfit("an ELF shared object", format!("no ELF header ({} bytes)", bytes.len()));
        }
        if !bytes.read(0, &mut raw) {
            return unfit(
                "a whole ELF header of 64 bytes",
                format!("a truncated file of {} bytes", bytes.len()),
            );
        }
        let our_class = if cfg!(target_pointer_width = "64") { 2 } else { 1 };
        if raw[4] != our_class || our_class != 2 {
            return unfit("a 64-bit ELF file", format!("ELF class {}", raw[4]));
        }
        let (our_data, word) =
            if cfg!(target_endian = "little") { (1, "little") } else { (2, "big") };
        if raw[5] != our_data {
            return unfit(format!("a {word}-endian ELF file"), format!("ELF data {}", raw[5]));
        }
        let field = Fields(&raw);
        if let Some((machine, name)) = MACHINE {
            if field.u16(18) != machine {
                return unfit(
                    format!("a file for {name}"),
                    format!("a file for {}", machine_name(field.u16(18))),
                );
            }
        }
        if field.u16(16) != ET_DYN {
            return unfit("a shared object (ET_DYN)", format!("ELF type {}", field.u16(16)));
        }
        let segments = u64::from(field.u16(56));
        if segments == 0 || segments == 0xffff || u64::from(field.u16(54)) != PHDR {
            return unfit(
                "program headers of 56 bytes",
                format!("{segments} of {} bytes", field.u16(54)),
            );
        }
        let mut header = Header {
            segments_at: field.u64(32),
            segments,
            sections_at: field.u64(40),
            sections: u64::from(field.u16(60)),
            names_index: u64::from(field.u16(62)),
        };
        if !inside(header.segments_at, segments * PHDR, bytes.len()) {
            return truncated("the program headers", header.segments_at, segments * PHDR, bytes);
        }
        if header.sections_at == 0 {
            header.sections = 0; // a file stripped of all section headers is allowed
            return Ok(header);
        }
        if u64::from(field.u16(58)) != SHDR {
            return unfit("section headers of 64 bytes", format!("{} bytes", field.u16(58)));
        }
        if header.sections == 0 || header.names_index == 0xffff {
            // With extended numbering, the first section header holds the real numbers.
            let mut first = [0; SHDR as usize];
            if !bytes.read(header.sections_at, &mut first) {
                return truncated("the section headers", header.sections_at, SHDR, bytes);
            }
            let first = Fields(&first);
            if header.sections == 0 {
                header.sections = first.u64(32);
            }
            if header.names_index == 0xffff {
                header.names_index = u64::from(first.u32(40));
            }
        }
        if header.sections > MOST_HEADERS {
            return unfit(
                format!("at most {MOST_HEADERS} sections"),
                format!("{} sections", header.sections),
            );
        }
        if !inside(header.sections_at, header.sections * SHDR, bytes.len()) {
            return truncated(
                "the section headers",
                header.sections_at,
                header.sections * SHDR,
                bytes,
            );
        }
        Ok(header)
    }
}

fn truncated<T>(
    what: &str,
    offset: u64,
    len: u64,
    bytes: &(impl Bytes + ?Sized),
) -> Result<T, Unfit> {
    unfit(
        format!("{what} within the file: {len} bytes at offset {offset}"),
        format!("a truncated file of {} bytes", bytes.len()),
    )
}

/// Checks the segments, and returns the identity note of the first PT_NOTE that contains one.
fn segments(bytes: &(impl Bytes + ?Sized), header: &Header) -> Result<Option<Vec<u8>>, Unfit> {
    let (mut loads, mut dynamics, mut relro, mut note) = (Vec::new(), Vec::new(), Vec::new(), None);
    for i in 0..header.segments {
        let mut raw = [0; PHDR as usize];
        if !bytes.read(header.segments_at + i * PHDR, &mut raw) {
            return truncated(
                "the program headers",
                header.segments_at,
                header.segments * PHDR,
                bytes,
            );
        }
        let field = Fields(&raw);
        let (kind, offset, file_len, memory_len) =
            (field.u32(0), field.u64(8), field.u64(32), field.u64(40));
        let address = field.u64(16);
        let what = match kind {
            PT_LOAD => {
                loads.push(dynamic::Load { address, offset, file_len, memory_len });
                "every loadable segment"
            }
            PT_DYNAMIC => {
                dynamics.push((address, memory_len));
                "the dynamic segment"
            }
            PT_NOTE => "every note segment",
            PT_GNU_RELRO => {
                relro.push((address, memory_len));
                continue;
            }
            _ => continue,
        };
        if !inside(offset, file_len, bytes.len()) {
            return truncated(what, offset, file_len, bytes);
        }
        if kind == PT_LOAD && file_len > memory_len {
            return unfit(
                "segments that are no longer in the file than in memory",
                format!("{file_len} bytes in the file, {memory_len} in memory"),
            );
        }
        if kind == PT_NOTE && note.is_none() {
            note = find_note(bytes, offset, file_len, field.u64(48));
        }
    }
    if loads.is_empty() || dynamics.is_empty() {
        return unfit(
            "at least one loadable segment and a dynamic one",
            format!("{} loadable, {} dynamic", loads.len(), dynamics.len()),
        );
    }
    for (address, len) in relro {
        dynamic::check_relro(address, len, &loads, crate::sys::page_bytes())?;
    }
    for segment in dynamics {
        dynamic::check_versions(bytes, &loads, segment)?;
    }
    Ok(note)
}

/// Checks the sections with contents. If requested, returns the identity note of the section with the note's section name, because
/// some tools move a note section out of PT_NOTE.
fn sections(
    bytes: &(impl Bytes + ?Sized),
    header: &Header,
    finds_note: bool,
) -> Result<Option<Vec<u8>>, Unfit> {
    let names = section(bytes, header, header.names_index).filter(|_| finds_note);
    let mut note = None;
    for i in 0..header.sections {
        let Some(it) = section(bytes, header, i) else {
            return truncated(
                "the section headers",
                header.sections_at,
                header.sections * SHDR,
                bytes,
            );
        };
        if it.kind == SHT_NULL || it.kind == SHT_NOBITS {
            continue;
        }
        if !inside(it.offset, it.len, bytes.len()) {
            return truncated("every section", it.offset, it.len, bytes);
        }
        if note.is_none() && names.as_ref().is_some_and(|names| has_note_name(bytes, names, &it)) {
            note = find_note(bytes, it.offset, it.len, it.align);
        }
    }
    Ok(note)
}

#[derive(Clone, Copy)]
struct Section {
    name: u64,
    kind: u32,
    offset: u64,
    len: u64,
    align: u64,
}

fn section(bytes: &(impl Bytes + ?Sized), header: &Header, index: u64) -> Option<Section> {
    if index >= header.sections {
        return None;
    }
    let mut raw = [0; SHDR as usize];
    if !bytes.read(header.sections_at + index * SHDR, &mut raw) {
        return None;
    }
    let field = Fields(&raw);
    Some(Section {
        name: u64::from(field.u32(0)),
        kind: field.u32(4),
        offset: field.u64(24),
        len: field.u64(32),
        align: field.u64(48),
    })
}

fn has_note_name(bytes: &(impl Bytes + ?Sized), names: &Section, section: &Section) -> bool {
    let mut name = [0; NOTE_SECTION.len() + 1];
    let len = name.len() as u64;
    inside(section.name, len, names.len)
        && names.offset.checked_add(section.name).is_some_and(|at| bytes.read(at, &mut name))
        && name[..NOTE_SECTION.len()] == *NOTE_SECTION.as_bytes()
        && name[NOTE_SECTION.len()] == 0
}

/// Searches a run of notes for the identity note and returns its descriptor.
fn find_note(bytes: &(impl Bytes + ?Sized), offset: u64, len: u64, align: u64) -> Option<Vec<u8>> {
    if len > MOST_NOTE_BYTES || !inside(offset, len, bytes.len()) {
        return None;
    }
    let mut all = vec![0; usize::try_from(len).ok()?];
    if !bytes.read(offset, &mut all) {
        return None;
    }
    let align = if align == 8 { 8usize } else { 4 };
    let mut at = 0usize;
    while let Some(head) = all.get(at..at.checked_add(12)?) {
        let field = Fields(head);
        let (owner_len, desc_len) =
            (usize::try_from(field.u32(0)).ok()?, usize::try_from(field.u32(4)).ok()?);
        let owner_at = at + 12;
        let desc_at = owner_at.checked_add(owner_len)?.checked_next_multiple_of(align)?;
        let desc_end = desc_at.checked_add(desc_len)?;
        let owner = all.get(owner_at..owner_at.checked_add(owner_len)?)?;
        let desc = all.get(desc_at..desc_end)?;
        if owner == NOTE_OWNER && field.u32(8) == NOTE_TYPE {
            return Some(desc.to_vec());
        }
        at = desc_end.checked_next_multiple_of(align)?;
    }
    None
}

#[cfg(test)]
mod tests;
