//! Checks rules for the memory of `core` and `host` that the compiler does not check. A function that takes a raw address or event,
//! or returns a span, must be `unsafe`, with listed exceptions. Files with bytes that others may write during a copy use
//! `copy_shared`.

use super::rules::{is_test, without_tests};

/// Safe functions that appear to be misusable but are not: the file, the function, and the reason.
const SAFE: &[(&str, &str, &str)] = &[
    ("core/src/endpoint/abi.rs", "map", "the endpoint's own key is dropped behind all pointers"),
    ("host/src/abi/events.rs", "payload", "the borrow of a `Polled` keeps it readable"),
    ("host/src/abi/events.rs", "with_rest", "the borrow of a `Polled` keeps the rest readable"),
    ("core/src/message/abi.rs", "behind", "the borrow of a `Handed` keeps the rest readable"),
    ("host/src/abi/events.rs", "without_payload", "it takes the pointer out"),
    ("host/src/abi/grown.rs", "grown", "it makes the pointer of its closure"),
    ("host/src/abi/grown.rs", "appended", "it makes the pointer of its closure"),
    ("host/src/abi/grown.rs", "listed", "it makes the pointer of its closure"),
    ("host/src/abi/raw.rs", "is", "it compares"),
    ("host/src/abi/raw.rs", "new", "only `connect` can make such a handle"),
    ("host/src/objects/sys.rs", "base_of", "it looks the address up, and does not follow it"),
    ("host/src/sys.rs", "compare", "it looks the address up, and does not follow it"),
    ("host/src/objects/sys.rs", "object_of", "it looks the address up, and does not follow it"),
    ("host/src/sys.rs", "file_at", "it looks the address up, and does not follow it"),
    ("host/src/abi/span.rs", "from_owned", "tests"),
    ("host/src/abi/span.rs", "from_words", "tests"),
    ("core/src/worker/abi.rs", "each_of", "it lends events to a call during which none can poll"),
];

/// The files that access bytes which threads, processes and devices may write during a copy. These files copy with `copy_shared`:
/// by atomics, or by the processor's own instruction.
const SHARED: &[&str] =
    &["core/src/sys.rs", "core/src/sys/", "core/src/mem/", "host/src/abi/span.rs"];

/// The copy functions that let the compiler assume that the bytes do not change during the copy.
const PLAIN: &str = "copy_nonoverlapping copy_to_nonoverlapping copy_from_nonoverlapping memcpy ptr::copy( copy_from( \
                     copy_to( copy_from_slice( clone_from_slice( slice::from_raw_parts ptr::read ptr::write \
                     .read_unaligned( .write_unaligned( read_volatile( write_volatile( write_bytes(";

const RAW: &[&str] =
    &["*mut ", "*const ", " Event", "&Event", "[Event]", "Polled", "RawEndpoint", "[Iov]"];

/// Returns the safe functions of the unsafe files of `core` and `host` that take a raw address or event, or return a span, and are
/// not listed.
pub(super) fn misusable(texts: &[(String, String)]) -> Vec<String> {
    let mut wrong = Vec::new();
    let is_unsafe_file = |name: &str| {
        let ours = name.starts_with("core/src/") || name.starts_with("host/src/");
        ours && !is_test(name)
            && ["/sys.rs", "/abi.rs", "/sys/", "/abi/"].iter().any(|place| name.contains(place))
    };
    let files = texts.iter().filter(|(name, _)| is_unsafe_file(name));
    for (name, text) in files {
        for (function, signature) in functions(without_tests(text)) {
            let (takes, gives) = signature.rsplit_once(") ->").unwrap_or((signature, ""));
            let given = gives.split(|c: char| !c.is_alphanumeric() && c != '&');
            let misused = RAW.iter().any(|raw| takes.contains(raw))
                || given.clone().any(|word| word == "Span");
            let excepted =
                |(file, known, _): &(&str, &str, &str)| file == name && *known == function;
            if misused && !SAFE.iter().any(excepted) {
                wrong.push(format!(
                    "{name}: `{function}` is safe, and who calls it wrongly reads memory that is not there: `unsafe`, or in xtask's list"
                ));
            }
        }
    }
    wrong
}

