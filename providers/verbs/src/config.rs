//! The settings: names, defaults, one sentence each, and the values as numbers.

use core::time::Duration;
use tieline_plugin_api::{ConfigDoc, Failure, HostHandle, Status, units};
use tieline_registration::Limits;

/// Every variable, for `tieline config`.
pub(crate) const VARIABLES: &[ConfigDoc] = &[
    ConfigDoc {
        name: "TIELINE_VERBS_DEVICES",
        default: "",
        kind: "list",
        doc: "Devices to use: names or globs, with a port after a colon (mlx5_0, mlx5_*, mlx5_0:2); a leading ^ \
              excludes the list; empty: all.",
    },
    ConfigDoc {
        name: "TIELINE_VERBS_GID_INDEX",
        default: "auto",
        kind: "text",
        doc: "Index of the port's GID to use, or auto: on Ethernet RoCE v2 with an IPv4 address first, then IPv6, then \
              link-local, then RoCE v1; on InfiniBand index 0.",
    },
    ConfigDoc {
        name: "TIELINE_VERBS_PATH_MTU",
        default: "auto",
        kind: "text",
        doc: "Bytes in a packet at most: 256, 512, 1024, 2048 or 4096; auto: what the port has. The smaller one of \
              the two sides is used.",
    },
    ConfigDoc {
        name: "TIELINE_VERBS_TRAFFIC_CLASS",
        default: "0",
        kind: "count",
        doc: "Traffic class of packets, 0 to 255: on RoCE the DSCP value times 4.",
    },
    ConfigDoc {
        name: "TIELINE_VERBS_SERVICE_LEVEL",
        default: "0",
        kind: "count",
        doc: "InfiniBand service level, 0 to 15.",
    },
    ConfigDoc {
        name: "TIELINE_VERBS_PARTITION_KEY",
        default: "",
        kind: "text",
        doc: "Partition key to use, such as 0x8001; empty: the first of the port's table.",
    },
    ConfigDoc {
        name: "TIELINE_VERBS_ACK_TIMEOUT",
        default: "500ms",
        kind: "duration",
        doc: "How long the device waits for an acknowledgement before it sends again; rounded up to a power of two of \
              4.096 us.",
    },
    ConfigDoc {
        name: "TIELINE_VERBS_RETRY_COUNT",
        default: "6",
        kind: "count",
        doc: "How often the device sends again before the connection fails, 0 to 7; soft RoCE takes 7 for without end, and \
              counts against fewer what it repeats out of order: on links that lose and reorder it needs 7. A peer that \
              is lost is then found by TIELINE_FAILURE_TIMEOUT.",
    },
    ConfigDoc {
        name: "TIELINE_VERBS_RNR_TIMER",
        default: "640us",
        kind: "duration",
        doc: "How long a sender waits when the receiver has no buffer posted; it then tries again without end while the \
              receiver lives.",
    },
    ConfigDoc {
        name: "TIELINE_VERBS_SEGMENT_SIZE",
        default: "8k",
        kind: "size",
        doc: "The longest message that rc carries, 1k to 1m; the two sides should have the same.",
    },
    ConfigDoc {
        name: "TIELINE_VERBS_WINDOW",
        default: "32",
        kind: "count",
        doc: "Messages that one peer may have on the way to us before we have taken the first of them, 2 to 1024.",
    },
    ConfigDoc {
        name: "TIELINE_VERBS_MAX_WINDOW",
        default: "256",
        kind: "count",
        doc: "How many that may become for a peer that sends a stream, up to 1024, while the windows of all peers take \
              no more than half of TIELINE_VERBS_RX_BUFFERS.",
    },
    ConfigDoc {
        name: "TIELINE_VERBS_RX_BUFFERS",
        default: "1024",
        kind: "count",
        doc: "The most receive buffers of one interface, shared by its endpoints; they are made as endpoints come.",
    },
    ConfigDoc {
        name: "TIELINE_VERBS_TX_BUFFERS",
        default: "256",
        kind: "count",
        doc: "The most buffers for messages that are too long to go inline, of one interface.",
    },
    ConfigDoc {
        name: "TIELINE_VERBS_TX_DEPTH",
        default: "128",
        kind: "count",
        doc: "Operations that one endpoint may have on the way, 16 to 8192.",
    },
    ConfigDoc {
        name: "TIELINE_VERBS_CM_CONNECTIONS",
        default: "128",
        kind: "count",
        doc: "Connections that the module rdmacm of one worker keeps open for connecting, 1 to 4096; beyond it the \
              longest unused ones are closed.",
    },
    ConfigDoc {
        name: "TIELINE_VERBS_CM_IDLE",
        default: "10s",
        kind: "duration",
        doc: "How long a connection of rdmacm stays open that nobody uses; it is made again when it is needed.",
    },
    ConfigDoc {
        name: "TIELINE_VERBS_CACHE",
        default: "in-use",
        kind: "text",
        doc: "Registrations of local memory that the program did not register: in-use, shared by the operations that \
              are under way; keep, also afterwards, for programs that promise never to unmap memory that they used; \
              off, one for every operation.",
    },
    ConfigDoc {
        name: "TIELINE_VERBS_CACHE_BYTES",
        default: "256m",
        kind: "size",
        doc: "The most memory that these registrations of a device hold; what does not fit is registered for its \
              operation alone.",
    },
    ConfigDoc {
        name: "TIELINE_VERBS_CACHE_ENTRIES",
        default: "1024",
        kind: "count",
        doc: "How many of these registrations there are at most.",
    },
    ConfigDoc {
        name: "TIELINE_VERBS_INLINE",
        default: "188",
        kind: "size",
        doc: "Longest message, its 16-byte header included, that the device copies when it is posted; the device may \
              allow less.",
    },
];

