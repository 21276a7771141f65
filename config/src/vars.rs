//! The core's variables: one table that the code, `tieline config` and `docs/configuration.md` read.

use super::nearest::distance;
use super::units::Kind;

/// A variable of the core.
#[derive(Clone, Copy, Debug)]
pub struct CoreVar {
    /// The name of the variable. A name that ends in `_` is a prefix and includes every name that begins with it.
    pub name: &'static str,
    /// The value if the variable is not set; empty if there is no default.
    pub default: &'static str,
    /// The kind of the accepted values.
    pub kind: Kind<'static>,
    /// The description of the variable's effect.
    pub doc: &'static str,
}

macro_rules! core_vars {
    ($( $constant:ident = $name:literal, $default:literal, $kind:expr, $doc:literal; )*) => {
        $( #[doc = $doc]
        #[allow(dead_code)] // the crate `host`, which does not know this table, reads some by their text
        pub const $constant: &str = $name; )*
        /// Every variable of the core, in the order of the documentation.
        pub const CORE: &[CoreVar] = &[
            $( CoreVar { name: $name, default: $default, kind: $kind, doc: $doc }, )*
        ];
    };
}

core_vars! {
    PROVIDERS = "TIELINE_PROVIDERS", "", Kind::Selection,
        "Providers to use, in order of preference, or with a leading ^ the ones to leave out; empty: all. A connector that they need is used even if the list does not name it: tcp brings tcp-connect, unless TIELINE_CONNECT=^tcp-connect excludes it.";
    DOMAINS = "TIELINE_DOMAINS", "", Kind::Selection,
        "Memory domains that may carry data; the same grammar.";
    MODULES = "TIELINE_MODULES", "", Kind::Selection,
        "Modules that may carry data, written domain/module; the same grammar.";
    CONNECT = "TIELINE_CONNECT", "tcp-connect,oob,rdmacm", Kind::Selection,
        "Modules that may form connections for modules that cannot do it themselves, in order of preference.";
    CONNECT_OF = "TIELINE_CONNECT_", "", Kind::Selection,
        "Replaces TIELINE_CONNECT for the domains of one provider (TIELINE_CONNECT_VERBS) or for one domain (TIELINE_CONNECT_VERBS_MLX5_0); ^*: none.";
    CONNECT_POLICY = "TIELINE_CONNECT_POLICY", "fallback", Kind::one_of("fallback|prefer"),
        "fallback: a module of the same domain forms connections, and TIELINE_CONNECT is for domains without one; prefer: TIELINE_CONNECT comes first.";
    PRIORITY = "TIELINE_PRIORITY_", "", Kind::Integer,
        "Replaces the priority of a provider (TIELINE_PRIORITY_SHM) or of one of its modules (TIELINE_PRIORITY_VERBS_RC); negative: not used.";
    PROVIDER_PATH = "TIELINE_PROVIDER_PATH", "", Kind::Path,
        "Directories that are searched for providers before the usual ones. A value from the environment is ignored under raised rights.";
    PROBE = "TIELINE_PROBE", "on", Kind::one_of("on|off|nocache"),
        "Probe a provider from outside the system directory in a child process first; nocache: without the cache of earlier results.";
    SELFTEST = "TIELINE_SELFTEST", "off", Kind::BOOL,
        "Test each module's put, get, atomics and key checks once through its own interface before it is used.";
    STRICT = "TIELINE_STRICT", "off", Kind::BOOL,
        "Treat an unknown TIELINE_ name as an error instead of a warning.";
    CONFIG = "TIELINE_CONFIG", "", Kind::TEXT,
        "A file of settings, at most 1 MiB, that overrides the system's and the user's. A value from the environment is ignored under raised rights.";
    LOG = "TIELINE_LOG", "warn", Kind::one_of("off|error|warn|info|debug"),
        "Least severity of the lines that are collected for the report. The library prints them only if TIELINE_REPORT is set.";
    REPORT = "TIELINE_REPORT", "", Kind::TEXT,
        "Destination of the report, which is written line by line: stderr, or a file's path, in which %p stands for the process's number and %h for its host's name. The report has what a context found and chose, the lanes to each peer at its first use with the reason why there are no better ones, and failures. Empty: no report, since a library prints nothing by itself. A file from the environment is ignored under raised rights.";
    LIVE = "TIELINE_LIVE", "on", Kind::BOOL,
        "Publish the state of this process's workers for `tieline info --pid`, in a memory file that the same user and root can read. It costs one descriptor, and 8 to 64 KiB for each worker.";
    PROGRESS_THREAD = "TIELINE_PROGRESS_THREAD", "off", Kind::BOOL,
        "Run one thread that serves peers' accesses to this context's memory while the program computes; it sleeps when idle.";
    POLLS_OFTEN = "TIELINE_POLLS_OFTEN", "off", Kind::BOOL,
        "Promise peers that every worker of this context makes progress continuously. Peers then use messages for small puts and gets if these are faster than the module that reaches the memory, and wait for this side's progress. With a progress thread the promise is not sent.";
    QUEUE_BYTES = "TIELINE_QUEUE_BYTES", "256k", Kind::SIZE,
        "Most bytes of operations that are queued per endpoint before a call returns `again`.";
    ANNOUNCED = "TIELINE_ANNOUNCED", "262144", Kind::COUNT,
        "Most rendezvous messages that a worker keeps until they are received, of all peers together. A peer has at most 65536 of them, and may always have 64. Further ones are refused: at their sender the operation ends as refused, with the status UNSUPPORTED.";
    ANNOUNCED_BYTES = "TIELINE_ANNOUNCED_BYTES", "128m", Kind::SIZE,
        "Most bytes of the keys of these messages, of all peers together. A peer has at most 32m of them, and may always have 64k.";
    ATOMICS = "TIELINE_ATOMICS", "cpu", Kind::one_of("cpu|device"),
        "The executor of atomics on this process's memory. cpu: processors, over shared memory or by messages. device: a network adapter with atomics, for every peer including local ones, because the two cannot be mixed.";
    CONNECT_TIMEOUT = "TIELINE_CONNECT_TIMEOUT", "30s", Kind::DURATION,
        "Time limit for forming one connection. Operations that wait for it fail then.";
    FAILURE_TIMEOUT = "TIELINE_FAILURE_TIMEOUT", "20s", Kind::DURATION,
        "Longest silence of a peer, or of the connection to it, before operations on it fail.";
    CLOSE_TIMEOUT = "TIELINE_CLOSE_TIMEOUT", "1s", Kind::DURATION,
        "Longest time that each interface of a dropped worker may take to deliver sent data that peers have not taken yet.";
    SECRET = "TIELINE_SECRET", "", Kind::TEXT,
        "The job's secret: a process that connects over TCP must prove that it knows it. Never shown.";
    SECRET_FILE = "TIELINE_SECRET_FILE", "", Kind::TEXT,
        "A file that holds the secret, used if TIELINE_SECRET is not set. If it belongs to the user, others must have no access (mode 600); if it belongs to root, others must not be able to write it. It has at most 64 KiB; blanks around the secret do not count. A value from the environment is ignored under raised rights.";
    TCP_INTERFACES = "TIELINE_TCP_INTERFACES", "", Kind::LIST,
        "Interfaces that connections over TCP may use: names, globs and subnets such as eth0,10.0.0.0/8, or with a leading ^ the ones to leave out. Empty: all; docker*, virbr* and link-local addresses only if no other interface leads to the peer.";
    TCP_PORTS = "TIELINE_TCP_PORTS", "0", Kind::TEXT,
        "Ports to listen on for connections over TCP: one, or a range such as 20000-20100; 0: any free one. A process uses one for tcp, each context one for tcp-connect, and each context whose workers have names one more. A range that is too small for the first two is refused if both providers are in use.";
    SPIN = "TIELINE_SPIN", "", Kind::DURATION,
        "Time that a waiting call polls before it yields its processor (for a millisecond) and then sleeps. Empty: 100us, or 0 if the job has more processes on this host than processors, or if other processes turn out to need this processor.";
    ASSIST_SIZE = "TIELINE_ASSIST_SIZE", "128k", Kind::SIZE,
        "Smallest put or get that both ends copy together if both make progress.";
}

