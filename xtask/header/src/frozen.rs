//! A released minor is frozen: every later header of the same major keeps its numbers, and the offsets of its fields. The header of
//! that minor itself has no additions, since an addition makes the next minor.
//!
//! The header of each frozen minor is in `tests/old-providers`, together with the providers that were built with that header.
//! Comments, helpers and the order of records may change.

use super::root;
use std::collections::BTreeMap;
use tieline_plugin_api::abi::{ABI_MAJOR, ABI_MINOR};

/// The frozen minors, each with the checksum of its header, which must not be edited.
const FROZEN: &[(u16, u16, u64)] = &[(1, 0, 0xf567_5691_8415_1703), (1, 1, 0xf72b_7a2b_b7b0_cc02)];

/// Compares the current header with that of each frozen minor of its major.
///
/// # Errors
/// Returns the change and the remedy.
pub(super) fn check(today: &str) -> Result<(), String> {
    for (major, minor, sum) in FROZEN.iter().filter(|frozen| frozen.0 == ABI_MAJOR) {
        let file = format!("tests/old-providers/{major}.{minor}/tieline_provider.h");
        let frozen =
            std::fs::read_to_string(root().join(&file)).map_err(|e| format!("{file}: {e}"))?;
        let found = tieline_plugin_api::address_hash(frozen.as_bytes());
        if found != *sum {
            return Err(format!(
                "{file} was frozen and has changed: its checksum is {found:#x} now"
            ));
        }
        let (frozen, today) = (Header::read(&frozen), Header::read(today));
        if let Some(broken) = broken_by(&frozen, &today) {
            return Err(format!(
                "{broken}: ABI {major}.{minor} is frozen, so this breaks every provider that was built for it; add at an end \
                 instead (docs/abi.md), or raise ABI_MAJOR"
            ));
        }
        if let Some(added) = added_to(&frozen, &today).filter(|_| *minor == ABI_MINOR) {
            return Err(format!(
                "{added} is new, and ABI {major}.{minor} is released: raise ABI_MINOR (docs/abi.md)"
            ));
        }
    }
    Ok(())
}

/// The parts of a header that belong to the ABI.
#[derive(Default)]
struct Header {
    numbers: BTreeMap<String, String>,
    records: BTreeMap<String, Record>,
}

#[derive(Default)]
struct Record {
    /// The declarations of the fields, in order.
    fields: Vec<String>,
    /// The size, then the offset of each field.
    places: Vec<usize>,
}

impl Header {
    fn read(text: &str) -> Header {
        let parts = text.split("/*").enumerate();
        let code = parts.map(|(n, part)| if n == 0 { part } else { after(part, "*/") });
        let code: String = code.collect();
        let mut header = Header::default();
        let defines =
            code.lines().filter_map(|line| line.strip_prefix("#define ")?.split_once(' '));
        // Macros with arguments are helpers. The set of known flags of a call may grow, and the minor then rises.
        let is_free = |name: &str| name.contains('(') || name.starts_with("TIELINE_FLAGS_OF_");
        for (name, number) in defines.filter(|(name, _)| !is_free(name)) {
            let _ = header.numbers.insert(name.into(), number.trim().into());
        }
        let _ = header.numbers.remove("TIELINE_ABI_MINOR");
        let records = code.split("\nstruct ").skip(1);
        for (name, body) in records.filter_map(|part| part.split_once(" {\n")) {
            let body = body.split("\n}").next().unwrap_or(body);
            let fields = body.split(';').map(|field| field.split_whitespace().collect::<Vec<_>>());
            let fields = fields.map(|words| words.join(" ")).filter(|field| !field.is_empty());
            header.records.entry(name.into()).or_default().fields.extend(fields);
        }
        // For each record: its size, then its fields in order.
        for check in code.lines().filter_map(|line| line.strip_prefix("TIELINE_CHECK(")) {
            let name = after(check, "(struct ").split([',', ')']).next().unwrap_or_default();
            let number = after(check, " == ").trim_end_matches(");").parse().unwrap_or(usize::MAX);
            header.records.entry(name.into()).or_default().places.push(number);
        }
        header
    }
}

fn after<'a>(text: &'a str, mark: &str) -> &'a str {
    text.split_once(mark).map_or("", |(_, after)| after)
}

/// Returns the first promise of the frozen header that the current header breaks.
fn broken_by(frozen: &Header, today: &Header) -> Option<String> {
    for (name, number) in &frozen.numbers {
        let now = today.numbers.get(name).map_or("gone", String::as_str);
        if now != number {
            return Some(format!("{name} was {number} and is {now}"));
        }
    }
    let none = Record::default();
    frozen.records.iter().find_map(|(name, before)| {
        let broken = broken_record(before, today.records.get(name).unwrap_or(&none))?;
        Some(format!("struct {name}: {broken}"))
    })
}

/// Returns the first number, record or field that the frozen header lacks, if the current header breaks no promise.
fn added_to(frozen: &Header, today: &Header) -> Option<String> {
    let number = today.numbers.keys().find(|name| !frozen.numbers.contains_key(*name));
    let record = || {
        today.records.iter().find_map(|(name, now)| {
            let fields = frozen.records.get(name).map_or(&[][..], |before| &before.fields[..]);
            // A reserved field with a name is an addition too.
            let field =
                now.fields.iter().enumerate().find(|(at, field)| fields.get(*at) != Some(field));
            field.map(|(_, field)| format!("struct {name}: `{field}`"))
        })
    };
    number.cloned().or_else(record)
}

