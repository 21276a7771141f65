//! The settings: names, defaults, help texts and parsed values.

use crate::gid::Subnet;
use crate::port::Router;
use core::time::Duration;
use tieline_plugin_api::config::{Value, shared};
use tieline_plugin_api::{ConfigDoc, Failure, HostHandle, Status};
use tieline_registration::Limits;

/// Every variable that this provider reads: its own and the shared ones.
pub(crate) const VARIABLES: &[ConfigDoc] = &[
    ConfigDoc::list(
        "TIELINE_VERBS_DEVICES",
        "",
        "Devices to use: names or globs, with a port after a colon (mlx5_0, mlx5_*, mlx5_0:2); a leading ^ \
              excludes the list; empty: all.",
    ),
    ConfigDoc::count(
        "TIELINE_VERBS_GID_INDEX",
        "auto",
        "Index of the port's GID to use, or auto: on Ethernet RoCE v2 with an IPv4 address first, then IPv6, then \
              link-local, then RoCE v1; on InfiniBand index 0.",
    )
    .between(0, 255)
    .one_of("auto"),
    ConfigDoc::list(
        "TIELINE_VERBS_SUBNET",
        "",
        "Networks for the GID, such as 10.1.0.0/16 or fd00:1::/64; on InfiniBand prefixes, such as fec0:0:0:1::/64; empty: any. \
         A port without a GID in one of them is not used.",
    ),
    ConfigDoc::text(
        "TIELINE_VERBS_ROUTER",
        "off",
        "The route to peers in other InfiniBand subnets. off: none. A LID such as 0x12: the router's port in this subnet. flid: \
         the LID in the peer's subnet prefix, fec0:0:LID:subnet, if the routers are set up for it. Both sides need the same kind.",
    ),
    ConfigDoc::text(
        "TIELINE_VERBS_PATH_MTU",
        "auto",
        "Maximum bytes in a packet: 256, 512, 1024, 2048 or 4096; auto: the port's MTU. The smaller value of the two sides is \
         used.",
    )
    .one_of("auto|256|512|1024|2048|4096"),
    ConfigDoc::count(
        "TIELINE_VERBS_TRAFFIC_CLASS",
        "0",
        "Traffic class of packets, 0 to 255: on RoCE the DSCP value times 4.",
    )
    .between(0, 255),
    ConfigDoc::count(
        "TIELINE_VERBS_SERVICE_LEVEL",
        "0",
        "InfiniBand service level, 0 to 15.",
    )
    .between(0, 15),
    ConfigDoc::text(
        "TIELINE_VERBS_PARTITION_KEY",
        "",
        "Partition key to use, such as 0x8001; empty: the first entry of the port's table with full membership, or else the \
         first entry.",
    ),
    ConfigDoc::duration(
        "TIELINE_VERBS_ACK_TIMEOUT",
        "500ms",
        "How long the device waits for an acknowledgement before it retransmits; rounded up to a power of two of 4.096 us.",
    ),
    ConfigDoc::count(
        "TIELINE_VERBS_RETRY_COUNT",
        "6",
        "Retransmissions before the connection fails, 0 to 7. Soft RoCE treats 7 as unlimited. With fewer it also counts \
         retransmissions for reordered packets, so links that lose and reorder need 7. A lost peer is then detected by \
         TIELINE_FAILURE_TIMEOUT.",
    )
    .between(0, 7),
    ConfigDoc::duration(
        "TIELINE_VERBS_RNR_TIMER",
        "640us",
        "How long a sender waits when the receiver has no buffer posted; it retries indefinitely while the receiver is alive.",
    ),
    ConfigDoc::size(
        "TIELINE_VERBS_SEGMENT_SIZE",
        "8k",
        "The longest message that rc carries, 1k to 1m; both sides should use the same value.",
    )
    .between(1 << 10, 1 << 20),
    ConfigDoc::count(
        "TIELINE_VERBS_WINDOW",
        "32",
        "Messages that one peer may have in flight to this side before the first of them is received, 2 to 1024.",
    )
    .between(2, 1024),
    ConfigDoc::count(
        "TIELINE_VERBS_MAX_WINDOW",
        "256",
        "Maximum window of a peer that sends a stream, up to 1024. The window grows while the windows of all peers take no more \
         than half of TIELINE_VERBS_RX_BUFFERS.",
    )
    .between(0, 1024),
    ConfigDoc::count(
        "TIELINE_VERBS_RX_BUFFERS",
        "1024",
        "Maximum number of receive buffers of one interface, shared by its endpoints; they are allocated as endpoints are made.",
    )
    .between(64, 1 << 15),
    ConfigDoc::count(
        "TIELINE_VERBS_TX_BUFFERS",
        "256",
        "Maximum number of buffers of one interface for messages and short puts that are too long to be inlined.",
    )
    .between(32, 1 << 15),
    ConfigDoc::count(
        "TIELINE_VERBS_TX_DEPTH",
        "120",
        "Outstanding operations of one endpoint, 16 to 8192; 8 more are reserved, and drivers round the sum up to a power of \
         two.",
    )
    .between(16, 8192),
    ConfigDoc::count(
        "TIELINE_VERBS_CONNECTIONS",
        "4096",
        "Maximum number of rc connections of one worker. Each takes some 100 KiB in the driver and the provider, and 290 KiB \
         more of receives if the device has no shared receive queues. Further peers use other devices or providers that reach \
         them, or ud.",
    )
    .between(1, 1 << 22),
    ConfigDoc::count(
        "TIELINE_VERBS_CM_CONNECTIONS",
        "128",
        "Connections that the module rdmacm of one worker keeps open for wire-up, 1 to 4096; beyond that, the least recently \
         used ones are closed.",
    )
    .between(1, 4096),
    ConfigDoc::duration(
        "TIELINE_VERBS_CM_IDLE",
        "10s",
        "How long an unused connection of rdmacm stays open; it is made again on demand.",
    ),
    ConfigDoc::text(
        "TIELINE_VERBS_RELAXED_ORDERING",
        "off",
        "Whether peers' writes to every region, not only to regions that ask for it, may be reordered on the bus, which some \
         processors (AMD) need for full speed. Only a completion, a notification or a message then shows that the data has \
         arrived; see docs/ordering.md.",
    )
    .one_of("off|on"),
    ConfigDoc::text(
        "TIELINE_VERBS_CACHE",
        "in-use",
        "Transient registrations (of local memory that the program did not register). in-use: shared by operations in progress. \
         keep: also kept afterwards; the program promises never to unmap used memory. off: one per operation.",
    )
    .one_of("in-use|keep|off"),
    ConfigDoc::size(
        "TIELINE_VERBS_CACHE_BYTES",
        "256m",
        "Maximum memory in transient registrations of a device; memory beyond it is registered for a single operation.",
    )
    .between(0, u64::MAX >> 1),
    ConfigDoc::count(
        "TIELINE_VERBS_CACHE_ENTRIES",
        "1024",
        "Maximum number of transient registrations of a device.",
    )
    .between(0, 1 << 20),
    ConfigDoc::size(
        "TIELINE_VERBS_INLINE",
        "188",
        "Longest message, including its 16-byte header, and longest put that the device copies during the post; the device may \
         allow less. A put up to this length has left its memory when the post returns, whatever the device allows.",
    )
    .between(0, 1024),
    shared::SECRET,
    shared::FAILURE_TIMEOUT,
    shared::CONNECT_TIMEOUT,
    shared::CLOSE_TIMEOUT,
];

