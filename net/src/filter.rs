//! The filter of the interfaces that a user allows: `eth0,10.0.0.0/8` or `^docker*,fe80::/10`.

use std::net::IpAddr;

/// A list of interface names, globs and subnets. A leading `^` on the whole list excludes the listed ones.
///
/// ```
/// use tieline_net::Filter;
///
/// let filter = Filter::parse("eth*,10.0.0.0/8")?;
/// assert!(filter.allows("eth1", "192.168.1.7".parse().unwrap()));
/// assert!(filter.allows("ib0", "10.1.2.3".parse().unwrap()));
/// assert!(!filter.allows("ib0", "192.168.1.7".parse().unwrap()));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    exclude: bool,
    items: Vec<Item>,
    text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Item {
    Glob(String),
    Subnet(IpAddr, u8),
}

impl Filter {
    /// Parses a filter. An empty text allows everything.
    ///
    /// # Errors
    /// The reason why the text is no filter, as text.
    pub fn parse(text: &str) -> Result<Filter, String> {
        let text = text.trim();
        let (exclude, list) = match text.strip_prefix('^') {
            Some(list) => (true, list),
            None => (false, text),
        };
        let mut items = Vec::new();
        for item in list.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            items.push(parse_item(item, text)?);
        }
        if exclude && items.is_empty() {
            return Err(format!("`{text}` excludes nothing: names or subnets follow the `^`"));
        }
        Ok(Filter { exclude, items, text: text.into() })
    }

    /// Checks whether this address of this interface may be used.
    #[must_use]
    pub fn allows(&self, interface: &str, ip: IpAddr) -> bool {
        self.items.is_empty() || self.names(interface, ip) != self.exclude
    }

    /// Checks whether the filter allows everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Checks whether the filter selects this address by name or subnet. With a carrier, a selected address is not ranked last.
    pub(crate) fn asks_for(&self, interface: &str, ip: IpAddr) -> bool {
        !self.exclude && self.names(interface, ip)
    }

    /// Returns the filter as the user wrote it, without spaces around it.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    fn names(&self, interface: &str, ip: IpAddr) -> bool {
        self.items.iter().any(|item| match item {
            Item::Glob(glob) => glob_matches(glob.as_bytes(), interface.as_bytes()),
            Item::Subnet(net, prefix) => same_subnet(*net, ip, *prefix),
        })
    }
}

fn parse_item(item: &str, text: &str) -> Result<Item, String> {
    if item.starts_with('^') {
        return Err(format!(
            "`{item}` in `{text}`: `^` stands before the whole list and excludes all of it"
        ));
    }
    if let Some((net, prefix)) = item.split_once('/') {
        let longest = |net: IpAddr| if net.is_ipv4() { 32 } else { 128 };
        return match (net.parse::<IpAddr>(), prefix.parse::<u8>()) {
            (Ok(net), Ok(prefix)) if prefix <= longest(net) => Ok(Item::Subnet(net, prefix)),
            _ => Err(format!("`{item}` in `{text}` is no subnet: write 10.0.0.0/8 or fd00::/8")),
        };
    }
    if let Ok(ip) = item.parse::<IpAddr>() {
        return Ok(Item::Subnet(ip, if ip.is_ipv4() { 32 } else { 128 }));
    }
    let odd = |c: char| c.is_whitespace() || c.is_control();
    if item.contains(odd) {
        return Err(format!("`{item}` in `{text}` is no name of an interface"));
    }
    Ok(Item::Glob(item.into()))
}

/// Checks whether two addresses of one family agree in their first `prefix` bits.
pub(crate) fn same_subnet(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    let prefix = u32::from(prefix);
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let differ = u32::from(a) ^ u32::from(b);
            prefix == 0 || differ >> 32u32.saturating_sub(prefix).min(31) == 0 && prefix <= 32
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let differ = u128::from(a) ^ u128::from(b);
            prefix == 0 || differ >> 128u32.saturating_sub(prefix).min(127) == 0 && prefix <= 128
        }
        _ => false,
    }
}

