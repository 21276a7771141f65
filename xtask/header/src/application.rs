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

    /// Records with addresses, and the rule that keeps each address from being followed too late. A caller can copy every one of them.
    const ADDRESSES: [(&str, &str, Rule); 8] = [
        ("tieline_error", "what why fix setting", Rule::Text),
        ("tieline_setting", "name value", Rule::Callers),
        ("tieline_context_params", "settings", Rule::Callers),
        ("tieline_how", "counter", Rule::Number),
        ("tieline_piece", "region", Rule::Number),
        ("tieline_message", "payload", Rule::Text),
        ("tieline_message", "reserved reserved_worker", Rule::Number),
        ("tieline_exchange", "user allgather publish lookup barrier", Rule::Callers),
    ];

    /// What the library does with an address in a record.
    #[derive(Clone, Copy)]
    enum Rule {
        /// Nothing: the library wrote it for the caller, and its documentation says how long it holds.
        Text,
        /// It follows it in the call that it was passed to: it is the caller's own memory or function.
        Callers,
        /// It is a number in the shape of an address, which is looked up and never followed.
        Number,
    }

    /// The names of a record's members that are addresses.
    fn addresses(body: &str) -> Vec<&str> {
        let members = body.split(';').filter(|member| member.contains('*'));
        let name = |member: &'_ str| match member.split_once("(*") {
            Some(_) => member.find("(*").map(|at| at + 2),
            None => member.rfind('*').map(|at| at + 1),
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        members
            .filter_map(|member| {
                let rest = &member[name(member)?..];
                Some(rest.split(|c| !is_name(c)).next().unwrap_or(rest))
            })
            .collect()
    }

    #[test]
    fn every_address_in_a_record_has_a_rule() {
        let header = std::fs::read_to_string(super::super::root().join("include/tieline.h"));
        let header = header.unwrap();
        let mut text = String::new();
        for (number, part) in header.split("/*").enumerate() {
            text.push_str(if number == 0 { part } else { part.split_once("*/").unwrap().1 });
        }
        let mut found = Vec::new();
        for record in text.split("\nstruct ").skip(1) {
            let Some((name, body)) = record.split_once(" {\n") else { continue };
            let body = body.split("\n};").next().unwrap();
            found.extend(addresses(body).iter().map(|member| format!("{name}.{member}")));
        }
        let listed = ADDRESSES.iter().flat_map(|(name, members, rule)| {
            let (Rule::Text | Rule::Callers | Rule::Number) = rule;
            members.split(' ').map(move |member| format!("{name}.{member}"))
        });
        let mut listed: Vec<String> = listed.collect();
        found.sort_unstable();
        listed.sort_unstable();
        assert_eq!(found, listed);
    }

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
