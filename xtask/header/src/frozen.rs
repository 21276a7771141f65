//! ABI 1.0 is frozen: what stands in its header stands in every later one of its major, at the same place and with the same number.
//!
//! Each minor's header is kept beside the providers that were built with it, `tests/old-providers/1.0`. Today's must hold all
//! that theirs hold. Comments, helpers and the order of things are free.

use super::root;
use std::collections::BTreeMap;
use tieline_plugin_api::abi::ABI_MAJOR;

/// The minors that were frozen, with a checksum of their headers: nobody edits one of these instead of what it forbids.
const FROZEN: &[(u16, u16, u64)] = &[(1, 0, 0xf567_5691_8415_1703)];

/// What today's header has to have because a minor of its major was frozen.
///
/// # Errors
/// In words: what has changed and what to do.
pub(super) fn check(today: &str) -> Result<(), String> {
    for (major, minor, sum) in FROZEN.iter().filter(|frozen| frozen.0 == ABI_MAJOR) {
        let file = format!("tests/old-providers/{major}.{minor}/tieline_provider.h");
        let frozen =
            std::fs::read_to_string(root().join(&file)).map_err(|e| format!("{file}: {e}"))?;
        if checksum(&frozen) != *sum {
            let found = checksum(&frozen);
            return Err(format!(
                "{file} was frozen and has changed: its checksum is {found:#x} now"
            ));
        }
        if let Some(broken) = broken_by(&Header::read(&frozen), &Header::read(today)) {
            return Err(format!(
                "{broken}: ABI {major}.{minor} is frozen, so this breaks every provider that was built for it; add at an end \
                 instead (docs/abi.md), or raise ABI_MAJOR"
            ));
        }
    }
    Ok(())
}

/// FNV-1a, 64 bit.
fn checksum(text: &str) -> u64 {
    let add = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, add)
}

/// What of a header is an ABI.
struct Header {
    numbers: BTreeMap<String, String>,
    records: BTreeMap<String, Record>,
}

#[derive(Default)]
struct Record {
    size: usize,
    /// Declarations in order, as they are written, and where each field lies.
    fields: Vec<(String, Option<usize>)>,
}

impl Header {
    fn read(text: &str) -> Header {
        let text = without_comments(text);
        let mut header = Header { numbers: BTreeMap::new(), records: BTreeMap::new() };
        let mut rest = text.as_str();
        while let Some((name, body, behind)) = next_record(rest) {
            let fields = body.split(';').map(one_line).filter(|field| !field.is_empty());
            let record = Record { size: 0, fields: fields.map(|field| (field, None)).collect() };
            let _ = header.records.insert(name, record);
            rest = behind;
        }
        for line in text.lines() {
            header.line(line.trim());
        }
        header
    }

    fn line(&mut self, line: &str) {
        if let Some((name, number)) = line.strip_prefix("#define ").and_then(|l| l.split_once(' '))
        {
            // Macros with arguments are helpers; what a call knows grows; the minor says so.
            let helper = name.contains('(') || name.starts_with("TIELINE_FLAGS_OF_");
            if !helper && name != "TIELINE_ABI_MINOR" {
                let _ = self.numbers.insert(name.to_string(), number.trim().to_string());
            }
        }
        let Some((what, number)) = line
            .strip_prefix("TIELINE_CHECK(")
            .and_then(|l| l.strip_suffix(");")?.split_once(" == "))
        else {
            return;
        };
        let number: usize = number.parse().unwrap_or(usize::MAX);
        if let Some(name) = what.strip_prefix("sizeof(struct ").and_then(|w| w.strip_suffix(')')) {
            if let Some(record) = self.records.get_mut(name) {
                record.size = number;
            }
        }
        // The checks of a record are in the order of its fields.
        let field = what.strip_prefix("offsetof(struct ").and_then(|w| w.split_once(','));
        if let Some(record) = field.and_then(|(name, _)| self.records.get_mut(name)) {
            if let Some((_, offset)) = record.fields.iter_mut().find(|(_, at)| at.is_none()) {
                *offset = Some(number);
            }
        }
    }
}