/// The values.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    pub(crate) devices: String,
    pub(crate) gid_index: Option<u32>,
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
    pub(crate) cm_connections: usize,
    pub(crate) cm_idle: Duration,
    /// The cache of registrations; none when it is off.
    pub(crate) cache: Option<Limits>,
    /// How long a peer may be silent: `TIELINE_FAILURE_TIMEOUT`.
    pub(crate) failure: Duration,
    /// How long connecting may take: `TIELINE_CONNECT_TIMEOUT`.
    pub(crate) connect: Duration,
    /// How long closing an interface may take: `TIELINE_CLOSE_TIMEOUT`.
    pub(crate) close: Duration,
}

impl Settings {
    /// Reads every variable from the host.
    pub(crate) fn from_host(host: &HostHandle) -> Result<Settings, Failure> {
        Settings::read(|name| host.config(name))
    }

    /// The defaults, whatever the host says.
    #[cfg(test)]
    pub(crate) fn defaults() -> Settings {
        Settings::read(|_| None).unwrap()
    }

    pub(crate) fn read(value: impl Fn(&str) -> Option<String>) -> Result<Settings, Failure> {
        let reader = Reader { value };
        let partition = reader.text("PARTITION_KEY");
        let mtu = reader.text("PATH_MTU");
        Ok(Settings {
            devices: reader.text("DEVICES"),
            gid_index: match reader.text("GID_INDEX").as_str() {
                "" | "auto" => None,
                _ => Some(reader.number("GID_INDEX", 0, 255)? as u32),
            },
            path_mtu: match mtu.as_str() {
                "" | "auto" => None,
                "256" | "512" | "1024" | "2048" | "4096" => mtu.parse().ok(),
                _ => {
                    return Err(bad("PATH_MTU", &mtu, "is not 256, 512, 1024, 2048, 4096 or auto"));
                }
            },
            traffic_class: reader.number("TRAFFIC_CLASS", 0, 255)? as u8,
            service_level: reader.number("SERVICE_LEVEL", 0, 15)? as u8,
            partition_key: if partition.is_empty() {
                None
            } else {
                let digits = partition.trim_start_matches("0x");
                let key = u16::from_str_radix(digits, 16).ok().filter(|key| key & 0x7fff != 0);
                let why = "is not a partition key such as 0x8001";
                Some(key.ok_or_else(|| bad("PARTITION_KEY", &partition, why))?)
            },
            ack_timeout: ack_exponent(reader.duration("TIELINE_VERBS_ACK_TIMEOUT", "500ms")?),
            retry_count: reader.number("RETRY_COUNT", 0, 7)? as u8,
            rnr_timer: rnr_code(reader.duration("TIELINE_VERBS_RNR_TIMER", "640us")?),
            segment: reader.number("SEGMENT_SIZE", 1 << 10, 1 << 20)?,
            window: reader.number("WINDOW", 2, 1024)?,
            max_window: reader.number("MAX_WINDOW", 0, 1024)?,
            rx_buffers: reader.number("RX_BUFFERS", 64, 1 << 15)?,
            tx_buffers: reader.number("TX_BUFFERS", 32, 1 << 15)?,
            tx_depth: reader.number("TX_DEPTH", 16, 8192)?,
            inline: reader.number("INLINE", 0, 1024)?,
            cm_connections: reader.number("CM_CONNECTIONS", 1, 4096)?,
            cm_idle: reader.duration("TIELINE_VERBS_CM_IDLE", "10s")?,
            cache: reader.cache()?,
            failure: reader.duration("TIELINE_FAILURE_TIMEOUT", "20s")?,
            connect: reader.duration("TIELINE_CONNECT_TIMEOUT", "30s")?,
            close: reader.duration("TIELINE_CLOSE_TIMEOUT", "1s")?,
        })
    }

