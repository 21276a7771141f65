//! The settings of this provider: names, defaults, help texts and parsed values.

use std::fs;

use tieline_memory_file::page_size;
use tieline_plugin_api::config::Value;
use tieline_plugin_api::{ConfigDoc, Failure, Status};

/// The variables that this provider declares.
pub(crate) const VARIABLES: &[ConfigDoc] = &[
    ConfigDoc::text(
        "TIELINE_SHM_XPMEM_ACCESS",
        "copy",
        "The route to peers' memory. copy: the kernel copies, so the death of a peer is an error. direct: loads and stores, \
         with atomics and pointers, for jobs that end with any of their processes. If a peer dies during such an access, SIGBUS \
         ends this process.",
    )
    .one_of("copy|direct"),
    ConfigDoc::size(
        "TIELINE_SHM_XPMEM_CACHE",
        "4g",
        "Maximum bytes of peers' memory that this process keeps attached. The value of the first context applies.",
    )
    .between(64 << 10, u64::MAX),
    ConfigDoc::count(
        "TIELINE_SHM_XPMEM_ATTACHMENTS",
        "0",
        "Maximum number of attachments of this process, each of which is a mapping; 0: a tenth of the mappings that a process \
         may have (vm.max_map_count). The value of the first context applies.",
    ),
    ConfigDoc::size(
        "TIELINE_SHM_XPMEM_WINDOW",
        "2m",
        "Bytes of a peer's region per attachment: a power of two from 4k to 1g; no more than TIELINE_SHM_XPMEM_CACHE.",
    )
    .between(4 << 10, 1 << 30),
    ConfigDoc::text(
        "TIELINE_SHM_XPMEM_COLD",
        "decline",
        "With direct access. decline: memory that is not attached yet is left to the next lane (shm-cma) until attaching it \
         pays off. serve: it is attached immediately, which is better without shm-cma.",
    )
    .one_of("decline|serve"),
    ConfigDoc::count(
        "TIELINE_SHM_XPMEM_SEGMENTS",
        "256",
        "Maximum number of concurrent registrations of one context with a segment of their own. Through such a segment, peers \
         of the same user can attach only that registration. Further registrations share one segment of all memory.",
    ),
];

/// The means by which peers' memory is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The kernel copies.
    Copy,
    /// The processor loads and stores.
    Direct,
}

/// The parsed values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) reach: Reach,
    /// Whether cold memory is left to the next lane.
    pub(crate) declines: bool,
    pub(crate) cache: u64,
    pub(crate) attachments: u64,
    pub(crate) window: u64,
    pub(crate) segments: u64,
    /// The page size, in bytes.
    pub(crate) page: u64,
}

impl Settings {
    pub(crate) fn read(value: impl Fn(&str) -> Value) -> Result<Settings, Failure> {
        let window = value("TIELINE_SHM_XPMEM_WINDOW");
        if !window.number.is_power_of_two() {
            let why = format!("TIELINE_SHM_XPMEM_WINDOW={} is not a power of two", window.text);
            return Err(Failure::new(Status::Invalid, why));
        }
        let page = page_size();
        let attachments = match value("TIELINE_SHM_XPMEM_ATTACHMENTS").number {
            0 => tenth_of_mappings(fs::read_to_string("/proc/sys/vm/max_map_count").ok()),
            number => number,
        };
        let cache = value("TIELINE_SHM_XPMEM_CACHE").number;
        let reach = match value("TIELINE_SHM_XPMEM_ACCESS").text.as_str() {
            "direct" => Reach::Direct,
            _ => Reach::Copy,
        };
        Ok(Settings {
            reach,
            declines: value("TIELINE_SHM_XPMEM_COLD").text != "serve",
            cache,
            attachments,
            window: window_within(cache, window.number).max(page),
            segments: value("TIELINE_SHM_XPMEM_SEGMENTS").number,
            page,
        })
    }

    /// Returns the values with these variables set and defaults for the rest.
    #[cfg(test)]
    pub(crate) fn of(set: impl Fn(&str) -> Option<&'static str>) -> Result<Settings, Failure> {
        let set = |name: &str| set(name).map(str::to_string);
        Settings::read(tieline_plugin_api::config::values(VARIABLES, set)?)
    }
}

/// Limits the window to the cache's size. A larger window would be attached anew for each access.
fn window_within(cache: u64, window: u64) -> u64 {
    let largest = cache.checked_ilog2().map_or(0, |log| 1 << log);
    window.min(largest)
}

fn tenth_of_mappings(text: Option<String>) -> u64 {
    let most = text.and_then(|text| text.trim().parse().ok()).unwrap_or(65530u64);
    (most / 10).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_attachment_limit_is_a_tenth_of_the_mappings() {
        assert_eq!(tenth_of_mappings(Some("65530\n".into())), 6553);
        assert_eq!(tenth_of_mappings(Some("5".into())), 1);
        assert_eq!(tenth_of_mappings(None), 6553);
        let set = Settings::of(|name| name.ends_with("ATTACHMENTS").then_some("12")).unwrap();
        assert_eq!(set.attachments, 12);
    }

    #[test]
    fn kernel_copy_is_the_default_access() {
        let reach = |text| {
            let set = Settings::of(|name| name.ends_with("ACCESS").then_some(text));
            set.map(|settings| settings.reach)
        };
        assert_eq!(Settings::of(|_| None).unwrap().reach, Reach::Copy);
        assert_eq!((reach("Direct"), reach("copy")), (Ok(Reach::Direct), Ok(Reach::Copy)));
        assert!(reach("fast").unwrap_err().text.contains("TIELINE_SHM_XPMEM_ACCESS"));
    }

    #[test]
    fn cold_memory_is_declined_by_default() {
        let declines = |text| {
            let set = Settings::of(|name| name.ends_with("COLD").then_some(text));
            set.map(|settings| settings.declines)
        };
        assert!(Settings::of(|_| None).unwrap().declines);
        assert_eq!(declines("serve"), Ok(false));
    }

    #[test]
    fn a_window_is_no_longer_than_the_cache() {
        let set = |cache, window| {
            let value = move |name: &str| match name.rsplit('_').next() {
                Some("CACHE") => Some(cache),
                Some("WINDOW") => Some(window),
                _ => None,
            };
            Settings::of(value).unwrap().window
        };
        let page = page_size();
        assert_eq!(set("100k", "2m"), page.max(64 << 10));
        assert_eq!(set("2m", "2m"), 2 << 20);
        assert_eq!(set("3m", "1m"), 1 << 20);
        assert_eq!((window_within(u64::MAX, 1 << 30), window_within(0, 4096)), (1 << 30, 0));
    }

    #[test]
    fn a_window_is_a_power_of_two_and_no_less_than_a_page() {
        let window = |text| Settings::of(|name| name.ends_with("WINDOW").then_some(text));
        assert!(window("3m").unwrap_err().text.contains("TIELINE_SHM_XPMEM_WINDOW=3m"));
        assert!(window("2k").is_err() && window("2g").is_err());
        assert_eq!(window("4k").unwrap().window, page_size().max(4096));
        assert_eq!(window("64k").unwrap().window, page_size().max(64 << 10));
    }
}