/// The next record's name and body, and what stands behind it.
fn next_record(text: &str) -> Option<(String, &str, &str)> {
    let (_, from) = text.split_once("\nstruct tieline_")?;
    let (name, _) = from.split_once([' ', ';', '\n'])?;
    let Some(body) = from.strip_prefix(name).and_then(|behind| behind.strip_prefix(" {")) else {
        return next_record(from);
    };
    let (body, behind) = body.split_once("\n};")?;
    Some((format!("tieline_{name}"), body, behind))
}

fn without_comments(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, from)) = rest.split_once("/*") {
        out.push_str(before);
        rest = from.split_once("*/").map_or("", |(_, behind)| behind);
    }
    out + rest
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The first promise of the frozen header that today's does not keep.
fn broken_by(frozen: &Header, today: &Header) -> Option<String> {
    for (name, number) in &frozen.numbers {
        match today.numbers.get(name) {
            Some(now) if now == number => {}
            now => {
                let now = now.map_or("gone", String::as_str);
                return Some(format!("{name} was {number} and is {now}"));
            }
        }
    }
    frozen.records.iter().find_map(|(name, before)| {
        let Some(now) = today.records.get(name) else {
            return Some(format!("struct {name} is gone"));
        };
        broken_record(before, now).map(|broken| format!("struct {name}: {broken}"))
    })
}

