//! Tests with a handmade file, so that each of its fields can be off by one.

use super::*;

fn set<const N: usize>(file: &mut [u8], at: usize, value: [u8; N]) {
    file[at..at + N].copy_from_slice(&value);
}

#[derive(Clone, Copy)]
struct Segment {
    kind: u32,
    offset: u64,
    len: u64,
    memory: u64,
    align: u64,
}

fn load(offset: u64, len: u64) -> Segment {
    Segment { kind: PT_LOAD, offset, len, memory: len, align: 0 }
}

fn dynamic() -> Segment {
    Segment { kind: PT_DYNAMIC, ..load(0, 0) }
}

fn notes(offset: u64, len: u64, align: u64) -> Segment {
    Segment { kind: PT_NOTE, align, ..load(offset, len) }
}

/// Returns the offset after this number of segment headers.
fn behind(segments: u64) -> u64 {
    EHDR as u64 + segments * PHDR
}

/// Makes a shared object of these segments, followed by these bytes; without sections.
fn file(segments: &[Segment], rest: &[u8]) -> Vec<u8> {
    let mut file = vec![0; EHDR];
    set(&mut file, 0, *b"\x7fELF");
    file[4] = 2;
    file[5] = if cfg!(target_endian = "little") { 1 } else { 2 };
    set(&mut file, 16, ET_DYN.to_ne_bytes());
    set(&mut file, 18, MACHINE.map_or(0, |machine| machine.0).to_ne_bytes());
    set(&mut file, 32, (EHDR as u64).to_ne_bytes());
    set(&mut file, 54, (PHDR as u16).to_ne_bytes());
    set(&mut file, 56, (segments.len() as u16).to_ne_bytes());
    set(&mut file, 58, (SHDR as u16).to_ne_bytes());
    for segment in segments {
        let mut raw = [0; PHDR as usize];
        set(&mut raw, 0, segment.kind.to_ne_bytes());
        set(&mut raw, 8, segment.offset.to_ne_bytes());
        set(&mut raw, 32, segment.len.to_ne_bytes());
        set(&mut raw, 40, segment.memory.to_ne_bytes());
        set(&mut raw, 48, segment.align.to_ne_bytes());
        file.extend(raw);
    }
    file.extend(rest);
    file
}

/// Adds sections to a file, whose headers are the last bytes; section `names` holds their names.
fn with_sections(mut file: Vec<u8>, sections: &[Section], names: u16) -> Vec<u8> {
    let at = file.len() as u64;
    set(&mut file, 40, at.to_ne_bytes());
    set(&mut file, 60, (sections.len() as u16).to_ne_bytes());
    set(&mut file, 62, names.to_ne_bytes());
    for section in sections {
        let mut raw = [0; SHDR as usize];
        set(&mut raw, 0, (section.name as u32).to_ne_bytes());
        set(&mut raw, 4, section.kind.to_ne_bytes());
        set(&mut raw, 24, section.offset.to_ne_bytes());
        set(&mut raw, 32, section.len.to_ne_bytes());
        set(&mut raw, 48, section.align.to_ne_bytes());
        file.extend(raw);
    }
    file
}

/// Makes one note of a run with this alignment.
fn note(owner: &[u8], kind: u32, desc: &[u8], align: usize) -> Vec<u8> {
    let mut note = Vec::new();
    for number in [owner.len() as u32, desc.len() as u32, kind] {
        note.extend(number.to_ne_bytes());
    }
    note.extend(owner);
    note.resize(note.len().next_multiple_of(align), 0);
    note.extend(desc);
    note.resize(note.len().next_multiple_of(align), 0);
    note
}

/// Returns the text of a refusal, or the note.
fn said(file: &[u8]) -> String {
    match read(file) {
        Ok(Image { note: Some(note) }) => String::from_utf8(note).unwrap(),
        Ok(Image { note: None }) => "no note".into(),
        Err(Unfit { expected, found }) => format!("{expected}; {found}"),
    }
}

fn good() -> Vec<u8> {
    file(&[load(0, 100), dynamic()], &[])
}

