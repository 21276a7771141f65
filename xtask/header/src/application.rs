//! `include/tieline.h`: the C library, for programs and runtimes, made from `capi/src/abi`.

/// Items whose names in C follow from those in Rust by [`super::c_name`]. Handles are opaque structs.
const NAMES: &str = "ContextHandle WorkerHandle EndpointHandle RegionHandle KeyHandle CounterHandle KeptHandle \
    AnnouncementHandle PointerHandle WakerHandle JobHandle NameCallHandle Setting ContextParams How Piece MessageFn \
    EndpointFailureFn NotificationFn PeerFailureFn PeerLeftFn Limits KeyInfo Counters Counted Completed Exchange TakeFn JobPlace \
    DatagramFn";

/// Items with other names in C.
const OTHERS: [(&str, &str); 3] = [
    ("Failure", "tieline_error"),
    ("ArrivedMessage", "tieline_message"),
    ("CBlocks", "tieline_blocks"),
];

/// The whole header.
pub fn generate() -> String {
    let statuses = "/* ---- Statuses: those of the provider ABI ---- */\n\n";
    let others = "\n/* ---- Numbers, records and functions ---- */\n\n";
    [HEAD, statuses, &super::statuses(), others, &items(), END].concat()
}

fn items() -> String {
    let mut config = super::config();
    config.function.sort_by = Some(cbindgen::SortKey::None);
    config.constant.sort_by = Some(cbindgen::SortKey::None);
    let names = NAMES.split(' ').map(|name| (name.to_owned(), super::c_name(name)));
    let others = OTHERS.map(|(rust, c)| (rust.to_owned(), c.to_owned()));
    config.export.rename = names.chain(others).collect();
    let files = ORDER.iter().map(|name| format!("capi/src/abi/{name}.rs"));
    let text = super::generated(config, files);
    let mut text = super::in_words_of_c(&text, &[]).replace(" -1\n", " (-1)\n");
    while text.contains("\n\n\n") {
        text = text.replace("\n\n\n", "\n\n");
    }
    text
}

/// What is exported, in the order in which a person reads of it: files of `capi/src/abi`.
#[rustfmt::skip]
const ORDER: &[&str] = &[
    "numbers", "error", "context", "worker", "endpoint", "message", "peers", "memory", "put",
    "strided", "atomic", "names", "how", "completion", "counter", "wait", "look", "job", "wireup",
];

const HEAD: &str = r#"/*
 * The C library of Tieline. docs/c.md gives the rules, each behind an example.
 *
 * Every call returns TIELINE_OK, TIELINE_PENDING, a number that is not negative, or a status below 0; then tieline_last_error
 * and tieline_error_text have its words in this thread. Records begin with their size. Outputs are zeroed first. A text or bytes
 * of unknown length go where the caller has room, whose length is said and heard by `len`.
 *
 * Made by `cargo xtask header` from capi/src/abi. Do not edit.
 */
#ifndef TIELINE_H
#define TIELINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

"#;

const END: &str = r"
#ifdef __cplusplus
}
#endif

#endif /* TIELINE_H */
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_of_the_c_library_is_left_out() {
        let text =
            std::fs::read_to_string(super::super::root().join("capi/src/abi/mod.rs")).unwrap();
        let mut named: Vec<_> = text
            .lines()
            .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'))
            .collect();
        let mut ordered = ORDER.to_vec();
        named.sort_unstable();
        ordered.sort_unstable();
        assert_eq!(named, ordered);
    }
}
