//! The core's own variables: one table that the code, `tieline config` and `docs/configuration.md` read.

use super::nearest::distance;
use super::units::Kind;

/// One variable of the core.
#[derive(Clone, Copy, Debug)]
pub struct CoreVar {
    /// Its name; one that ends in `_` stands for every name that begins so.
    pub name: &'static str,
    /// What holds when nobody says otherwise; empty: nothing.
    pub default: &'static str,
    /// What it may be.
    pub kind: Kind<'static>,
    /// What it does.
    pub doc: &'static str,
}

macro_rules! core_vars {
    ($( $constant:ident = $name:literal, $default:literal, $kind:expr, $doc:literal; )*) => {
        $( #[doc = $doc]
        #[allow(dead_code)] // the registry, which knows nothing of this table, reads some by their text
        pub const $constant: &str = $name; )*
        /// Every variable of the core, in the order of the documentation.
        pub const CORE: &[CoreVar] = &[
            $( CoreVar { name: $name, default: $default, kind: $kind, doc: $doc }, )*
        ];
    };
}

core_vars! {
    PROVIDERS = "TIELINE_PROVIDERS", "", Kind::Selection,
        "Providers to use, in order of preference, or with a leading ^ the ones to leave out; empty: all. A connector that they need and the list does not name comes along: tcp brings tcp-connect, unless TIELINE_CONNECT=^tcp-connect keeps it out.";
    DOMAINS = "TIELINE_DOMAINS", "", Kind::Selection,
        "Memory domains that may carry data; the same grammar.";
    MODULES = "TIELINE_MODULES", "", Kind::Selection,
        "Modules that may carry data, written domain/module; the same grammar.";
    CONNECT = "TIELINE_CONNECT", "tcp-connect,oob,rdmacm", Kind::Selection,
        "Modules that may form connections for modules that cannot do it themselves, in order.";
    CONNECT_OF = "TIELINE_CONNECT_", "", Kind::Selection,
        "The same for the domains of one provider (TIELINE_CONNECT_VERBS) or for one domain (TIELINE_CONNECT_VERBS_MLX5_0), instead of TIELINE_CONNECT; ^*: none.";
    CONNECT_POLICY = "TIELINE_CONNECT_POLICY", "fallback", Kind::one_of("fallback|prefer"),
        "fallback: a module of the same domain forms connections, TIELINE_CONNECT is for domains without one; prefer: TIELINE_CONNECT comes first.";
    PRIORITY = "TIELINE_PRIORITY_", "", Kind::Integer,
        "Priority of a provider (TIELINE_PRIORITY_SHM) or of one of its modules (TIELINE_PRIORITY_VERBS_RC) instead of its own; negative: not used.";
    PROVIDER_PATH = "TIELINE_PROVIDER_PATH", "", Kind::Path,
        "Directories to look for providers in before the usual ones; the environment's is ignored under raised rights.";
    PROBE = "TIELINE_PROBE", "on", Kind::one_of("on|off|nocache"),
        "Try a provider from outside the system directory in a child process first; nocache: every time anew.";
    SELFTEST = "TIELINE_SELFTEST", "off", Kind::BOOL,
        "Check each module's put, get, atomics and key checks once through its own interface before it is used.";
    STRICT = "TIELINE_STRICT", "off", Kind::BOOL,
        "Take a TIELINE_ name that nobody knows as an error instead of a warning.";
    CONFIG = "TIELINE_CONFIG", "", Kind::TEXT,
        "A file of settings that is read after the system's and the user's, at most 1 MiB; the environment's is ignored under raised rights.";
    LOG = "TIELINE_LOG", "warn", Kind::one_of("off|error|warn|info|debug"),
        "Least severity of the lines that are collected for the report; the library never prints them, unless TIELINE_REPORT says where.";
    REPORT = "TIELINE_REPORT", "", Kind::TEXT,
        "Where the report is written while it is made, a line at a time: stderr, or a file's path, in which %p stands for the process's number and %h for its host's name: what a context found and chose, the lanes to each peer at its first use and why no better ones, what failed. Empty: nowhere, as a library prints nothing by itself. The environment's file is ignored under raised rights.";
    LIVE = "TIELINE_LIVE", "on", Kind::BOOL,
        "Show `tieline info --pid` what workers of this process do, in a memory file that the same user and root can read. It costs one descriptor, and 8 to 64 KiB for each worker.";
    PROGRESS_THREAD = "TIELINE_PROGRESS_THREAD", "off", Kind::BOOL,
        "Run one thread that serves what peers ask of this context's memory while the program computes; it sleeps when idle.";
    POLLS_OFTEN = "TIELINE_POLLS_OFTEN", "off", Kind::BOOL,
        "Promise peers that every worker of this context makes progress all the time: they then do small puts and gets by messages where those are quicker than the module that reaches the memory, and wait for this side's progress. Not said where there is a progress thread.";
    QUEUE_BYTES = "TIELINE_QUEUE_BYTES", "256k", Kind::SIZE,
        "Most bytes of operations that wait per endpoint before a call is answered `again`.";
    ANNOUNCED = "TIELINE_ANNOUNCED", "262144", Kind::COUNT,
        "Most announced messages that a worker keeps until they are taken, of all peers together; a peer has at most 65536 of them, and may have 64 whatever others have. What comes beyond is refused, and ends at its sender with NO_MEMORY.";
    ANNOUNCED_BYTES = "TIELINE_ANNOUNCED_BYTES", "128m", Kind::SIZE,
        "Most bytes of the keys of these messages, of all peers together; a peer has at most 32m of them, and may have 64k whatever others have.";
    ATOMICS = "TIELINE_ATOMICS", "cpu", Kind::one_of("cpu|device"),
        "Who executes atomics on this process's memory. cpu: processors, over shared memory or by messages; device: a network adapter that can, for every peer, local ones too, since the two do not mix.";
    CONNECT_TIMEOUT = "TIELINE_CONNECT_TIMEOUT", "30s", Kind::DURATION,
        "How long forming one connection may take before what waits for it fails.";
    FAILURE_TIMEOUT = "TIELINE_FAILURE_TIMEOUT", "20s", Kind::DURATION,
        "How long a peer or the way to it may be silent before operations on it fail.";
    CLOSE_TIMEOUT = "TIELINE_CLOSE_TIMEOUT", "1s", Kind::DURATION,
        "How long each interface of a worker that is dropped may take to hand over what it has sent and peers have not taken yet.";
    SECRET = "TIELINE_SECRET", "", Kind::TEXT,
        "The job's secret: who connects over TCP has to prove that it knows it. Never shown.";
    SECRET_FILE = "TIELINE_SECRET_FILE", "", Kind::TEXT,
        "A file that holds the secret, when TIELINE_SECRET is not set, readable by its owner alone (mode 600), at most 64 KiB; blanks around it do not count. The environment's is ignored under raised rights.";
    TCP_INTERFACES = "TIELINE_TCP_INTERFACES", "", Kind::LIST,
        "Interfaces that connections over TCP may use: names, globs and subnets such as eth0,10.0.0.0/8, or with a leading ^ the ones to leave out; empty: all, but docker*, virbr* and link-local addresses only where nothing else leads to the peer.";
    TCP_PORTS = "TIELINE_TCP_PORTS", "0", Kind::TEXT,
        "Ports to listen on for connections over TCP: one, or a range such as 20000-20100; 0: any free one. A process takes one for tcp, each context one for tcp-connect, and each context whose workers have names one more. A range without room for the first two is refused where both are in use.";
    SPIN = "TIELINE_SPIN", "", Kind::DURATION,
        "How long a call that waits polls before it yields its processor to others (for a millisecond) and then sleeps; empty: 100us, and 0 where the job has more processes on this host than processors, or others turn out to want this one.";
    ASSIST_SIZE = "TIELINE_ASSIST_SIZE", "128k", Kind::SIZE,
        "Smallest put or get that both ends copy together when both are making progress.";
}

