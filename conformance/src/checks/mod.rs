//! The list of checks, in the order in which they run.

mod abi;
mod anew;
mod atomics;
mod attributes;
mod bounds;
mod check;
mod circuits;
mod connecting;
mod connectors;
mod crossing;
mod deaths;
mod dialing;
mod ends;
mod events;
mod flight;
mod keys;
mod leaving;
mod messages;
mod notifications;
mod offers;
mod order;
mod owning;
mod payloads;
mod peers;
mod posts;
mod processes;
mod promises;
mod resources;
mod rma;
mod settings;
mod taking;
mod threads;
mod waiting;
mod waking;

pub(crate) use atomics::count as count_remotely;
pub(crate) use settings::observed;

pub use check::Check;

use tieline_plugin_api::{caps, role};

const DATA: u32 = 1 << role::DATA;
const CONNECTORS: u32 = 1 << role::CONNECTION_ONLY;

macro_rules! checks {
    ($( $module:ident for $roles:expr => { $( $name:ident: $needs:expr, $protects:literal; )* } )*) => {
        /// Every check.
        pub const CHECKS: &[Check] = &[
            $( $( Check {
                name: stringify!($name),
                needs: $needs,
                protects: $protects,
                roles: $roles,
                run: $module::$name,
            }, )* )*
        ];
    };
}

