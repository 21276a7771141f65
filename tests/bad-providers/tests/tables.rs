//! Tests of tables and records: of other minors, impossible ones, and features that a provider lacks.

mod common;

use common::{assert_the_rest_works, open, open_with};
use std::cell::Cell;
use std::rc::Rc;
use tieline::explain::Verdict;
use tieline::{Error, Status};
use tieline_bad_providers::Directory;

fn alone(directory: &Directory, name: &str) -> tieline::Context {
    open_with(&[directory], &[("TIELINE_PROVIDERS", name)])
}

#[test]
fn a_provider_in_c_moves_messages() {
    let directory = Directory::new();
    let _ = directory.compile("good", &[]);
    assert_the_rest_works(&alone(&directory, "good"));
}

#[test]
fn a_newer_minor_with_unknown_slots_works() {
    let directory = Directory::new();
    let _ = directory.compile("newer", &["NEWER_MINOR", "MINOR=7"]);
    assert_the_rest_works(&alone(&directory, "newer"));
}

#[test]
fn an_older_minor_with_missing_slots_works() {
    let directory = Directory::new();
    let _ = directory.compile("older", &["OLDER_MINOR"]);
    assert_the_rest_works(&alone(&directory, "older"));
}

#[test]
fn a_capability_that_is_claimed_but_not_there_is_refused_at_the_module() {
    let directory = Directory::new();
    let _ = directory.compile(
        "boasts",
        &["CAPS=(TIELINE_CAP_AM_SHORT | TIELINE_CAP_AM_PACKED)", "MAX_PACKED=64"],
    );
    let context = open(&[&directory]);
    let records = context.report().records;
    let module = records.iter().find(|r| r.provider == "boasts" && r.module.is_some());
    let verdict = &module.expect("a record about the module").verdict;
    let Verdict::Refused { phase, expected, .. } = verdict else { panic!("{verdict:?}") };
    assert_eq!(phase, "tables");
    assert!(expected.contains("the slot am_packed, which CAP_AM_PACKED promises"), "{expected}");
    assert_the_rest_works(&context);
}

/// Returns the expected and the found text of the refusal of a provider compiled with these switches, in any phase.
fn refused_of(context: &tieline::Context, name: &str) -> (String, String) {
    let records = context.report().records;
    let refusals = records.into_iter().filter(|record| record.provider == name);
    let mut refusals = refusals.filter_map(|record| match record.verdict {
        Verdict::Refused { expected, found, .. } => Some((expected, found)),
        _ => None,
    });
    refusals.next().unwrap_or_else(|| panic!("{name} is not refused"))
}

/// The refusal names the expected and the found value. A valid provider in the same directory works.
#[test]
fn impossible_table_or_record_is_refused_with_name_of_file() {
    let slips: [(&str, &str, &str, &str); 20] = [
        (
            "short",
            "TABLES=domain_ops.size = 3",
            "complete tables",
            "the domain table says that it is 3 bytes",
        ),
        (
            "huge",
            "TABLES=interface_ops.size = 1 << 20",
            "complete",
            "interface table says that it is 1048576",
        ),
        (
            "unsaid",
            "TABLES=endpoint_ops.size = 0",
            "complete",
            "the endpoint table says that it is 0 bytes",
        ),
        (
            "odd",
            "TABLES=ops.domain = (void *)((char *)&domain_ops + 1)",
            "complete",
            "at an odd address",
        ),
        (
            "half",
            "TABLES=ops.endpoint = 0",
            "complete",
            "interface and endpoint tables is there without",
        ),
        (
            "unlisted",
            "TABLES=domain_ops.query_modules = 0",
            "complete",
            "the slot query_modules is missing",
        ),
        ("nowhere", "TABLES=ops.open_domain = 0", "complete", "the slot open_domain is missing"),
        ("sizeless", "SIZE_OF_OPS=0", "complete", "the provider table says that it is 0 bytes"),
        (
            "cut",
            "SIZE_OF_OPS=offsetof(struct tieline_provider_ops, domain)",
            "complete",
            "domain table is missing",
        ),
        (
            "mute",
            "TABLES=interface_ops.poll = 0",
            "the slot poll, which the role DATA",
            "that slot is missing",
        ),
        (
            "endless",
            "TABLES=endpoint_ops.close = 0",
            "the slot close, which the role",
            "that slot is missing",
        ),
        (
            "longname",
            "MODULE=memset(attr.name, 'm', sizeof attr.name)",
            "a name of at most 31 bytes",
            "named `mmm",
        ),
        (
            "longdomain",
            "DOMAIN=memset(attr.name, 'd', sizeof attr.name)",
            "at most 63 bytes",
            "named `ddd",
        ),
        ("nameless", "MODULE=attr.name[0] = 0", "a module with a name", "none"),
        ("lines", "DOMAIN=attr.name[1] = 10", "a domain with a name", "not text: `l\\nnes`"),
        ("twins", "MODULES=2", "that no other module of the domain has", "the same name twice"),
        ("narrow", "MODULE=attr.max_short = 7", "max_short of at least 8 with CAP_AM_SHORT", "7 ("),
        ("shy", "MODULE=attr.max_identity_len = 256", "max_identity_len of at least 4096", "256 ("),
        ("placeless", "MODULE=attr.max_address_len = 0", "max_address_len from 1 to 4096", "0 ("),
        ("third", "MODULE=attr.role = 3", "role DATA or CONNECTION_ONLY", "role 3"),
    ];
    let directory = Directory::new();
    for (name, slip, ..) in slips {
        let _ = directory.compile(name, &[slip]);
    }
    let _ = directory.compile("good", &[]);
    let context = open(&[&directory]);
    for (name, _, expected, found) in slips {
        let said = refused_of(&context, name);
        assert!(said.0.contains(expected) && said.1.contains(found), "{name}: {said:?}");
        let file = directory.file(name).display().to_string();
        assert!(said.1.contains(&file), "{name}: {said:?}");
    }
    assert!(common::is_found(&context, "good"));
    assert_the_rest_works(&context);
}