/// The core's variables whose names are prefixes.
pub(crate) const FAMILIES: [&str; 2] = [PRIORITY, CONNECT_OF];

/// Returns the core's variable with this name, or the one whose name is a prefix of it.
pub(crate) fn core_var(name: &str) -> Option<&'static CoreVar> {
    let find = |name: &str| CORE.iter().find(|var| var.name == name);
    find(name).or_else(|| find(FAMILIES.into_iter().find(|family| name.starts_with(family))?))
}

impl CoreVar {
    /// Checks whether the name is a prefix that includes many names.
    pub fn is_family(&self) -> bool {
        self.name.ends_with('_')
    }
}

/// Checks whether a variable, of the core or a provider, holds the path of code, files or sockets. Under raised rights such an
/// environment variable is ignored. A provider's variable is recognized by its name, because nothing else is known before the
/// provider's code runs.
pub fn names_a_place(name: &str) -> bool {
    name == CONFIG || ["_PATH", "_DIR", "_FILE"].iter().any(|end| name.ends_with(end))
}

/// Checks a variable with its value, as [`names_a_place`] does for a name: a report to stderr writes to no path.
pub fn chooses_a_place(name: &str, value: &str) -> bool {
    names_a_place(name) || name == REPORT && value.trim() != tieline_explain::journal::STDERR
}

