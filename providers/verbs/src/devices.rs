//! The kernel's description of RDMA devices: `/sys/class/infiniband` and the folders beside it, read without loading any library.

use crate::gid::{Gid, GidKind};
use std::fs;
use std::path::{Path, PathBuf};
use tieline_plugin_api::{Failure, Status};

/// The folder in which the kernel lists RDMA devices.
pub(crate) const CLASS: &str = "/sys/class/infiniband";

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortName {
    pub(crate) device: String,
    pub(crate) port: u8,
}

impl PortName {
    /// Returns the name of the port's domain: `verbs:rxe0` for port 1, `verbs:mlx5_0:2` for other ports.
    pub(crate) fn domain(&self) -> String {
        if self.port == 1 {
            format!("verbs:{}", self.device)
        } else {
            format!("verbs:{}:{}", self.device, self.port)
        }
    }

    /// Returns the operator's name for the port: `rxe0 port 1`.
    pub(crate) fn words(&self) -> String {
        format!("{} port {}", self.device, self.port)
    }

    fn folder(&self, class: &Path) -> PathBuf {
        class.join(&self.device).join("ports").join(self.port.to_string())
    }
}

/// Lists every port of every device that matches `filter` (`TIELINE_VERBS_DEVICES`), sorted by name.
///
/// # Errors
/// No port matches; the text has the reason.
pub(crate) fn list(class: &Path, filter: &str) -> Result<Vec<PortName>, Failure> {
    let none = |text: String| Failure::new(Status::NoDevice, text);
    let names = |folder: &Path| -> Vec<String> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    };
    let mut ports = Vec::new();
    for device in names(class) {
        for port in names(&class.join(&device).join("ports")) {
            if let Ok(port) = port.parse() {
                ports.push(PortName { device: device.clone(), port });
            }
        }
    }
    if ports.is_empty() {
        return Err(none(format!("no device in {}", class.display())));
    }
    ports.sort_by(|a, b| (&a.device, a.port).cmp(&(&b.device, b.port)));
    let all: Vec<String> = ports.iter().map(PortName::words).collect();
    ports.retain(|port| admits(filter, port));
    if ports.is_empty() {
        let all = all.join(", ");
        return Err(none(format!("TIELINE_VERBS_DEVICES={filter:?} lets none of {all} through")));
    }
    Ok(ports)
}

/// Returns the port with this domain name among the ports that match `filter`.
///
/// # Errors
/// No port matches.
pub(crate) fn named(class: &Path, filter: &str, domain: &str) -> Result<PortName, Failure> {
    let none = || Failure::new(Status::NoDevice, format!("there is no domain {domain:?}"));
    list(class, filter)?.into_iter().find(|port| port.domain() == domain).ok_or_else(none)
}

/// Checks whether a filter includes a port.
fn admits(filter: &str, port: &PortName) -> bool {
    let (list, excludes) = match filter.trim().strip_prefix('^') {
        Some(list) => (list, true),
        None => (filter.trim(), false),
    };
    if list.is_empty() {
        return true;
    }
    let matched = list.split(',').map(str::trim).filter(|item| !item.is_empty()).any(|item| {
        let (device, number) = match item.rsplit_once(':') {
            Some((device, number)) => (device, Some(number)),
            None => (item, None),
        };
        glob(device.as_bytes(), port.device.as_bytes())
            && number.is_none_or(|number| number.parse() == Ok(port.port))
    });
    matched != excludes
}

/// Matches `text` against a glob: `*` matches any run of characters, `?` matches one character.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern.first(), text.first()) {
        (None, None) => true,
        (Some(b'*'), _) => {
            glob(&pattern[1..], text) || (!text.is_empty() && glob(pattern, &text[1..]))
        }
        (Some(b'?'), Some(_)) => glob(&pattern[1..], &text[1..]),
        (Some(p), Some(t)) if p == t => glob(&pattern[1..], &text[1..]),
        _ => false,
    }
}