#[test]
fn each_field_of_the_header_is_refused_by_its_own_words() {
    let all = good().len();
    assert_eq!(said(&good()), "no note");
    let cut = |at: usize| said(&good()[..at]);
    assert_eq!(cut(3), "an ELF shared object; no ELF header (3 bytes)");
    assert_eq!(cut(63), "a whole ELF header of 64 bytes; a truncated file of 63 bytes");
    let headers = format!(
        "the program headers within the file: 112 bytes at offset 64; a truncated file of {} bytes",
        all - 1
    );
    assert_eq!(cut(all - 1), headers);
    let with = |at: usize, value: u16| {
        let mut file = good();
        set(&mut file, at, value.to_ne_bytes());
        said(&file)
    };
    assert_eq!(with(2, 0), format!("an ELF shared object; no ELF header ({all} bytes)"));
    let byte = |at: usize, value: u8| {
        let mut file = good();
        file[at] = value;
        said(&file)
    };
    assert_eq!(byte(4, 1), "a 64-bit ELF file; ELF class 1");
    let (ours, other) = if cfg!(target_endian = "little") { ("little", 2) } else { ("big", 1) };
    assert_eq!(byte(5, other), format!("a {ours}-endian ELF file; ELF data {other}"));
    assert_eq!(with(16, 2), "a shared object (ET_DYN); ELF type 2");
    assert_eq!(with(56, 0), "program headers of 56 bytes; 0 of 56 bytes");
    assert_eq!(with(56, 0xffff), "program headers of 56 bytes; 65535 of 56 bytes");
    assert_eq!(with(54, 32), "program headers of 56 bytes; 2 of 32 bytes");
    let mut file = with_sections(good(), &[], 0);
    set(&mut file, 58, 40u16.to_ne_bytes());
    assert_eq!(said(&file), "section headers of 64 bytes; 40 bytes");
    if let Some((ours, name)) = MACHINE {
        for (number, theirs) in [
            (3, "i386"),
            (8, "MIPS"),
            (20, "PowerPC"),
            (21, "PowerPC64"),
            (22, "S/390"),
            (40, "Arm"),
            (62, "x86-64"),
            (183, "AArch64"),
            (243, "RISC-V"),
            (258, "LoongArch"),
            (999, "machine number 999"),
        ] {
            let words = format!("a file for {name}; a file for {theirs}");
            assert_eq!(with(18, number), if number == ours { "no note".into() } else { words });
        }
    }
}

#[test]
fn each_segment_lies_in_the_file_to_its_last_byte() {
    let all = behind(3);
    let of = |third: Segment| said(&file(&[load(0, all), dynamic(), third], &[]));
    let beyond = |what: &str, len: u64, offset: u64| {
        format!(
            "{what} within the file: {len} bytes at offset {offset}; a truncated file of {all} bytes"
        )
    };
    for (kind, what) in [
        (PT_LOAD, "every loadable segment"),
        (PT_DYNAMIC, "the dynamic segment"),
        (PT_NOTE, "every note segment"),
    ] {
        assert_eq!(of(Segment { kind, ..load(all - 4, 4) }), "no note");
        assert_eq!(of(Segment { kind, ..load(all - 4, 5) }), beyond(what, 5, all - 4));
        assert_eq!(of(Segment { kind, ..load(u64::MAX, 1) }), beyond(what, 1, u64::MAX));
    }
    assert_eq!(of(Segment { kind: 6, ..load(u64::MAX, 5) }), "no note", "nobody maps that");
    // A segment that is longer in memory is filled with zeros; the opposite is invalid.
    assert_eq!(of(Segment { memory: 5, ..load(0, 4) }), "no note");
    assert_eq!(of(Segment { memory: 3, kind: PT_DYNAMIC, ..load(0, 4) }), "no note");
    let longer =
        "segments that are no longer in the file than in memory; 4 bytes in the file, 3 in memory";
    assert_eq!(of(Segment { memory: 3, ..load(0, 4) }), longer);
    let both = |loads: &str| format!("at least one loadable segment and a dynamic one; {loads}");
    assert_eq!(said(&file(&[dynamic()], &[])), both("0 loadable, 1 dynamic"));
    assert_eq!(said(&file(&[load(0, 0), load(0, 0)], &[])), both("2 loadable, 0 dynamic"));
}

#[test]
fn note_is_found_by_owner_and_type_anywhere_in_segment() {
    let found = |run: &[u8], align: u64, len: u64| {
        let segments = [load(0, 0), dynamic(), notes(behind(3), len, align)];
        said(&file(&segments, run))
    };
    for align in [4, 8] {
        let ours = note(NOTE_OWNER, NOTE_TYPE, b"ours", align);
        let other = note(b"GNU\0", NOTE_TYPE, b"other", align);
        let run = |notes: &[&[u8]]| {
            let run = notes.concat();
            found(&run, align as u64, run.len() as u64)
        };
        assert_eq!(run(&[&ours]), "ours");
        assert_eq!(run(&[&other, &ours]), "ours");
        assert_eq!(run(&[&other, &other, &ours, &other]), "ours");
        assert_eq!(run(&[&other]), "no note");
        assert_eq!(run(&[&note(NOTE_OWNER, NOTE_TYPE + 1, b"core", align)]), "no note");
        assert_eq!(run(&[&note(b"tielinf\0", NOTE_TYPE, b"other", align)]), "no note");
        // The note must lie in its segment completely; its padding need not.
        let end = ours.len() as u64 - (align as u64 - 4);
        assert_eq!(found(&ours, align as u64, end), "ours");
        assert_eq!(found(&ours, align as u64, end - 1), "no note");
    }
    // If several segments have a note, the first note counts.
    let (first, second) =
        (note(NOTE_OWNER, NOTE_TYPE, b"first", 4), note(NOTE_OWNER, NOTE_TYPE, b"second", 4));
    let other = note(b"GNU\0", NOTE_TYPE, b"other", 4);
    let three = |a: &[u8], b: &[u8]| {
        let at = behind(4);
        let (a_len, b_len) = (a.len() as u64, b.len() as u64);
        let segments = [load(0, 0), dynamic(), notes(at, a_len, 4), notes(at + a_len, b_len, 4)];
        said(&file(&segments, &[a, b].concat()))
    };
    assert_eq!(three(&first, &second), "first");
    assert_eq!(three(&other, &second), "second");
    // A run of notes longer than the maximum is ignored.
    let mut long = note(NOTE_OWNER, NOTE_TYPE, b"ours", 4);
    long.resize(MOST_NOTE_BYTES as usize + 1, 0);
    assert_eq!(found(&long, 4, MOST_NOTE_BYTES), "ours");
    assert_eq!(found(&long, 4, MOST_NOTE_BYTES + 1), "no note");
}

