//! The settings: names, defaults, a one-sentence description each, and the parsed values.

use crate::abi::{API, version};
use core::time::Duration;
use std::ffi::OsString;
use tieline_net::Filter;
use tieline_plugin_api::config::{Value, shared};
use tieline_plugin_api::{ConfigDoc, Failure, HostHandle, Status, raised_rights};

const PROVIDERS: &str = "TIELINE_OFI_PROVIDERS";
const LIBRARY: &str = "TIELINE_OFI_LIBRARY";
const API_ASKED: &str = "TIELINE_OFI_API";
const INTERFACES: &str = "TIELINE_OFI_INTERFACES";
const FORMAT: &str = "TIELINE_OFI_ADDRESS_FORMAT";
const PROGRESS: &str = "TIELINE_OFI_PROGRESS";
const WINDOW: &str = "TIELINE_OFI_WINDOW";
const EAGER: &str = "TIELINE_OFI_EAGER";
const RECEIVE: &str = "TIELINE_OFI_RECEIVE";
const QUEUE: &str = "TIELINE_OFI_QUEUE";
const WATCH: &str = "TIELINE_OFI_WATCH";
const TRUST: &str = "TIELINE_OFI_TRUST";
/// A variable of the core, which this provider reads to find out whether the variable names it.
const SELECTION: &str = "TIELINE_PROVIDERS";

/// The longest message that any interface may be configured to send.
pub(crate) const MOST_EAGER: usize = 8 << 10;

/// The smallest window, in bytes in flight to one peer, that any interface may be configured with.
pub(crate) const LEAST_WINDOW: usize = 16 << 10;
// The window has room for two of the longest messages without their heads.
const _: () = assert!(LEAST_WINDOW >= 2 * MOST_EAGER);

/// Every variable that this provider reads: its own and some of the core's.
pub(crate) const VARIABLES: &[ConfigDoc] = &[
    ConfigDoc::list(
        PROVIDERS,
        "^tcp,sockets,verbs,usnic",
        "Providers of libfabric to use, by the first part of their names (tcp is tcp;ofi_rxm too) or the whole (tcp;ofi_rxm); a \
         leading ^ lists those to leave out. Setting it asks for libfabric.",
    ),
    ConfigDoc::text(
        LIBRARY,
        "libfabric.so.1",
        "The file of libfabric that is loaded, 1.17 or newer; with raised rights only the default.",
    ),
    ConfigDoc::text(
        API_ASKED,
        "1.17",
        "The version of libfabric's interface to request, from 1.17 to the library's own. Some providers enable features \
         only if a newer version is requested.",
    ),
    ConfigDoc::list(
        INTERFACES,
        "",
        "Domains of libfabric to use: names, globs and subnets (eth0, cxi*, 10.0.0.0/8), or those to leave out behind a \
         leading ^; empty: all but lo, docker*, virbr* and link-local addresses.",
    ),
    ConfigDoc::text(
        FORMAT,
        "any",
        "The address to use if a device has several; any is IPv4 before IPv6.",
    )
    .one_of("any|ipv4|ipv6"),
    ConfigDoc::text(
        PROGRESS,
        "provider",
        "The progress mode to request, if the provider supports a choice: auto moves data between polls, manual only in polls.",
    )
    .one_of("provider|auto|manual"),
    ConfigDoc::size(WINDOW, "256k", "The most bytes of messages in flight to one peer.")
        .between(LEAST_WINDOW as u64, 256 << 20),
    ConfigDoc::size(EAGER, "8k", "The longest message, 8k at most.")
        .between(1 << 10, MOST_EAGER as u64),
    ConfigDoc::size(RECEIVE, "512k", "Receive buffers of one interface.")
        .between(64 << 10, 1 << 30),
    ConfigDoc::count(
        QUEUE,
        "256",
        "Messages, and puts and gets, that one interface has posted at once.",
    )
    .between(16, 65536),
    ConfigDoc::list(
        TRUST,
        "",
        "Claims of libfabric's providers that are trusted without a trial. delivery: a put that completes is in memory. atomics: \
         they work, and are atomic towards each other over all interfaces. Trusting atomics also requests them of providers that \
         are otherwise not used for them.",
    ),
    ConfigDoc::flag(
        WATCH,
        "on",
        "Keep an idle TCP connection with each process that messages go to or come from, to detect its death. off: the death of \
         a peer to which nothing is in flight is not detected. Both sides need the same value.",
    ),
    ConfigDoc::list(SELECTION, "", "The core's."),
    shared::SECRET,
    shared::TCP_INTERFACES,
    shared::TCP_PORTS,
    shared::CONNECT_TIMEOUT,
    shared::CLOSE_TIMEOUT,
    shared::FAILURE_TIMEOUT,
];