impl CoreVar {
    /// Whether it stands for every name that begins so.
    pub fn is_family(&self) -> bool {
        self.name.ends_with('_')
    }
}

/// Whether a variable says where code, files or sockets lie, the core's or a provider's. Under raised rights the environment
/// is not believed about these. A provider's variable is one by its name: nothing else is known before its code runs.
pub fn names_a_place(name: &str) -> bool {
    name == CONFIG || ["_PATH", "_DIR", "_FILE"].iter().any(|end| name.ends_with(end))
}

/// The same of a variable with its value: a report that goes to stderr goes to no place of the environment's choice.
pub fn chooses_a_place(name: &str, value: &str) -> bool {
    names_a_place(name) || name == REPORT && value.trim() != STDERR
}

/// The value of `TIELINE_REPORT` that is no file.
pub const STDERR: &str = "stderr";

/// The variable that was meant by a name that nearly begins with `TIELINE_`: `TIELNE_PROVIDERS`. A name that is another
/// word, one letter away, is only taken for a slip when its rest is a variable's.
pub fn misspelt(name: &str) -> Option<String> {
    const OTHER_WORDS: &[&str] = &["TIMELINE", "TIELINES"];
    let (stem, rest) = name.split_once('_')?;
    if stem == "TIELINE" || rest.is_empty() || distance(stem, "TIELINE") > 1 {
        return None;
    }
    let meant = format!("TIELINE_{}", rest.to_ascii_uppercase());
    let is_known = CORE.iter().any(|var| var.name == meant) || is_of_the_launcher(&meant);
    (is_known || !OTHER_WORDS.contains(&stem)).then_some(meant)
}

/// Whether a variable of the core's holds names or places, which are text.
pub fn holds_names(name: &str) -> bool {
    let exact = CORE.iter().find(|var| var.name == name);
    let mut families = CORE.iter().filter(|var| var.is_family() && name.starts_with(var.name));
    let var = exact.or_else(|| families.next());
    var.is_some_and(|var| matches!(var.kind, Kind::Selection | Kind::Path))
}

/// What a launcher tells the processes it starts; no setting of the user.
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
    "TIELINE_RENDEZVOUS",
    "TIELINE_RENDEZVOUS_PORT",
    "TIELINE_RENDEZVOUS_TIMEOUT",
    // Where the Python module looks for the library.
    "TIELINE_LIBRARY",
];