/// Matches the whole of `text` against a glob: `*` stands for any bytes, `?` for one.
pub(crate) fn glob_matches(glob: &[u8], text: &[u8]) -> bool {
    // The vector marks the prefixes of the text that match the part of the glob read so far.
    let mut matched = vec![false; text.len() + 1];
    matched[0] = true;
    for &sign in glob {
        if sign == b'*' {
            let first = matched.iter().position(|matched| *matched).unwrap_or(matched.len());
            matched[first..].fill(true);
        } else {
            matched.rotate_right(1);
            matched[0] = false;
            for (end, &letter) in matched[1..].iter_mut().zip(text) {
                *end &= sign == b'?' || sign == letter;
            }
        }
    }
    matched[text.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn an_empty_filter_allows_everything() {
        assert!(Filter::parse("").expect("empty").allows("eth0", ip("10.0.0.1")));
        assert!(Filter::parse(" , ").expect("empty").allows("eth0", ip("fe80::1")));
    }

    #[test]
    fn a_list_with_a_caret_excludes() {
        let filter = Filter::parse("^docker*, fe80::/10").expect("a filter");
        assert!(!filter.allows("docker0", ip("172.17.0.1")));
        assert!(!filter.allows("eth0", ip("fe80::1")));
        assert!(filter.allows("eth0", ip("10.0.0.1")));
    }

    #[test]
    fn an_address_alone_is_a_subnet_of_one() {
        let filter = Filter::parse("10.0.0.1").expect("a filter");
        assert!(filter.allows("eth0", ip("10.0.0.1")));
        assert!(!filter.allows("eth0", ip("10.0.0.2")));
    }

    #[test]
    fn wrong_filters_are_refused_in_words() {
        for (text, expected) in [
            ("10.0.0.0/33", "no subnet"),
            ("10.0.0/8", "no subnet"),
            ("fd00::/129", "no subnet"),
            ("eth0,^eth1", "before the whole list"),
            ("^", "excludes nothing"),
            ("eth 0", "no name"),
        ] {
            let words = Filter::parse(text).expect_err(text);
            assert!(words.contains(expected), "{text}: {words}");
        }
    }

    #[test]
    fn globs_match_the_whole_name() {
        for (glob, name, expected) in [
            ("eth0", "eth0", true),
            ("eth0", "eth01", false),
            ("eth*", "eth", true),
            ("*0*", "eth01", true),
            ("e?h0", "eth0", true),
            ("*a*b", "xaxxb", true),
            ("*a*b", "xbxxa", false),
            ("*ab", "aab", true),
            ("*ab*", "aaxb", false),
            ("**", "", true),
            ("?", "", false),
            ("", "", true),
            ("", "e", false),
            ("e*e", "e", false),
            ("th", "eth", false),
        ] {
            assert_eq!(glob_matches(glob.as_bytes(), name.as_bytes()), expected, "{glob} {name}");
        }
    }

    proptest! {
        #[test]
        fn no_text_harms(text in ".{0,64}") {
            let _ = Filter::parse(&text);
        }

        #[test]
        fn subnets_are_compared_bit_by_bit(a: u32, b: u32, prefix in 0u8..=32) {
            let mask = if prefix == 0 { 0 } else { u32::MAX << (32 - u32::from(prefix)) };
            let same = same_subnet(IpAddr::V4(a.into()), IpAddr::V4(b.into()), prefix);
            prop_assert_eq!(same, a & mask == b & mask);
        }

        #[test]
        fn so_are_those_of_the_sixth_version(a: u128, flip in 0u32..128, prefix in 0u8..=128) {
            let b = a ^ (1 << flip);
            let same = same_subnet(IpAddr::V6(a.into()), IpAddr::V6(b.into()), prefix);
            prop_assert_eq!(same, 127 - flip >= u32::from(prefix));
        }
    }

    #[test]
    fn interface_is_asked_for_only_by_including_list() {
        let of = |text: &str| {
            let filter = Filter::parse(text).expect("a filter");
            let ip = ip("10.0.0.1");
            (filter.allows("eth0", ip), filter.asks_for("eth0", ip), filter.is_empty())
        };
        assert_eq!(of(""), (true, false, true));
        assert_eq!(of("eth0"), (true, true, false));
        assert_eq!(of("10.0.0.0/8"), (true, true, false));
        assert_eq!(of("ib0"), (false, false, false));
        assert_eq!(of("^eth0"), (false, false, false));
        assert_eq!(of("^ib0"), (true, false, false));
        assert_eq!(Filter::parse(" ^ib0 ").expect("a filter").text(), "^ib0");
        for text in ["10.0.0.0/32", "fd00::/128", "0.0.0.0/0", "::/0"] {
            assert!(Filter::parse(text).is_ok(), "{text}");
        }
        let six = Filter::parse("fd00::7").expect("a filter");
        assert!(six.allows("eth0", ip("fd00::7")) && !six.allows("eth0", ip("fd00::6")));
    }

    #[test]
    fn a_prefix_that_is_longer_than_an_address_fits_none() {
        let (four, six) = (ip("10.0.0.1"), ip("fd00::1"));
        assert!(same_subnet(four, four, 32) && !same_subnet(four, four, 33));
        assert!(same_subnet(six, six, 128) && !same_subnet(six, six, 129));
        assert!(!same_subnet(four, six, 0));
    }
}
