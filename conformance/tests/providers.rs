//! Tests of the suite over providers of the workspace, and over broken providers: a check that never fails checks nothing.
//!
//! Run it with `cargo test -p tieline-conformance --test providers [-- NAME]`.

#[path = "support/built.rs"]
mod built;
#[path = "support/libfabric.rs"]
mod libfabric;
#[path = "support/scratch.rs"]
mod scratch;
mod support;

use built::built;
use scratch::Scratch;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use support::{Test, program, run_all, source};
use tieline_conformance::{LIMIT, Outcome, Plan, Tally, Verdict, contents};

const TESTS: &[Test] = &[
    ("shm_conforms", shm),
    ("shm_cma_conforms", shm_cma),
    ("tcp_conforms", tcp),
    ("tcp_connect_conforms", tcp_connect),
    ("messages_puts_and_gets_go_over_rxm_of_libfabric", libfabric::over_rxm),
    ("messages_puts_and_gets_go_over_sockets_of_libfabric", libfabric::over_sockets),
    ("messages_puts_and_gets_go_over_tcp_of_libfabric_2_5", libfabric::over_tcp_of_2_5),
    ("messages_puts_and_gets_go_over_rxm_of_libfabric_2_5", libfabric::over_rxm_of_2_5),
    ("the_example_in_rust_conforms", example_in_rust),
    ("the_example_in_c_conforms", example_in_c),
    ("the_connector_in_c_conforms", connector_in_c),
    ("the_first_step_of_the_guide_loads_and_conforms", guide),
    ("every_break_in_the_example_is_found_by_the_check_that_is_there_for_it", breaks_are_found),
    ("every_break_in_the_connector_is_found", connector_breaks_are_found),
];

fn main() -> ExitCode {
    match libfabric::as_asked() {
        Some(test) => run_all(&[test]),
        None => run_all(TESTS),
    }
}

fn compiled(
    scratch: &Scratch,
    example: &str,
    name: &str,
    change: Option<(&str, &str)>,
) -> Result<PathBuf, String> {
    let mut text = std::fs::read_to_string(source().join("docs/examples").join(example)).unwrap();
    if let Some((from, to)) = change {
        assert_eq!(text.matches(from).count(), 1, "`{from}` must be once in the example");
        text = text.replace(from, to);
    }
    let (file, object) =
        (scratch.path().join(format!("{name}.c")), scratch.path().join(format!("{name}.so")));
    std::fs::write(&file, text).unwrap();
    let mut cc = Command::new("cc");
    let cc = cc.args(["-std=c11", "-shared", "-fPIC", "-I"]).arg(source().join("include"));
    if change.is_none() {
        let _ = cc.args(["-Wall", "-Wextra", "-Werror"]);
    } else {
        let _ = cc.arg("-w");
    }
    match cc.arg("-o").arg(&object).arg(&file).status() {
        Ok(status) => assert!(status.success(), "{cc:?}"),
        Err(error) => return Err(format!("no C compiler: {error}")),
    }
    Ok(object)
}

/// Runs the suite, or the checks with `filter` in their names. A file that cannot be loaded fails the test.
fn run(object: &Path, filter: Option<&str>, limit: Duration) -> (Vec<Outcome>, Tally) {
    let filter = filter.map(str::to_owned);
    let path = object.to_path_buf();
    let plan = Plan { path, module: None, filter, program: program(), limit, until_failure: false };
    let mut outcomes = Vec::new();
    let ran = contents(&plan).and_then(|found| {
        tieline_conformance::run(&plan, &found, &mut |outcome| outcomes.push(outcome))
    });
    let tally = ran.unwrap_or_else(|why| panic!("{}: {why}", object.display()));
    (outcomes, tally)
}

const PATIENCE: Duration = Duration::from_secs(60);

/// Asserts that no check fails, and that the checks of the provider's main features are not skipped.
fn conforms(object: &Path, must_pass: &[&str]) {
    let (outcomes, tally) = run(object, None, PATIENCE);
    let told = |which: fn(&Verdict) -> bool| {
        let lines = outcomes.iter().filter(|outcome| which(&outcome.verdict));
        lines.map(|outcome| format!("  {outcome}\n")).collect::<String>()
    };
    print!("{}", told(|verdict| matches!(verdict, Verdict::Skipped(_))));
    assert_eq!(tally.failed, 0, "{}", told(|verdict| matches!(verdict, Verdict::Failed(_))));
    for check in must_pass {
        let passed = |o: &&Outcome| o.check.name == *check && o.verdict == Verdict::Passed;
        assert!(outcomes.iter().any(|o| passed(&o)), "{check} did not pass");
    }
    println!("  {tally}");
}