/// Returns the non-empty entries of a port's GID table.
pub(crate) fn gids(class: &Path, port: &PortName) -> Vec<Gid> {
    let folder = port.folder(class);
    let read = |what: &str, index: u32| {
        fs::read_to_string(folder.join(what).join(index.to_string())).unwrap_or_default()
    };
    let mut indices: Vec<u32> = fs::read_dir(folder.join("gids"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    indices.sort_unstable();
    let mut gids = Vec::new();
    for index in indices {
        let Some(raw) = parse_gid(read("gids", index).trim()) else { continue };
        if raw[8..] == [0; 8] {
            continue;
        }
        let kind = match read("gid_attrs/types", index).trim() {
            "RoCE v2" => GidKind::RoceV2,
            "IB/RoCE v1" => GidKind::IbOrRoceV1,
            _ => GidKind::Unknown,
        };
        let netdev = read("gid_attrs/ndevs", index).trim().to_string();
        let about = fs::read_to_string(class.with_file_name("net").join(&netdev).join("uevent"));
        let vlan = about.is_ok_and(|about| about.lines().any(|line| line == "DEVTYPE=vlan"));
        gids.push(Gid { index, raw, kind, netdev, vlan });
    }
    gids
}

/// Parses the kernel's format, eight groups of four digits: `fe80:0000:0000:0000:0202:03ff:fe04:0506`.
fn parse_gid(text: &str) -> Option<[u8; 16]> {
    let mut raw = [0; 16];
    let mut groups = text.split(':');
    for pair in raw.chunks_exact_mut(2) {
        let group = groups.next().filter(|group| group.len() == 4)?;
        pair.copy_from_slice(&u16::from_str_radix(group, 16).ok()?.to_be_bytes());
    }
    groups.next().is_none().then_some(raw)
}

/// Returns the index and value of the partition key to use: the requested partition, or else the first one. Partitions with full
/// membership take precedence, because two limited members cannot communicate. An empty table counts as one with the default
/// partition, if no other is requested.
///
/// # Errors
/// The port's table does not contain the requested partition.
pub(crate) fn partition(
    class: &Path,
    port: &PortName,
    wanted: Option<u16>,
) -> Result<(u16, u16), Failure> {
    let folder = port.folder(class).join("pkeys");
    let mut table: Vec<(u16, u16)> = fs::read_dir(&folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let index = entry.file_name().to_str()?.parse().ok()?;
            let text = fs::read_to_string(entry.path()).ok()?;
            let key = u16::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()?;
            (key & 0x7fff != 0).then_some((index, key))
        })
        .collect();
    table.sort_unstable();
    match wanted {
        None => Ok(full_first(&table).next().unwrap_or((0, 0xffff))),
        Some(wanted) => {
            // The top bit holds the membership (full or limited), not the partition.
            let same = |key: u16| (key ^ wanted) & 0x7fff == 0;
            full_first(&table).find(|&(_, key)| same(key)).ok_or_else(|| {
                let text = format!(
                    "{} has no partition key {wanted:#06x} (TIELINE_VERBS_PARTITION_KEY); it has {}",
                    port.words(),
                    table.iter().map(|(_, key)| format!("{key:#06x}")).collect::<Vec<_>>().join(", ")
                );
                Failure::new(Status::NoDevice, text)
            })
        }
    }
}

/// Orders full members (top bit set) before limited members.
fn full_first(table: &[(u16, u16)]) -> impl Iterator<Item = (u16, u16)> + '_ {
    let with = |full: bool| move |&(_, key): &(u16, u16)| (key & 0x8000 != 0) == full;
    table.iter().copied().filter(with(true)).chain(table.iter().copied().filter(with(false)))
}

