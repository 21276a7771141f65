//! The headers of `include/`: `tieline_provider.h`, the provider ABI for authors in C, made from `plugin-api`, and
//! [`tieline.h`](application), the C library, made from `capi`.
//!
//! The records and tables come from `plugin-api/src/abi.rs` through cbindgen, the named numbers from the
//! tables that the Rust constants are made from, the checked layout from `abi::golden`. The headers are
//! committed; [`check`] says whether they are still what is made.

pub mod application;
mod frozen;

use std::path::PathBuf;
use tieline_plugin_api::abi::golden::RECORDS;
use tieline_plugin_api::{OK, PENDING, Status, abi, tables};

/// A header, and what makes it.
type Header = (&'static str, fn() -> String);

/// The headers.
const HEADERS: [Header; 2] = [
    ("include/tieline_provider.h", generate as fn() -> String),
    ("include/tieline.h", application::generate),
];

/// Writes the headers.
///
/// # Errors
/// What the system said.
pub fn write() -> std::io::Result<()> {
    for (file, generate) in HEADERS {
        std::fs::write(root().join(file), generate())?;
    }
    Ok(())
}

/// Whether the committed headers are fresh, and today's ABI holds what frozen ones have promised.
///
/// # Errors
/// In words: what is wrong and what to do.
pub fn check() -> Result<(), String> {
    HEADERS.iter().try_for_each(|(file, generate)| {
        let committed = std::fs::read_to_string(root().join(file))
            .map_err(|error| format!("{file}: {error}; run `cargo xtask header`"))?;
        let fresh = generate();
        if committed == fresh {
            return Ok(());
        }
        let line = committed.lines().zip(fresh.lines()).take_while(|(a, b)| a == b).count() + 1;
        Err(format!(
            "{file} is not what the source makes, from line {line} on; run `cargo xtask header` and commit it"
        ))
    })?;
    frozen::check(&generate())
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The whole header of providers.
pub fn generate() -> String {
    let title = "\n/* ---- Records and tables ---- */\n\n";
    [HEAD, &numbers(), title, &types(), TAIL, &layout(), END].concat()
}

const HEAD: &str = r#"/*
 * The provider ABI of Tieline: everything that a provider in C needs. docs/abi.md gives the rules,
 * docs/writing-a-provider.md a complete example.
 *
 * Made by `cargo xtask header` from plugin-api/src. Do not edit.
 */
#ifndef TIELINE_PROVIDER_H
#define TIELINE_PROVIDER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

"#;

/// Versions, statuses and every named number.
fn numbers() -> String {
    let mut out = String::new();
    let owner = String::from_utf8_lossy(&abi::NOTE_OWNER[..7]);
    let minor = "What this header added at the ends of records and tables.";
    define(&mut out, "TIELINE_ABI_MAJOR", abi::ABI_MAJOR, "Only equal majors work together.");
    define(&mut out, "TIELINE_ABI_MINOR", abi::ABI_MINOR, minor);
    define(&mut out, "TIELINE_NOTE_OWNER", format!("\"{owner}\""), "The owner of the ELF note.");
    define(&mut out, "TIELINE_NOTE_TYPE", abi::NOTE_TYPE, "The type of the ELF note.");
    let section = format!("\"{}\"", abi::NOTE_SECTION);
    define(&mut out, "TIELINE_NOTE_SECTION", section, "The section of the ELF note.");
    out.push_str("\n/* ---- Statuses ---- */\n\n");
    out.push_str(&statuses());
    // Bits of 64-bit words, so that `~` and shifts do what they seem to.
    let is_wide = |name: &str| {
        let mut groups = "CAP_ MEMORY_CAP_ ACCESS_ OP_ FLAGS_OF_ REGISTER_".split(' ');
        groups.any(|group| name.trim_start_matches("TIELINE_").starts_with(group))
    };
    for (title, names) in tables() {
        out.push_str(&format!("\n/* ---- {title} ---- */\n\n"));
        for named in names {
            let value = match is_wide(named.c_name) {
                true => format!("UINT64_C(0x{:x})", named.value),
                false => named.value.to_string(),
            };
            define(&mut out, named.c_name, value, named.doc);
        }
    }
    out
}

fn define(out: &mut String, name: &str, value: impl std::fmt::Display, doc: &str) {
    out.push_str(&format!("/* {doc} */\n#define {name} {value}\n"));
}

/// Statuses: the same lines in both headers, so that a file may include both.
fn statuses() -> String {
    let mut out = String::new();
    let pending = "accepted: a completion event with the cookie follows";
    let ok = "done: buffers may be reused, and no completion follows";
    define(&mut out, "TIELINE_OK", format!("({OK})"), ok);
    define(&mut out, "TIELINE_PENDING", format!("({PENDING})"), pending);
    for status in Status::ALL {
        define(&mut out, status.constant(), format!("({})", *status as i32), status.text());
    }
    out
}

/// `ProviderOps` -> `tieline_provider_ops`, `StateHandle` -> `tieline_state`.
fn c_name(rust: &str) -> String {
    let mut out = String::from("tieline");
    for c in rust.trim_end_matches("Handle").chars() {
        if c.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

/// The kinds of handle: in Rust addresses, in C structs of which the header says nothing.
const HANDLES: &str = "StateHandle DomainHandle RegionHandle InterfaceHandle EndpointHandle KeyHandle ConnectorHandle";

/// How cbindgen writes both headers.
fn config() -> cbindgen::Config {
    cbindgen::Config {
        language: cbindgen::Language::C,
        style: cbindgen::Style::Tag,
        no_includes: true,
        usize_is_size_t: true,
        documentation_style: cbindgen::DocumentationStyle::C,
        line_length: 100,
        tab_width: 4,
        ..cbindgen::Config::default()
    }
}

/// The text of a header from these files.
fn generated(config: cbindgen::Config, files: impl IntoIterator<Item = String>) -> String {
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in files {
        builder = builder.with_src(root().join(file));
    }
    let mut text = Vec::new();
    builder.generate().expect("cbindgen reads our Rust").write(&mut text);
    String::from_utf8(text).expect("cbindgen writes UTF-8").trim().to_owned()
}

/// The records and tables, as cbindgen writes them.
fn types() -> String {
    let mut names: Vec<&str> = RECORDS.iter().map(|record| record.name).collect();
    names.extend(["PackFn", "EntryFn"]);
    let rename = names.iter().map(|name| ((*name).to_string(), c_name(name))).collect();
    names.extend(HANDLES.split(' '));
    let mut config = config();
    config.export.include = names.iter().map(|name| (*name).to_string()).collect();
    config.export.item_types = vec![
        cbindgen::ItemType::Structs,
        cbindgen::ItemType::Typedefs,
        cbindgen::ItemType::OpaqueItems,
    ];
    config.export.rename = rename;
    let files = ["abi.rs", "abi/domain.rs", "abi/interface.rs", "abi/endpoint.rs"];
    let files = files.map(|file| format!("plugin-api/src/{file}"));
    let mut text = in_words_of_c(&generated(config, files), &names);
    for rust in HANDLES.split(' ') {
        let c = c_name(rust);
        text = text
            .replace(&format!("typedef void {rust};"), &format!("struct {c};"))
            .replace(&format!("{rust} *"), &format!("struct {c} *"));
    }
    text
}

/// Turns what the documentation says about Rust names into C, and cbindgen's comments into C's usual form.
fn in_words_of_c(text: &str, names: &[&str]) -> String {
    let mut out = String::new();
    let mut comment: Option<Vec<String>> = None;
    for line in text.lines() {
        let trimmed = line.trim();
        match (&mut comment, trimmed) {
            (None, "/*") => comment = Some(Vec::new()),
            (Some(lines), "*/") => {
                let indent = &line[..line.len() - line.trim_start().len()];
                out.push_str(&comment_block(indent.strip_suffix(' ').unwrap_or(indent), lines));
                comment = None;
            }
            (Some(lines), words) => lines.push(renamed(words, names)),
            (None, _) => {
                out.push_str(line.trim_end());
                out.push('\n');
            }
        }
    }
    out
}

fn renamed(words: &str, names: &[&str]) -> String {
    let mut words = words.to_string();
    for name in names {
        for (from, to) in [
            (format!("[`{name}`]"), c_name(name)),
            (format!("`{name}::"), format!("`{}.", c_name(name))),
            (format!("`{name}`"), c_name(name)),
        ] {
            words = words.replace(&from, &to);
        }
    }
    words
}

fn comment_block(indent: &str, lines: &[String]) -> String {
    if let [line] = lines {
        return format!("{indent}/* {line} */\n");
    }
    let mut out = format!("{indent}/*\n");
    for line in lines {
        out.push_str(format!("{indent} * {line}").trim_end());
        out.push('\n');
    }
    out.push_str(&format!("{indent} */\n"));
    out
}

const TAIL: &str = r#"
/* ---- Identity ---- */

/* The ELF note as it lies in the file. */
struct tieline_note {
    uint32_t owner_len;
    uint32_t desc_len;
    uint32_t type;
    char owner[8];
    struct tieline_note_desc desc;
};

/*
 * Says who a provider is; read from the file before any of its code runs. Once per provider, at file scope:
 *
 *     TIELINE_PROVIDER_NOTE("verbs", "1.2.0", 0);
 *
 * The name is the one in the file's name (libtieline_verbs.so): a-z, 0-9 and '-', at most 31 bytes. The
 * version is a semantic version. The flags are TIELINE_NOTE_*; a provider in C has none. A provider that needs what a
 * later minor of the core has brought says so with TIELINE_PROVIDER_NOTE_FOR("verbs", "1.2.0", 0, 3): older cores
 * leave it out, with these words.
 */
#define TIELINE_PROVIDER_NOTE(name_, version_, flags_) TIELINE_PROVIDER_NOTE_FOR(name_, version_, flags_, 0)
#define TIELINE_PROVIDER_NOTE_FOR(name_, version_, flags_, min_core_minor_) \
    __attribute__((section(TIELINE_NOTE_SECTION), used, aligned(4))) \
    static const struct tieline_note tieline_provider_note = { \
        sizeof TIELINE_NOTE_OWNER, sizeof(struct tieline_note_desc), TIELINE_NOTE_TYPE, TIELINE_NOTE_OWNER, \
        { sizeof(struct tieline_note_desc), 1, TIELINE_ABI_MAJOR, TIELINE_ABI_MINOR, min_core_minor_, flags_, \
          name_, version_ } \
    }

/* The one symbol that a provider exports: fills `out`, whose `size` the core has set; 0 or a negative status.
 * On failure the text goes to host->async_event. Called once for every context that the process opens. */
__attribute__((visibility("default")))
int32_t tieline_provider_v1(const struct tieline_host *host, struct tieline_provider_ops *out);

/* ---- The tail rules ---- */

/* Writes an attribute record, or the provider's table: no more than both sides know, `size` kept.
 *
 *     struct tieline_domain_attr attr = { .size = sizeof attr, ... };
 *     tieline_write_record(out, &attr, sizeof attr);
 */
static inline void tieline_write_record(void *out, const void *value, size_t known)
{
    size_t size = *(const size_t *)out;
    size_t len = size < known ? size : known;
    if (len > sizeof size) {
        memcpy((char *)out + sizeof size, (const char *)value + sizeof size, len - sizeof size);
    }
}

/* Reads a parameter record: what is missing is zero, what is unknown must be.
 *
 *     struct tieline_domain_params params;
 *     int32_t status = tieline_read_params(&params, sizeof params, in);
 */
static inline int32_t tieline_read_params(void *params, size_t known, const void *in)
{
    size_t at, size;
    if (!in) {
        return TIELINE_INVALID;
    }
    size = *(const size_t *)in;
    memset(params, 0, known);
    memcpy(params, in, size < known ? size : known);
    for (at = known; at < size; at++) {
        if (((const char *)in)[at]) {
            return TIELINE_UNSUPPORTED_PARAM;
        }
    }
    return TIELINE_OK;
}

/* The bits of flags that must be understood and are not among those that are known: who finds one answers
 * TIELINE_UNSUPPORTED_PARAM. Bits of the upper half are hints, and ignored by who does not know them.
 *
 *     if (tieline_not_understood(op->flags, TIELINE_FLAGS_OF_RMA)) return TIELINE_UNSUPPORTED_PARAM;
 */
static inline uint64_t tieline_not_understood(uint64_t flags, uint64_t known)
{
    return flags & UINT64_C(0xffffffff) & ~known;
}

/* What PEER_LEFT and DATAGRAM of a connector call an address: FNV-1a of its bytes, 64 bit. */
static inline uint64_t tieline_address_hash(const uint8_t *address, size_t len)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    while (len--) {
        hash = (hash ^ *address++) * UINT64_C(0x100000001b3);
    }
    return hash;
}

/* ---- The layout, checked ---- */

#ifdef __cplusplus
#define TIELINE_CHECK(what) static_assert(what, #what)
#else
#define TIELINE_CHECK(what) _Static_assert(what, #what)
#endif

#if UINTPTR_MAX == UINT64_MAX
"#;

fn layout() -> String {
    let mut out = String::new();
    for record in RECORDS {
        let name = c_name(record.name);
        out.push_str(&format!("TIELINE_CHECK(sizeof(struct {name}) == {});\n", record.size));
        for (field, offset) in record.fields {
            // A keyword of C: cbindgen writes it with an underscore.
            let field = if *field == "register" { "register_" } else { field };
            out.push_str(&format!(
                "TIELINE_CHECK(offsetof(struct {name}, {field}) == {offset});\n"
            ));
        }
    }
    out
}

const END: &str = r"#endif

#undef TIELINE_CHECK

#ifdef __cplusplus
}
#endif

#endif /* TIELINE_PROVIDER_H */
";

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_committed_headers_are_what_the_source_makes_and_hold_what_is_frozen() {
        check().unwrap();
    }

    /// Compiles `source` against the header with every warning an error.
    fn compile(compiler: &str, standard: &str, extension: &str, source: &str) {
        let directory =
            std::env::temp_dir().join(format!("tieline-header-{extension}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join(format!("uses_the_header.{extension}"));
        std::fs::write(&file, source).unwrap();
        let ran = Command::new(compiler)
            .args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I"])
            .arg(root().join("include"))
            .arg(&file)
            .output();
        std::fs::remove_dir_all(&directory).unwrap();
        match ran {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                println!("skipped: {compiler} is not installed");
            }
            Err(error) => panic!("{compiler}: {error}"),
            Ok(output) => {
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            }
        }
    }

    const PROVIDER: &str = r#"
        #include <tieline_provider.h>
        TIELINE_PROVIDER_NOTE("test", "1.2.3", 0);
        int32_t tieline_provider_v1(const struct tieline_host *host, struct tieline_provider_ops *out)
        {
            struct tieline_domain_params params;
            (void)host;
            (void)out;
            return tieline_read_params(&params, sizeof params, NULL);
        }
    "#;

    #[test]
    fn the_header_is_c11_without_a_warning() {
        compile("cc", "-std=c11", "c", PROVIDER);
    }

    #[test]
    fn the_header_is_cxx17_without_a_warning() {
        compile("c++", "-std=c++17", "cc", PROVIDER);
    }
}