fn shm() -> support::Verdict {
    let object = built("tieline-provider-shm-plugin", "libtieline_shm.so");
    conforms(
        &object,
        &[
            "two_processes_exchange_messages",
            "two_threads_exchange_messages",
            "a_message_wakes_a_sleeping_interface",
            "a_killed_peer_is_reported_and_posting_to_it_fails",
        ],
    );
    Ok(())
}

fn shm_cma() -> support::Verdict {
    let object = built("tieline-provider-shm-cma-plugin", "libtieline_shm_cma.so");
    conforms(&object, &["a_put_writes_exactly_its_range", "a_passive_target_needs_no_poll"]);
    Ok(())
}

fn tcp() -> support::Verdict {
    let object = built("tieline-provider-tcp-plugin", "libtieline_tcp.so");
    conforms(
        &object,
        &[
            "two_processes_exchange_messages",
            "two_threads_exchange_messages",
            "a_message_wakes_a_sleeping_interface",
            "put_and_get_reach_another_process",
            "a_revoked_key_is_rejected",
            "a_killed_peer_is_reported_and_posting_to_it_fails",
        ],
    );
    Ok(())
}

fn tcp_connect() -> support::Verdict {
    let object = built("tieline-provider-tcp-connect-plugin", "libtieline_tcp_connect.so");
    conforms(
        &object,
        &[
            "two_processes_exchange_datagrams",
            "two_threads_exchange_datagrams",
            "two_that_send_to_each_other_at_once_lose_nothing",
            "a_datagram_wakes_a_sleeping_connector",
            "a_killed_peer_of_a_connector_is_reported",
        ],
    );
    Ok(())
}

const LOOPBACK: &[&str] = &["a_message_to_oneself_arrives", "a_revoked_key_is_rejected"];

fn example_in_rust() -> support::Verdict {
    conforms(&built("tieline-example-loopback", "libloopback_rust.so"), LOOPBACK);
    Ok(())
}

fn connector_in_c() -> support::Verdict {
    let scratch = Scratch::new("connector");
    conforms(
        &compiled(&scratch, "letterbox.c", "libtieline_letterbox", None)?,
        &["two_threads_exchange_datagrams", "a_datagram_wakes_a_sleeping_connector"],
    );
    Ok(())
}

fn example_in_c() -> support::Verdict {
    let scratch = Scratch::new("c");
    conforms(&compiled(&scratch, "loopback.c", "libtieline_loopback", None)?, LOOPBACK);
    Ok(())
}

fn guide() -> support::Verdict {
    let text = std::fs::read_to_string(source().join("docs/writing-a-provider.md")).unwrap();
    let code = text.split("```rust\n").nth(1).unwrap().split("```").next().unwrap();
    let code: String =
        code.lines().filter(|l| !l.starts_with("# ")).map(|l| format!("{l}\n")).collect();
    let scratch = Scratch::new("guide");
    std::fs::create_dir_all(scratch.path().join("src")).unwrap();
    std::fs::write(scratch.path().join("src/lib.rs"), code).unwrap();
    let manifest = format!(
        "[package]\nname = \"mine\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\
         [lib]\nname = \"tieline_mine\"\ncrate-type = [\"cdylib\"]\n\
         [dependencies]\ntieline-plugin-api = {{ path = {:?} }}\n[workspace]\n",
        source().join("plugin-api").canonicalize().unwrap()
    );
    std::fs::write(scratch.path().join("Cargo.toml"), manifest).unwrap();
    // The workspace's own versions are available, so nothing needs to be downloaded.
    let _ = std::fs::copy(source().join("Cargo.lock"), scratch.path().join("Cargo.lock")).unwrap();
    // The folder is kept between runs, separate from the workspace's own target directory, where the core would find the file.
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("guide-target");
    let mut cargo = Command::new(env!("CARGO"));
    let cargo =
        cargo.current_dir(scratch.path()).args(["build", "--quiet", "--offline", "--target-dir"]);
    assert!(cargo.arg(&target).status().unwrap().success(), "{cargo:?}");
    let (_, tally) = run(&target.join("debug/libtieline_mine.so"), None, PATIENCE);
    // The test states no number of skipped checks, which changes with new checks.
    let Tally { passed, failed, .. } = tally;
    let promised = format!("\n{passed} passed, {failed} failed, ... skipped\n");
    assert!(text.contains(&promised), "the guide promises another result than {tally}");
    Ok(())
}