/// The section names: the name of the note section, and a longer one of which it is a prefix.
const NAMES: &[u8] = b"\0.note.tieline.provider\0.note.tieline.providers\0";

#[test]
fn a_note_without_a_segment_is_found_by_the_name_of_its_section() {
    let (ours, other) =
        (note(NOTE_OWNER, NOTE_TYPE, b"ours", 8), note(NOTE_OWNER, NOTE_TYPE, b"other", 4));
    let segments = [load(0, 0), dynamic()];
    let rest = [NAMES, &ours, &other].concat();
    let plain = file(&segments, &rest);
    let at = behind(2);
    let names = Section { name: 0, kind: 3, offset: at, len: NAMES.len() as u64, align: 1 };
    let its = |name: u64, behind: usize, bytes: &[u8], align: u64| {
        let offset = at + (NAMES.len() + behind) as u64;
        Section { name, kind: 7, offset, len: bytes.len() as u64, align }
    };
    let of =
        |sections: &[Section], names: u16| said(&with_sections(plain.clone(), sections, names));
    let empty = || Section { name: 0, kind: SHT_NULL, offset: u64::MAX, len: 1, align: 0 };
    assert_eq!(of(&[empty(), names, its(1, 0, &ours, 8)], 1), "ours");
    // The section has another name or only the right prefix, or the file has no names.
    assert_eq!(of(&[empty(), names, its(0, 0, &ours, 8)], 1), "no note");
    assert_eq!(of(&[empty(), names, its(24, 0, &ours, 8)], 1), "no note");
    assert_eq!(of(&[empty(), names, its(1, 0, &ours, 8)], 3), "no note");
    // The name ends with the table of names, or would end after it.
    let short = |len: u64| Section { len, ..names };
    assert_eq!(of(&[empty(), short(24), its(1, 0, &ours, 8)], 1), "ours");
    assert_eq!(of(&[empty(), short(23), its(1, 0, &ours, 8)], 1), "no note");
    // The first of two sections counts.
    let two = [names, its(1, ours.len(), &other, 4), its(1, 0, &ours, 8)];
    assert_eq!(of(&two, 0), "other");
    // A section without bytes in the file may have any range; every other section lies completely in the file.
    let all = plain.len() as u64 + 2 * SHDR;
    let last =
        |kind: u32, len: u64| of(&[empty(), Section { kind, offset: all - 4, len, ..names }], 0);
    assert_eq!(last(1, 4), "no note");
    let beyond = "every section within the file: 5 bytes at offset";
    assert_eq!(last(1, 5), format!("{beyond} {}; a truncated file of {all} bytes", all - 4));
    assert_eq!(last(SHT_NOBITS, 5), "no note");
    // A segment takes precedence over a section.
    let segments = [load(0, 0), dynamic(), notes(behind(3), ours.len() as u64, 8)];
    let names = Section { offset: behind(3) + ours.len() as u64, ..names };
    let theirs = Section { offset: names.offset + NAMES.len() as u64, ..its(1, 0, &other, 4) };
    let both = file(&segments, &[&ours[..], NAMES, &other].concat());
    assert_eq!(said(&with_sections(both, &[names, theirs], 0)), "ours");
}

#[test]
fn sections_are_counted_up_to_a_number_that_no_file_has() {
    let some = with_sections(good(), &[], 0);
    let with = |count: u64, room: u64| {
        let mut file = some.clone();
        let at = file.len();
        file.resize(at + (room * SHDR) as usize, 0);
        set(&mut file, at + 32, count.to_ne_bytes());
        said(&file)
    };
    assert_eq!(with(MOST_HEADERS, MOST_HEADERS), "no note");
    let words = "at most 65536 sections; 65537 sections";
    assert_eq!(with(MOST_HEADERS + 1, MOST_HEADERS + 1), words);
    let at = some.len();
    let words = format!(
        "the section headers within the file: 192 bytes at offset {at}; a truncated file of {} bytes",
        at + 128
    );
    assert_eq!((with(2, 2), with(3, 2)), ("no note".to_owned(), words));
}