fn functions(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = text.match_indices("pub").filter(|(at, _)| {
        let line = text[..*at].rsplit('\n').next().unwrap_or_default();
        line.trim().is_empty()
    });
    lines.filter_map(|(at, _)| {
        let public = text[at..].strip_prefix("pub")?;
        let public = match public.starts_with('(') {
            true => public.split_once(')')?.1,
            false => public,
        };
        let (before, rest) = public.split_once("fn ")?;
        if before.contains(['\n', ';', '{', ':']) || before.contains("unsafe") {
            return None;
        }
        let signature = rest.split(" {\n").next()?;
        Some((signature.split(['(', '<']).next()?, signature))
    })
}

pub(super) fn plain_copies(texts: &[(String, String)]) -> Vec<String> {
    let is_shared =
        |name: &str| SHARED.iter().any(|place| name.starts_with(place)) && !is_test(name);
    let mut wrong = Vec::new();
    for (name, text) in texts.iter().filter(|(name, _)| is_shared(name)) {
        let code = without_tests(text).lines().filter(|line| !line.trim_start().starts_with("//"));
        for line in code {
            if let Some(plain) = PLAIN.split(' ').find(|plain| line.contains(plain)) {
                wrong.push(format!(
                    "{name}: `{}` copies memory that others may write meanwhile: `copy_shared` does that",
                    plain.trim_end_matches('(')
                ));
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> [(String, String); 1] {
        [(name.to_owned(), text.to_owned())]
    }

    #[test]
    fn a_safe_function_that_can_be_misused_is_named() {
        let wrong = |line: &str| misusable(&file("host/src/abi/new.rs", line)).len();
        let payload = "#[inline]\npub(crate) fn payload(event: &Event) -> &[u8] {\n}\n";
        assert_eq!(wrong(payload), 1);
        assert_eq!(wrong("    pub(crate) fn span(&self) -> Span {\n    }\n"), 1);
        assert_eq!(
            wrong(
                "    pub(crate) fn at(\n        &self,\n        base: *mut u8,\n    ) -> usize {\n"
            ),
            1
        );
        for event in ["&'a Event", "&mut Event", "&Polled", "&[Polled]"] {
            assert_eq!(
                wrong(&format!("pub(crate) fn f(event: {event}) -> &[u8] {{\n")),
                1,
                "{event}"
            );
        }
        assert_eq!(wrong("    pub(in crate::mem) fn at(base: *mut u8) -> usize {\n"), 1);
        assert_eq!(wrong("    pub(super) fn map(&self) -> Result<Span, i32> {\n"), 1);
        for right in [
            "    pub(crate) unsafe fn span(&self) -> Span {\n",
            "    pub(crate) fn span(&self) -> &Span {\n",
            "    fn own(base: *mut u8) {\n",
            "    pub(in crate::mem) held: fn(*mut u8),\n",
            "    pub(crate) fn base(&self) -> *mut u8 {\n",
        ] {
            assert_eq!(wrong(right), 0, "{right}");
        }
        assert!(misusable(&file("core/src/mem/local.rs", payload)).is_empty());
        let excepted = "    pub(crate) fn from_owned(buffer: &mut [u8]) -> Span {\n";
        assert!(misusable(&file("host/src/abi/span.rs", excepted)).is_empty());
        // No promise of the caller makes such a function correct.
        let trusted = "    pub(crate) fn part(&self) -> Result<Span, Status> {\n";
        assert_eq!(misusable(&file("core/src/sys.rs", trusted)).len(), 1);
    }

    #[test]
    fn a_plain_copy_of_shared_memory_is_named() {
        let copy = "        unsafe { std::ptr::copy_nonoverlapping(from, to, len) };\n";
        let said = plain_copies(&file("core/src/sys.rs", copy));
        assert!(said.len() == 1 && said[0].contains("`copy_nonoverlapping`"), "{said:?}");
        assert_eq!(
            plain_copies(&file("core/src/mem/room.rs", "    out.copy_from_slice(bytes);")).len(),
            1
        );
        for right in ["// copy_nonoverlapping\n", "unsafe { copy_shared(from, to, len) };\n"] {
            assert!(plain_copies(&file("core/src/sys.rs", right)).is_empty(), "{right}");
        }
        let in_a_test = format!("#[cfg(test)]\nmod tests {{\n{copy}}}\n");
        assert!(plain_copies(&file("core/src/sys.rs", &in_a_test)).is_empty());
        assert!(plain_copies(&file("core/src/address.rs", copy)).is_empty());
    }
}
