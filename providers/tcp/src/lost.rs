//! Why a stream broke at whose other end nobody acknowledges anything: a host that is down, or a way that takes small packets and
//! drops large ones. The kernel says the same of both, so the host is asked something small in between.

use std::time::Duration;

use tieline_net::LocalAddress;
use tieline_plugin_api::Status;

use crate::probe::Probe;
use crate::silence::Unacknowledged;
use crate::stream::{Broke, Stream};
use crate::sys;

/// How a stream broke on which nothing has been acknowledged for so long.
pub(crate) fn silent(stream: &Stream, silent: Duration, locals: &[LocalAddress]) -> Broke {
    let (local, _) = stream.addresses();
    let interface = local.and_then(|at| locals.iter().find(|known| known.ip == at.ip()));
    let mut text = format!("the connection to {} broke", stream.peer());
    match (local, interface) {
        (Some(at), Some(known)) => {
            text.push_str(&format!(" (from {} on {})", at.ip(), known.interface));
        }
        (Some(at), None) => text.push_str(&format!(" (from {})", at.ip())),
        (None, _) => {}
    }
    let facts = sys::unacknowledged(stream.sender());
    if let Some(Unacknowledged { bytes, again, .. }) = facts {
        text.push_str(&format!(
            ": {bytes} bytes are not acknowledged for {:.1} s, sent again {again} times",
            silent.as_secs_f64()
        ));
    }
    let answers = stream.probe.as_ref().is_some_and(Probe::was_answered);
    match facts {
        Some(Unacknowledged { bytes, segment, mtu, .. }) if answers && bytes >= segment => {
            let ping = (mtu as usize).saturating_sub(28);
            text.push_str(&format!(
                "; the host there has answered a small packet meanwhile: large ones are dropped on the way, of up to {mtu} \
                 bytes (MTU): `ping -M do -s {ping} {}` shows it; lower the MTU of the interface, or correct the link's",
                host_of(stream)
            ));
        }
        _ if answers => text.push_str(
            "; the host there answers new connections: a firewall on the way has forgotten this one, or drops it",
        ),
        _ => text.push_str(
            "; the host answers nothing: it or the link is down (TIELINE_FAILURE_TIMEOUT is how long it may be silent)",
        ),
    }
    Broke { status: Status::TimedOut, text }
}

fn host_of(stream: &Stream) -> String {
    stream.addresses().1.map_or_else(String::new, |peer| peer.ip().to_string())
}