fn broken_record(before: &Record, now: &Record) -> Option<String> {
    for (at, field) in before.fields.iter().enumerate() {
        let today = now.fields.get(at).map_or("gone", String::as_str);
        // A reserved field may get a name, because no reader has used it.
        if today != field && (today == "gone" || !field.ends_with(" reserved")) {
            return Some(format!("`{field}` is `{today}`"));
        }
        let (old, new) = (before.places.get(at + 1), now.places.get(at + 1));
        if old != new {
            return Some(format!("`{field}` was at {old:?} and is at {new:?}"));
        }
    }
    // A record may grow only if it contains its size, and only by whole units.
    let unit = match before.fields.first().map(String::as_str) {
        Some("size_t size") => 8,
        Some("uint16_t desc_len") => 4,
        _ => usize::MAX,
    };
    if unit == usize::MAX && now.fields.len() != before.fields.len() {
        return Some("it has more fields, and no size of its own".into());
    }
    let (old, new) = (before.places.first()?, now.places.first()?);
    let is_whole = new.checked_sub(*old).is_some_and(|grown| grown % unit == 0);
    (!is_whole).then(|| format!("its size was {old} and is {new}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROZEN_TEXT: &str = "
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

    /// Returns the broken promise after these replacements.
    fn broken(changes: &[(&str, &str)]) -> Option<String> {
        let today = changes.iter().fold(FROZEN_TEXT.to_string(), |text, (from, to)| {
            assert!(text.contains(from), "{from}");
            text.replacen(from, to, 1)
        });
        broken_by(&Header::read(FROZEN_TEXT), &Header::read(&today))
    }

    #[test]
    fn an_addition_at_an_end_breaks_nothing() {
        let minor = [("MINOR 0", "MINOR 1"), ("(0x7)", "(0xf)"), ("/* done */", "#define NEW 3")];
        let grown = [
            ("size_t len);\n}", "size_t len);\n    uint64_t level;\n}"),
            ("params) == 24", "params) == 32"),
            (
                "slot) == 16);",
                "slot) == 16);\nTIELINE_CHECK(offsetof(struct tieline_params, level) == 24);",
            ),
        ];
        let named =
            [("uint32_t reserved", "int32_t device"), ("params, reserved", "params, device")];
        for changes in [&[][..], &minor, &grown, &named] {
            assert_eq!(broken(changes), None);
        }
    }

    #[test]
    fn an_addition_to_a_released_minor_is_named() {
        let added = |changes: &[(&str, &str)]| {
            let today = changes
                .iter()
                .fold(FROZEN_TEXT.to_string(), |text, (from, to)| text.replacen(from, to, 1));
            added_to(&Header::read(FROZEN_TEXT), &Header::read(&today))
        };
        assert_eq!(added(&[("/* done */", "/* other words */")]), None);
        let number = added(&[("/* done */", "#define TIELINE_NEW 3")]);
        assert_eq!(number.as_deref(), Some("TIELINE_NEW"));
        let field = added(&[("size_t len);\n}", "size_t len);\n    uint64_t level;\n}")]);
        assert_eq!(field.as_deref(), Some("struct tieline_params: `uint64_t level`"));
        let named = added(&[("uint32_t reserved", "int32_t device")]);
        assert_eq!(named.as_deref(), Some("struct tieline_params: `int32_t device`"));
    }

    #[test]
    fn every_other_change_is_a_break_with_its_name() {
        let swapped =
            [("uint32_t kind;", "double kind;"), ("uint32_t reserved;", "uint32_t kind;")];
        let longer =
            [("latency_ns;", "latency_ns;\n    double more;"), ("cost) == 8", "cost) == 16")];
        let breaks: [(&[(&str, &str)], &str); 9] = [
            (&[("TIELINE_OK (0)", "TIELINE_OK (2)")], "TIELINE_OK was (0) and is (2)"),
            (&[("#define TIELINE_OK (0)", "")], "TIELINE_OK was (0) and is gone"),
            (&[("uint32_t kind", "int32_t kind")], "params: `uint32_t kind` is `int32_t kind`"),
            (&[("    uint32_t kind;\n", "")], "params: `uint32_t kind` is `uint32_t reserved`"),
            (&swapped, "params: `uint32_t kind` is `double kind`"),
            (&[("size_t len)", "uint32_t len)")], "params: `int32_t (*slot)(struct"),
            (&[("slot) == 16", "slot) == 24")], "at Some(16) and is at Some(24)"),
            (&[("params) == 24", "params) == 28")], "params: its size was 24 and is 28"),
            (&longer, "struct tieline_cost: it has more fields"),
        ];
        for (changes, expected) in breaks {
            let broken = broken(changes).unwrap_or_default();
            assert!(broken.contains(expected), "{broken}");
        }
        let gone = broken(&[("struct tieline_cost {", "struct tieline_price {")]);
        assert!(gone.is_some_and(|broken| broken.contains("`double latency_ns` is `gone`")));
    }

    #[test]
    fn the_header_is_read_completely() {
        let header = Header::read(&crate::generate());
        assert_eq!(header.records.len(), tieline_plugin_api::abi::golden::RECORDS.len() + 1);
        for (name, record) in header.records.iter().filter(|(name, _)| *name != "tieline_note") {
            assert_eq!(record.places.len(), record.fields.len() + 1, "{name}");
        }
        let named = tieline_plugin_api::tables().into_iter().flat_map(|(_, names)| names);
        let names = named.map(|named| named.c_name).filter(|name| !name.contains("_FLAGS_OF_"));
        for name in names.chain(tieline_plugin_api::Status::ALL.iter().map(|it| it.constant())) {
            assert!(header.numbers.contains_key(name), "{name}");
        }
    }
}