/// The parsed values.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    pub(crate) devices: String,
    pub(crate) gid_index: Option<u32>,
    pub(crate) subnets: Vec<Subnet>,
    pub(crate) router: Router,
    pub(crate) path_mtu: Option<usize>,
    pub(crate) traffic_class: u8,
    pub(crate) service_level: u8,
    pub(crate) partition_key: Option<u16>,
    pub(crate) ack_timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_timer: u8,
    pub(crate) segment: usize,
    pub(crate) window: usize,
    pub(crate) max_window: usize,
    pub(crate) rx_buffers: usize,
    pub(crate) tx_buffers: usize,
    pub(crate) tx_depth: usize,
    pub(crate) inline: usize,
    pub(crate) connections: usize,
    pub(crate) relaxed_ordering: bool,
    pub(crate) cm_connections: usize,
    pub(crate) cm_idle: Duration,
    /// The limits of the registration cache; `None` if the cache is off.
    pub(crate) cache: Option<Limits>,
    /// The job's secret: `TIELINE_SECRET`.
    pub(crate) secret: Vec<u8>,
    /// The time after which a silent peer has failed: `TIELINE_FAILURE_TIMEOUT`.
    pub(crate) failure: Duration,
    /// The time limit for connecting: `TIELINE_CONNECT_TIMEOUT`.
    pub(crate) connect: Duration,
    /// The time limit for closing an interface: `TIELINE_CLOSE_TIMEOUT`.
    pub(crate) close: Duration,
}

