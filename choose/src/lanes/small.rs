//! The selection of puts and gets that are faster by messages than by the module that accesses the memory, if the target makes
//! progress continuously.
//!
//! A system call for 8 bytes may take longer than a message and its answer between two polling processes. The choice depends on the
//! costs that both modules state. It applies to a peer that promises to poll (`WorkerAddress::polls_often`). Messages take the
//! target's time and wait for the target.

use super::{LaneTarget, Lanes, about};
use crate::compose::Composition;
use crate::rank::{ModuleFacts, Role, cost_ns, time};
use tieline_explain::Verdict;
use tieline_plugin_api::abi::Cost;
use tieline_plugin_api::caps;
use tieline_plugin_api::cost_class::{BULK_MESSAGE, SMALL_MESSAGE, SMALL_RMA};

/// The work at both ends of an operation by messages, in ns: the tables of operations and of regions, and a handler.
const WORK_NS: f64 = 250.0;
/// The longest operation that messages may serve: message costs are stated for 8 bytes and for 8 KiB, and are unreliable for longer
/// ones.
const LONGEST: usize = 8 << 10;
/// The maximum fraction of the module's time that messages may take: costs are estimates, and the target's time counts too.
const CLEARLY: f64 = 0.75;

/// Estimates the time of a put or get by messages, in ns: one of the two messages carries the data.
fn by_messages_ns(message: &ModuleFacts, len: usize) -> f64 {
    let small = |len| cost_ns(&message.cost[SMALL_MESSAGE], len);
    // A module that states a time only for 8 bytes is assumed to copy at the bandwidth of its long messages.
    let bulk = Cost { overhead_ns: 0.0, latency_ns: 0.0, ..message.cost[BULK_MESSAGE] };
    WORK_NS + small(len).max(cost_ns(&bulk, len)) + small(8)
}

/// Returns the longest length, a power of two from 8 bytes on, up to which puts and gets are clearly faster by messages; 0: there
/// is none.
fn longest(message: &ModuleFacts, memory: &ModuleFacts) -> usize {
    // The cost of a module that states none is unknown rather than zero.
    if cost_ns(&message.cost[SMALL_MESSAGE], 8) == 0.0 {
        return 0;
    }
    let quicker = |len: &usize| {
        by_messages_ns(message, *len) <= CLEARLY * cost_ns(&memory.cost[SMALL_RMA], *len)
    };
    let sizes = (3..).map(|bits| 1 << bits).take_while(|len| *len <= LONGEST);
    sizes.take_while(quicker).last().unwrap_or(0)
}

impl Lanes {
    /// Sets, for each RMA lane of a synchronous module, the length up to which messages are used instead, and records the reason.
    /// The caller applies it to a peer that makes progress continuously.
    pub fn choose_small(&mut self, peer: &str, composition: &Composition) {
        let module = |via: &LaneTarget| match via {
            LaneTarget::Module(at, _) => composition.ranked(at),
            LaneTarget::Messages => None,
        };
        let Some(message) = self.message.first().and_then(|lane| module(&lane.via)) else { return };
        for lane in &mut self.rma {
            let Some(memory) = module(&lane.via) else { continue };
            // Asynchronous operations are pipelined, so the time of one operation does not predict the time of many.
            if memory.facts.caps & caps::SYNCHRONOUS == 0 {
                continue;
            }
            lane.small = longest(&message.facts, &memory.facts);
            if lane.small == 0 {
                continue;
            }
            let by_messages = time(by_messages_ns(&message.facts, 8));
            let by_module = time(cost_ns(&memory.facts.cost[SMALL_RMA], 8));
            let up_to = format!("{} of up to {} bytes", Role::Rma.name(), lane.small);
            lane.because.push_str(&format!(
                "; {up_to} goes by messages to a peer that polls often: 8 bytes in {by_messages} against {by_module}",
            ));
            let because = format!(
                "the peer polls often; 8 bytes in {by_messages}, by {} in {by_module}",
                memory.at
            );
            let verdict = Verdict::ChosenFor { roles: vec![up_to], because };
            self.records.push(about(peer, &message.at, verdict));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_plugin_api::abi::ModuleAttr;

    fn module(
        class: usize,
        overhead_ns: f64,
        latency_ns: f64,
        bytes_per_second: f64,
    ) -> ModuleFacts {
        let mut attr = ModuleAttr::empty();
        attr.cost[class] = Cost { overhead_ns, latency_ns, bytes_per_second };
        ModuleFacts::from(&attr)
    }

    fn ring() -> ModuleFacts {
        let mut ring = module(SMALL_MESSAGE, 10.0, 60.0, 5e9);
        ring.cost[BULK_MESSAGE] =
            Cost { overhead_ns: 60.0, latency_ns: 100.0, bytes_per_second: 30e9 };
        ring
    }

    #[test]
    fn a_system_call_is_dearer_than_two_messages_until_the_copies_count() {
        assert_eq!(longest(&ring(), &module(SMALL_RMA, 1000.0, 0.0, 12e9)), 2048);
        assert_eq!(longest(&ring(), &module(SMALL_RMA, 1400.0, 0.0, 11e9)), 4096);
        // Messages are never chosen beyond the sizes of stated costs.
        assert_eq!(longest(&ring(), &module(SMALL_RMA, 1e6, 0.0, 12e9)), LONGEST);
    }

    #[test]
    fn mapped_memory_and_a_device_are_quicker_than_any_two_messages() {
        assert_eq!(longest(&ring(), &module(SMALL_RMA, 5.0, 50.0, 10e9)), 0);
        let mut device = module(SMALL_MESSAGE, 100.0, 1500.0, 1e10);
        device.cost[SMALL_RMA] = device.cost[SMALL_MESSAGE];
        assert_eq!(longest(&device, &device), 0);
    }

    #[test]
    fn a_difference_that_is_not_clear_changes_nothing() {
        let ns = by_messages_ns(&ring(), 8);
        assert_eq!(longest(&ring(), &module(SMALL_RMA, ns, 0.0, 0.0)), 0);
        assert_eq!(longest(&ring(), &module(SMALL_RMA, ns / CLEARLY + 1.0, 0.0, 0.0)), 8);
    }

    #[test]
    fn a_module_that_states_no_cost_or_nonsense_is_not_compared() {
        let silent = ModuleFacts::from(&ModuleAttr::empty());
        let slow = module(SMALL_RMA, 5000.0, 0.0, 1e9);
        assert_eq!([longest(&silent, &slow), longest(&ring(), &silent)], [0, 0]);
        assert_eq!(longest(&module(SMALL_MESSAGE, f64::NAN, 0.0, 0.0), &slow), 0);
    }
}
