//! The source of each simulated behaviour, and the test that compares it with a real library, or the reason why there is none.

use super::world::{Atomics, Manners};

/// The evidence for a behaviour.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// A program over this libfabric provider has shown the behaviour.
    Run(&'static str),
    /// This file of libfabric's source contains the behaviour.
    Read(&'static str),
    /// This manual page states the behaviour.
    Page(&'static str),
    /// No provider is known to behave like this: a conceivable defect, or a malicious peer.
    Invented(&'static str),
}

/// The comparison of a behaviour with a real library.
#[derive(Clone, Copy, Debug)]
enum Against {
    /// A test of `real_tests.rs`, whose outcome must be the same.
    Test(&'static str),
    /// A test elsewhere that uses only a real library.
    Run(&'static str),
    /// The reason why there is no comparison.
    Nothing(&'static str),
}

use Against::{Nothing, Test};
use Source::{Invented, Page, Read, Run};

const HARDWARE: Against = Nothing("only hardware that is not available here does so");
const ILL_WILL: Against = Nothing("no library does so on its own");

/// Every field of `Manners`, in its order.
const MANNERS: &[(&str, Source, Against)] = &[
    (
        "device",
        Run("fi_info of 1.17"),
        Against::Run("messages_puts_and_gets_go_over_rxm_of_libfabric"),
    ),
    ("key_size", Page("fi_domain(3), mr_key_size"), HARDWARE),
    ("mr_mode", Page("fi_mr(3)"), Test("a_key_that_is_taken_is_refused_as_it_is_played")),
    (
        "delivery",
        Page("fi_endpoint(3), FI_DELIVERY_COMPLETE"),
        Test("puts_and_gets_wait_for_a_target_that_has_to_poll_as_it_is_played"),
    ),
    (
        "eagain",
        Run("tcp;ofi_rxm of 1.17, while a connection forms"),
        Test("posts_to_nobody_are_told_to_come_again_without_an_end_as_it_is_played"),
    ),
    (
        "waits",
        Run("tcp of 1.17: FI_GETWAIT; shm: ENOSYS"),
        Against::Run("a_message_wakes_a_sleeping_interface"),
    ),
    (
        "manual",
        Run("tcp;ofi_rxm of 1.17; sockets does not wait"),
        Test("puts_and_gets_do_not_wait_where_threads_move_the_data_as_it_is_played"),
    ),
    (
        "late",
        Page("fi_cq(3): completions come in any order and at any time"),
        Nothing("a real library is late when it likes"),
    ),
    ("lies", Run("net of 1.17"), Nothing("net is refused, and gone from 2.x")),
    (
        "fail_transfer",
        Run("tcp;ofi_rxm of 1.17: 125 and 107 when the peer is killed"),
        Test("gets_from_somebody_who_goes_fail_with_the_connection_as_it_is_played"),
    ),
    (
        "refuse_transfer",
        Page("fi_rma(3): a call that fails returns the negative number of the error"),
        Nothing("how far a library knows that a peer is gone when it is called is its own affair"),
    ),
    (
        "fail_send",
        Run("tcp;ofi_rxm of 1.17: as above"),
        Against::Run("killed_processes_leave_two_survivors_at_work_over_libfabric"),
    ),
    (
        "refuse_send",
        Run("sockets of 1.17"),
        Test("posts_to_nobody_are_refused_by_sockets_as_it_is_played"),
    ),
    (
        "lose_send",
        Read("prov/rxm/src/rxm_conn.c, which connects anew"),
        Nothing("a real connection cannot be made to break between two messages"),
    ),
    (
        "swap_sends",
        Invented("whoever grants FI_ORDER_SAS and does not keep it"),
        Test("messages_come_in_order_one_for_each_buffer_as_they_are_played"),
    ),
    (
        "backwards",
        Page("fi_cq(3): completions come in any order"),
        Nothing("a real library chooses its order itself"),
    ),
    ("trouble", Read("prov/efa/src/efa_base_ep.c"), HARDWARE),
    ("stays_open", Read("prov/cxi/src/cxip_ep.c, prov/sockets/src/sock_ep.c"), HARDWARE),
    (
        "has_notices",
        Read("prov/efa/src/efa_base_ep.c: without a queue it ends the process"),
        HARDWARE,
    ),
    ("overrun", Page("fi_cq(3): overrun"), Nothing("the queues are as long as all that is posted")),
    (
        "provider",
        Run("fi_info of 1.17 and of 2.5"),
        Against::Run("messages_puts_and_gets_go_over_tcp_of_libfabric_2_5"),
    ),
    (
        "format",
        Page("fi_getinfo(3), addr_format"),
        Against::Run("everything_crosses_between_two_hosts_over_libfabric"),
    ),
    ("mode", Page("fi_getinfo(3), mode"), HARDWARE),
    ("av_type", Read("prov/opx/src/fi_opx_av.c"), HARDWARE),
    (
        "separate_release",
        Read("prov/opx/include/rdma/opx/fi_opx_endpoint.h"),
        Test("buffers_for_many_messages_are_given_back_with_the_last_as_it_is_played"),
    ),
    (
        "deaf",
        Run("verbs;ofi_rxm of 1.17, whose receiver has no room"),
        Nothing("EAGAIN for ever towards one peer is that of `eagain`"),
    ),
    ("hold_ways", Read("prov/cxi, prov/efa: no FI_ORDER_SAW"), HARDWARE),
    ("noise", Invented("a stranger's"), ILL_WILL),
    ("refusals_say", Invented("a peer's"), ILL_WILL),
    ("registrations", Page("getrlimit(2), RLIMIT_MEMLOCK, by which verbs is bound"), HARDWARE),
    (
        "atomics",
        Run("see `atomics_source`"),
        Test("atomics_that_would_cost_the_provider_are_left_out_as_it_is_played"),
    ),
    (
        "api",
        Page("fi_getinfo(3), version"),
        Against::Run("messages_puts_and_gets_go_over_tcp_of_libfabric_2_5"),
    ),
    ("orders", Read("prov/efa/src/rdm: efa-direct grants no FI_ORDER_SAS"), HARDWARE),
    ("keys_are_long", Page("fi_mr(3), fi_mr_raw_attr: FI_ETOOSMALL"), HARDWARE),
    ("keeps_registrations", Page("fi_mr(3): EBUSY"), HARDWARE),
    ("doubles", Invented("a library that forgets what it has said"), ILL_WILL),
    (
        "receives",
        Read("prov/rxm/src/rxm_ep.c: a queue of rx_attr.size receives, and EAGAIN behind them"),
        Nothing("2048 receives of a real library are 16 MiB, and say the same"),
    ),
    (
        "kills",
        Run("verbs;ofi_rxm of 1.17 over soft RoCE, as a message came while its interface closed"),
        Nothing("no device here does so"),
    ),
    (
        "bindings",
        Page(
            "fi_endpoint(3): fi_ep_bind returns an error; rxm then reads a table that is not there",
        ),
        Nothing("a real library cannot be made to run out of memory"),
    ),
];

/// Returns the source of a simulated behaviour of atomics. The defects other than refused fetches are invented.
fn atomics_source(atomics: Atomics) -> Source {
    let defect = Invented("a defect that the trial at open has to find");
    match atomics {
        Atomics::None => Run("tcp of 2.5, which has none of its own"),
        Atomics::Kept => Run("sockets of 1.17"),
        Atomics::Dear => Run("tcp of 2.5, which is tcp;ofi_rxm with them"),
        Atomics::FetchesRefused => Run("net of 1.17"),
        Atomics::Narrow => Invented("a smaller queue is the least that asking may cost"),
        Atomics::Unanswered => Invented("a question that fails for a reason of its own"),
        Atomics::TooWide
        | Atomics::Forgotten
        | Atomics::SwapsRefused
        | Atomics::Signed
        | Atomics::MaxForgotten
        | Atomics::SwapsAlways
        | Atomics::ReturnsCompared
        | Atomics::KeepsResults => defect,
    }
}

#[test]
fn every_simulated_behaviour_names_source_and_comparison() {
    let shown = format!("{:#?}", Manners::default());
    let fields = shown.lines().filter_map(|line| line.strip_prefix("    ")?.split_once(": "));
    let fields: Vec<&str> =
        fields.map(|(name, _)| name).filter(|name| !name.starts_with(' ')).collect();
    let named: Vec<&str> = MANNERS.iter().map(|(name, ..)| *name).collect();
    assert_eq!(fields, named);
    let compared = include_str!("../real_tests.rs");
    for (name, source, against) in MANNERS {
        let (Run(of) | Read(of) | Page(of) | Invented(of)) = source;
        let (Test(by) | Against::Run(by) | Nothing(by)) = against;
        assert!(!of.is_empty() && !by.is_empty(), "{name}");
        let is_run = matches!(source, Run(_)) && matches!(against, Nothing(_));
        assert!(!is_run || by.contains(' '), "{name} was run, and says why it is not run again");
        if let Test(by) = against {
            assert!(compared.contains(&format!("fn {by}()")), "{name}: there is no test {by}");
        }
    }
    assert!(matches!(atomics_source(Atomics::Kept), Run(_)));
}