impl Settings {
    /// Reads every variable from the host.
    pub(crate) fn from_host(host: &HostHandle) -> Result<Settings, Failure> {
        Settings::read(|name| host.config(name))
    }

    /// Returns the defaults, regardless of the host's settings.
    #[cfg(test)]
    pub(crate) fn defaults() -> Settings {
        Settings::of(|_| None).unwrap()
    }

    /// Returns the values with these variables set and defaults for the rest.
    #[cfg(test)]
    pub(crate) fn of(set: impl Fn(&str) -> Option<String>) -> Result<Settings, Failure> {
        Settings::read(tieline_plugin_api::config::values(VARIABLES, set)?)
    }

    fn read(value: impl Fn(&str) -> Value) -> Result<Settings, Failure> {
        let own = |name: &str| value(&format!("TIELINE_VERBS_{name}"));
        let number = |name: &str| own(name).size();
        let (gid_index, partition, cache) = (own("GID_INDEX"), own("PARTITION_KEY"), own("CACHE"));
        let limits = Limits {
            keep: cache.text == "keep",
            bytes: number("CACHE_BYTES"),
            entries: number("CACHE_ENTRIES"),
        };
        Ok(Settings {
            devices: own("DEVICES").text,
            gid_index: (gid_index.word == 0).then_some(gid_index.number as u32),
            subnets: subnets(&own("SUBNET").text)?,
            router: router(&own("ROUTER").text)?,
            path_mtu: own("PATH_MTU").text.parse().ok(),
            traffic_class: number("TRAFFIC_CLASS") as u8,
            service_level: number("SERVICE_LEVEL") as u8,
            partition_key: partition_key(&partition.text)?,
            ack_timeout: ack_exponent(own("ACK_TIMEOUT").duration()),
            retry_count: number("RETRY_COUNT") as u8,
            rnr_timer: rnr_code(own("RNR_TIMER").duration()),
            segment: number("SEGMENT_SIZE"),
            window: number("WINDOW"),
            max_window: number("MAX_WINDOW"),
            rx_buffers: number("RX_BUFFERS"),
            tx_buffers: number("TX_BUFFERS"),
            tx_depth: number("TX_DEPTH"),
            inline: number("INLINE"),
            connections: number("CONNECTIONS"),
            relaxed_ordering: own("RELAXED_ORDERING").text == "on",
            cm_connections: number("CM_CONNECTIONS"),
            cm_idle: own("CM_IDLE").duration(),
            cache: (cache.text != "off").then_some(limits),
            secret: value(shared::SECRET.name).text.into_bytes(),
            failure: value(shared::FAILURE_TIMEOUT.name).duration(),
            connect: value(shared::CONNECT_TIMEOUT.name).duration(),
            close: value(shared::CLOSE_TIMEOUT.name).duration(),
        })
    }

