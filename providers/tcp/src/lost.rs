//! The explanation of a stream that broke without acknowledgements. For example, the host is down, or the route passes small
//! packets and drops large ones. The kernel's reports do not distinguish these causes, so a probe sends small packets to the host
//! meanwhile. The text names the causes that fit the probe's result, because operators act on the text.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tieline_net::LocalAddress;
use tieline_plugin_api::Status;

use crate::probe::{Answer, Probe};
use crate::silence::Unacknowledged;
use crate::stream::{Broke, Stream};
use crate::sys;

/// Describes a stream on which nothing has been acknowledged for `silent`. `tried` is the time at which data was last sent.
pub(crate) fn silent(
    stream: &Stream,
    silent: Duration,
    tried: Instant,
    locals: &[LocalAddress],
) -> Broke {
    let (local, peer) = stream.addresses();
    let interface = local.and_then(|at| locals.iter().find(|known| known.ip == at.ip()));
    let interface = interface.map(|known| &*known.interface);
    let mut text = format!("the connection to {} broke", stream.peer());
    match (local, interface) {
        (Some(at), Some(name)) => text.push_str(&format!(" (from {} on {name})", at.ip())),
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
    let found = match stream.probe.as_ref().map(Probe::answer) {
        None => Found::NotAsked,
        Some(None) => Found::Silence,
        Some(Some(Answer::Nowhere(words))) => Found::Nowhere(words),
        Some(Some(Answer::NoAddress)) => Found::NoAddress,
        Some(Some(Answer::Came { at })) if tried <= *at => Found::AnswersAgain,
        Some(Some(Answer::Came { .. })) => Found::Answers,
    };
    text.push_str(&format!("; {}", cause(facts, &found, peer, interface)));
    Broke { status: Status::TimedOut, text }
}

/// The result of the probe of the host.
enum Found<'a> {
    NotAsked,
    /// The host does not answer new connections.
    Silence,
    Nowhere(&'a str),
    /// This host has lost its own address of the connection.
    NoAddress,
    /// The host answers, and nothing was sent since.
    AnswersAgain,
    /// The host answers, and data that was sent later is not acknowledged.
    Answers,
}

/// Returns the likely cause of the silence.
fn cause(
    facts: Option<Unacknowledged>,
    found: &Found<'_>,
    peer: Option<SocketAddr>,
    interface: Option<&str>,
) -> String {
    let port = peer.map_or(0, |peer| peer.port());
    match (found, facts) {
        (Found::NotAsked, _) => {
            "the host was not asked for a new connection: it or the link is down, or something on the route drops this connection \
             (TIELINE_FAILURE_TIMEOUT limits the silence)"
                .into()
        }
        (Found::Nowhere(words), _) => format!(
            "asked for a new connection, the system says: {words}: the host or the link is down, or a firewall rejects it"
        ),
        (Found::NoAddress, _) => {
            "this host no longer has that address, so no answer can reach it: an interface was reconfigured, taken down or removed"
                .into()
        }
        (Found::Silence, _) => format!(
            "the host answers no new connection to port {port}: it or the link is down, or a firewall there drops \
             unexpected packets (TIELINE_FAILURE_TIMEOUT limits the silence)"
        ),
        // Data that was lost before the answer was not sent again since.
        (Found::AnswersAgain, _) => {
            "the host there answers again, and nothing was sent again since: the route to it was cut for a while \
             (TIELINE_FAILURE_TIMEOUT limits the silence)"
                .into()
        }
        (Found::Answers, Some(Unacknowledged { bytes, segment, mtu, .. })) if bytes >= segment => {
            // The headers of IP and ICMP in front of ping's payload.
            let headers = if peer.is_some_and(|peer| peer.is_ipv6()) { 48 } else { 28 };
            let ping = (mtu as usize).saturating_sub(headers);
            format!(
                "the host there has answered a small packet meanwhile, but large ones are dropped, of up to {mtu} bytes (MTU): \
                 `ping -M do -s {ping} {}` shows it. Lower the MTU of the interface, or correct the link's",
                host(peer, interface)
            )
        }
        (Found::Answers, _) => {
            "the host there answers new connections: a firewall on the route has forgotten this one, or drops it".into()
        }
    }
}

/// Returns the peer's host in the form that commands accept.
fn host(peer: Option<SocketAddr>, interface: Option<&str>) -> String {
    match (peer, interface) {
        (Some(SocketAddr::V6(at)), Some(name)) if at.ip().is_unicast_link_local() => {
            format!("{}%{name}", at.ip())
        }
        (Some(at), _) => at.ip().to_string(),
        (None, _) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(bytes: usize) -> Option<Unacknowledged> {
        Some(Unacknowledged { bytes, segment: 1448, mtu: 1500, again: 3 })
    }

    fn said(found: &Found<'_>, bytes: usize, peer: &str) -> String {
        cause(facts(bytes), found, Some(peer.parse().unwrap()), Some("rail0"))
    }

    #[test]
    fn the_command_that_shows_an_mtu_counts_the_headers_of_its_family() {
        let v4 = said(&Found::Answers, 46_336, "10.50.0.2:34582");
        assert!(v4.contains("(MTU): `ping -M do -s 1472 10.50.0.2` shows it"), "{v4}");
        let v6 = said(&Found::Answers, 46_336, "[fd00:50::2]:34582");
        assert!(v6.contains("`ping -M do -s 1452 fd00:50::2` shows it"), "{v6}");
        let near = said(&Found::Answers, 46_336, "[fe80::2]:34582");
        assert!(near.contains("`ping -M do -s 1452 fe80::2%rail0` shows it"), "{near}");
        let small = said(&Found::Answers, 64, "10.50.0.2:34582");
        assert!(small.contains("has forgotten this one") && !small.contains("MTU"), "{small}");
    }

    #[test]
    fn a_host_that_answered_after_the_last_try_says_nothing_of_large_packets() {
        for bytes in [64, 46_336] {
            let text = said(&Found::AnswersAgain, bytes, "10.50.0.2:34582");
            assert!(text.contains("was cut for a while"), "{text}");
            assert!(!text.contains("MTU") && !text.contains("firewall"), "{text}");
        }
    }

    #[test]
    fn silent_host_text_mentions_a_firewall() {
        let text = said(&Found::Silence, 64, "10.50.0.2:34582");
        assert!(text.contains("to port 34582: it or the link is down, or a firewall"), "{text}");
        let text = said(&Found::Nowhere("No route to host"), 64, "10.50.0.2:1");
        assert!(text.contains("No route to host: the host or the link is down, or a"), "{text}");
        let text = said(&Found::NotAsked, 46_336, "10.50.0.2:1");
        assert!(text.contains("was not asked") && !text.contains("MTU"), "{text}");
    }

    #[test]
    fn lost_own_address_is_the_cause_whatever_was_outstanding() {
        for bytes in [64, 46_336] {
            let text = said(&Found::NoAddress, bytes, "10.50.0.2:34582");
            assert!(text.contains("this host no longer has that address"), "{text}");
            assert!(!text.contains("MTU") && !text.contains("firewall"), "{text}");
        }
    }

    #[test]
    fn mtu_advice_requires_a_missing_full_segment() {
        let whole = said(&Found::Answers, 1448, "10.50.0.2:34582");
        assert!(whole.contains("of up to 1500 bytes (MTU)"), "{whole}");
        let part = said(&Found::Answers, 1447, "10.50.0.2:34582");
        assert!(part.ends_with("has forgotten this one, or drops it"), "{part}");
        assert_eq!(cause(None, &Found::Answers, None, None), part);
    }

    #[test]
    fn broken_stream_text_names_both_ends_and_the_probe_result() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let there = listener.local_addr().unwrap();
        let socket = std::net::TcpStream::connect(there).unwrap();
        let mut stream = Stream::new(0, socket.into(), Some(there));
        let at = |interface: &str, ip: &str| LocalAddress {
            interface: interface.into(),
            ip: ip.parse().unwrap(),
            prefix: 8,
            scope_id: 0,
            loopback: false,
            last_resort: false,
            mtu: 0,
            speed_mbps: None,
        };
        let (lo, other) = (at("lo", "127.0.0.1"), at("rail0", "10.50.0.2"));
        let said = |stream: &Stream, tried, locals: &[LocalAddress]| {
            let broke = silent(stream, Duration::from_millis(3230), tried, locals);
            assert_eq!(broke.status, Status::TimedOut);
            broke.text
        };
        let begin = |from: &str| {
            format!(
                "the connection to {there} broke (from {from}): 0 bytes are not acknowledged for \
                 3.2 s, sent again 0 times; "
            )
        };
        let why = |found| cause(None, &found, Some(there), None);
        let now = Instant::now();
        let text = said(&stream, now, &[other.clone(), lo.clone()]);
        assert_eq!(text, begin("127.0.0.1 on lo") + &why(Found::NotAsked));
        assert_eq!(said(&stream, now, &[other]), begin("127.0.0.1") + &why(Found::NotAsked));
        let token = crate::probe::Token::default();
        stream.probe = Probe::begin(Some("203.0.113.7:4000".parse().unwrap()), there, &token);
        assert_eq!(said(&stream, now, &[]), begin("127.0.0.1") + &why(Found::NoAddress));
        stream.probe = Probe::begin(None, there, &crate::probe::Token::default());
        assert_eq!(said(&stream, now, &[]), begin("127.0.0.1") + &why(Found::Silence));
        let came = loop {
            let probe = stream.probe.as_mut().unwrap();
            probe.look(Instant::now());
            if let Some(Answer::Came { at }) = probe.answer() {
                break *at;
            }
        };
        let text = said(&stream, came, &[]);
        assert_eq!(text, begin("127.0.0.1") + &why(Found::AnswersAgain));
        let text = said(&stream, came + Duration::from_nanos(1), &[lo]);
        assert!(text.starts_with(&begin("127.0.0.1 on lo")), "{text}");
        assert!(!text.contains("answers again"), "{text}");
    }
}
