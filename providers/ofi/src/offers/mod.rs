//! The selection among the devices that libfabric offers. Each device in use becomes a domain. A listed device that is refused gets
//! a reason in words.

pub(crate) mod sys;

use crate::abi::*;
use crate::atomics::are_wanted;
use crate::config::{Format, Settings, admits, shown};
use crate::keys::MOST_RAW;
use crate::load::Library;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use sys::{Hints, Info, Infos, text};
use tieline_plugin_api::{Failure, Status};

/// A usable device.
#[derive(Clone)]
pub(crate) struct Offer {
    /// The provider's name with its layers: `tcp;ofi_rxm`.
    pub(crate) provider: String,
    pub(crate) fabric: String,
    /// The domain's name, such as `ofi:tcp:eth0`.
    pub(crate) domain: String,
    /// Whether a put can be asked to complete when its data is in the target's memory.
    pub(crate) delivery: bool,
    /// Whether atomics were requested, and the provider claims to support them.
    pub(crate) atomics: bool,
    pub(crate) info: Info,
}

/// The longest name of a domain.
const LONGEST_NAME: usize = 63;

/// Providers that are never used, and why.
const REFUSED: &[(&str, &str)] = &[
    ("shm", "the provider shm is better, and this one takes signals"),
    ("sm2", "the provider shm is better"),
    ("lnx", "it would join what the core joins itself"),
    ("mrail", "the core uses several lanes itself"),
    ("net", "it claims atomics and completion at the target that it does not keep"),
    ("udp", "it never tells that a peer is dead, and keeps what it cannot send without a bound"),
    ("psm2", "it ends the process where a peer does not answer its first message at once"),
    ("psm3", "it ends the process where a peer does not answer its first message at once"),
    ("coll", "it moves no data"),
    ("rstream", "it has no reliable datagrams"),
];

/// The usable devices, and the reasons for the devices that are left out.
#[derive(Default)]
pub(crate) struct Offers {
    pub(crate) used: Vec<Offer>,
    left_out: Vec<LeftOut>,
}

/// Devices of one provider that are left out for the same reason.
struct LeftOut {
    provider: String,
    why: String,
    devices: Vec<String>,
}

/// Returns the first part of a provider's name, which selects it.
pub(crate) fn core_name(provider: &str) -> &str {
    provider.split(';').next().unwrap_or(provider)
}

/// Returns the name of a mode bit that the provider demands and that is not supported.
fn unmet(info: &Info) -> Option<&'static str> {
    let mode = info.domain().mr_mode;
    let bits = [
        (FI_MR_MMU_NOTIFY, "FI_MR_MMU_NOTIFY"),
        (FI_MR_RMA_EVENT, "FI_MR_RMA_EVENT"),
        (FI_MR_COLLECTIVE, "FI_MR_COLLECTIVE"),
        (FI_MR_BASIC, "FI_MR_BASIC"),
    ];
    // Device memory is not requested, and this mode bit concerns only device memory (opx sets it without a request).
    if mode & FI_MR_HMEM != 0 && info.caps() & FI_HMEM != 0 {
        return Some("FI_MR_HMEM");
    }
    bits.iter().find(|(bit, _)| mode & bit != 0).map(|(_, name)| *name)
}

