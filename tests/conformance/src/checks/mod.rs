//! The list of checks, in the order in which they run.

mod abi;
mod atomics;
mod attributes;
mod connectors;
mod leaving;
mod messages;
mod processes;
mod rma;
mod waiting;

pub(crate) use atomics::count as count_remotely;

use crate::case::Case;
use crate::report::{Checked, Verdict};
use tieline_plugin_api::{caps, role};

/// One thing that a provider must do.
pub struct Check {
    /// A sentence without spaces.
    pub name: &'static str,
    /// `TIELINE_CAP_*` without which it is skipped.
    pub needs: u64,
    /// Bits `1 << TIELINE_ROLE_*` of the modules that it is for.
    pub roles: u32,
    run: fn(&Case) -> Checked,
}

impl Check {
    /// Whether it is for modules of this role.
    #[must_use]
    pub fn is_for(&self, role: u32) -> bool {
        1u32.checked_shl(role).is_some_and(|bit| self.roles & bit != 0)
    }

    /// Runs it in this process.
    #[must_use]
    pub fn run(&self, case: &Case) -> Verdict {
        case.needs(self.needs).and_then(|()| (self.run)(case)).into()
    }
}

const DATA: u32 = 1 << role::DATA;
const CONNECTORS: u32 = 1 << role::CONNECTION_ONLY;

macro_rules! checks {
    ($( $module:ident for $roles:expr => { $( $name:ident: $needs:expr; )* } )*) => {
        /// Every check.
        pub const CHECKS: &[Check] = &[
            $( $( Check {
                name: stringify!($name),
                needs: $needs,
                roles: $roles,
                run: $module::$name,
            }, )* )*
        ];
    };
}