/// The family of IP addresses that is used; addresses of another kind are always used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Any,
    Ipv4,
    Ipv6,
}

/// The parsed values.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) providers: String,
    /// Whether a setting asks for libfabric explicitly.
    pub(crate) asked_for: bool,
    pub(crate) library: String,
    /// The `FI_VERSION(...)` to request of libfabric.
    pub(crate) api: u32,
    pub(crate) trust: String,
    pub(crate) interfaces: Filter,
    pub(crate) format: Format,
    /// The progress mode, `FI_PROGRESS_...`; 0 leaves the choice to the provider.
    pub(crate) progress: i32,
    pub(crate) window: usize,
    pub(crate) eager: usize,
    pub(crate) receive: usize,
    pub(crate) queue: usize,
    pub(crate) connect_timeout: Duration,
    pub(crate) close_timeout: Duration,
    pub(crate) failure_timeout: Duration,
    /// The settings of the watch on peers' processes; `None` if they are not watched.
    pub(crate) watch: Option<crate::watch::Settings>,
}

/// Returns the settings of the watch on peers' processes.
fn watch(value: &impl Fn(&str) -> Value) -> Result<Option<crate::watch::Settings>, Failure> {
    if !value(WATCH).is_yes() {
        return Ok(None);
    }
    let text = |name: &str| value(name).text;
    let refuse = |name: &str, why: &str| {
        Failure::new(Status::Invalid, format!("{name}={:?} {why}", text(name)))
    };
    Ok(Some(crate::watch::Settings {
        net: tieline_net::Settings::read(text, refuse)?,
        silence: value(shared::FAILURE_TIMEOUT.name).duration(),
        connect_timeout: value(shared::CONNECT_TIMEOUT.name).duration(),
    }))
}

impl Settings {
    pub(crate) fn from_host(host: &HostHandle) -> Result<Settings, Failure> {
        Settings::read(|name| host.config(name))
    }

    fn read(value: impl Fn(&str) -> Value) -> Result<Settings, Failure> {
        let text = |name: &str| value(name).text;
        let library = value(LIBRARY);
        if raised_rights() && !library.is_default {
            let text = format!(
                "{LIBRARY} ({}) names a file to load, and this process runs with raised rights",
                library.origin
            );
            return Err(Failure::new(Status::Permission, text));
        }
        let asked_for =
            names_us(&text(SELECTION)) || !library.is_default || !value(PROVIDERS).is_default;
        let interfaces = Filter::parse(&text(INTERFACES)).map_err(|why| {
            let text = format!("{INTERFACES}={:?} {why}", text(INTERFACES));
            Failure::new(Status::Invalid, text)
        })?;
        let api = asked_version(&text(API_ASKED)).map_err(|why| {
            let text = format!("{API_ASKED}={:?} {why}", text(API_ASKED));
            Failure::new(Status::Invalid, text)
        })?;
        is_selection(&text(PROVIDERS)).map_err(|why| {
            let text = format!("{PROVIDERS}={:?} {why}", text(PROVIDERS));
            Failure::new(Status::Invalid, text)
        })?;
        are_claims(&text(TRUST)).map_err(|why| {
            let text = format!("{TRUST}={:?} {why}", text(TRUST));
            Failure::new(Status::Invalid, text)
        })?;
        let (window, eager) = (value(WINDOW).size(), value(EAGER).size());
        Ok(Settings {
            providers: text(PROVIDERS),
            asked_for,
            library: library.text,
            api,
            trust: text(TRUST),
            interfaces,
            format: match value(FORMAT).word {
                2 => Format::Ipv4,
                3 => Format::Ipv6,
                _ => Format::Any,
            },
            progress: match value(PROGRESS).word {
                2 => crate::abi::FI_PROGRESS_AUTO,
                3 => crate::abi::FI_PROGRESS_MANUAL,
                _ => 0,
            },
            window,
            eager,
            receive: value(RECEIVE).size(),
            queue: value(QUEUE).size(),
            connect_timeout: value(shared::CONNECT_TIMEOUT.name).duration(),
            close_timeout: value(shared::CLOSE_TIMEOUT.name).duration(),
            failure_timeout: value(shared::FAILURE_TIMEOUT.name).duration(),
            watch: watch(&value)?,
        })
    }
}