fn refusal(offer: &Offer, settings: &Settings) -> Option<String> {
    let core = core_name(&offer.provider);
    let known = REFUSED.iter().find(|(name, _)| *name == core).map(|(_, why)| (*why).to_owned());
    let hook = offer
        .provider
        .split(';')
        .any(|part| part.starts_with("ofi_hook") || part.starts_with("off_"));
    let rxd = offer.provider.contains("ofi_rxd");
    if core.starts_with("tieline") {
        return Some("it is this library itself".into());
    }
    if hook {
        return Some("it is a hook and no provider".into());
    }
    if rxd {
        return Some("ofi_rxd never tells that a peer is dead".into());
    }
    if known.is_some() {
        return known;
    }
    if !admits(&settings.providers, &offer.provider) {
        return Some(format!("by TIELINE_OFI_PROVIDERS={}", settings.providers));
    }
    if let Some(bit) = unmet(&offer.info) {
        return Some(format!("it demands {bit}, which is not supported"));
    }
    let demanded = offer.info.mode() & !(FI_CONTEXT | FI_CONTEXT2 | FI_ASYNC_IOV);
    if demanded != 0 {
        return Some(format!("it demands the mode {demanded:#x}, which is not supported"));
    }
    let (size, raw) = (offer.info.domain().mr_key_size, offer.info.domain().mr_mode & FI_MR_RAW);
    if raw != 0 && size > MOST_RAW {
        let text =
            format!("it demands FI_MR_RAW with keys of {size} bytes: {MOST_RAW} are the most");
        return Some(text);
    }
    if offer.info.caps() & FI_MULTI_RECV == 0 || raw == 0 && size > 8 {
        return Some(
            "it has no FI_MULTI_RECV, or keys of more than 8 bytes without FI_MR_RAW".into(),
        );
    }
    // With reordered messages, a channel would wrongly detect lost messages.
    if offer.info.tx().msg_order & offer.info.rx().msg_order & FI_ORDER_SAS == 0 {
        return Some("it does not keep the order of messages (FI_ORDER_SAS)".into());
    }
    if offer.info.ep().max_msg_size < crate::engine::LONGEST_PACKET {
        let most = offer.info.ep().max_msg_size;
        return Some(format!("its messages have {most} bytes at most"));
    }
    if offer.domain.len() > LONGEST_NAME {
        return Some(format!("its name is longer than the {LONGEST_NAME} bytes of a domain's"));
    }
    let device = text(offer.info.domain().name);
    match settings.interfaces.is_empty() {
        true if is_private(&device, offer.info.address_format(), offer.info.source()) => {
            Some("it leads nowhere else; TIELINE_OFI_INTERFACES asks for it by name".into())
        }
        false if !settings.interfaces.allows(&device, address_of(&offer.info)) => {
            Some("by TIELINE_OFI_INTERFACES".into())
        }
        _ => None,
    }
}

/// Checks whether a device is used only if a setting names it: loopback, container bridges, link-local addresses.
fn is_private(device: &str, format: u32, source: &[u8]) -> bool {
    let link_local = match (format, source) {
        (FI_SOCKADDR_IN, [_, _, _, _, 169, 254, ..]) => true,
        (FI_SOCKADDR_IN6, [_, _, _, _, _, _, _, _, 0xfe, second, ..]) => second & 0xc0 == 0x80,
        _ => false,
    };
    device == "lo" || device.starts_with("docker") || device.starts_with("virbr") || link_local
}

/// Returns the IP address of a device; `::` for a device without one.
fn address_of(info: &Info) -> IpAddr {
    ip(info.address_format(), info.source()).unwrap_or(Ipv6Addr::UNSPECIFIED.into())
}

/// Returns the IP address in a socket address of this format.
fn ip(format: u32, source: &[u8]) -> Option<IpAddr> {
    match format {
        FI_SOCKADDR_IN => Some(Ipv4Addr::from(*source.get(4..)?.first_chunk::<4>()?).into()),
        FI_SOCKADDR_IN6 => Some(Ipv6Addr::from(*source.get(8..)?.first_chunk::<16>()?).into()),
        _ => None,
    }
}

fn fits_format(info: &Info, format: Format) -> bool {
    let other = match format {
        Format::Any => return true,
        Format::Ipv4 => FI_SOCKADDR_IN6,
        Format::Ipv6 => FI_SOCKADDR_IN,
    };
    info.address_format() != other
}

/// Queries the devices of the library.
pub(crate) fn offers(library: &'static Library, settings: &Settings) -> Result<Offers, Failure> {
    if settings.api > library.version {
        let (asked, has) = (shown(settings.api), shown(library.version));
        let text =
            format!("{} is libfabric {has}, older than TIELINE_OFI_API={asked}", settings.library);
        return Err(Failure::new(Status::NoDevice, text));
    }
    let mut all = Offers::default();
    // The first query asks for completion at the target, the second does not. Devices that only the second list has are used
    // without puts and gets.
    for delivery in [true, false] {
        for offer in listed(library, settings, delivery, false)? {
            all.take(offer, settings);
        }
    }
    let wants = |offer: &Offer| offer.delivery && are_wanted(&offer.provider, settings);
    if all.used.iter().any(wants) {
        // If the third query fails, the results of the first two are kept.
        let (with, why) = match listed(library, settings, true, true) {
            Ok(with) => (with, "its atomics alone, which would cost something else".into()),
            Err(failure) => (Vec::new(), format!("its atomics alone: {}", failure.text)),
        };
        let mut without = Vec::new();
        for offer in all.used.iter_mut().filter(|offer| wants(offer)) {
            match with.iter().find(|other| other.is_as_good_as(offer)) {
                Some(other) => *offer = other.clone(),
                None => without.push(offer.clone()),
            }
        }
        without.into_iter().for_each(|offer| all.leave_out(offer, &why));
    }
    Ok(all)
}

