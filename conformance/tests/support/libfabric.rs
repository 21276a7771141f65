//! Tests of the provider over libfabric, which the environment of a separate process selects.

use crate::built::built;
use crate::support::{self, Test, program};
use crate::{PATIENCE, run};
use std::path::Path;
use std::process::Command;
use tieline_conformance::{Plan, contents};

/// The name of the only test of a process with libfabric selected: other tests start it with their own settings.
const WITH_LIBFABRIC: &str = "libfabric_as_the_environment_sets_it";
const SET: &str = "TIELINE_OFI_PROVIDERS";
/// The layer's full name, which 2.x needs.
const RXM: &str = "tcp;ofi_rxm";
const LIBRARY: &str = "TIELINE_OFI_LIBRARY";

/// The checks that show that messages, puts and gets are right over a provider of libfabric; the whole suite takes minutes.
const OVER_LIBFABRIC: &[&str] = &[
    "a_message_to_oneself_arrives",
    "a_peer_arrives_with_its_identity_before_its_first_message",
    "short_messages_of_every_length_arrive_whole",
    "a_flood_is_answered_again_and_loses_nothing",
    "a_packer_may_send_and_nothing_is_lost",
    "the_end_of_one_peer_ends_no_other",
    "a_message_wakes_a_sleeping_interface",
    "a_put_writes_exactly_its_range",
    "a_get_reads_exactly_its_range",
    "an_iov_of_the_greatest_length_works",
    "many_operations_at_once_have_each_its_bytes_cookie_and_end",
    "a_flush_does_not_end_before_what_stands_before_it",
    "closing_an_endpoint_drops_what_is_pending_and_leaves_its_memory_alone",
    "put_and_get_reach_another_process",
    "a_put_to_a_killed_peer_fails",
    "a_killed_peer_is_reported_and_posting_to_it_fails",
    "messages_of_a_dead_process_arrive",
    "pending_operations_end_once_when_the_peer_dies",
    "a_death_is_told_once_to_each_endpoint_and_to_no_other",
    "the_end_of_a_peer_wakes_also_when_a_call_has_found_it",
    "an_endpoint_that_leads_to_nobody_fails",
    "a_disconnected_peer_learns_it_and_is_received_no_more",
];

/// A subset of the checks for `ofi_rxm` of 2.5, whose interfaces take 131 MiB each and much time.
const OVER_RXM_OF_2_5: &[&str] = &[
    "short_messages_of_every_length_arrive_whole",
    "a_message_wakes_a_sleeping_interface",
    "a_put_writes_exactly_its_range",
    "a_get_reads_exactly_its_range",
    "a_killed_peer_is_reported_and_posting_to_it_fails",
];

const ATOMICS_OVER_LIBFABRIC: &[&str] = &[
    "many_atomics_at_once_bring_each_its_own_value",
    "every_claimed_atomic_does_what_its_name_says",
    "misaligned_and_out_of_range_atomics_are_refused",
    "two_threads_that_count_together_lose_nothing",
    "an_atomic_whose_answer_waits_is_done_once",
];

/// Returns the test to run, if this program was started for it.
pub(crate) fn as_asked() -> Option<Test> {
    std::env::var_os(SET).map(|_| (WITH_LIBFABRIC, as_set as fn() -> support::Verdict))
}

/// Starts this program again, because the environment, which selects libfabric, belongs to the whole process.
fn over(provider: &str, library: Option<&Path>) -> support::Verdict {
    let mut again = Command::new(program());
    let again = again.arg(WITH_LIBFABRIC).env(SET, provider).env("TIELINE_OFI_INTERFACES", "lo");
    let _ = again.envs(library.map(|library| (LIBRARY, library)));
    let done = again.output().unwrap();
    let told = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{told}{}", String::from_utf8_lossy(&done.stderr));
    match told.lines().find_map(|line| line.split_once(" ... skipped: ")) {
        Some((_, why)) => Err(why.to_owned()),
        None => Ok(()),
    }
}

pub(crate) fn over_rxm() -> support::Verdict {
    over("tcp", None)
}

pub(crate) fn over_sockets() -> support::Verdict {
    over("sockets", None)
}

/// Tests `tcp` of 2.x, which has its own datagrams; with 2.x a layer is another provider.
pub(crate) fn over_tcp_of_2_5() -> support::Verdict {
    over("tcp", Some(&tieline_testing::libfabric::newer()?))
}

pub(crate) fn over_rxm_of_2_5() -> support::Verdict {
    over(RXM, Some(&tieline_testing::libfabric::newer()?))
}

fn as_set() -> support::Verdict {
    let provider = std::env::var(SET).unwrap_or_default();
    let object = built("tieline-provider-ofi-plugin", "libtieline_ofi.so");
    let (path, program) = (object.clone(), program());
    let plan =
        Plan { path, module: None, filter: None, program, limit: PATIENCE, until_failure: false };
    let found = contents(&plan);
    if found.as_ref().is_ok_and(|found| found.no_device.is_some()) {
        return Err(format!("libfabric has no provider {provider} here"));
    }
    let atomics = if provider == "sockets" { ATOMICS_OVER_LIBFABRIC } else { &[] };
    let all = if provider == RXM { OVER_RXM_OF_2_5 } else { OVER_LIBFABRIC };
    for check in all.iter().chain(atomics) {
        let (outcomes, tally) = run(&object, Some(check), PATIENCE);
        let told: Vec<String> = outcomes.iter().map(ToString::to_string).collect();
        assert_eq!((tally.failed, tally.passed), (0, 1), "{told:?}");
    }
    Ok(())
}