/// The breakages: from, to, the check that must find it, and a word of its text.
const BREAKS: &[(&str, &str, &str, &str)] = &[
    (
        "s->header = header, s->len",
        "s->header = header ^ 1, s->len",
        "a_message_to_oneself_arrives",
        "header",
    ),
    ("if (is_full(i)) return NULL;", "", "a_flood_is_answered_again_and_loses_nothing", "AGAIN"),
    (
        "if (len < 0) return len;",
        "if (len < 0) { claim(i, TIELINE_EVENT_MESSAGE, id, e->peer, header ^ 1); i->tail++; return len; }",
        "an_error_of_the_pack_callback_comes_back_and_sends_nothing",
        "header",
    ),
    (
        "if (is_full(i)) return TIELINE_AGAIN;",
        "if (is_full(i)) { (void)pack(argument, packed, most); return TIELINE_AGAIN; }",
        "again_means_that_the_packer_was_not_called",
        "found 1",
    ),
    (
        "len = pack(argument, packed, most);",
        "s = &i->slots[i->tail % SLOTS];\n    len = pack(argument, s->data, most);\n    memcpy(packed, s->data, PAYLOAD);",
        "a_packer_may_send_and_nothing_is_lost",
        "byte",
    ),
    (
        "if ((size_t)len > most) return TIELINE_INVALID;",
        "",
        "a_pack_callback_that_claims_too_much_is_refused",
        "success",
    ),
    ("s->len += iov[n].len;", "s->len = iov[n].len;", "a_gathered_message_arrives", "length"),
    (
        "if (len > PAYLOAD) return TIELINE_TOO_LARGE;\n    if (!(s = claim",
        "if (len > PAYLOAD) len = PAYLOAD;\n    if (!(s = claim",
        "refused_or_arrives_whole",
        "length",
    ),
    ("i->tail++;\n    *e =", "*e =", "a_peer_arrives_with_its_identity", "PEER_ARRIVED"),
    (
        "s->len = params.identity_len);",
        "s->len = 1);",
        "a_peer_arrives_with_its_identity",
        "identity",
    ),
    (
        "i->head += i->shown;",
        "i->head += i->shown > 3 ? 3 : i->shown;",
        "ten_thousand_messages",
        "header",
    ),
    ("r->generation == k->generation", "1", "a_revoked_key_is_rejected", "success"),
    ("r->generation == k->generation", "1", "a_key_of_another_domain_is_rejected", "success"),
    ("r->generation = 0; /*", "/*", "a_revoked_key_is_rejected", "KEY_REJECTED"),
    (
        "if (tieline_not_understood(op->flags",
        "if (0 && tieline_not_understood(op->flags",
        "an_unknown_flag_is_refused",
        "success",
    ),
    (
        "if (tieline_not_understood(op->flags, TIELINE_OP_REMOTE_COMPLETION)",
        "if (op->flags & ~TIELINE_OP_REMOTE_COMPLETION",
        "an_unknown_hint_ignored",
        "hint",
    ),
    ("if (params.access & ~RIGHTS)\n", "if (0)\n", "memory_that_a_domain_does_not_know", "access"),
    (
        "if (params.kind != TIELINE_MEMORY_KIND_HOST ||",
        "if (0 &&",
        "memory_that_a_domain_does_not_know",
        "kind 77",
    ),
    (
        "if (params.offset || (params.len && params.len != params.region->len) ||\n        \
         (params.access && params.access != params.region->access))",
        "if (0)",
        "a_key_to_a_part_of_a_region",
        "beyond the part",
    ),
    ("if (params.len != sizeof k) return", "if (0) return", "bytes_that_are_no_key", "signal"),
    ("!(r->access & right)", "0", "rights_that_a_region_does_not_give", "success"),
    ("op->len > r->len - op->offset", "0", "a_range_outside_the_region_is_refused", "OUT_OF_RANGE"),
    (
        "uint8_t *remote = r->base + op->offset + at",
        "uint8_t *remote = r->base + op->offset",
        "a_put_writes_exactly_its_range",
        "byte",
    ),
    ("memmove(local, remote, op->iov[n].len);", ";", "a_get_reads_exactly_its_range", "byte"),
    ("if (capacity >= sizeof k) memcpy", "memcpy", "a_key_fits_its_stated_length", "TOO_LARGE"),
    (".put = put,", "", "every_claimed_capability_has_its_slot", "put"),
    (".name = \"self\"", ".name = \"\"", "names_and_limits_are_possible", "name"),
    (
        "*count = 1;\n    if (capacity) tieline_write_record(out, &attr, sizeof attr);\n    return TIELINE_OK;\n}\n\nstatic void close_domain",
        "*count = 1;\n    if (capacity) memcpy(out, &attr, sizeof attr);\n    return TIELINE_OK;\n}\n\nstatic void close_domain",
        "attribute_records_respect_their_size",
        "signal",
    ),
    (
        "struct tieline_domain *d;\n    int32_t status = tieline_read_params(&params, sizeof params, in);",
        "struct tieline_domain *d;\n    int32_t status = 0;\n    memcpy(&params, in, sizeof params);",
        "parameter_records_follow_the_tail_rule",
        "",
    ),
    (
        "if (!host || !out) return TIELINE_INVALID;",
        "if (!host->pages_free || !out) return TIELINE_INVALID;",
        "an_older_core_with_a_shorter_host_table_is_served",
        "signal",
    ),
    (
        "tieline_write_record(out, &ops, sizeof ops);",
        "memset(out, 0, sizeof ops + 8);\n    memcpy(out, &ops, sizeof ops);",
        "a_newer_core_with_longer_tables_is_served",
        "behind",
    ),
    (
        "capacity < sizeof i->address ? capacity : sizeof i->address",
        "sizeof i->address",
        "an_address_fits_its_stated_length",
        "no byte beyond",
    ),
    (
        "if (len == sizeof i->address && !memcmp",
        "if (!memcmp",
        "bytes_that_are_no_address_do_no_harm",
        "reachable",
    ),
    (
        "fail(TIELINE_UNREACHABLE, \"loopback connects an interface only to itself\")",
        "fail(TIELINE_UNREACHABLE, \"\")",
        "bytes_that_are_no_address",
        "reason",
    ),
    (
        "e->interface, TIELINE_EVENT_MESSAGE, id, e->peer, header);\n    (void)cookie;",
        "e->interface, TIELINE_EVENT_MESSAGE, id, e->peer, (uint32_t)header);\n    (void)cookie;",
        "every_bit_of_id_and_header",
        "header of am_zcopy",
    ),
    (
        "s->len = params.identity_len);",
        "s->len = params.identity_len > 255 ? 255 : params.identity_len);",
        "an_identity_of_the_stated_length",
        "identity of 256 bytes",
    ),
    (
        "return (int64_t)i->shown;\n}",
        "int64_t n = (int64_t)i->shown;\n    i->head += i->shown, i->shown = 0;\n    return n;\n}",
        "a_payload_stays_until_the_next_poll",
        "its place was used",
    ),
    ("{ i, i->peers++ }", "{ i, 0 }", "a_message_says_which_of_many_peers", "number"),
    (
        "int32_t status = TIELINE_OK;\n    struct tieline_region *r;",
        "for (;;) ;\n    int32_t status = TIELINE_OK;\n    struct tieline_region *r;",
        "a_put_writes",
        "hung",
    ),
];