fn broken_record(before: &Record, now: &Record) -> Option<String> {
    for (at, (field, offset)) in before.fields.iter().enumerate() {
        let Some((today, place)) = now.fields.get(at) else {
            return Some(format!("`{field}` is gone"));
        };
        // What was reserved may get a name: nobody has looked at it.
        let free = field.ends_with(" reserved");
        if (today != field && !free) || place != offset {
            let words = |at: &Option<usize>| at.map_or("?".to_string(), |at| at.to_string());
            return Some(format!(
                "`{field}` at {} is `{today}` at {}",
                words(offset),
                words(place)
            ));
        }
    }
    // A record that does not carry its size cannot say that it has grown.
    let first = before.fields.first().map_or("", |(field, _)| field.as_str());
    let grows = first == "size_t size" || first == "uint16_t desc_len";
    if !grows && (now.size != before.size || now.fields.len() != before.fields.len()) {
        return Some(format!(
            "has no size of its own, was {} bytes long and is {}",
            before.size, now.size
        ));
    }
    let unit = if first == "size_t size" { 8 } else { 4 };
    if now.size < before.size || (now.size - before.size) % unit != 0 {
        return Some(format!("was {} bytes long and is {}", before.size, now.size));
    }
    let added = now.fields.get(before.fields.len()).and_then(|(field, at)| Some((field, (*at)?)));
    match added {
        Some((field, at)) if at < before.size => Some(format!(
            "`{field}` lies at {at}, where the {} bytes of before have been",
            before.size
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROZEN_TEXT: &str = "
#define TIELINE_ABI_MAJOR 1
#define TIELINE_ABI_MINOR 0
/* done */
#define TIELINE_OK (0)
#define TIELINE_FLAGS_OF_RMA UINT64_C(0x7)
#define TIELINE_HELPER(a) a
struct tieline_domain;
/* Grows. */
struct tieline_params {
    /* Size; of it. */
    size_t size;
    uint32_t kind;
    uint32_t reserved;
    int32_t (*slot)(struct tieline_domain *domain,
                    size_t len);
};

struct tieline_cost {
    double latency_ns;
};
TIELINE_CHECK(sizeof(struct tieline_params) == 24);
TIELINE_CHECK(offsetof(struct tieline_params, size) == 0);
TIELINE_CHECK(offsetof(struct tieline_params, kind) == 8);
TIELINE_CHECK(offsetof(struct tieline_params, reserved) == 12);
TIELINE_CHECK(offsetof(struct tieline_params, slot) == 16);
TIELINE_CHECK(sizeof(struct tieline_cost) == 8);
TIELINE_CHECK(offsetof(struct tieline_cost, latency_ns) == 0);
";

    /// What is broken when these texts are replaced.
    fn broken(changes: &[(&str, &str)]) -> Option<String> {
        let today = changes.iter().fold(FROZEN_TEXT.to_string(), |text, (from, to)| {
            assert!(text.contains(from), "{from}");
            text.replacen(from, to, 1)
        });
        broken_by(&Header::read(FROZEN_TEXT), &Header::read(&today))
    }

    #[test]
    fn what_is_added_at_an_end_breaks_nothing() {
        assert_eq!(broken(&[]), None);
        let minor = [
            ("MINOR 0", "MINOR 1"),
            ("UINT64_C(0x7)", "UINT64_C(0xf)"),
            ("/* done */", "#define TIELINE_NEW 3"),
        ];
        assert_eq!(broken(&minor), None);
        let grown = [
            ("size_t len);\n}", "size_t len);\n    uint64_t level;\n}"),
            ("params) == 24", "params) == 32"),
            (
                "slot) == 16);",
                "slot) == 16);\nTIELINE_CHECK(offsetof(struct tieline_params, level) == 24);",
            ),
        ];
        assert_eq!(broken(&grown), None);
        let named =
            [("uint32_t reserved", "int32_t device"), ("params, reserved)", "params, device)")];
        assert_eq!(broken(&named), None);
    }

    #[test]
    fn every_line_that_changes_is_a_break_with_its_name() {
        let breaks: &[(&[(&str, &str)], &str)] = &[
            (&[("TIELINE_OK (0)", "TIELINE_OK (2)")], "TIELINE_OK was (0) and is (2)"),
            (&[("#define TIELINE_OK (0)", "")], "TIELINE_OK was (0) and is gone"),
            (
                &[("uint32_t kind", "int32_t kind")],
                "struct tieline_params: `uint32_t kind` at 8 is `int32_t kind` at 8",
            ),
            (
                &[("size_t len)", "uint32_t len)")],
                "struct tieline_params: `int32_t (*slot)(struct tieline_domain *domain, size_t len)`",
            ),
            (&[("slot) == 16", "slot) == 24")], "struct tieline_params: `int32_t (*slot)"),
            (&[("struct tieline_cost {", "struct tieline_price {")], "struct tieline_cost is gone"),
            (
                &[("params) == 24", "params) == 28")],
                "struct tieline_params: was 24 bytes long and is 28",
            ),
            (
                &[
                    ("double latency_ns;", "double latency_ns;\n    double more;"),
                    ("cost) == 8", "cost) == 16"),
                ],
                "struct tieline_cost: has no size of its own, was 8 bytes long and is 16",
            ),
            (
                &[
                    ("size_t len);\n}", "size_t len);\n    uint32_t level;\n}"),
                    (
                        "slot) == 16);",
                        "slot) == 16);\nTIELINE_CHECK(offsetof(struct tieline_params, level) == 20);",
                    ),
                ],
                "struct tieline_params: `uint32_t level` lies at 20, where the 24 bytes of before have been",
            ),
        ];
        for (changes, expected) in breaks {
            let broken = broken(changes).unwrap_or_default();
            assert!(broken.starts_with(expected), "{broken}");
        }
    }

    #[test]
    fn all_of_the_frozen_header_is_seen() {
        let text = std::fs::read_to_string(root().join("include/tieline_provider.h")).unwrap();
        let header = Header::read(&text);
        assert_eq!(header.records.len(), tieline_plugin_api::abi::golden::RECORDS.len() + 1);
        for (name, record) in header.records.iter().filter(|(name, _)| *name != "tieline_note") {
            let placed = record.fields.iter().all(|(_, at)| at.is_some());
            assert!(record.size > 0 && placed, "{name}");
        }
        let named = tieline_plugin_api::tables().into_iter().flat_map(|(_, names)| names);
        let names = named.map(|named| named.c_name).filter(|name| !name.contains("_FLAGS_OF_"));
        for name in names.chain(tieline_plugin_api::Status::ALL.iter().map(|it| it.constant())) {
            assert!(header.numbers.contains_key(name), "{name}");
        }
    }
}
