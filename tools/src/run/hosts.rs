//! `--hosts`: the assignment of ranks to hosts.

use tieline::job::wire::plain;

/// The maximum length of a host's name, in bytes.
const LONGEST: usize = 255;

/// A host and the number of its ranks; `None` means an equal share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) name: String,
    slots: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seat {
    pub(super) host: String,
    pub(super) local_rank: usize,
    pub(super) local_size: usize,
}

impl Host {
    /// Parses `nodea` or `nodea:4`; `[::1]:4` for an address with colons.
    pub(super) fn parse(text: &str) -> Result<Host, String> {
        let (name, slots) = match text.rsplit_once(':') {
            Some((name, slots)) if !name.contains(':') || name.ends_with(']') => {
                let good = slots.parse().ok().filter(|slots| *slots > 0);
                let slots =
                    good.ok_or_else(|| format!("`{text}`: `{slots}` is no number of ranks"))?;
                (name, Some(slots))
            }
            _ => (text, None),
        };
        let name = name.trim_start_matches('[').trim_end_matches(']');
        // The name becomes an argument of ssh, so it must look neither like an option nor like two words. The name also appears in
        // messages.
        let odd = |c: char| c.is_whitespace() || c.is_control();
        if name.is_empty() || name.len() > LONGEST || name.starts_with('-') || name.contains(odd) {
            let text = plain(text, 40);
            return Err(format!("`{text}` is not the name of a host"));
        }
        Ok(Host { name: name.to_owned(), slots })
    }
}

/// Assigns `size` ranks to hosts in blocks. If no host has a number, the shares are equal. Otherwise each host gets up to its
/// number of ranks, and a host without a number gets one.
pub(super) fn seats(hosts: &[Host], size: usize) -> Result<Vec<Seat>, String> {
    let counts: Vec<usize> = if hosts.iter().all(|host| host.slots.is_none()) {
        let (each, more) = (size / hosts.len().max(1), size % hosts.len().max(1));
        (0..hosts.len()).map(|index| each + usize::from(index < more)).collect()
    } else {
        let mut left = size;
        let mut counts = Vec::new();
        for host in hosts {
            let here = left.min(host.slots.unwrap_or(1));
            counts.push(here);
            left -= here;
        }
        if left > 0 {
            return Err(format!("{size} ranks, and the hosts take {}", size - left));
        }
        counts
    };
    let mut seats: Vec<Seat> = Vec::with_capacity(size);
    for (host, count) in hosts.iter().zip(counts) {
        for _ in 0..count {
            // A host that is listed twice counts as one host.
            let local_rank = seats.iter().filter(|seat| seat.host == host.name).count();
            seats.push(Seat { host: host.name.clone(), local_rank, local_size: 0 });
        }
    }
    let all = seats.clone();
    for seat in &mut seats {
        seat.local_size = all.iter().filter(|other| other.host == seat.host).count();
    }
    Ok(seats)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seated(hosts: &str, size: usize) -> Result<String, String> {
        let hosts: Vec<Host> = hosts.split(',').map(Host::parse).collect::<Result<_, _>>()?;
        let seats = seats(&hosts, size)?;
        let shown = seats.iter().map(|s| format!("{}:{}/{}", s.host, s.local_rank, s.local_size));
        Ok(shown.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn ranks_are_seated_in_blocks() {
        assert_eq!(seated("a,b", 3).unwrap(), "a:0/2 a:1/2 b:0/1");
        assert_eq!(seated("a:1,b:4", 3).unwrap(), "a:0/1 b:0/2 b:1/2");
        assert_eq!(seated("a:2,b", 3).unwrap(), "a:0/2 a:1/2 b:0/1");
        assert_eq!(seated("a,b,a", 3).unwrap(), "a:0/2 b:0/1 a:1/2");
        assert_eq!(seated("[::1]:2", 2).unwrap(), "::1:0/2 ::1:1/2");
        assert_eq!(seated("fe80::1", 1).unwrap(), "fe80::1:0/1");
    }

    #[test]
    fn ranks_without_a_slot_are_reported() {
        assert!(seated("a:1,b:1", 3).unwrap_err().contains("the hosts take 2"));
        for hosts in ["a:x", "a:0", "", "-oProxyCommand=x", "a b", "a\x1b[2J", &"x".repeat(256)] {
            assert!(seated(hosts, 1).is_err(), "{hosts}");
        }
    }
}