    /// How long the device tries before it gives a connection up, as the specification means it; devices may take
    /// up to four times as long.
    pub(crate) fn retry_time(&self) -> Duration {
        let once = Duration::from_nanos(4096 << self.ack_timeout.min(31));
        once * (u32::from(self.retry_count) + 1)
    }
}

struct Reader<F> {
    value: F,
}

impl<F: Fn(&str) -> Option<String>> Reader<F> {
    /// The value of `TIELINE_VERBS_<name>`, or its default.
    fn text(&self, name: &str) -> String {
        let name = format!("TIELINE_VERBS_{name}");
        let default = VARIABLES.iter().find(|v| v.name == name).map_or("", |v| v.default);
        (self.value)(&name).map_or_else(|| default.to_string(), |text| text.trim().to_string())
    }

    fn number(&self, name: &str, low: usize, high: usize) -> Result<usize, Failure> {
        let text = self.text(name);
        match units::size(text.trim()) {
            Some(n) if (low..=high).contains(&n) => Ok(n),
            Some(_) => Err(bad(name, &text, &format!("must lie between {low} and {high}"))),
            None => Err(bad(name, &text, "is not a number such as 16, 4k or 2MiB")),
        }
    }

    fn cache(&self) -> Result<Option<Limits>, Failure> {
        let limits = Limits {
            keep: false,
            bytes: self.number("CACHE_BYTES", 0, usize::MAX >> 1)?,
            entries: self.number("CACHE_ENTRIES", 0, 1 << 20)?,
        };
        match self.text("CACHE").as_str() {
            "off" => Ok(None),
            "in-use" => Ok(Some(limits)),
            "keep" => Ok(Some(Limits { keep: true, ..limits })),
            other => Err(bad("CACHE", other, "is not in-use, keep or off")),
        }
    }

    fn duration(&self, name: &str, default: &str) -> Result<Duration, Failure> {
        let text = (self.value)(name).unwrap_or_else(|| default.to_string());
        units::time_limit(text.trim()).ok_or_else(|| {
            let text = format!("{name}={text:?} is not a duration such as 20s, 500ms or 640us");
            Failure::new(Status::Invalid, text)
        })
    }
}

fn bad(name: &str, text: &str, why: &str) -> Failure {
    Failure::new(Status::Invalid, format!("TIELINE_VERBS_{name}={text:?} {why}"))
}

/// The exponent whose timeout is at least this long: 4.096 us times a power of two.
fn ack_exponent(wanted: Duration) -> u8 {
    // 0 would mean to wait without end.
    (1..31).find(|&e| Duration::from_nanos(4096 << e) >= wanted).unwrap_or(31)
}

/// The code of the receiver-not-ready timer that is at least this long (InfiniBand specification, table 45).
fn rnr_code(wanted: Duration) -> u8 {
    const HUNDREDTHS_OF_MS: [u64; 31] = [
        1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
        2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    let at = HUNDREDTHS_OF_MS.iter().position(|&t| Duration::from_micros(t * 10) >= wanted);
    at.map_or(0, |at| at as u8 + 1) // code 0 is the longest: 655 ms
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
        for variable in VARIABLES {
            assert!(variable.name.starts_with("TIELINE_VERBS_"));
            let name = variable.name;
            let wrong = Settings::read(|n| (n == name).then(|| "?".to_string()));
            if name != "TIELINE_VERBS_DEVICES" {
                let failure = wrong.expect_err(name);
                assert!(failure.text.contains(name), "{}", failure.text);
            }
        }
    }

    #[test]
    fn timers_are_rounded_up_to_what_the_device_knows() {
        assert_eq!(ack_exponent(Duration::from_millis(67)), 14);
        assert_eq!(ack_exponent(Duration::from_secs(1)), 18);
        assert_eq!(ack_exponent(Duration::ZERO), 1);
        assert_eq!(rnr_code(Duration::from_micros(10)), 1);
        assert_eq!(rnr_code(Duration::from_millis(10)), 20);
        assert_eq!(rnr_code(Duration::from_secs(5)), 0);
    }

    #[test]
    fn a_partition_key_is_hexadecimal_and_not_zero() {
        let read = |text: &str| {
            let text = text.to_string();
            Settings::read(move |n| (n == "TIELINE_VERBS_PARTITION_KEY").then(|| text.clone()))
        };
        assert_eq!(read("0x8001").unwrap().partition_key, Some(0x8001));
        assert!(read("0x8000").is_err() && read("0").is_err() && read("12345").is_err());
    }
}