/// The breakages of the connection-only example, in the same form.
const CONNECTOR_BREAKS: &[(&str, &str, &str, &str)] = &[
    (
        "address_hash(address, len), gone",
        "address_hash(address, len - 1), gone",
        "an_address_where_nobody_is_any_more",
        "hash",
    ),
    ("gone, sizeof gone - 1)", "gone, 0)", "an_address_where_nobody_is_any_more", "words"),
    (
        "TIELINE_EVENT_PEER_LEFT, TIELINE_UNREACHABLE,",
        "TIELINE_EVENT_PEER_LEFT, 0,",
        "an_address_where_nobody_is_any_more",
        "status",
    ),
    (
        "if (b->tail - b->head == SLOTS) return 0;",
        "",
        "a_flood_of_datagrams_is_answered_again",
        "AGAIN",
    ),
    (
        "b->tail++;",
        "static int n; if (++n % 1000) b->tail++;",
        "ten_thousand_datagrams_keep_their_order",
        "datagram",
    ),
    (
        "b->head += b->shown;",
        "b->head += b->shown > 3 ? 3 : b->shown;",
        "a_flood_of_datagrams_is_answered_again",
        "datagram",
    ),
    (
        "if (size > LONGEST) return TIELINE_TOO_LARGE;",
        "if (size > LONGEST) size = LONGEST;",
        "a_datagram_longer_than_the_limit",
        "TOO_LARGE",
    ),
    (
        "return write(b->wake, &one, sizeof one) == sizeof one;",
        "return one == 1;",
        "a_datagram_wakes_a_sleeping_connector",
        "silent",
    ),
    (
        "busy = b->room || b->head + b->shown < b->tail;",
        "busy = 1;",
        "a_datagram_wakes_a_sleeping_connector",
        "arm",
    ),
    (
        "if (len != sizeof *to) return",
        "if (len < 8) return",
        "bytes_that_are_no_address_of_a_connector",
        "",
    ),
    (
        "no ? fail(TIELINE_UNREACHABLE, no)",
        "no ? fail(TIELINE_UNREACHABLE, \"\")",
        "bytes_that_are_no_address_of_a_connector",
        "reason",
    ),
    (
        "capacity < sizeof b->address ? capacity : sizeof b->address",
        "sizeof b->address",
        "the_address_of_a_connector_fits",
        "no byte beyond",
    ),
    ("close(b->wake);\n    free(b);\n}", "free(b);\n}", "leaves_no_descriptor_open", "descriptors"),
    (".max_datagram = LONGEST", ".max_datagram = 0", "names_and_limits", "max_datagram"),
    (".send = send,", "", "every_slot_of_a_connector", "send"),
    (
        "TIELINE_EVENT_DATAGRAM, 0, 0, datagram",
        "TIELINE_EVENT_DATAGRAM, 0, 7, datagram",
        "each_of_a_crowd",
        "header",
    ),
    ("b->shown = n;", "b->shown = b->tail - b->head;", "each_of_a_crowd", "datagram"),
    (
        "b && b->address.number != to.number;",
        "b && 0;",
        "datagrams_go_to_the_connector",
        "datagram",
    ),
    (
        "*at = b->next;",
        "*at = b->next;\n    if (b->next) b->next->address.number = 0;",
        "the_end_of_one_connector",
        "stays",
    ),
    ("b->shown = n;", "b->head += n;", "the_bytes_of_a_datagram_stay", "looked at again"),
    (
        "busy = b->room || b->head + b->shown < b->tail;",
        "busy = 0;",
        "a_datagram_that_comes_while",
        "silent",
    ),
    (
        "    close(b->wake);\n    free(b);\n}",
        "    close(b->wake);\n}",
        "connectors_that_come_and_go",
        "free",
    ),
    (
        "        if (!other->again) continue;",
        "        continue;",
        "room_after_again_wakes",
        "silent",
    ),
    (
        "busy = b->room || b->head + b->shown < b->tail;",
        "busy = b->head + b->shown < b->tail;",
        "room_after_again_wakes",
        "silent",
    ),
    (
        "pthread_mutex_lock(&lock);\n    b->address = (struct address){ \"letterb\", (uint64_t)getpid(), ++last_number };",
        "pthread_mutex_lock(&lock);\n    b->address = (struct address){ \"letterb\", (uint64_t)getpid(), last_number = last_number % 50 + 1 };",
        "connectors_that_threads_open_at_once",
        "different",
    ),
    (
        "item->kind = kind, item->status",
        "if (!malloc(64)) return 0;\n    item->kind = kind, item->status",
        "polls_and_datagrams_leave_no_memory",
        "free",
    ),
    (
        "return b->wake; }",
        "return dup(b->wake); }",
        "the_descriptor_of_an_interface_is_one",
        "event_fd",
    ),
];

fn connector_breaks_are_found() -> support::Verdict {
    find(CONNECTOR_BREAKS, "letterbox.c")
}

fn breaks_are_found() -> support::Verdict {
    find(BREAKS, "loopback.c")
}

fn find(breaks: &[(&str, &str, &str, &str)], example: &str) -> support::Verdict {
    let scratch = Scratch::new(&format!("breaks-of-{example}"));
    let mut missed = Vec::new();
    for (n, (from, to, check, word)) in breaks.iter().enumerate() {
        let object = compiled(&scratch, example, &format!("broken{n}"), Some((from, to)))?;
        let found =
            |verdict: &Verdict| matches!(verdict, Verdict::Failed(why) if why.contains(word));
        // A race needs two threads at the same time, which may take more than one run on a busy machine.
        let mut told = String::new();
        let finds = |_| {
            let (outcomes, _) = run(&object, Some(check), LIMIT);
            told = outcomes.iter().map(|outcome| format!("{outcome}\n")).collect();
            outcomes.iter().any(|outcome| found(&outcome.verdict))
        };
        if !(0..5).any(finds) {
            missed.push(format!("{check} did not find `{from}` -> `{to}`:\n{told}"));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
    println!("  {} breaks found", breaks.len());
    Ok(())
}