#[test]
fn a_module_that_moves_memory_of_a_domain_without_any_is_refused() {
    let directory = Directory::new();
    let caps = "CAPS=(TIELINE_CAP_AM_SHORT | TIELINE_CAP_NEEDS_POLL | TIELINE_CAP_GET)";
    let good = "MODULE=attr.max_iov = 1";
    let domain = "DOMAIN=attr.max_key_len = 8";
    let _ = directory.compile("keyless", &[caps, good]);
    let _ = directory.compile("unpinned", &[caps, good, domain]);
    let context = open(&[&directory]);
    let said = refused_of(&context, "keyless");
    assert!(said.0.contains("max_key_len of its domain from 1 to 4096"), "{said:?}");
    let said = refused_of(&context, "unpinned");
    assert!(said.0.contains("MEMORY_CAP_ALLOC or MEMORY_CAP_REGISTER of the domain"), "{said:?}");
}

#[test]
fn module_without_room_behind_emulation_heads_is_refused() {
    let directory = Directory::new();
    let caps = "CAPS=(TIELINE_CAP_AM_SHORT | TIELINE_CAP_AM_PACKED)";
    let _ = directory.compile("narrow", &[caps, "MAX_PACKED=24"]);
    let context = open(&[&directory]);
    let records = context.report().records;
    let module = records.iter().find(|r| r.provider == "narrow" && r.module.is_some());
    let verdict = &module.expect("a record about the module").verdict;
    let Verdict::Refused { expected, found, .. } = verdict else { panic!("{verdict:?}") };
    assert!(
        expected.contains("max_packed of at least 64") && found.starts_with("24 ("),
        "{verdict:?}"
    );
    assert_the_rest_works(&context);
}

#[test]
fn a_capability_of_a_domain_that_is_claimed_but_not_there_is_refused() {
    let directory = Directory::new();
    let _ = directory.compile("boasts", &["DOMAIN_CAPS=TIELINE_MEMORY_CAP_ALLOC"]);
    let context = open(&[&directory]);
    let records = context.report().records;
    let refused = records.iter().any(|record| {
        record.provider == "boasts"
            && matches!(&record.verdict, Verdict::Refused { expected, found, .. }
                if format!("{expected} {found}").contains("MEMORY_CAP_ALLOC"))
    });
    assert!(refused, "{records:?}");
    assert_the_rest_works(&context);
}

/// Sends header 0xdead, which makes the provider fail, and checks later calls of this provider and of others.
fn fails_on_dead(directory: &Directory, name: &str) {
    let context = alone(directory, name);
    let worker = context.worker().expect("a worker");
    let seen = Rc::new(Cell::new(0));
    let counter = seen.clone();
    worker.on_message(1, move |_| counter.set(counter.get() + 1)).expect("a free id");
    let address = worker.address().expect("an address");
    let endpoint = worker.connect(&address).expect("an endpoint to oneself");
    let outcome = endpoint.send(1, 1, b"fine").expect("a message");
    let _ = worker.finish(outcome).expect("a message that is sent");
    while seen.get() == 0 {
        let _ = worker.progress();
    }
    let send = |header, payload| -> Result<u64, Error> {
        Ok(worker.finish(endpoint.send(1, header, payload)?)?)
    };
    let error = send(0xdead, b"deadly").expect_err("a failure");
    assert_eq!(error.status(), Status::ProviderFailed, "{error}");
    assert!(send(1, b"later").is_err(), "a provider that has failed is used again");
    drop((endpoint, worker));
    // Another context of the process, which uses other providers, still works.
    assert_the_rest_works(&open_with(&[], &[("TIELINE_PROVIDERS", "shm")]));
}

#[test]
fn a_panic_in_a_data_call_fails_that_provider_alone() {
    let directory = Directory::new();
    let _ = directory.copy_example("bad_panics", "panics");
    fails_on_dead(&directory, "panics");
}

#[test]
fn a_provider_in_c_that_says_that_it_failed_is_out_of_use() {
    let directory = Directory::new();
    let _ = directory.compile("fails", &["FAILS_ON_DEAD"]);
    fails_on_dead(&directory, "fails");
}