/// Returns the devices that the library lists for these hints.
fn listed(
    library: &'static Library,
    settings: &Settings,
    delivery: bool,
    atomics: bool,
) -> Result<Vec<Offer>, Failure> {
    let hints = Hints { api: settings.api, delivery, atomics, progress: settings.progress };
    let mut listed: Vec<Offer> = Infos::new(library, &hints)?
        .each()
        .into_iter()
        .filter(|info| fits_format(info, settings.format))
        .map(|info| {
            let provider = text(info.fabric().prov_name);
            let device = text(info.domain().name);
            let domain = format!("ofi:{}:{device}", core_name(&provider));
            let fabric = text(info.fabric().name);
            Offer { provider, fabric, domain, delivery, atomics, info }
        })
        .collect();
    // A stable sort, which otherwise keeps the library's order: best first.
    listed.sort_by_key(|offer| rank(offer.info.address_format()));
    Ok(listed)
}

/// Ranks the addresses of a device: IPv4 first, InfiniBand's own last. `verbs` also lists InfiniBand addresses for RoCE, over which
/// the kernel forms no such connection (source: verbs_info.c, vrb_get_sib; cma.c, rdma_cap_af_ib).
fn rank(format: u32) -> u8 {
    match format {
        FI_SOCKADDR_IN6 => 1,
        FI_SOCKADDR_IB => 2,
        _ => 0,
    }
}

impl Offer {
    /// Checks whether each interface must open the device anew. `tcp` of 1.18 to 2.6 reads freed memory when an endpoint was closed
    /// during a connection setup and another endpoint makes progress (libfabric's pull request 12709; observed: a crash over 2.5).
    pub(crate) fn is_apart(&self) -> bool {
        core_name(&self.provider) == "tcp" && self.info.library().version > API
    }

    /// Checks whether this is the same device with the same limits, and has every capability of `other`.
    fn is_as_good_as(&self, other: &Offer) -> bool {
        let facts = |offer: &Offer| {
            let (info, domain) = (&offer.info, offer.info.domain());
            let (ep, tx) = (info.ep(), info.tx());
            let protocol = (ep.protocol, ep.protocol_version, info.address_format());
            let memory = (domain.mr_mode, domain.mr_key_size, domain.av_type, info.mode());
            let limits = (ep.max_msg_size, tx.iov_limit, tx.size, domain.data_progress);
            (protocol, memory, limits, info.source().to_vec())
        };
        let bits = |offer: &Offer| {
            [offer.info.caps(), offer.info.tx().msg_order, offer.info.rx().msg_order]
        };
        let lost =
            bits(other).into_iter().zip(bits(self)).any(|(theirs, ours)| theirs & !ours != 0);
        let names =
            |offer: &Offer| [&offer.provider, &offer.fabric, &offer.domain].map(Clone::clone);
        names(self) == names(other) && facts(self) == facts(other) && !lost
    }
}

impl Offers {
    fn take(&mut self, offer: Offer, settings: &Settings) {
        if self.used.iter().any(|used| used.domain == offer.domain) {
            return;
        }
        match refusal(&offer, settings) {
            None => self.used.push(offer),
            Some(why) => self.leave_out(offer, &why),
        }
    }

    fn leave_out(&mut self, offer: Offer, why: &str) {
        let device = text(offer.info.domain().name);
        let same = |left: &&mut LeftOut| left.provider == offer.provider && left.why == why;
        match self.left_out.iter_mut().find(same) {
            Some(left) if left.devices.contains(&device) => {}
            Some(left) => left.devices.push(device),
            None => {
                let (provider, why) = (offer.provider, why.to_owned());
                self.left_out.push(LeftOut { provider, why, devices: vec![device] });
            }
        }
    }

