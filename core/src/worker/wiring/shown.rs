//! The published state of connections being formed.

use super::State;
use crate::wireup::Phase;
use crate::worker::WorkerState;
use crate::worker::wireup_transports::WireupTransport;
use tieline_explain::snapshot::{FormingStatus, cut};

impl WorkerState {
    /// Returns the connections being formed, at most `most`; `ms` returns the time that each has been forming.
    pub(in crate::worker) fn forming(
        &self,
        most: usize,
        mut ms: impl FnMut(u64) -> u64,
    ) -> Vec<FormingStatus> {
        let circuits = self.wiring.circuits.borrow();
        let machine = self.wiring.machine.borrow();
        let forms = circuits.iter().filter(|(_, circuit)| matches!(circuit.state, State::Forming));
        let shown = forms.take(most).map(|(number, circuit)| {
            let phase = circuit.key.as_ref().and_then(|key| machine.phase(key));
            let mut status = FormingStatus::default();
            status.peer = cut(&circuit.peer.label());
            status.module.clone_from(&self.shared.interfaces[circuit.pair.interface].path);
            status.by = self.carrier(circuit.transport.as_ref());
            status.phase = words(phase).to_owned();
            status.ms = ms(*number);
            status.trouble = cut(&circuit.trouble);
            status
        });
        shown.collect()
    }

    fn carrier(&self, transport: Option<&WireupTransport>) -> String {
        let path = |at: &usize| self.shared.interfaces.get(*at).map(|slot| slot.path.clone());
        match transport {
            Some(WireupTransport::Connector(at, _)) => {
                let connectors = &self.wiring.transports.connectors;
                connectors.get(*at).map(|slot| slot.scheme.clone()).unwrap_or_default()
            }
            Some(WireupTransport::Messages(at, _)) => path(at).unwrap_or_default(),
            Some(WireupTransport::OutOfBand(_)) => "the application (oob)".to_owned(),
            None => "the peer's datagrams".to_owned(),
        }
    }
}

fn words(phase: Option<Phase>) -> &'static str {
    match phase {
        Some(Phase::Making) => "this side makes its endpoint",
        Some(Phase::Asked) => "a request was sent to the peer, which has not answered",
        Some(Phase::Binding) => "this side connects to the peer's endpoint",
        Some(Phase::Bound) => "this side has connected, and the peer has not said that it has",
        Some(Phase::Ready) => "it is ready",
        None => "it is abandoned",
    }
}