checks! {
    attributes for DATA | CONNECTORS => {
        the_note_says_who_it_is: 0;
        the_entry_symbol_is_there: 0;
        names_and_limits_are_possible: 0;
        configuration_variables_carry_the_prefix: 0;
    }
    attributes for DATA => {
        every_claimed_capability_has_its_slot: 0;
    }
    abi for DATA | CONNECTORS => {
        an_older_core_with_a_shorter_host_table_is_served: 0;
        a_newer_core_with_longer_tables_is_served: 0;
        parameter_records_follow_the_tail_rule: 0;
        attribute_records_respect_their_size: 0;
        names_that_do_not_exist_are_refused: 0;
        quiesce_leaves_no_thread_behind: 0;
    }
    attributes for DATA => {
        an_address_fits_its_stated_length: 0;
        bytes_that_are_no_address_do_no_harm: 0;
        opening_and_closing_leaves_no_descriptor_open: 0;
    }
    connectors for CONNECTORS => {
        every_slot_of_a_connector_is_there: 0;
        the_address_of_a_connector_fits_its_stated_length: 0;
        bytes_that_are_no_address_of_a_connector_do_no_harm: 0;
        a_datagram_to_oneself_arrives: 0;
        datagrams_of_every_length_arrive_whole: 0;
        a_datagram_longer_than_the_limit_is_refused: 0;
        ten_thousand_datagrams_keep_their_order: 0;
        a_flood_of_datagrams_is_answered_again_and_loses_nothing: 0;
        two_that_send_to_each_other_at_once_lose_nothing: 0;
        an_address_where_nobody_is_any_more_is_reported_with_the_reason: caps::PEER_FAILURE;
        a_datagram_wakes_a_sleeping_connector: caps::EVENT_FD;
        an_unreachable_address_wakes_a_sleeping_connector: caps::EVENT_FD | caps::PEER_FAILURE;
        opening_and_closing_connectors_leaves_no_descriptor_open: 0;
        closing_with_datagrams_in_flight_harms_nobody: 0;
        two_threads_exchange_datagrams: 0;
        two_processes_exchange_datagrams: 0;
        a_killed_peer_of_a_connector_is_reported: caps::PEER_FAILURE;
    }
    messages for DATA => {
        an_interface_reaches_and_connects_to_itself: 0;
        a_message_to_oneself_arrives: messages::SHORT;
        a_peer_arrives_with_its_identity_before_its_first_message: messages::SHORT;
        short_messages_of_every_length_arrive_whole: messages::SHORT;
        a_message_longer_than_the_limit_is_refused_or_arrives_whole: messages::SHORT;
        ten_thousand_messages_keep_their_order: messages::SHORT;
        a_flood_is_answered_again_and_loses_nothing: messages::SHORT;
        a_packed_message_is_what_the_callback_wrote: messages::PACKED;
        again_means_that_the_packer_was_not_called: messages::PACKED;
        a_packer_may_send_and_nothing_is_lost: messages::PACKED | caps::AM_SHORT;
        an_error_of_the_pack_callback_comes_back_and_sends_nothing: messages::PACKED;
        a_pack_callback_that_claims_too_much_is_refused: messages::PACKED;
        a_gathered_message_arrives_in_the_order_of_its_pieces: messages::ZCOPY;
        a_lent_payload_stays_until_it_is_released: messages::SHORT | caps::LENDS_BUFFERS;
        closing_with_messages_in_flight_harms_nobody: messages::SHORT;
        polling_after_a_peer_has_left_brings_nothing_twice: messages::SHORT;
        the_memory_report_is_sane: messages::SHORT;
    }
    waiting for DATA => {
        an_endpoint_that_is_closed_at_once_harms_nobody: 0;
        a_message_wakes_a_sleeping_interface: waiting::WAITS;
        a_first_contact_wakes_a_sleeping_interface: waiting::WAITS;
        two_threads_exchange_messages: messages::SHORT;
    }
    leaving for DATA => {
        what_was_sent_arrives_though_its_sender_leaves_at_once: messages::SHORT;
        what_was_sent_arrives_though_its_sender_leaves_what_came_to_it_unread: messages::SHORT;
        what_was_sent_keeps_its_bytes_though_its_sender_closes_and_sends_to_others: messages::SHORT;
    }
    rma for DATA => {
        flush_and_fence_complete: 0;
        a_key_fits_its_stated_length: caps::PUT;
        a_put_writes_exactly_its_range: rma::BOTH;
        a_get_reads_exactly_its_range: rma::BOTH;
        an_iov_of_the_greatest_length_works: rma::BOTH;
        operations_longer_than_the_limit_are_refused: rma::BOTH;
        a_range_outside_the_region_is_refused: rma::BOTH;
        a_key_with_any_byte_changed_is_rejected: rma::CHECKED;
        bytes_that_are_no_key_do_no_harm: rma::BOTH;
        a_revoked_key_is_rejected: rma::CHECKED;
        rights_that_a_region_does_not_give_are_refused: rma::CHECKED;
        a_key_of_another_domain_is_rejected: rma::CHECKED;
        an_unknown_flag_is_refused_and_an_unknown_hint_ignored: rma::BOTH;
        memory_that_a_domain_does_not_know_is_refused: caps::PUT;
        a_key_to_a_part_of_a_region_leads_nowhere_else_or_is_refused: rma::BOTH;
        a_passive_target_needs_no_poll: rma::PASSIVE;
    }
    atomics for DATA => {
        every_claimed_atomic_does_what_its_name_says: atomics::ATOMICS;
        misaligned_and_out_of_range_atomics_are_refused: atomics::ATOMICS;
        an_atomic_without_the_right_or_after_deregister_is_rejected: atomics::ATOMICS | caps::CHECKS_KEYS;
        two_threads_that_count_together_lose_nothing: atomics::ATOMICS;
    }
    processes for DATA => {
        two_processes_exchange_messages: messages::SHORT;
        put_and_get_reach_another_process: rma::BOTH;
        two_processes_that_count_together_lose_nothing: atomics::ATOMICS;
        a_killed_peer_is_reported_and_posting_to_it_fails: messages::SHORT | caps::PEER_FAILURE;
        a_peer_killed_in_mid_stream_leaves_whole_messages: messages::SHORT | caps::PEER_FAILURE;
        a_put_to_a_killed_peer_fails: rma::BOTH;
    }
}