    /// Returns the devices that are left out, in words.
    pub(crate) fn left_out(&self) -> Vec<String> {
        let words = |left: &LeftOut| {
            format!("{} on {}: {}", left.provider, left.devices.join(", "), left.why)
        };
        self.left_out.iter().map(words).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::double::world::manners;
    use std::ffi::{CStr, CString};
    use tieline_net::Filter;

    /// Returns the offers of the simulated library with a device of this name.
    fn offered(device: &'static CStr, settings: &Settings) -> Offers {
        manners(|manners| manners.device = device);
        offers(crate::load::library("").unwrap(), settings).unwrap()
    }

    fn one(device: &'static CStr, provider: &str) -> Offer {
        let offer = offered(device, &Settings::test_defaults()).used.remove(0);
        Offer { provider: provider.into(), ..offer }
    }

    /// Returns the reason why a provider of this name is left out.
    fn why(provider: &str) -> Option<String> {
        refusal(&one(c"eth0", provider), &Settings::test_defaults())
    }

    #[test]
    fn left_out_devices_are_grouped_by_provider_and_reason() {
        let (mut all, settings) = (Offers::default(), Settings::test_defaults());
        for (device, provider) in [
            (c"eth0", "shm"),
            (c"eth1", "shm"),
            (c"eth0", "shm"),
            (c"eth0", "net"),
            (c"eth0", "played"),
            (c"eth0", "played"),
        ] {
            all.take(one(device, provider), &settings);
        }
        let told = all.left_out();
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].starts_with("shm on eth0, eth1: the provider shm is better"), "{told:?}");
        assert!(told[1].starts_with("net on eth0: it claims atomics"), "{told:?}");
        let used: Vec<&str> = all.used.iter().map(|offer| offer.domain.as_str()).collect();
        assert_eq!(used, ["ofi:played:eth0"], "once, whether with completion at the target or not");
        assert!(all.used[0].delivery);
    }

    #[test]
    fn infiniband_address_of_device_is_the_last_choice() {
        let mut formats = [FI_SOCKADDR_IB, FI_SOCKADDR_IN6, 9, FI_SOCKADDR_IN];
        formats.sort_by_key(|format| rank(*format));
        assert_eq!(formats, [9, FI_SOCKADDR_IN, FI_SOCKADDR_IN6, FI_SOCKADDR_IB]);
    }

    #[test]
    fn providers_that_are_never_used_are_named_with_the_reason() {
        for (name, reason) in REFUSED {
            assert_eq!(why(name).as_deref(), Some(*reason), "{name}");
            assert_eq!(why(&format!("{name};ofi_rxm")).as_deref(), Some(*reason), "{name}");
        }
        for (name, words) in [
            ("tieline", "this library itself"),
            ("played;ofi_hook_perf", "a hook"),
            ("off_coll", "a hook"),
            ("played;ofi_rxd", "ofi_rxd never tells"),
        ] {
            assert!(why(name).unwrap().contains(words), "{name}");
        }
        assert_eq!(why("tcp;ofi_rxm"), None);
        let settings = Settings { providers: "efa".into(), ..Settings::test_defaults() };
        let refused = refusal(&one(c"eth0", "played"), &settings);
        assert_eq!(refused.as_deref(), Some("by TIELINE_OFI_PROVIDERS=efa"));
    }

    #[test]
    fn requested_api_version_is_bounded_by_the_library_version() {
        // The simulated library is 2.0.
        for (api, used) in
            [(API, true), (version(1, 20), true), (version(2, 0), true), (version(2, 1), false)]
        {
            manners(|manners| manners.api = api);
            let settings = Settings { api, ..Settings::test_defaults() };
            let found = offers(crate::load::library("").unwrap(), &settings);
            assert_eq!(found.is_ok(), used, "{api:#x}");
            if let Err(failure) = found {
                assert_eq!(failure.status, Status::NoDevice);
                assert!(failure.text.contains("libfabric 2.0"), "{failure}");
                assert!(failure.text.contains("TIELINE_OFI_API=2.1"), "{failure}");
            }
        }
    }

    #[test]
    fn provider_without_granted_message_order_is_left_out() {
        for (orders, used) in [
            ((FI_ORDER_SAS, FI_ORDER_SAS), true),
            ((FI_ORDER_SAS | 1, FI_ORDER_SAS | 2), true),
            ((FI_ORDER_SAS, 0), false),
            ((0, FI_ORDER_SAS), false),
            ((!FI_ORDER_SAS, !FI_ORDER_SAS), false),
        ] {
            manners(|manners| manners.orders = orders);
            let found = offered(c"eth0", &Settings::test_defaults());
            assert_eq!(!found.used.is_empty(), used, "{orders:?}");
            assert_eq!(found.left_out().concat().contains("FI_ORDER_SAS"), !used, "{orders:?}");
        }
    }

    #[test]
    fn devices_that_nobody_means_are_used_only_by_name() {
        let with = |filter: &str| Settings {
            interfaces: Filter::parse(filter).unwrap(),
            ..Settings::test_defaults()
        };
        for private in [c"lo", c"docker0", c"virbr0"] {
            let found = offered(private, &with(""));
            assert!(found.used.is_empty(), "{private:?}");
            assert!(found.left_out()[0].contains("it leads nowhere else"), "{private:?}");
            assert_eq!(offered(private, &with("lo,docker*,virbr0")).used.len(), 1);
        }
        for meant in [c"eth0", c"lo0", c"mydocker"] {
            assert_eq!(offered(meant, &with("")).used.len(), 1, "{meant:?}");
        }
        let found = offered(c"ib0", &with("eth*"));
        assert!(found.used.is_empty());
        assert!(found.left_out()[0].contains("by TIELINE_OFI_INTERFACES"));
    }

    #[test]
    fn device_with_too_long_name_does_not_affect_other_devices() {
        // The name `ofi:played:` has 11 bytes.
        let (fits, long) = (CString::new("d".repeat(52)), CString::new("d".repeat(53)));
        let [fits, long] = [fits, long].map(|name| &*Box::leak(name.unwrap().into_boxed_c_str()));
        assert_eq!(offered(fits, &Settings::test_defaults()).used.len(), 1);
        let found = offered(long, &Settings::test_defaults());
        assert!(found.used.is_empty());
        assert!(found.left_out()[0].ends_with("longer than the 63 bytes of a domain's"));
    }

    #[test]
    fn an_address_of_the_kind_that_was_not_asked_for_is_not_looked_at() {
        let (v4, v6, other) = (FI_SOCKADDR_IN, FI_SOCKADDR_IN6, 9);
        for (format, kind, used) in [
            (Format::Any, v4, true),
            (Format::Any, v6, true),
            (Format::Ipv4, v4, true),
            (Format::Ipv4, v6, false),
            (Format::Ipv6, v4, false),
            (Format::Ipv6, v6, true),
            (Format::Ipv4, other, true),
            (Format::Ipv6, other, true),
        ] {
            manners(|manners| manners.format = kind);
            let found = offered(c"eth0", &Settings { format, ..Settings::test_defaults() });
            assert_eq!(!found.used.is_empty(), used, "{format:?} {kind}");
            assert_eq!(found.left_out(), [] as [String; 0]);
        }
    }

    #[test]
    fn a_device_lies_in_the_subnet_of_its_address_or_in_none() {
        let v4 = [2, 0, 0, 0, 10, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(ip(FI_SOCKADDR_IN, &v4), Some(IpAddr::from([10, 1, 2, 3])));
        let mut v6 = [0; 28];
        (v6[8], v6[23]) = (0xfd, 7);
        assert_eq!(ip(FI_SOCKADDR_IN6, &v6), "fd00::7".parse().ok());
        for (format, bytes) in [(FI_SOCKADDR_IN, &v4[..7]), (FI_SOCKADDR_IN6, &v6[..23]), (9, &v6)]
        {
            assert_eq!(ip(format, bytes), None);
        }
    }

    #[test]
    fn an_address_of_one_link_is_one_that_nobody_means() {
        let v4 = |a: u8, b: u8| [2, 0, 0, 0, a, b, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        for ((a, b), private) in
            [((169, 254), true), ((169, 253), false), ((168, 254), false), ((10, 0), false)]
        {
            assert_eq!(is_private("eth0", FI_SOCKADDR_IN, &v4(a, b)), private, "{a}.{b}");
            assert!(!is_private("eth0", 9, &v4(a, b)), "it is none of IP");
        }
        for (first, second, private) in
            [(0xfe, 0x80, true), (0xfe, 0xbf, true), (0xfe, 0xc0, false), (0xfd, 0x80, false)]
        {
            let mut v6 = [0; 28];
            (v6[8], v6[9]) = (first, second);
            assert_eq!(is_private("eth0", FI_SOCKADDR_IN6, &v6), private, "{second:x}");
        }
    }
}