/// Returns the kernel driver of the device's parent, such as `mlx5_core` or `ice`; empty if there is no parent (soft RoCE).
pub(crate) fn driver(class: &Path, device: &str) -> String {
    let link = fs::read_link(class.join(device).join("device/driver")).unwrap_or_default();
    link.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Returns the reason why this provider cannot use a device: the device speaks neither InfiniBand nor RoCE, or supports too little
/// of it. Returns `None` for a usable device.
pub(crate) fn foreign(class: &Path, device: &str) -> Option<String> {
    if driver(class, device) == "mana" {
        return Some(format!(
            "{device} is of the driver mana, which ignores inline sends and has no datagrams for programs: use tcp over its \
             network device"
        ));
    }
    let text = fs::read_to_string(class.join(device).join("node_type")).unwrap_or_default();
    let kind = text.rsplit(':').next().unwrap_or("").trim().to_string();
    match kind.as_str() {
        "" | "CA" | "switch" | "router" => None,
        "RNIC" => Some(format!(
            "{device} is an iWARP device, and verbs serves InfiniBand and RoCE only: iWARP sets up connections differently. Use \
             tcp over its network device"
        )),
        _ => Some(format!(
            "{device} is of the kind \"{kind}\", and verbs serves InfiniBand and RoCE: the provider ofi may serve it"
        )),
    }
}

/// The facts about a port that its peers know, for comparison with the kernel's current values.
pub(crate) struct Published {
    folder: PathBuf,
    words: String,
    facts: Vec<(String, &'static str, String)>,
}

impl Published {
    /// Records the current facts of a port. `lid` is `Some` on InfiniBand only.
    pub(crate) fn new(
        class: &Path,
        port: &PortName,
        lid: Option<u16>,
        gid: u32,
        partition: u16,
    ) -> Published {
        let folder = port.folder(class);
        let mut facts =
            vec![(format!("gids/{gid}"), "GID"), (format!("pkeys/{partition}"), "partition key")];
        if lid.is_some() {
            facts.push(("lid".to_string(), "LID"));
        }
        let facts = facts
            .into_iter()
            .filter_map(|(file, what)| Some((read(&folder.join(&file))?, file, what)))
            .map(|(now, file, what)| (file, what, now))
            .collect();
        Published { folder, words: port.words(), facts }
    }

    /// Describes the first fact that has changed since the record was made, if any. A fact that cannot be read, or a GID of zeros,
    /// does not count as changed.
    pub(crate) fn changed(&self) -> Option<String> {
        self.facts.iter().find_map(|(file, what, then)| {
            let now = read(&self.folder.join(file))?; // the device's own event reports its removal
            // A zero GID is temporary: the address is being renewed, or a bond is failing over.
            let away = now.chars().all(|digit| matches!(digit, '0' | ':'));
            (now != *then && !away).then(|| {
                let port = &self.words;
                format!(
                    "the {what} of {port} was {then}, is {now} now, and peers know the old one: a worker's address is fixed when \
                     the worker is created"
                )
            })
        })
    }
}

fn read(file: &Path) -> Option<String> {
    Some(fs::read_to_string(file).ok()?.trim().to_string())
}

/// Returns the folder in `/sys/class/infiniband_verbs` that exists as long as processes may open the device.
pub(crate) fn access(class: &Path, port: &PortName) -> Option<PathBuf> {
    let entries =
        fs::read_dir(class.with_file_name("infiniband_verbs")).into_iter().flatten().flatten();
    let of =
        |entry: &fs::DirEntry| fs::read_to_string(entry.path().join("ibdev")).unwrap_or_default();
    entries.into_iter().find(|entry| of(entry).trim() == port.device).map(|entry| entry.path())
}

/// Parses the port state: `4: ACTIVE` -> `ACTIVE`.
pub(crate) fn state(class: &Path, port: &PortName) -> String {
    let text = fs::read_to_string(port.folder(class).join("state")).unwrap_or_default();
    text.rsplit(':').next().unwrap_or("").trim().to_string()
}

/// Returns the link rate in bytes per second, parsed from the kernel's text `40 Gb/sec (4X QDR)`. Without a valid rate in the text,
/// the rate is that of 2.5 Gb/s.
pub(crate) fn bytes_per_second(class: &Path, port: &PortName) -> f64 {
    let text = fs::read_to_string(port.folder(class).join("rate")).unwrap_or_default();
    let gigabits: f64 = text.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(2.5);
    if gigabits.is_finite() && gigabits > 0.0 { gigabits * 1e9 / 8.0 } else { 2.5e9 / 8.0 }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A folder in the format of `/sys/class/infiniband`, which is removed on drop. For tests.
    pub(crate) struct FakeClass(pub(crate) PathBuf);

    impl FakeClass {
        pub(crate) fn new(name: &str) -> FakeClass {
            let at =
                std::env::temp_dir().join(format!("tieline-verbs-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&at);
            fs::create_dir_all(&at).unwrap();
            FakeClass(at)
        }

        pub(crate) fn file(&self, path: &str, text: &str) {
            let at = self.0.join(path);
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            fs::write(at, text).unwrap();
        }

        /// Sets the driver of a device.
        pub(crate) fn driver(&self, device: &str, name: &str) {
            let at = self.0.join(device).join("device");
            fs::create_dir_all(&at).unwrap();
            let _ = fs::remove_file(at.join("driver"));
            let driver = format!("../../../bus/pci/drivers/{name}");
            std::os::unix::fs::symlink(driver, at.join("driver")).unwrap();
        }

        pub(crate) fn gid(&self, port: &str, index: u32, gid: &str, kind: &str) {
            self.file(&format!("{port}/gids/{index}"), &format!("{gid}\n"));
            self.file(&format!("{port}/gid_attrs/types/{index}"), &format!("{kind}\n"));
            self.file(&format!("{port}/gid_attrs/ndevs/{index}"), "eth0\n");
        }
    }

    impl Drop for FakeClass {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn port(device: &str, port: u8) -> PortName {
        PortName { device: device.to_string(), port }
    }

    #[test]
    fn machine_without_rdma_is_reported_in_one_line() {
        let failure = list(Path::new("/nonexistent/infiniband"), "").unwrap_err();
        assert_eq!(failure.text, "no device in /nonexistent/infiniband");
        assert_eq!(crate::MISSING.replace(CLASS, "/nonexistent/infiniband"), failure.text);
        let class = FakeClass::new("empty");
        assert!(list(&class.0, "").unwrap_err().text.starts_with("no device in "));
    }

    #[test]
    fn every_port_is_a_domain_and_port_one_goes_without_its_number() {
        let class = FakeClass::new("ports");
        for at in ["mlx5_0/ports/1", "mlx5_0/ports/2", "rxe0/ports/1"] {
            class.file(&format!("{at}/state"), "4: ACTIVE\n");
        }
        let names: Vec<String> = list(&class.0, "").unwrap().iter().map(PortName::domain).collect();
        assert_eq!(names, ["verbs:mlx5_0", "verbs:mlx5_0:2", "verbs:rxe0"]);
        for (name, at) in names.iter().zip([port("mlx5_0", 1), port("mlx5_0", 2), port("rxe0", 1)])
        {
            assert_eq!(named(&class.0, "", name), Ok(at));
        }
        let failure = named(&class.0, "^*:2", "verbs:mlx5_0:2").unwrap_err();
        assert_eq!(failure.text, "there is no domain \"verbs:mlx5_0:2\"");
        assert_eq!(state(&class.0, &port("rxe0", 1)), "ACTIVE");
        let failure = list(&class.0, "mlx4_*").unwrap_err();
        assert!(failure.text.contains("mlx5_0 port 2"), "{}", failure.text);
    }

    #[test]
    fn the_device_filter_takes_names_globs_ports_and_a_leading_caret() {
        let (first, second, rxe) = (port("mlx5_0", 1), port("mlx5_0", 2), port("rxe0", 1));
        assert!(
            admits("", &first) && admits("mlx5_*", &second) && admits("rxe0, mlx5_0:2", &second)
        );
        assert!(!admits("mlx5_0:2", &first) && !admits("mlx5_0", &rxe) && !admits("^rxe?", &rxe));
        assert!(admits("^rxe0", &first) && !admits("^*", &rxe));
    }

    #[test]
    fn gids_are_read_with_their_kind_and_empty_ones_left_out() {
        let class = FakeClass::new("gids");
        let at = "rxe0/ports/1";
        class.gid(at, 0, "fe80:0000:0000:0000:0202:03ff:fe04:0506", "IB/RoCE v1");
        class.gid(at, 1, "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2");
        class.gid(at, 2, "0000:0000:0000:0000:0000:0000:0000:0000", "");
        let gids = gids(&class.0, &port("rxe0", 1));
        assert_eq!(gids.len(), 2);
        assert_eq!((gids[1].index, gids[1].kind), (1, GidKind::RoceV2));
        assert_eq!(gids[1].raw[12..], [10, 0, 0, 1]);
        for wrong in
            ["", "fe80", "fe80:0000:0000:0000:0202:03ff:fe04:0506:0000", "zzzz:0:0:0:0:0:0:0"]
        {
            assert_eq!(parse_gid(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_partition_key_is_found_by_its_number_without_the_membership_bit() {
        let class = FakeClass::new("pkeys");
        class.file("rxe0/ports/1/pkeys/0", "0xffff\n");
        class.file("rxe0/ports/1/pkeys/1", "0x0000\n");
        class.file("rxe0/ports/1/pkeys/2", "0x0001\n");
        class.file("rxe1/ports/1/pkeys/0", "0x8000\n");
        class.file("rxe1/ports/1/pkeys/1", "0x8002\n");
        assert_eq!(partition(&class.0, &port("rxe1", 1), None), Ok((1, 0x8002)), "no key at all");
        let port = port("rxe0", 1);
        assert_eq!(partition(&class.0, &port, None), Ok((0, 0xffff)));
        assert_eq!(partition(&class.0, &port, Some(0x8001)), Ok((2, 1)));
        let failure = partition(&class.0, &port, Some(0x8002)).unwrap_err();
        assert!(
            failure.text.contains("0x8002") && failure.text.contains("0xffff"),
            "{}",
            failure.text
        );
    }

    #[test]
    fn the_entry_that_vanishes_with_the_device_is_found_beside_the_class() {
        let folder = FakeClass::new("access");
        folder.file("infiniband/rxe0/ports/1/state", "4: ACTIVE\n");
        folder.file("infiniband_verbs/abi_version", "6\n");
        folder.file("infiniband_verbs/uverbs3/ibdev", "rxe0\n");
        let class = folder.0.join("infiniband");
        let found = access(&class, &port("rxe0", 1)).unwrap();
        assert!(found.ends_with("infiniband_verbs/uverbs3"));
        assert_eq!(access(&class, &port("rxe1", 1)), None);
    }

    #[test]
    fn the_rate_is_read_as_bytes_per_second() {
        let class = FakeClass::new("rate");
        class.file("rxe0/ports/1/rate", "40 Gb/sec (4X QDR)\n");
        assert_eq!(bytes_per_second(&class.0, &port("rxe0", 1)), 5e9);
        for none in ["0 Gb/sec", "-40 Gb/sec", "inf", "NaN", "no number", ""] {
            class.file("rxe1/ports/1/rate", none);
            assert_eq!(bytes_per_second(&class.0, &port("rxe1", 1)), 2.5e9 / 8.0, "{none:?}");
        }
        assert_eq!(bytes_per_second(&class.0, &port("rxe2", 1)), 2.5e9 / 8.0, "no file");
    }

    #[test]
    fn ports_and_tables_are_sorted_by_number() {
        let class = FakeClass::new("order");
        for n in [3, 10, 0, 11, 7, 1, 9, 4, 8, 2, 6, 5] {
            class.file(&format!("b/ports/{}/state", n + 1), "4: ACTIVE\n");
            class.file(&format!("a/ports/{}/state", n + 1), "4: ACTIVE\n");
            let gid = format!("fe80:0000:0000:0000:0000:0000:0000:{:04x}", n + 1);
            class.gid("a/ports/1", n, &gid, "RoCE v2");
            class.file(&format!("a/ports/1/pkeys/{n}"), &format!("{:#06x}\n", 0x8100 + n));
        }
        let all = ["a", "b"].map(|device| (1..=12).map(move |number| port(device, number)));
        assert_eq!(list(&class.0, ""), Ok(all.into_iter().flatten().collect()));
        let indices: Vec<u32> = gids(&class.0, &port("a", 1)).iter().map(|gid| gid.index).collect();
        assert_eq!(indices, (0..12).collect::<Vec<_>>());
        assert_eq!(partition(&class.0, &port("a", 1), None), Ok((0, 0x8100)));
    }

    #[test]
    fn full_partition_is_preferred_and_missing_one_reports_the_table() {
        let class = FakeClass::new("members");
        for (index, key) in [(0, "0x7fff"), (1, "0x0001"), (2, "0x8001"), (3, "0x8003")] {
            class.file(&format!("rxe0/ports/1/pkeys/{index}"), key);
        }
        let of = |wanted| partition(&class.0, &port("rxe0", 1), wanted);
        assert_eq!((of(None), of(Some(1))), (Ok((2, 0x8001)), Ok((2, 0x8001))));
        assert_eq!((of(Some(0xffff)), of(Some(3))), (Ok((0, 0x7fff)), Ok((3, 0x8003))));
        let words = "rxe0 port 1 has no partition key 0x8002 (TIELINE_VERBS_PARTITION_KEY); it has \
                     0x7fff, 0x0001, 0x8001, 0x8003";
        assert_eq!(of(Some(0x8002)), Err(Failure::new(Status::NoDevice, words)));
    }

    #[test]
    fn a_glob_takes_the_whole_name() {
        for (pattern, fits, does_not) in [
            ("", &[""][..], &["a"][..]),
            ("*", &["", "a", "ab"], &[]),
            ("a*b", &["ab", "axb", "abxb"], &["ac", "a", "abx", "b"]),
            ("*a*", &["a", "bab"], &["", "b"]),
            ("a?c", &["abc"], &["ac", "abbc"]),
            ("?", &["a"], &["", "ab"]),
        ] {
            let taken = |text: &&str| glob(pattern.as_bytes(), text.as_bytes());
            assert!(fits.iter().all(&taken), "{pattern}");
            assert!(!does_not.iter().any(taken), "{pattern}");
        }
    }

    #[test]
    fn a_gid_names_its_network_device_and_whether_that_is_a_vlan() {
        let folder = FakeClass::new("vlans");
        let class = folder.0.join("infiniband");
        let at = "infiniband/rxe0/ports/1";
        for index in 0..3 {
            let gid = format!("0000:0000:0000:0000:0000:ffff:0a00:000{index}");
            folder.gid(at, index, &gid, "RoCE v2");
            folder.file(&format!("{at}/gid_attrs/ndevs/{index}"), &format!("eth{index}\n"));
        }
        folder.file("net/eth0/uevent", "INTERFACE=eth0\nIFINDEX=2\n");
        folder.file("net/eth1/uevent", "DEVTYPE=vlan\nINTERFACE=eth1\n");
        let read = gids(&class, &port("rxe0", 1));
        let vlans: Vec<(&str, bool)> = read.iter().map(|g| (g.netdev.as_str(), g.vlan)).collect();
        assert_eq!(vlans, [("eth0", false), ("eth1", true), ("eth2", false)]);
    }

    #[test]
    fn changed_address_is_reported_unless_it_is_only_absent() {
        let class = FakeClass::new("published");
        let at = "rxe0/ports/1";
        let first = [("gids/3", "fe80:0::1\n"), ("pkeys/2", "0x8001\n"), ("lid", "0x4\n")];
        let reset = || first.map(|(file, text)| class.file(&format!("{at}/{file}"), text));
        reset();
        let known = |lid| Published::new(&class.0, &port("rxe0", 1), lid, 3, 2);
        let (ethernet, infiniband) = (known(None), known(Some(4)));
        let say = |what, then, now| {
            format!(
                "the {what} of rxe0 port 1 was {then}, is {now} now, and peers know the old one: \
                 a worker's address is fixed when the worker is created"
            )
        };
        for (file, text, on_ethernet, on_infiniband) in [
            ("gids/3", "fe80:0::1", None, None),
            ("gids/3", "0000:0000:0000", None, None),
            ("gids/3", "fe80:0::2", Some(say("GID", "fe80:0::1", "fe80:0::2")), None),
            ("gids/4", "fe80:0::2", None, None),
            ("pkeys/2", "0x1", Some(say("partition key", "0x8001", "0x1")), None),
            ("lid", "0x5", None, Some(say("LID", "0x4", "0x5"))),
        ] {
            reset();
            class.file(&format!("{at}/{file}"), text);
            assert_eq!(ethernet.changed(), on_ethernet, "{file} {text}");
            assert_eq!(infiniband.changed(), on_infiniband.or(on_ethernet), "{file} {text}");
        }
        fs::remove_dir_all(class.0.join(at)).unwrap();
        assert_eq!(infiniband.changed(), None, "a removed device reports its own event");
    }
}