impl Settings {
    /// Checks whether the settings trust the claim of this name without a trial.
    pub(crate) fn trusts(&self, claim: &str) -> bool {
        self.trust.split(',').any(|listed| listed.trim() == claim)
    }
}

/// The claims that can be trusted.
const CLAIMS: [&str; 2] = ["delivery", "atomics"];

/// Checks that a list names only known claims: with a misspelt claim, the trial would run in spite of the setting.
fn are_claims(list: &str) -> Result<(), String> {
    let mut listed = list.split(',').map(str::trim).filter(|claim| !claim.is_empty());
    match listed.find(|claim| !CLAIMS.contains(claim)) {
        None => Ok(()),
        Some(other) => {
            Err(format!("names {other:?}: {} are what can be believed", CLAIMS.join(", ")))
        }
    }
}

/// Checks that a list of providers either only selects or only excludes.
fn is_selection(list: &str) -> Result<(), String> {
    let rest = list.trim().trim_start_matches('^');
    match rest.contains('^') || list.trim().starts_with("^^") {
        false => Ok(()),
        true => {
            Err("has a ^ that is not at its beginning, where it leaves out all that is listed"
                .into())
        }
    }
}

/// Lists libfabric's own variables that are set (`FI_*`), because they may change what libfabric offers.
pub(crate) fn librarys_own(set: impl Iterator<Item = (OsString, OsString)>) -> Option<String> {
    let shown = |(name, value): (OsString, OsString)| {
        let name = name.into_string().ok().filter(|name| name.starts_with("FI_"))?;
        let value = value.to_string_lossy();
        let value: String = value.chars().filter(|c| !c.is_control()).take(64).collect();
        Some(format!("{name}={value}"))
    };
    let mut all: Vec<String> = set.filter_map(shown).collect();
    all.sort_unstable();
    (!all.is_empty()).then(|| all.join(", "))
}

/// Returns the harm that a libfabric provider may do to this process under its settings, and the countermeasure.
pub(crate) fn dangers(provider: &str, shared_receives: Option<OsString>) -> Option<String> {
    let on = |value: &OsString| {
        ["1", "y", "yes", "true", "on"].iter().any(|on| value.eq_ignore_ascii_case(on))
    };
    // Over `tcp`, connections share their receives by default.
    let is_safe = !provider.ends_with(";ofi_rxm")
        || provider.starts_with("tcp")
        || shared_receives.as_ref().is_some_and(on);
    let words = "ofi_rxm may end the process where a message comes as an interface closes (libfabric's issue 11828); set \
                 FI_OFI_RXM_USE_SRX=1";
    (!is_safe).then(|| words.to_owned())
}

/// Parses a version in the form that operators write.
fn asked_version(text: &str) -> Result<u32, String> {
    let number = |digits: &str| {
        let digits = Some(digits).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        digits.and_then(|digits| digits.parse::<u16>().ok()).map(u32::from)
    };
    let parts = text.trim().split_once('.');
    let parts = parts.and_then(|(major, minor)| Some((number(major)?, number(minor)?)));
    match parts.map(|(major, minor)| version(major, minor)) {
        Some(asked) if asked >= API => Ok(asked),
        Some(_) => Err(format!("is older than {}, which is needed", shown(API))),
        None => Err("is no version, such as 1.17".into()),
    }
}

/// Returns a version in printable form.
pub(crate) fn shown(version: u32) -> String {
    format!("{}.{}", version >> 16, version & 0xffff)
}

/// Checks whether a selection of providers names `ofi` literally. A glob that matches `ofi` does not ask for a costly load.
fn names_us(selection: &str) -> bool {
    let selection = selection.trim();
    if selection.starts_with('^') {
        return false;
    }
    let listed = selection.strip_prefix("required:").unwrap_or(selection);
    listed.split(',').any(|name| name.split('@').next().unwrap_or("").trim() == "ofi")
}

/// Checks whether a list admits a libfabric provider. The list holds names and globs; a leading `^` excludes those listed. A name
/// matches the first part of the provider's name or the full name, such as `tcp;ofi_rxm`.
pub(crate) fn admits(list: &str, provider: &str) -> bool {
    let list = list.trim();
    let (listed, others) = match list.strip_prefix('^') {
        Some(rest) => (rest, true),
        None => (list, list.is_empty()),
    };
    let first = crate::offers::core_name(provider);
    let mut patterns = listed.split(',').map(str::trim).filter(|pattern| !pattern.is_empty());
    let found = patterns.any(|pattern| fits(pattern, first) || fits(pattern, provider));
    found != others || (list.is_empty() && !found)
}