checks! {
    attributes for DATA | CONNECTORS => {
        the_note_says_who_it_is: 0,
            "The core knows name, version and ABI of a file before any of its code runs.";
        the_entry_symbol_is_there: 0,
            "The file can be loaded at all.";
        names_and_limits_are_possible: 0,
            "The core chooses by names, limits and costs: impossible ones would lead it astray.";
        configuration_variables_carry_the_prefix: 0,
            "Settings of providers do not clash, and the report can explain each.";
    }
    attributes for DATA => {
        every_claimed_capability_has_its_slot: 0,
            "No capability is believed that nothing stands behind.";
    }
    abi for DATA | CONNECTORS => {
        an_older_core_with_a_shorter_host_table_is_served: 0,
            "A provider that is newer than the core works.";
        a_newer_core_with_longer_tables_is_served: 0,
            "A provider that is older than the core works.";
        parameter_records_follow_the_tail_rule: 0,
            "What a newer core asks for is done or refused, and never silently left out.";
        attribute_records_respect_their_size: 0,
            "No record of the caller's is written behind its end.";
        names_that_do_not_exist_are_refused: 0,
            "A name that is spelt wrongly is an error and no accident.";
        quiesce_leaves_no_thread_behind: 0,
            "A context that is closed has stopped everything that it started.";
    }
    abi for DATA | CONNECTORS => {
        a_list_steps_by_the_size_of_its_first_record: 0,
            "A newer core reads the lists of an older provider.";
    }
    abi for DATA => {
        the_memory_report_respects_its_size: 0,
            "No record of the caller's is written behind its end.";
        connecting_to_an_endpoint_follows_the_tail_rule: 0,
            "What a newer core asks for is done or refused, and never silently left out.";
    }
    attributes for DATA => {
        an_address_fits_its_stated_length: 0,
            "Addresses fit the space that the core has for them.";
        bytes_that_are_no_address_do_no_harm: 0,
            "A damaged or hostile address ends in words, and not in a crash.";
        opening_and_closing_leaves_no_descriptor_open: 0,
            "A process that opens workers for days does not run out of descriptors.";
    }
    connectors for CONNECTORS => {
        every_slot_of_a_connector_is_there: 0,
            "A connector can do what every connector does.";
        the_address_of_a_connector_fits_its_stated_length: 0,
            "Addresses fit the space that the core has for them.";
        bytes_that_are_no_address_of_a_connector_do_no_harm: 0,
            "A damaged or hostile address ends in words, and not in a crash.";
        a_datagram_to_oneself_arrives: 0,
            "A worker can connect to itself.";
        datagrams_of_every_length_arrive_whole: 0,
            "No datagram is cut, at whatever boundary.";
        a_datagram_longer_than_the_limit_is_refused: 0,
            "What is too long is refused before anything of it is sent.";
        ten_thousand_datagrams_keep_their_order: 0,
            "A reliable connector keeps order and loses nothing.";
        a_flood_of_datagrams_is_answered_again_and_loses_nothing: 0,
            "The queue is bounded, and what was taken arrives.";
        two_that_send_to_each_other_at_once_lose_nothing: 0,
            "Connections that are opened from both sides at once become one.";
        an_address_where_nobody_is_any_more_is_reported_with_the_reason: caps::PEER_FAILURE,
            "Whoever asks for a peer that is gone hears that it is, and why.";
        a_datagram_wakes_a_sleeping_connector: caps::EVENT_FD,
            "A worker that sleeps hears of everything that its connector waits for.";
        an_unreachable_address_wakes_a_sleeping_connector: caps::EVENT_FD | caps::PEER_FAILURE,
            "A worker that sleeps hears that a peer cannot be reached.";
        opening_and_closing_connectors_leaves_no_descriptor_open: 0,
            "A process that opens workers for days does not run out of descriptors.";
        closing_with_datagrams_in_flight_harms_nobody: 0,
            "The end of one connector disturbs no other.";
        two_threads_exchange_datagrams: 0,
            "Connectors of two threads share nothing that is not locked.";
        two_processes_exchange_datagrams: 0,
            "Datagrams reach another process.";
        a_killed_peer_of_a_connector_is_reported: caps::PEER_FAILURE,
            "The death of a peer ends the wait for it, and nothing else.";
    }
    posts for CONNECTORS => {
        each_of_a_crowd_that_sends_to_one_keeps_its_order: 0,
            "A worker that a dozen connect to at once hears each of them.";
        datagrams_go_to_the_connector_of_their_address: 0,
            "A datagram reaches whom it was sent to, and nobody else.";
        the_end_of_one_connector_ends_no_other: 0,
            "A peer that closes ends its own connections and nothing else.";
        the_bytes_of_a_datagram_stay_until_the_next_poll: 0,
            "What a poll has handed out is read where it lies.";
        a_datagram_that_comes_while_a_connector_falls_asleep_wakes_it: caps::EVENT_FD,
            "No wake-up is lost between the last look and the sleep.";
        connectors_that_come_and_go_leave_nothing_behind: 0,
            "A process whose peers come and go runs for months.";
    }
    messages for DATA => {
        an_interface_reaches_and_connects_to_itself: 0,
            "A worker can connect to itself.";
        a_message_to_oneself_arrives: messages::SHORT,
            "The least that messages do: id, header and bytes come through.";
        a_peer_arrives_with_its_identity_before_its_first_message: messages::SHORT,
            "The core knows whose a message is before it hands it out.";
        short_messages_of_every_length_arrive_whole: messages::SHORT,
            "No message is cut, at whatever boundary.";
        a_message_longer_than_the_limit_is_refused_or_arrives_whole: messages::SHORT,
            "What is too long is refused, and never cut.";
        ten_thousand_messages_keep_their_order: messages::SHORT,
            "Messages of an endpoint arrive once and in order.";
        a_flood_is_answered_again_and_loses_nothing: messages::SHORT,
            "The queue is bounded, AGAIN sends nothing, and what was taken arrives.";
        a_packed_message_is_what_the_callback_wrote: messages::PACKED,
            "A message that is packed in place is what its packer wrote.";
        again_means_that_the_packer_was_not_called: messages::PACKED,
            "A packer runs once for each message: it may have taken its data from a queue.";
        a_packer_may_send_and_nothing_is_lost: messages::PACKED | caps::AM_SHORT,
            "A packer is the application's code, which may send.";
        an_error_of_the_pack_callback_comes_back_and_sends_nothing: messages::PACKED,
            "A packer can give up.";
        a_pack_callback_that_claims_too_much_is_refused: messages::PACKED,
            "A wrong length of a packer reads nobody else's memory.";
        a_gathered_message_arrives_in_the_order_of_its_pieces: messages::ZCOPY,
            "A gathered message is its pieces in their order.";
        a_lent_payload_stays_until_it_is_released: messages::SHORT | caps::LENDS_BUFFERS,
            "A payload that was lent can be kept without a copy.";
        closing_with_messages_in_flight_harms_nobody: messages::SHORT,
            "The end of an endpoint or interface disturbs no other.";
        polling_after_a_peer_has_left_brings_nothing_twice: messages::SHORT,
            "The end of a peer is told once.";
        the_memory_report_is_sane: messages::SHORT,
            "The memory report can be believed.";
    }
    payloads for DATA => {
        every_bit_of_id_and_header_arrives_by_every_way: messages::SHORT,
            "Headers have 64 bits and ids 16 at least, whatever way a message takes; a longer id is refused and never cut.";
        an_identity_of_the_stated_length_arrives_whole: messages::SHORT,
            "The core knows a peer by its identity: one that is cut belongs to nobody.";
        a_payload_stays_until_the_next_poll_though_more_is_sent: messages::SHORT,
            "A handler reads its message where it lies, while others go on sending.";
        gathered_messages_in_flight_keep_their_bytes_and_cookies: messages::ZCOPY,
            "Memory is the application's again with the completion, and not before.";
    }
    peers for DATA => {
        messages_go_to_the_peer_of_their_endpoint: messages::SHORT,
            "With a dozen peers each message goes to the one that it was sent to.";
        a_message_says_which_of_many_peers_it_is_from: messages::SHORT,
            "With a dozen peers the number that a message carries is its sender's.";
        a_number_means_one_peer_until_that_has_left: messages::SHORT,
            "A newcomer is not taken for somebody who is there.";
        the_end_of_one_peer_ends_no_other: messages::SHORT,
            "A peer that closes ends its own connection and nothing else.";
        of_two_endpoints_to_one_peer_each_has_its_own_order_and_end: messages::SHORT,
            "Two endpoints to one peer are two: closing one leaves the other.";
    }
    waking for DATA => {
        a_message_that_comes_while_an_interface_falls_asleep_wakes_it: waiting::WAITS,
            "No wake-up is lost between the last look and the sleep.";
        a_completion_wakes_a_sleeping_interface: waiting::WAITS,
            "Who sleeps until an operation completes is woken by that.";
        room_after_again_wakes_a_sleeping_sender: waiting::WAITS,
            "Who sleeps until there is room is woken when the receiver has made some.";
    }
    events for DATA => {
        every_field_of_an_event_is_written: messages::SHORT,
            "The core reads no field of an event that nobody wrote.";
    }
    waiting for DATA => {
        an_endpoint_that_is_closed_at_once_harms_nobody: 0,
            "An endpoint can be closed before it has connected.";
        a_message_wakes_a_sleeping_interface: waiting::WAITS,
            "A worker that sleeps hears of messages.";
        a_first_contact_wakes_a_sleeping_interface: waiting::WAITS,
            "A worker that sleeps hears of peers that it does not know yet.";
        two_threads_exchange_messages: messages::SHORT,
            "Interfaces of two threads share nothing that is not locked.";
    }
    leaving for DATA => {
        what_was_sent_arrives_though_its_sender_leaves_at_once: messages::SHORT,
            "What a data call has taken arrives although its sender closes right behind it.";
        what_was_sent_arrives_though_its_sender_leaves_what_came_to_it_unread: messages::SHORT,
            "It arrives also where the sender leaves things unread.";
        what_was_packed_arrives_though_its_sender_leaves_at_once: messages::PACKED,
            "A packed message that was taken arrives although its sender closes right behind it.";
        what_was_sent_keeps_its_bytes_though_its_sender_closes_and_sends_to_others: messages::SHORT,
            "Buffers are used again only when they have been read.";
    }
    rma for DATA => {
        flush_and_fence_complete: 0,
            "A flush or fence of an idle endpoint does not wait for anything.";
        a_key_fits_its_stated_length: caps::PUT,
            "Keys fit the space that the core has for them.";
        a_put_writes_exactly_its_range: rma::BOTH,
            "A put writes its bytes and no others.";
        bytes_of_a_short_put_are_taken_when_it_returns: caps::PUT,
            "A put up to max_short_put has taken its bytes with the call, and one that completes locally is over.";
        a_get_reads_exactly_its_range: rma::BOTH,
            "A get reads its bytes and writes no others.";
        an_iov_of_the_greatest_length_works: rma::BOTH,
            "The stated number of pieces is the truth.";
        operations_longer_than_the_limit_are_refused: rma::BOTH,
            "The stated lengths are the truth.";
        a_range_outside_the_region_is_refused: rma::BOTH,
            "No operation leaves its region, and an error of one ends no endpoint.";
        a_key_with_any_byte_changed_is_rejected: rma::CHECKED,
            "A forged key leads nowhere.";
        bytes_that_are_no_key_do_no_harm: rma::BOTH,
            "Noise in place of a key does no harm.";
        a_revoked_key_is_rejected: rma::CHECKED,
            "Memory that was taken back is not touched by old keys.";
        rights_that_a_region_does_not_give_are_refused: rma::CHECKED,
            "A region gives its rights and no more.";
        a_key_of_another_domain_is_rejected: rma::CHECKED,
            "A key of another domain's leads nowhere here.";
        an_unknown_flag_is_refused_and_an_unknown_hint_ignored: rma::BOTH,
            "What a newer core asks of an operation is done or refused.";
        memory_that_a_domain_does_not_know_is_refused: caps::PUT,
            "No memory of a kind that a provider does not know is touched.";
        a_key_to_a_part_of_a_region_leads_nowhere_else_or_is_refused: rma::BOTH,
            "A key to a part of a region gives that part away and nothing else.";
        a_passive_target_needs_no_poll: rma::PASSIVE,
            "A target that computes does not hold up those who use its memory.";
    }
    notifications for DATA => {
        a_notification_comes_behind_its_bytes: caps::PUT_NOTIFY | caps::PUT,
            "Who is told that bytes are there reads them, and those of every put before.";
    }
    flight for DATA => {
        many_operations_at_once_have_each_its_bytes_cookie_and_end: rma::BOTH,
            "With hundreds of operations in flight each ends once, under its cookie, as it did end.";
        a_flush_does_not_end_before_what_stands_before_it: rma::BOTH,
            "What a flush has waited for is at the target.";
        a_message_behind_a_fence_comes_behind_the_puts_before_it: rma::BOTH | caps::AM_SHORT,
            "A message behind a fence may say that the data is there.";
        the_array_of_pieces_is_not_used_after_the_call: rma::BOTH,
            "The array of pieces is the caller's again when the call returns.";
        closing_an_endpoint_drops_what_is_pending_and_leaves_its_memory_alone: rma::BOTH,
            "Memory is the application's again when its endpoint has been closed.";
        many_atomics_at_once_bring_each_its_own_value: atomics::ATOMICS,
            "With hundreds of atomics in flight each brings the value that it fetched.";
    }
    order for DATA => {
        a_put_behind_a_fence_does_not_change_what_a_get_before_it_reads: rma::BOTH,
            "What stands before a fence is done before what stands behind it.";
        messages_of_all_ways_keep_one_order: messages::SHORT,
            "Messages of an endpoint keep their order, whichever ways they take and where there is no room.";
        a_packer_may_send_on_another_endpoint: messages::PACKED,
            "A packer is the application's code: an endpoint that is idle sends for it.";
        a_payload_stays_though_its_receiver_answers: messages::SHORT,
            "A handler may answer while it reads.";
    }
    owning for DATA => {
        memory_that_was_given_back_is_touched_by_nobody: rma::BOTH,
            "When deregister has said 0, nobody reads or writes the memory.";
        local_pieces_may_lie_anywhere: rma::BOTH,
            "A program puts from, and gets into, memory that it has registered nowhere.";
        memory_of_the_domain_is_zeroed_and_begins_with_a_page: 0,
            "Nobody sees what somebody else left in memory.";
    }
    atomics for DATA => {
        every_claimed_atomic_does_what_its_name_says: atomics::ATOMICS,
            "Each claimed atomic does what its name says, at its width.";
        misaligned_and_out_of_range_atomics_are_refused: atomics::ATOMICS,
            "No atomic leaves its region or straddles words.";
        an_atomic_without_the_right_or_after_deregister_is_rejected: atomics::ATOMICS | caps::CHECKS_KEYS,
            "Atomics need their right, and a key that holds.";
        two_threads_that_count_together_lose_nothing: atomics::ATOMICS,
            "Atomics of two threads are atomic towards each other.";
    }
    processes for DATA => {
        two_processes_exchange_messages: messages::SHORT,
            "Messages reach another process.";
        put_and_get_reach_another_process: rma::BOTH,
            "Put and get reach the memory of another process.";
        two_processes_that_count_together_lose_nothing: atomics::ATOMICS,
            "Atomics of two processes are atomic towards each other.";
        a_killed_peer_is_reported_and_posting_to_it_fails: messages::SHORT | caps::PEER_FAILURE,
            "The death of a peer is told, and posting to it is an error and never AGAIN.";
        a_peer_killed_in_mid_stream_leaves_whole_messages: messages::SHORT | caps::PEER_FAILURE,
            "A sender that dies leaves whole messages.";
        a_put_to_a_killed_peer_fails: rma::BOTH,
            "A put to a dead process is an error.";
    }
    bounds for DATA => {
        connect_does_not_wait_for_its_peer: 0,
            "A program that connects to thousands waits for none of them.";
        a_peer_under_another_kernel_is_not_reachable: caps::LOCAL_ONLY,
            "An address of another host leads to nobody here.";
    }
    threads for DATA => {
        threads_that_register_and_pack_keys_at_once_get_right_ones: rma::BOTH,
            "Regions and keys of several threads do not get mixed up.";
        regions_that_threads_make_at_the_same_moment_are_different: caps::PUT,
            "Two threads are never given the same region.";
        an_interface_goes_to_another_thread_and_back: caps::AM_SHORT | caps::ANY_THREAD,
            "An interface does not belong to the thread that opened it.";
        packers_of_several_threads_do_not_meet: messages::PACKED,
            "What one thread packs is not in another one's message.";
    }
    threads for DATA | CONNECTORS => {
        each_thread_hears_the_words_of_its_own_error: 0,
            "The words of an error are those of the call that failed.";
    }
    settings for DATA | CONNECTORS => {
        settings_hold_or_are_refused_by_name: 0,
            "A size or count of 1, or a very large one, works or is refused in words that name the variable.";
    }
    settings for DATA | CONNECTORS => {
        what_no_value_can_be_is_refused_by_name: 0,
            "A value that is spelt wrongly is told to whoever set it.";
    }
    settings for DATA => {
        contexts_have_each_their_own_settings: 0,
            "Two libraries in one process set what they like.";
        a_size_that_is_set_has_an_effect: 0,
            "What somebody has set is not silently left out.";
    }
    resources for DATA => {
        a_thousand_connections_leave_nothing_behind: 0,
            "A server whose clients come and go runs for months.";
        a_hundred_interfaces_leave_nothing_behind: 0,
            "A program that opens and closes workers does not grow.";
        polls_and_messages_leave_no_memory_behind: 0,
            "No memory grows with the number of polls or messages.";
        keys_and_regions_leave_nothing_behind: rma::BOTH,
            "No memory grows with the number of keys, regions or puts.";
        endpoints_that_never_connect_leave_nothing_behind: 0,
            "An attempt that is given up costs nothing for good.";
        no_file_stays_behind: 0,
            "Nothing of a process is left when it has closed everything.";
    }
    ends for DATA => {
        an_endpoint_that_is_closed_has_left_in_good_order: messages::SHORT | caps::PEER_FAILURE,
            "A peer that closes is told from one that has died.";
        an_endpoint_that_leads_to_nobody_fails: messages::SHORT | caps::PEER_FAILURE,
            "Nobody waits for ever for a peer that is gone.";
        a_stranger_is_not_taken_for_the_peer: messages::SHORT,
            "A connection leads to whom it was made for, whoever knows the address.";
        closing_does_not_wait_for_a_peer_that_does_nothing: messages::SHORT,
            "The end of a worker takes the time that was set, whatever its peers do.";
        the_end_of_a_peer_wakes_also_when_a_call_has_found_it: messages::SHORT | caps::PEER_FAILURE | caps::EVENT_FD,
            "Who sleeps hears of a peer's end, also of one that a call has come upon.";
    }
    deaths for DATA => {
        a_death_is_told_once_to_each_endpoint_and_to_no_other: messages::SHORT | caps::PEER_FAILURE,
            "Every endpoint to a dead process hears of it once, and no other does.";
        what_a_process_had_sent_arrives_though_it_died: messages::SHORT | caps::PEER_FAILURE,
            "What a process had handed over is not lost when it dies.";
        what_is_pending_ends_once_when_the_peer_dies: caps::AM_SHORT | caps::PEER_FAILURE,
            "Whoever waits for an operation towards a peer that dies hears how it ended.";
        the_death_of_a_peer_raises_no_signal: messages::SHORT | caps::PEER_FAILURE,
            "A program in C does not end because its peer has.";
    }
    connecting for DATA => {
        a_message_goes_as_soon_as_connect_has_returned: messages::SHORT | caps::CONNECTED_SEND,
            "Who claims it can be sent to without a poll before.";
        a_crowd_at_an_endpoint_keeps_its_peer_not_away: messages::SHORT,
            "Whoever knows an endpoint's address cannot keep its peer from it.";
        an_endpoint_that_leads_to_nobody_wakes_its_worker: waiting::WAITS | caps::PEER_FAILURE,
            "A worker that sleeps hears that a peer was gone before it was connected to.";
    }
    taking for DATA => {
        a_key_is_refused_after_revoke: rma::CHECKED,
            "Memory that was asked back is not given away while its owner still uses it.";
        deregister_does_not_say_0_in_the_middle_of_an_access: rma::CHECKED,
            "An access that has passed its check is waited for.";
    }
    abi for DATA => {
        memory_and_keys_follow_the_tail_rule: caps::PUT,
            "What a newer core asks of memory and keys is done or refused, and never silently left out.";
    }
    keys for DATA => {
        a_pointer_leads_to_the_bytes_of_its_region: rma::BOTH | caps::KEY_POINTER,
            "A load and a store at a pointer are of the region's bytes, and of no others.";
        a_pointer_is_safe_when_its_region_has_ended: rma::CHECKED | caps::KEY_POINTER,
            "Who has a pointer crashes by no end of somebody else's, and reaches nobody.";
        a_pointer_is_safe_when_its_owner_is_dead: caps::KEY_POINTER,
            "Who has a pointer to a process lives when that has died.";
        a_key_of_the_interface_serves_all_its_endpoints: rma::BOTH | caps::INTERFACE_KEYS,
            "A key is imported once for a thousand endpoints.";
        operations_go_on_though_their_key_is_dropped: rma::BOTH,
            "A program may let go of a key whose operations are under way.";
    }
    offers for DATA => {
        what_is_canceled_ends_once_and_the_rest_goes_on: rma::BOTH | caps::CANCEL,
            "What was taken back has not happened, and nothing else is lost by it.";
        a_flush_of_the_interface_covers_all_its_endpoints: rma::BOTH | caps::FLUSH_ALL,
            "One flush stands for that of every endpoint.";
        an_operation_without_event_has_ended_with_the_next_one: rma::BOTH | caps::NO_EVENT,
            "Who waits for the last of many has waited for all of them.";
        what_was_declined_has_not_happened: rma::BOTH,
            "What one lane declines another one does, and nobody does it twice.";
        the_limits_of_an_endpoint_stay_and_respect_their_record: 0,
            "What an endpoint carries can be believed.";
    }
    circuits for DATA => {
        the_address_of_an_endpoint_fits_its_stated_length_and_stays: messages::SHORT,
            "An endpoint's address fits the space that the core has for it, and leads there whenever the peer asks.";
        bytes_that_are_no_address_of_an_endpoint_are_refused: messages::SHORT,
            "A damaged or hostile address of an endpoint ends in words, and not in a crash.";
        an_endpoint_that_is_not_connected_says_again: 0,
            "What is posted before a connection is formed waits, and is not lost.";
        what_was_sent_before_connect_arrives_though_its_sender_has_closed: messages::SHORT,
            "A peer that was quick to connect, to send and to close is heard.";
        an_endpoint_that_waits_keeps_no_other_waiting: messages::SHORT,
            "One peer that does not come holds up no other.";
        strangers_leave_nothing_behind: 0,
            "Whoever knows an endpoint's address cannot use up what its process has.";
    }
    crossing for DATA => {
        operations_of_many_peers_at_once_have_each_its_bytes_and_end: rma::BOTH,
            "With a dozen endpoints in use each operation is done where it was meant, and ends where it was posted.";
        a_flush_of_one_endpoint_stands_for_no_other: rma::BOTH,
            "A flush says what it has waited for, and nothing of other peers.";
        a_flush_covers_what_was_posted_while_another_one_was_under_way: rma::BOTH,
            "Each flush covers all that was posted before it.";
        two_that_get_from_each_other_at_once_both_end: rma::BOTH,
            "Two programs that use each other's memory do not wait for each other for ever.";
        an_atomic_whose_answer_waits_is_done_once: atomics::ATOMICS | caps::GET,
            "A counter counts once, however full the way back is.";
        a_key_serves_the_endpoint_to_its_owner_and_no_other: rma::CHECKED,
            "With many peers a key is that of its owner.";
        a_key_that_is_imported_twice_is_dropped_twice: rma::BOTH,
            "Two parts of a program that use one region do not take it from each other.";
    }
    anew for DATA => {
        the_words_of_an_end_stay_though_its_endpoint_is_closed: caps::PEER_FAILURE,
            "Who closes an endpoint because it has failed can still say why.";
        an_interface_sleeps_again_when_an_endpoint_that_failed_is_closed: waiting::WAITS | caps::PEER_FAILURE,
            "A worker that has lost a peer neither spins nor misses the next end.";
        what_is_pending_when_its_peer_closes_ends_with_closed: rma::BOTH | caps::PEER_FAILURE,
            "Nothing that has not happened ends well because its peer closed in good order.";
        a_new_endpoint_has_nothing_of_the_one_before_it: messages::SHORT,
            "A connection that is made again begins anew.";
    }
    anew for DATA | CONNECTORS => {
        the_descriptor_of_an_interface_is_one: caps::EVENT_FD,
            "Who sleeps on a descriptor may keep it as long as the interface.";
    }
    promises for DATA => {
        pieces_that_lie_in_no_region_are_taken_all_the_same: rma::BOTH | caps::TAKES_REGIONS,
            "Memory that nobody has registered is put and got as well.";
        who_reaches_its_own_memory_only_gives_that_and_refuses_other: rma::BOTH | caps::OWN_MEMORY_ONLY,
            "What is put to memory that a module does not reach is not lost in silence.";
        what_more_was_to_follow_goes_with_a_flush_or_a_poll: rma::BOTH,
            "A hint that more follows holds nothing up when nothing follows.";
        what_one_thread_has_begun_another_one_ends: rma::BOTH | caps::ANY_THREAD,
            "Operations and keys of an interface belong to no thread.";
        memory_of_devices_that_are_not_here_is_refused_and_nothing_lost: caps::PUT,
            "Memory of a device that a provider does not know is refused in words, and its descriptor stays the caller's.";
        who_was_hung_up_on_hears_it_and_is_heard_no_more: messages::SHORT | caps::PEER_FAILURE,
            "A peer that cannot be answered does not wait for ever, and nobody else is cut off.";
    }
    dialing for CONNECTORS => {
        the_death_of_one_peer_of_a_connector_is_told_once: caps::PEER_FAILURE,
            "With several peers the death of one is told once, and of no other.";
        what_comes_of_a_peer_that_dies_is_whole_and_in_order: 0,
            "What arrives of a process that died is what it had sent.";
        a_connector_that_is_full_towards_a_dead_peer_goes_on: caps::PEER_FAILURE,
            "Datagrams that nobody takes any more do not fill a connector for ever.";
        the_death_of_a_peer_raises_no_signal_in_a_connector: caps::PEER_FAILURE,
            "A program in C does not end because a peer of its connector has.";
        room_after_again_wakes_a_sleeping_connector: caps::EVENT_FD,
            "Who sleeps until there is room for a datagram is woken when there is some.";
        connectors_that_threads_open_at_once_are_different: 0,
            "Workers of several threads have each a connector of its own.";
        polls_and_datagrams_leave_no_memory_behind: 0,
            "No memory grows with the number of polls or datagrams.";
        no_file_of_a_connector_stays_behind: 0,
            "Nothing of a connector is left when it has been closed.";
    }
}