/// Returns the intended variable if the prefix of a name is close to `TIELINE_`: `TIELNE_PROVIDERS`. If the prefix is another word,
/// one letter away, the name is a misspelling only if the rest is that of a variable.
pub fn misspelt(name: &str) -> Option<String> {
    const OTHER_WORDS: &[&str] = &["TIMELINE", "TIELINES"];
    let (stem, rest) = name.split_once('_')?;
    // Most variables of an environment have a longer or shorter first word.
    if !(6..=8).contains(&stem.chars().count()) {
        return None;
    }
    // One change leaves the first letter or the last one.
    if !stem.starts_with(['T', 't']) && !stem.ends_with(['E', 'e']) {
        return None;
    }
    if stem == "TIELINE" || rest.is_empty() || distance(stem, "TIELINE") > 1 {
        return None;
    }
    let meant = format!("TIELINE_{}", rest.to_ascii_uppercase());
    let is_known = CORE.iter().any(|var| var.name == meant) || is_of_the_launcher(&meant);
    (is_known || !OTHER_WORDS.contains(&stem)).then_some(meant)
}

/// Checks whether a variable of the core holds names or paths, which are text.
pub fn holds_names(name: &str) -> bool {
    core_var(name).is_some_and(|var| matches!(var.kind, Kind::Selection | Kind::Path))
}

/// Checks whether this variable belongs to launchers, the bootstrap or the Python module, which read it from the environment. Such
/// a variable is no setting of the core.
pub fn is_of_the_launcher(name: &str) -> bool {
    LAUNCHER.contains(&name)
}

const LAUNCHER: &[&str] = &[
    "TIELINE_RANK",
    "TIELINE_SIZE",
    "TIELINE_LOCAL_RANK",
    "TIELINE_LOCAL_SIZE",
    "TIELINE_EXCHANGE",
    "TIELINE_JOB",
    "TIELINE_BOOTSTRAP",
    "TIELINE_BOOTSTRAP_PORT",
    "TIELINE_BOOTSTRAP_TIMEOUT",
    // The former names of the bootstrap variables.
    "TIELINE_RENDEZVOUS",
    "TIELINE_RENDEZVOUS_PORT",
    "TIELINE_RENDEZVOUS_TIMEOUT",
    // The path of the library, for the Python module.
    "TIELINE_LIBRARY",
];
