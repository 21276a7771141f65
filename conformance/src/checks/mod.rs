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
mod lists;
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
mod words;

pub(crate) use atomics::count as count_remotely;
pub(crate) use settings::observed;

pub use check::Check;

use tieline_plugin_api::{caps, role};

const DATA: u32 = 1 << role::DATA;
const CONNECTORS: u32 = 1 << role::CONNECTION_ONLY;

macro_rules! checks {
    ($( $module:ident for $roles:expr => { $( $name:ident: $needs:expr, $protects:literal; )* } )*) => {
        /// The checks, in the order in which they run.
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
            "The core selects by names, limits and costs: impossible values would mislead it.";
        configuration_variables_carry_the_prefix: 0,
            "Settings of providers do not clash, and the report can explain each.";
    }
    attributes for DATA => {
        every_claimed_capability_has_its_slot: 0,
            "The core uses no capability that has no slot.";
    }
    abi for DATA | CONNECTORS => {
        an_older_core_with_a_shorter_host_table_is_served: 0,
            "A provider that is newer than the core works.";
        a_newer_core_with_longer_tables_is_served: 0,
            "A provider that is older than the core works.";
        parameter_records_follow_the_tail_rule: 0,
            "A request of a newer core is carried out or refused, and never silently ignored.";
        attribute_records_respect_their_size: 0,
            "No write goes beyond the end of a caller's record.";
        names_that_do_not_exist_are_refused: 0,
            "A misspelt name is an error.";
        quiesce_leaves_no_thread_behind: 0,
            "A closed context has stopped all of its threads.";
    }
    abi for DATA | CONNECTORS => {
        a_list_steps_by_the_size_of_its_first_record: 0,
            "A newer core reads the lists of an older provider.";
    }
    abi for DATA => {
        the_memory_report_respects_its_size: 0,
            "No write goes beyond the end of a caller's record.";
        connecting_to_an_endpoint_follows_the_tail_rule: 0,
            "A request of a newer core is carried out or refused, and never silently ignored.";
    }
    attributes for DATA => {
        an_address_fits_its_stated_length: 0,
            "Addresses fit the space that the core has for them.";
        bytes_that_are_no_address_do_no_harm: 0,
            "A damaged or hostile address causes an error text, and no crash.";
        opening_and_closing_leaves_no_descriptor_open: 0,
            "A process that opens workers for days does not run out of descriptors.";
    }
    connectors for CONNECTORS => {
        every_slot_of_a_connector_is_there: 0,
            "A connector provides every required call.";
        the_address_of_a_connector_fits_its_stated_length: 0,
            "Addresses fit the space that the core has for them.";
        bytes_that_are_no_address_of_a_connector_do_no_harm: 0,
            "A damaged or hostile address causes an error text, and no crash.";
        a_datagram_to_oneself_arrives: 0,
            "A worker can connect to itself.";
        datagrams_of_every_length_arrive_whole: 0,
            "No datagram is truncated, at any boundary.";
        a_datagram_longer_than_the_limit_is_refused: 0,
            "A datagram that is too long is refused before any byte of it is sent.";
        ten_thousand_datagrams_keep_their_order: 0,
            "A reliable connector keeps order and loses nothing.";
        a_flood_of_datagrams_is_answered_again_and_loses_nothing: 0,
            "The queue is bounded, and every accepted datagram arrives.";
        two_that_send_to_each_other_at_once_lose_nothing: 0,
            "Connections that both sides open at the same time become one.";
        an_address_where_nobody_is_any_more_is_reported_with_the_reason: caps::PEER_FAILURE,
            "A request for a peer that is gone ends with the reason.";
        a_datagram_wakes_a_sleeping_connector: caps::EVENT_FD,
            "A sleeping worker is woken by every event that its connector waits for.";
        an_unreachable_address_wakes_a_sleeping_connector: caps::EVENT_FD | caps::PEER_FAILURE,
            "A sleeping worker is woken when a peer turns out to be unreachable.";
        opening_and_closing_connectors_leaves_no_descriptor_open: 0,
            "A process that opens workers for days does not run out of descriptors.";
        closing_with_datagrams_in_flight_harms_nobody: 0,
            "The end of one connector disturbs no other.";
        two_threads_exchange_datagrams: 0,
            "Connectors of two threads share no unlocked state.";
        two_processes_exchange_datagrams: 0,
            "Datagrams reach another process.";
        a_killed_peer_of_a_connector_is_reported: caps::PEER_FAILURE,
            "The death of a peer ends only the wait for that peer.";
    }
    posts for CONNECTORS => {
        each_of_a_crowd_that_sends_to_one_keeps_its_order: 0,
            "A worker to which a dozen peers connect together receives from each of them.";
        datagrams_go_to_the_connector_of_their_address: 0,
            "A datagram reaches only its addressee.";
        the_end_of_one_connector_ends_no_other: 0,
            "A peer that closes ends only its own connections.";
        the_bytes_of_a_datagram_stay_until_the_next_poll: 0,
            "The datagram of a poll can be read in place.";
        a_datagram_that_comes_while_a_connector_falls_asleep_wakes_it: caps::EVENT_FD,
            "No wake-up is lost between the last poll and the sleep.";
        connectors_that_come_and_go_leave_nothing_behind: 0,
            "A process whose peers come and go runs for months.";
    }
    messages for DATA => {
        an_interface_reaches_and_connects_to_itself: 0,
            "A worker can connect to itself.";
        a_message_to_oneself_arrives: messages::SHORT,
            "The minimum of messaging: id, header and bytes arrive.";
        a_peer_arrives_with_its_identity_before_its_first_message: messages::SHORT,
            "The core knows the sender of a message before it dispatches it.";
        short_messages_of_every_length_arrive_whole: messages::SHORT,
            "No message is truncated, at any boundary.";
        a_message_longer_than_the_limit_is_refused_or_arrives_whole: messages::SHORT,
            "A message that is too long is refused, and never truncated.";
        ten_thousand_messages_keep_their_order: messages::SHORT,
            "Messages of an endpoint arrive once and in order.";
        a_flood_is_answered_again_and_loses_nothing: messages::SHORT,
            "The queue is bounded, AGAIN sends nothing, and every accepted message arrives.";
        a_packed_message_is_what_the_callback_wrote: messages::PACKED,
            "A message that is packed in place has the bytes that its packer wrote.";
        again_means_that_the_packer_was_not_called: messages::PACKED,
            "A packer runs once for each message: it may have taken its data from a queue.";
        a_packer_may_send_and_nothing_is_lost: messages::PACKED | caps::AM_SHORT,
            "A packer is application code, which may send.";
        an_error_of_the_pack_callback_comes_back_and_sends_nothing: messages::PACKED,
            "A packer can fail.";
        a_pack_callback_that_claims_too_much_is_refused: messages::PACKED,
            "A wrong length from a packer does not disclose other memory.";
        a_gathered_message_arrives_in_the_order_of_its_pieces: messages::ZCOPY,
            "A gathered message consists of its pieces in their order.";
        a_lent_payload_stays_until_it_is_released: messages::SHORT | caps::LENDS_BUFFERS,
            "A payload that was lent can be kept without a copy.";
        closing_with_messages_in_flight_harms_nobody: messages::SHORT,
            "The end of an endpoint or interface disturbs no other.";
        polling_after_a_peer_has_left_brings_nothing_twice: messages::SHORT,
            "The end of a peer is reported once.";
        the_memory_report_is_sane: messages::SHORT,
            "The memory report is plausible.";
    }
    payloads for DATA => {
        every_bit_of_id_and_header_arrives_by_every_way: messages::SHORT,
            "Headers have 64 bits and ids at least 16, by every call; a longer id is refused and never truncated.";
        an_identity_of_the_stated_length_arrives_whole: messages::SHORT,
            "The core recognizes a peer by its identity: a truncated one matches no peer.";
        a_payload_stays_until_the_next_poll_though_more_is_sent: messages::SHORT,
            "A handler can read its message in place, while others send.";
        gathered_messages_in_flight_keep_their_bytes_and_cookies: messages::ZCOPY,
            "Memory belongs to the application again with the completion, and not before.";
    }
    peers for DATA => {
        messages_go_to_the_peer_of_their_endpoint: messages::SHORT,
            "With a dozen peers each message reaches the peer that it was sent to.";
        a_message_says_which_of_many_peers_it_is_from: messages::SHORT,
            "With a dozen peers each message carries the number of its sender.";
        a_number_means_one_peer_until_that_has_left: messages::SHORT,
            "A new peer is not mistaken for an existing one.";
        the_end_of_one_peer_ends_no_other: messages::SHORT,
            "A peer that closes ends only its own connection.";
        two_endpoints_to_one_peer_have_separate_orders_and_ends: messages::SHORT,
            "Two endpoints to one peer are independent: closing one does not affect the other.";
    }
    waking for DATA => {
        a_message_that_comes_while_an_interface_falls_asleep_wakes_it: waiting::WAITS,
            "No wake-up is lost between the last poll and the sleep.";
        a_completion_wakes_a_sleeping_interface: waiting::WAITS,
            "A worker that sleeps until an operation completes is woken by the completion.";
        room_after_again_wakes_a_sleeping_sender: waiting::WAITS,
            "A worker that sleeps until there is room is woken when the receiver has made room.";
    }
    events for DATA => {
        every_field_of_an_event_is_written: messages::SHORT,
            "The core reads no field of an event that the provider has not written.";
    }
    waiting for DATA => {
        an_endpoint_that_is_closed_at_once_harms_nobody: 0,
            "An endpoint can be closed before it has connected.";
        a_message_wakes_a_sleeping_interface: waiting::WAITS,
            "A sleeping worker is woken by messages.";
        a_first_contact_wakes_a_sleeping_interface: waiting::WAITS,
            "A sleeping worker is woken by new peers.";
        two_threads_exchange_messages: messages::SHORT,
            "Interfaces of two threads share no unlocked state.";
    }
    words for DATA => {
        every_event_is_announced_by_a_watch_word: messages::SHORT,
            "A core that compares words instead of polling misses no event.";
        a_listed_word_stays_readable: messages::SHORT,
            "The comparison of a word does not end the process.";
    }
    leaving for DATA => {
        messages_arrive_though_their_sender_leaves_directly: messages::SHORT,
            "An accepted message arrives although its sender closes directly afterwards.";
        messages_arrive_though_their_sender_leaves_others_unread: messages::SHORT,
            "It also arrives if the sender leaves received data unread.";
        packed_messages_arrive_though_their_sender_leaves_directly: messages::PACKED,
            "An accepted packed message arrives although its sender closes directly afterwards.";
        messages_keep_their_bytes_though_their_sender_sends_to_others: messages::SHORT,
            "Buffers are reused only after they have been read.";
    }
    rma for DATA => {
        flush_and_fence_complete: 0,
            "A flush or fence of an idle endpoint completes inline.";
        a_key_fits_its_stated_length: caps::PUT,
            "Keys fit the space that the core has for them.";
        a_put_writes_exactly_its_range: rma::BOTH,
            "A put writes its bytes and no others.";
        bytes_of_a_short_put_are_taken_when_it_returns: caps::PUT,
            "A put up to max_short_put has copied its bytes when the call returns, and with local completion it is complete.";
        a_get_reads_exactly_its_range: rma::BOTH,
            "A get reads its bytes and writes no others.";
        an_iov_of_the_greatest_length_works: rma::BOTH,
            "The stated number of pieces is correct.";
        operations_longer_than_the_limit_are_refused: rma::BOTH,
            "The stated lengths are correct.";
        a_range_outside_the_region_is_refused: rma::BOTH,
            "No operation accesses memory outside of its region, and such an error does not fail the endpoint.";
        a_key_with_any_byte_changed_is_rejected: rma::CHECKED,
            "A forged key gives no access.";
        bytes_that_are_no_key_do_no_harm: rma::BOTH,
            "Noise in place of a key does no harm.";
        a_revoked_key_is_rejected: rma::CHECKED,
            "Old keys give no access to deregistered memory.";
        rights_that_a_region_does_not_give_are_refused: rma::CHECKED,
            "A region gives exactly its rights.";
        a_key_of_another_domain_is_rejected: rma::CHECKED,
            "A key of another domain gives no access in this one.";
        an_unknown_flag_is_refused_and_an_unknown_hint_ignored: rma::BOTH,
            "A newer core's requirement of an operation is met or refused.";
        memory_that_a_domain_does_not_know_is_refused: caps::PUT,
            "Memory of an unknown kind is not accessed.";
        a_key_to_a_part_of_a_region_leads_nowhere_else_or_is_refused: rma::BOTH,
            "A key to a part of a region gives access to that part only.";
        a_passive_target_needs_no_poll: rma::PASSIVE,
            "A computing target does not delay access to its memory.";
    }
    notifications for DATA => {
        a_notification_comes_behind_its_bytes: caps::PUT_NOTIFY | caps::PUT,
            "After a notification the target can read the bytes of its put, and those of every earlier put.";
    }
    lists for DATA => {
        a_list_moves_the_bytes_of_each_of_its_parts: caps::RMA_LIST | rma::BOTH,
            "Many puts or gets with one call have the effect of as many single ones.";
        a_list_ends_before_a_part_that_fails: caps::RMA_LIST | rma::BOTH,
            "A list that fails is attributed to its first failed descriptor, and those before it have succeeded.";
    }
    flight for DATA => {
        many_operations_at_once_have_each_its_bytes_cookie_and_end: rma::BOTH,
            "With hundreds of operations in flight each completes once, with its own cookie and status.";
        a_flush_does_not_end_before_what_stands_before_it: rma::BOTH,
            "Operations covered by a completed flush have reached the target.";
        a_message_behind_a_fence_comes_behind_the_puts_before_it: rma::BOTH | caps::AM_SHORT,
            "A message behind a fence may announce that the data has arrived.";
        the_array_of_pieces_is_not_used_after_the_call: rma::BOTH,
            "The array of pieces belongs to the caller again when the call returns.";
        closing_an_endpoint_drops_what_is_pending_and_leaves_its_memory_alone: rma::BOTH,
            "Memory belongs to the application again when its endpoint has been closed.";
        many_atomics_at_once_bring_each_its_own_value: atomics::ATOMICS,
            "With hundreds of atomics in flight each returns its own fetched value.";
    }
    order for DATA => {
        a_put_behind_a_fence_does_not_change_what_a_get_before_it_reads: rma::BOTH,
            "Operations before a fence are carried out before those behind it.";
        messages_of_all_ways_keep_one_order: messages::SHORT,
            "Messages of an endpoint keep their order, by every call and also without room.";
        a_packer_may_send_on_another_endpoint: messages::PACKED,
            "A packer is application code, which may send on an idle endpoint.";
        a_payload_stays_though_its_receiver_answers: messages::SHORT,
            "A handler may answer while it reads.";
    }
    owning for DATA => {
        memory_that_was_given_back_is_touched_by_nobody: rma::BOTH,
            "After deregister has returned 0, the memory is neither read nor written.";
        local_pieces_may_lie_anywhere: rma::BOTH,
            "A program can put from, and get into, unregistered memory.";
        memory_of_the_domain_is_zeroed_and_begins_with_a_page: 0,
            "New memory does not disclose old contents.";
        a_part_of_allocated_memory_is_read_until_it_is_deregistered: caps::GET,
            "A long message from allocated memory is copied once, and its receiver reads nothing else.";
    }
    atomics for DATA => {
        every_claimed_atomic_does_what_its_name_says: atomics::ATOMICS,
            "Each claimed atomic has the effect of its name, at its width.";
        misaligned_and_out_of_range_atomics_are_refused: atomics::ATOMICS,
            "No atomic exceeds its region or crosses a word boundary.";
        an_atomic_without_the_right_or_after_deregister_is_rejected: atomics::ATOMICS | caps::CHECKS_KEYS,
            "Atomics need their access right and a valid key.";
        two_threads_that_count_together_lose_nothing: atomics::ATOMICS,
            "Atomics of two threads are mutually atomic.";
    }
    processes for DATA => {
        two_processes_exchange_messages: messages::SHORT,
            "Messages reach another process.";
        put_and_get_reach_another_process: rma::BOTH,
            "Put and get reach the memory of another process.";
        two_processes_that_count_together_lose_nothing: atomics::ATOMICS,
            "Atomics of two processes are mutually atomic.";
        a_killed_peer_is_reported_and_posting_to_it_fails: messages::SHORT | caps::PEER_FAILURE,
            "The death of a peer is reported, and a post to it is an error and never AGAIN.";
        a_peer_killed_in_mid_stream_leaves_whole_messages: messages::SHORT | caps::PEER_FAILURE,
            "A sender that dies leaves only complete messages.";
        a_put_to_a_killed_peer_fails: rma::BOTH,
            "A put to a dead process is an error.";
    }
    bounds for DATA => {
        connect_does_not_wait_for_its_peer: 0,
            "A program that connects to thousands of peers waits for none of them.";
        a_peer_under_another_kernel_is_not_reachable: caps::LOCAL_ONLY,
            "An address of another host reaches no peer on this one.";
    }
    threads for DATA => {
        threads_that_register_and_pack_keys_at_once_get_right_ones: rma::BOTH,
            "Regions and keys of several threads are not confused.";
        regions_that_threads_make_at_the_same_moment_are_different: caps::PUT,
            "Two threads never get the same region.";
        an_interface_goes_to_another_thread_and_back: caps::AM_SHORT | caps::ANY_THREAD,
            "An interface does not belong to the thread that opened it.";
        packers_of_several_threads_do_not_meet: messages::PACKED,
            "The packed bytes of one thread do not appear in another thread's message.";
    }
    threads for DATA | CONNECTORS => {
        each_thread_hears_the_words_of_its_own_error: 0,
            "An error text belongs to the call that failed.";
    }
    settings for DATA | CONNECTORS => {
        settings_hold_or_are_refused_by_name: 0,
            "A size or count of 1, or a very large one, works or is refused with the name of the variable.";
    }
    settings for DATA | CONNECTORS => {
        impossible_values_are_refused_by_name: 0,
            "An invalid value is reported with the name of its variable.";
    }
    settings for DATA => {
        contexts_have_each_their_own_settings: 0,
            "Two libraries in one process have independent settings.";
        a_size_that_is_set_has_an_effect: 0,
            "A setting is not silently ignored.";
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
            "An abandoned attempt costs no lasting resources.";
        no_file_stays_behind: 0,
            "A process that has closed everything leaves no files.";
    }
    ends for DATA => {
        an_endpoint_that_is_closed_has_left_in_good_order: messages::SHORT | caps::PEER_FAILURE,
            "The close of a peer is distinguished from its death.";
        an_endpoint_that_leads_to_nobody_fails: messages::SHORT | caps::PEER_FAILURE,
            "No operation waits for ever for a peer that is gone.";
        a_stranger_is_not_taken_for_the_peer: messages::SHORT,
            "A connection leads to its intended peer, even if others know the address.";
        closing_does_not_wait_for_a_peer_that_does_nothing: messages::SHORT,
            "A worker closes within the set time, whatever its peers do.";
        the_end_of_a_peer_wakes_also_when_a_call_has_found_it: messages::SHORT | caps::PEER_FAILURE | caps::EVENT_FD,
            "A sleeping worker is woken by a peer's end, even if a call has detected it first.";
    }
    deaths for DATA => {
        a_death_is_told_once_to_each_endpoint_and_to_no_other: messages::SHORT | caps::PEER_FAILURE,
            "Every endpoint to a dead process fails once, and no other endpoint does.";
        messages_of_a_dead_process_arrive: messages::SHORT | caps::PEER_FAILURE,
            "Messages that a process had sent are not lost when it dies.";
        pending_operations_end_once_when_the_peer_dies: caps::AM_SHORT | caps::PEER_FAILURE,
            "Every operation pending towards a dying peer completes.";
        the_death_of_a_peer_raises_no_signal: messages::SHORT | caps::PEER_FAILURE,
            "The death of a peer does not end a C program.";
    }
    connecting for DATA => {
        a_message_goes_as_soon_as_connect_has_returned: messages::SHORT | caps::CONNECTED_SEND,
            "With this capability the first message needs no earlier poll.";
        a_crowd_at_an_endpoint_keeps_its_peer_not_away: messages::SHORT,
            "A third party that knows an endpoint's address cannot keep its peer away.";
        an_endpoint_that_leads_to_nobody_wakes_its_worker: waiting::WAITS | caps::PEER_FAILURE,
            "A sleeping worker is woken if a peer was gone before the connection.";
    }
    taking for DATA => {
        a_key_is_refused_after_revoke: rma::CHECKED,
            "Revoked memory is not accessible to peers while its owner still uses it.";
        deregister_does_not_say_0_in_the_middle_of_an_access: rma::CHECKED,
            "deregister waits for an access that has passed its check.";
    }
    abi for DATA => {
        memory_and_keys_follow_the_tail_rule: caps::PUT,
            "A newer core's requirement of memory and keys is met or refused, and never silently ignored.";
    }
    keys for DATA => {
        a_pointer_leads_to_the_bytes_of_its_region: rma::BOTH | caps::KEY_POINTER,
            "A load or store through a pointer accesses the region's bytes, and no others.";
        a_pointer_is_safe_when_its_region_has_ended: rma::CHECKED | caps::KEY_POINTER,
            "The end of a region does not crash a process with a pointer to it, and the pointer reaches no other memory.";
        a_pointer_is_safe_when_its_owner_is_dead: caps::KEY_POINTER,
            "A process with a pointer to another one's memory survives that one's death.";
        a_key_of_the_interface_serves_all_its_endpoints: rma::BOTH | caps::INTERFACE_KEYS,
            "A key is imported once for a thousand endpoints.";
        operations_go_on_though_their_key_is_dropped: rma::BOTH,
            "A program may drop a key while its operations are in flight.";
    }
    offers for DATA => {
        canceled_operations_end_once_and_the_others_continue: rma::BOTH | caps::CANCEL,
            "A canceled operation has no effect, and no other operation is lost.";
        a_flush_of_the_interface_covers_all_its_endpoints: rma::BOTH | caps::FLUSH_ALL,
            "One flush replaces those of all endpoints.";
        an_operation_without_event_has_ended_with_the_next_one: rma::BOTH | caps::NO_EVENT,
            "The completion of the last of many operations covers all of them.";
        declined_operations_have_no_effect: rma::BOTH,
            "An operation that one lane declines is carried out by another, exactly once.";
        the_limits_of_an_endpoint_stay_and_respect_their_record: 0,
            "The stated limits of an endpoint are correct.";
    }
    circuits for DATA => {
        the_address_of_an_endpoint_fits_its_stated_length_and_stays: messages::SHORT,
            "An endpoint's address fits the space that the core has for it, and stays valid.";
        bytes_that_are_no_address_of_an_endpoint_are_refused: messages::SHORT,
            "A damaged or hostile address of an endpoint causes an error text, and no crash.";
        an_endpoint_that_is_not_connected_says_again: 0,
            "Operations posted before a connection is formed wait, and are not lost.";
        messages_sent_before_connect_arrive_though_their_sender_has_closed: messages::SHORT,
            "Messages of a peer that connects, sends and closes quickly are received.";
        an_endpoint_that_waits_keeps_no_other_waiting: messages::SHORT,
            "An absent peer does not delay the others.";
        strangers_leave_nothing_behind: 0,
            "A third party that knows an endpoint's address cannot exhaust the resources of its process.";
    }
    crossing for DATA => {
        operations_of_many_peers_at_once_have_each_its_bytes_and_end: rma::BOTH,
            "With a dozen endpoints in use each operation is carried out at its target, and completes where it was posted.";
        a_flush_of_one_endpoint_stands_for_no_other: rma::BOTH,
            "A flush covers its own endpoint's operations, and none of other peers.";
        a_flush_covers_what_was_posted_while_another_one_was_under_way: rma::BOTH,
            "Each flush covers all operations posted before it.";
        two_that_get_from_each_other_at_once_both_end: rma::BOTH,
            "Two programs that use each other's memory do not deadlock.";
        an_atomic_whose_answer_waits_is_done_once: atomics::ATOMICS | caps::GET,
            "A counter counts once, however full the route back is.";
        a_key_serves_the_endpoint_to_its_owner_and_no_other: rma::CHECKED,
            "With many peers a key is valid only for its owner.";
        a_key_that_is_imported_twice_is_dropped_twice: rma::BOTH,
            "Two parts of a program can use one region independently.";
    }
    anew for DATA => {
        the_words_of_an_end_stay_though_its_endpoint_is_closed: caps::PEER_FAILURE,
            "The error text of a failed endpoint outlives the endpoint.";
        an_interface_sleeps_again_when_an_endpoint_that_failed_is_closed: waiting::WAITS | caps::PEER_FAILURE,
            "A worker that has lost a peer neither spins nor misses the next failure.";
        pending_operations_end_with_closed_when_their_peer_closes: rma::BOTH | caps::PEER_FAILURE,
            "No operation without an effect succeeds because its peer has closed in an orderly way.";
        a_new_endpoint_has_nothing_of_the_one_before_it: messages::SHORT,
            "A new connection has no state of the old one.";
    }
    anew for DATA | CONNECTORS => {
        the_descriptor_of_an_interface_is_one: caps::EVENT_FD,
            "A caller may keep the descriptor as long as the interface.";
    }
    promises for DATA => {
        pieces_that_lie_in_no_region_are_taken_all_the_same: rma::BOTH | caps::TAKES_REGIONS,
            "Unregistered memory can be put and got as well.";
        a_module_for_its_own_memory_only_provides_it_and_refuses_other: rma::BOTH | caps::OWN_MEMORY_ONLY,
            "A put to memory that a module does not reach is not lost silently.";
        operations_hinted_as_not_the_last_go_with_a_flush_or_a_poll: rma::BOTH,
            "A hint that more follows delays nothing when nothing follows.";
        operations_of_one_thread_end_in_another: rma::BOTH | caps::ANY_THREAD,
            "Operations and keys of an interface are not bound to a thread.";
        memory_of_devices_that_are_not_here_is_refused_and_nothing_lost: caps::PUT,
            "Memory of an unknown device is refused with an error text, and the descriptor stays with the caller.";
        a_disconnected_peer_learns_it_and_is_received_no_more: messages::SHORT | caps::PEER_FAILURE,
            "A peer that cannot be answered does not wait for ever, and no other peer is disconnected.";
    }
    dialing for CONNECTORS => {
        the_death_of_one_peer_of_a_connector_is_told_once: caps::PEER_FAILURE,
            "With several peers the death of one is reported once, and no other is reported.";
        datagrams_of_a_dying_peer_are_whole_and_in_order: 0,
            "Datagrams from a process that died arrive as they were sent.";
        a_connector_that_is_full_towards_a_dead_peer_goes_on: caps::PEER_FAILURE,
            "Datagrams to a dead peer do not fill a connector for ever.";
        the_death_of_a_peer_raises_no_signal_in_a_connector: caps::PEER_FAILURE,
            "The death of a connector's peer does not end a C program.";
        room_after_again_wakes_a_sleeping_connector: caps::EVENT_FD,
            "A worker that sleeps until there is room for a datagram is woken when there is room.";
        connectors_that_threads_open_at_once_are_different: 0,
            "Workers of several threads have separate connectors.";
        polls_and_datagrams_leave_no_memory_behind: 0,
            "No memory grows with the number of polls or datagrams.";
        no_file_of_a_connector_stays_behind: 0,
            "A closed connector leaves no files.";
    }
}