/// Checks whether a name matches a pattern with `*` and `?`.
fn fits(pattern: &str, name: &str) -> bool {
    match (pattern.chars().next(), name.chars().next()) {
        (None, None) => true,
        (Some('*'), _) => {
            let rest = &pattern[1..];
            (0..=name.len())
                .filter(|&at| name.is_char_boundary(at))
                .any(|at| fits(rest, &name[at..]))
        }
        (Some('?'), Some(c)) => fits(&pattern[1..], &name[c.len_utf8()..]),
        (Some(p), Some(c)) if p == c => fits(&pattern[p.len_utf8()..], &name[c.len_utf8()..]),
        _ => false,
    }
}

#[cfg(test)]
impl Settings {
    /// Returns settings for tests, which admit all devices.
    pub(crate) fn test_defaults() -> Settings {
        Settings {
            providers: String::new(),
            asked_for: true,
            library: String::new(),
            api: API,
            trust: String::new(),
            interfaces: Filter::parse("*").unwrap(),
            format: Format::Any,
            progress: 0,
            window: 64 << 10,
            eager: 8 << 10,
            receive: 256 << 10,
            queue: 64,
            connect_timeout: Duration::from_secs(30),
            close_timeout: Duration::from_millis(50),
            failure_timeout: Duration::from_secs(20),
            watch: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_selection_that_names_this_provider_asks_for_it() {
        for named in ["ofi", "shm, ofi", "required:ofi,tcp", "ofi@^0.1"] {
            assert!(names_us(named), "{named}");
        }
        for other in ["", "*", "^ofi", "^shm", "tcp", "of*", "ofi-other"] {
            assert!(!names_us(other), "{other}");
        }
    }

    #[test]
    fn a_slip_in_a_list_is_refused_and_says_what_is_meant_by_it() {
        for list in ["", "delivery", "atomics, delivery", ",delivery,"] {
            assert_eq!(are_claims(list), Ok(()), "{list:?}");
        }
        for list in ["delivry", "delivery;atomics", "progress,atomics", "^delivery"] {
            assert!(are_claims(list).unwrap_err().contains("delivery, atomics"), "{list:?}");
        }
        for list in ["", "tcp", " ^tcp,verbs", "*;ofi_rxm", "^"] {
            assert_eq!(is_selection(list), Ok(()), "{list:?}");
        }
        for list in ["tcp,^verbs", "^tcp,^verbs", "^^tcp"] {
            assert!(is_selection(list).unwrap_err().contains("not at its beginning"), "{list:?}");
        }
    }

    #[test]
    fn library_variables_are_listed_in_order_on_one_line() {
        let set = |all: &[(&str, &str)]| {
            librarys_own(all.iter().map(|(name, value)| ((*name).into(), (*value).into())))
        };
        assert_eq!(set(&[("HOME", "/"), ("TIELINE_OFI_API", "2.0"), ("XFI_A", "1")]), None);
        let told = set(&[("FI_PROVIDER", "tcp"), ("A", "b"), ("FI_LOG_LEVEL", "a\nb")]);
        assert_eq!(told.as_deref(), Some("FI_LOG_LEVEL=ab, FI_PROVIDER=tcp"));
        assert_eq!(set(&[("FI_A", &"x".repeat(1000))]).unwrap().len(), 5 + 64);
    }

    #[test]
    fn a_version_is_two_numbers_from_the_oldest_on_that_is_known() {
        for (text, asked) in [("1.17", (1, 17)), (" 2.0 ", (2, 0)), ("1.65535", (1, 65535))] {
            assert_eq!(asked_version(text), Ok(version(asked.0, asked.1)), "{text}");
        }
        assert_eq!(shown(version(2, 5)), "2.5");
        for old in ["1.16", "0.99", "1.0"] {
            assert!(asked_version(old).unwrap_err().contains("older than 1.17"), "{old}");
        }
        for none in ["", "2", "2.", ".5", "2.x", "1.17.0", "+1.17", "1.-17", "1.65536", "65536.0"] {
            assert!(asked_version(none).unwrap_err().contains("no version"), "{none:?}");
        }
    }

    #[test]
    fn layer_without_shared_receives_gets_advice() {
        let words = |provider, set: Option<&str>| super::dangers(provider, set.map(Into::into));
        let told = words("verbs;ofi_rxm", None).unwrap();
        assert!(told.contains("FI_OFI_RXM_USE_SRX=1"), "{told}");
        assert!(words("verbs;ofi_rxm", Some("0")).is_some());
        for set in ["1", "Yes", "true", "on"] {
            assert_eq!(words("verbs;ofi_rxm", Some(set)), None, "{set}");
        }
        for provider in ["tcp;ofi_rxm", "tcp", "cxi", "sockets"] {
            assert_eq!(words(provider, None), None, "{provider}");
        }
    }

    #[test]
    fn a_list_takes_names_globs_and_a_leading_caret() {
        assert!(admits("", "tcp") && admits("tcp", "tcp") && admits("efa,cx*", "cxi"));
        assert!(!admits("tcp", "cxi") && !admits("^tcp,sock*", "sockets") && admits("^tcp", "cxi"));
        assert!(admits("", "") && admits("^", "tcp") && !admits("efa,,cxi", ""));
        assert!(admits("eth?", "eth0") && !admits("eth?", "eth10"));
        // A provider with a layer has its own full name, and also matches by the first part of its name.
        assert!(admits("tcp", "tcp;ofi_rxm") && !admits("^tcp", "tcp;ofi_rxm"));
        assert!(admits("tcp;ofi_rxm", "tcp;ofi_rxm") && !admits("tcp;ofi_rxm", "tcp"));
        assert!(!admits("^tcp;ofi_rxm", "tcp;ofi_rxm") && admits("^tcp;ofi_rxm", "tcp"));
        assert!(admits("*;ofi_rxm", "verbs;ofi_rxm") && !admits("*;ofi_rxm", "efa"));
    }

    fn read(set: &[(&str, &str)]) -> Result<Settings, Failure> {
        let set = |name: &str| {
            set.iter().find(|(of, _)| *of == name).map(|(_, value)| (*value).to_string())
        };
        Settings::read(tieline_plugin_api::config::values(VARIABLES, set)?)
    }

    #[test]
    fn libfabric_is_asked_for_by_whatever_names_it_and_by_nothing_else() {
        assert!(!read(&[]).unwrap().asked_for);
        for set in [(SELECTION, "ofi"), (LIBRARY, "libfabric.so.1"), (PROVIDERS, "cxi")] {
            assert!(read(&[set]).unwrap().asked_for, "{set:?}");
        }
        for set in [(SELECTION, "^ofi"), (EAGER, "4k"), (API_ASKED, "2.0"), (TRUST, "delivery")] {
            assert!(!read(&[set]).unwrap().asked_for, "{set:?}");
        }
    }

    #[test]
    fn set_values_are_used_and_invalid_values_are_named() {
        let defaults = read(&[]).unwrap();
        assert_eq!((defaults.format, defaults.progress), (Format::Any, 0));
        assert_eq!((defaults.window, defaults.eager), (256 << 10, 8 << 10));
        assert_eq!((defaults.receive, defaults.queue), (512 << 10, 256));
        assert!(!defaults.trusts("delivery") && !defaults.trusts("atomics"));
        let watch = defaults.watch.unwrap();
        assert_eq!(
            (watch.silence, watch.connect_timeout.as_secs()),
            (defaults.failure_timeout, 30)
        );
        assert!(read(&[(WATCH, "off")]).unwrap().watch.is_none());
        for (word, format) in [("any", Format::Any), ("ipv4", Format::Ipv4), ("ipv6", Format::Ipv6)]
        {
            assert_eq!(read(&[(FORMAT, word)]).unwrap().format, format);
        }
        use crate::abi::{FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL};
        for (word, progress) in
            [("provider", 0), ("auto", FI_PROGRESS_AUTO), ("manual", FI_PROGRESS_MANUAL)]
        {
            assert_eq!(read(&[(PROGRESS, word)]).unwrap().progress, progress);
        }
        let trusting = read(&[(TRUST, "atomics, delivery")]).unwrap();
        assert!(trusting.trusts("delivery") && trusting.trusts("atomics"));
        for (name, wrong) in [
            (API_ASKED, "1.16"),
            (PROVIDERS, "tcp,^verbs"),
            (TRUST, "delivry"),
            (shared::TCP_PORTS.name, "7-3"),
        ] {
            let refused = read(&[(name, wrong)]).unwrap_err();
            assert_eq!(refused.status, Status::Invalid);
            assert!(refused.text.starts_with(&format!("{name}={wrong:?} ")), "{}", refused.text);
        }
    }
}