    /// Returns the time for which the device retries before the connection fails, by the formula of the specification. Devices may
    /// take up to four times as long.
    pub(crate) fn retry_time(&self) -> Duration {
        let once = Duration::from_nanos(4096 << self.ack_timeout.min(31));
        once * (u32::from(self.retry_count) + 1)
    }
}

fn subnets(text: &str) -> Result<Vec<Subnet>, Failure> {
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    let parsed = items.map(|item| {
        Subnet::parse(item).ok_or_else(|| {
            let text = format!(
                "TIELINE_VERBS_SUBNET={text:?}: {item:?} is no network such as 10.1.0.0/16"
            );
            Failure::new(Status::Invalid, text)
        })
    });
    parsed.collect()
}

fn router(text: &str) -> Result<Router, Failure> {
    let text = text.trim();
    if text.eq_ignore_ascii_case("off") {
        return Ok(Router::None);
    }
    if text.eq_ignore_ascii_case("flid") {
        return Ok(Router::ByPrefix);
    }
    let lid = match text.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    // LIDs from 0xc000 on are multicast.
    lid.filter(|lid| (1..0xc000).contains(lid)).map(Router::At).ok_or_else(|| {
        let text = format!(
            "TIELINE_VERBS_ROUTER={text:?} is neither off nor flid, nor the LID of a port such as 0x12"
        );
        Failure::new(Status::Invalid, text)
    })
}

fn partition_key(text: &str) -> Result<Option<u16>, Failure> {
    if text.is_empty() {
        return Ok(None);
    }
    let digits = text.trim_start_matches("0x");
    let key = u16::from_str_radix(digits, 16).ok().filter(|key| key & 0x7fff != 0);
    let why = || {
        let text =
            format!("TIELINE_VERBS_PARTITION_KEY={text:?} is not a partition key such as 0x8001");
        Failure::new(Status::Invalid, text)
    };
    key.map(Some).ok_or_else(why)
}

/// Returns the smallest exponent, from 1 to 31, with a timeout of at least `wanted`. The timeout is 4.096 us times two to the power
/// of the exponent. If every timeout is too short, returns 31.
fn ack_exponent(wanted: Duration) -> u8 {
    // Exponent 0 would mean no timeout.
    (1..31).find(|&e| Duration::from_nanos(4096 << e) >= wanted).unwrap_or(31)
}

/// Returns the code of the shortest receiver-not-ready timer of at least `wanted`, or of the longest timer (InfiniBand
/// specification, table 45).
fn rnr_code(wanted: Duration) -> u8 {
    const HUNDREDTHS_OF_MS: [u64; 31] = [
        1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
        2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    let at = HUNDREDTHS_OF_MS.iter().position(|&t| Duration::from_micros(t * 10) >= wanted);
    at.map_or(0, |at| at as u8 + 1) // receiver-not-ready code 0 is the longest timer: 655 ms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_fail_within_the_failure_timeout() {
        let settings = Settings::defaults();
        assert_eq!(
            (settings.gid_index, settings.path_mtu, settings.partition_key),
            (None, None, None)
        );
        assert_eq!((settings.ack_timeout, settings.rnr_timer), (17, 12));
        assert!(settings.retry_time() * 4 < settings.failure);
    }

    #[test]
    fn every_variable_is_read_and_carries_the_prefix() {
        let own = VARIABLES.iter().filter(|it| it.name.starts_with("TIELINE_VERBS_"));
        assert_eq!(own.clone().count() + 4, VARIABLES.len());
        for variable in own {
            let name = variable.name;
            let wrong = Settings::of(|n| (n == name).then(|| "?".to_string()));
            if name != "TIELINE_VERBS_DEVICES" {
                let failure = wrong.expect_err(name);
                assert!(failure.text.contains(name), "{}", failure.text);
            }
        }
    }

    #[test]
    fn cache_setting_ignores_letter_case() {
        let cache = |text: &'static str| {
            Settings::of(|n| (n == "TIELINE_VERBS_CACHE").then(|| text.into())).unwrap().cache
        };
        assert!(cache("OFF").is_none());
        assert!(cache("Keep").is_some_and(|limits| limits.keep));
        assert!(cache("in-use").is_some_and(|limits| !limits.keep));
    }

    #[test]
    fn timers_are_rounded_up_to_device_values() {
        assert_eq!(ack_exponent(Duration::from_millis(67)), 14);
        assert_eq!(ack_exponent(Duration::from_secs(1)), 18);
        assert_eq!(ack_exponent(Duration::ZERO), 1);
        assert_eq!(rnr_code(Duration::from_micros(10)), 1);
        assert_eq!(rnr_code(Duration::from_millis(10)), 20);
        assert_eq!(rnr_code(Duration::from_secs(5)), 0);
    }

    #[test]
    fn a_router_is_a_lid_of_one_port_or_a_word() {
        let read = |text: &str| {
            let text = text.to_string();
            Settings::of(move |n| (n == "TIELINE_VERBS_ROUTER").then(|| text.clone()))
        };
        assert_eq!(Settings::defaults().router, Router::None);
        for (text, router) in [
            ("off", Router::None),
            ("FLID", Router::ByPrefix),
            ("0x12", Router::At(0x12)),
            ("18", Router::At(18)),
            ("0xbfff", Router::At(0xbfff)),
        ] {
            assert_eq!(read(text).unwrap().router, router, "{text}");
        }
        for wrong in ["0", "0xc000", "65536", "on", "-1", "0x"] {
            assert!(read(wrong).unwrap_err().text.contains("is neither off nor flid"), "{wrong}");
        }
    }

    #[test]
    fn a_partition_key_is_hexadecimal_and_not_zero() {
        let read = |text: &str| {
            let text = text.to_string();
            Settings::of(move |n| (n == "TIELINE_VERBS_PARTITION_KEY").then(|| text.clone()))
        };
        assert_eq!(read("0x8001").unwrap().partition_key, Some(0x8001));
        assert!(read("0x8000").is_err() && read("0").is_err() && read("12345").is_err());
    }

    #[test]
    fn a_timer_is_as_long_as_was_asked_for_or_the_next_longer_one() {
        for exponent in 1..31 {
            let exact = Duration::from_nanos(4096 << exponent);
            assert_eq!(ack_exponent(exact), exponent);
            assert_eq!(ack_exponent(exact + Duration::from_nanos(1)), exponent + 1);
        }
        assert_eq!(ack_exponent(Duration::MAX), 31);
        for (us, code) in [(0, 1), (11, 2), (640, 12), (641, 13), (491_520, 31), (491_521, 0)] {
            assert_eq!(rnr_code(Duration::from_micros(us)), code, "{us} us");
        }
        let settings = Settings { ack_timeout: 17, retry_count: 6, ..Settings::defaults() };
        assert_eq!(settings.retry_time(), Duration::from_nanos(7 * (4096 << 17)));
    }

    #[test]
    fn settings_are_applied_and_empty_list_items_ignored() {
        let read = |name: &str, text: &str| {
            let (name, text) = (name.to_string(), text.to_string());
            Settings::of(move |n| (n == name).then(|| text.clone())).unwrap()
        };
        assert!(!Settings::defaults().relaxed_ordering);
        assert!(read("TIELINE_VERBS_RELAXED_ORDERING", "on").relaxed_ordering);
        assert_eq!(read("TIELINE_VERBS_GID_INDEX", "3").gid_index, Some(3));
        assert_eq!(read("TIELINE_VERBS_PATH_MTU", "512").path_mtu, Some(512));
        let subnets = ["10.1.0.0/16", "fd00::/8"].map(|text| Subnet::parse(text).unwrap());
        assert_eq!(read("TIELINE_VERBS_SUBNET", "10.1.0.0/16,, fd00::/8,").subnets, subnets);
    }
}
