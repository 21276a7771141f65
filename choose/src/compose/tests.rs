//! Tests of composition, with providers that exist only here.

mod shown;

use super::*;
use tieline_plugin_api::abi::Cost;
use tieline_plugin_api::{caps, cost_class};

const MESSAGES: u64 = caps::AM_SHORT | caps::AM_PACKED;
const RMA: u64 = caps::PUT | caps::GET | caps::REMOTE_COMPLETION;

/// Describes a data-path module that connects to an interface.
fn data(provider: &str, domain: &str, module: &str, caps: u64, priority: i32) -> FoundModule {
    let cost = Cost { overhead_ns: 50.0, latency_ns: 500.0, bytes_per_second: 1e10 };
    FoundModule {
        at: ModuleRef::new(provider, domain, module),
        facts: ModuleFacts {
            connection_only: false,
            connects_to_endpoint: false,
            caps,
            fetching_atomics: caps & caps::ATOMICS != 0,
            priority,
            cost: [cost; cost_class::COUNT],
        },
        provider_preference: 0,
        provider_asked_for: false,
        priority: None,
        connect: None,
    }
}

/// Describes RC: all capabilities, but another module must carry its address.
fn rc() -> FoundModule {
    let mut rc = data("verbs", "verbs:mlx5_0", "rc", MESSAGES | RMA | caps::ATOMICS, 60);
    rc.facts.connects_to_endpoint = true;
    rc
}

/// Describes UD: messages without a connection.
fn ud() -> FoundModule {
    data("verbs", "verbs:mlx5_0", "ud", MESSAGES, 10)
}

fn connector(provider: &str, domain: &str, module: &str) -> FoundModule {
    let mut connector = data(provider, domain, module, 0, 10);
    connector.facts.connection_only = true;
    connector
}

fn tcp_connect() -> FoundModule {
    connector("tcp-connect", "tcp-connect", "tcp-connect")
}

fn rdmacm() -> FoundModule {
    connector("verbs", "verbs:mlx5_0", "rdmacm")
}

fn shm() -> FoundModule {
    data("shm", "shm", "mem", MESSAGES | RMA | caps::ATOMICS | caps::OWN_MEMORY_ONLY, 80)
}

fn cma() -> FoundModule {
    data("shm-cma", "shm-cma", "copy", RMA, 70)
}

/// Reads preferences from variables: `[("TIELINE_CONNECT_POLICY", "prefer")]`.
fn preferences(set: &[(&str, &str)]) -> Preferences {
    let set = set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Preferences::from_config(&Config::builder().environment(set).build().unwrap()).unwrap()
}

/// Formats every path as `message rma atomic connection`: `-` for none, `~` for emulated, `!` in front of a disabled path.
fn shape(composition: &Composition) -> Vec<String> {
    let paths = composition.paths.iter().map(|path| {
        let name = |role, emulated: bool| match path.module(role) {
            Some(at) => at.module.clone(),
            None if emulated => "~".into(),
            None => "-".into(),
        };
        format!(
            "{}{}: {} {} {} {}",
            if path.disabled.is_some() { "!" } else { "" },
            path.domain,
            name(Role::Message, false),
            name(Role::Rma, path.emulated.rma),
            name(Role::Atomic, path.emulated.atomic),
            name(Role::Connection, false),
        )
    });
    paths.collect()
}

/// Returns the verdicts on a subject as the report shows them.
fn verdicts(composition: &Composition, subject: &str) -> Vec<String> {
    let about = composition.records.iter().filter(|record| record.subject() == subject);
    about.map(|record| record.verdict.to_string()).collect()
}

/// The connection module of a path also serves messages if it belongs to the domain, may carry data, and is not the message module.
#[test]
fn connection_module_of_path_is_reserve_for_messages() {
    let none: &[(&str, &str)] = &[];
    let mut packs_nothing = ud();
    packs_nothing.facts.caps = caps::AM_SHORT;
    for (candidates, set, reserve) in [
        (vec![rc(), packs_nothing], none, None),
        (vec![rc(), ud()], none, Some("ud")),
        (vec![rc(), ud(), tcp_connect()], none, Some("ud")),
        (vec![rc(), tcp_connect()], none, None),
        (vec![rc(), rdmacm()], none, None),
        (vec![ud()], none, None),
        (
            vec![rc(), ud(), tcp_connect()],
            &[("TIELINE_CONNECT", "tcp-connect"), ("TIELINE_CONNECT_POLICY", "prefer")],
            None,
        ),
    ] {
        let composition = compose(&candidates, &preferences(set));
        let [path] = &composition.paths[..] else { panic!("{:?}", composition.paths) };
        let names: Vec<&str> = path.serving(Role::Message).map(|at| &*at.module).collect();
        let expected: Vec<&str> =
            path.message.iter().map(|at| &*at.module).chain(reserve).collect();
        assert_eq!(names, expected, "{set:?}");
        assert_eq!(path.serving(Role::Rma).count(), usize::from(path.rma.is_some()));
    }
}

#[test]
fn paths_follow_the_rules() {
    struct Row {
        case: &'static str,
        candidates: Vec<FoundModule>,
        set: &'static [(&'static str, &'static str)],
        paths: &'static [&'static str],
    }
    let row = |case, candidates, set, paths| Row { case, candidates, set, paths };
    let rows = [
        row("RC with UD", vec![rc(), ud()], &[], &["verbs:mlx5_0: rc rc rc ud"]),
        row(
            "RC without UD",
            vec![rc(), tcp_connect()],
            &[],
            &["verbs:mlx5_0: rc rc rc tcp-connect"],
        ),
        row(
            "nothing that can connect",
            vec![rc(), shm()],
            &[],
            &["shm: mem mem mem -", "!verbs:mlx5_0: rc rc rc -"],
        ),
        row(
            "of two that need no connection themselves the better one",
            vec![rc(), data("verbs", "verbs:mlx5_0", "dc", MESSAGES, 5), ud()],
            &[],
            &["verbs:mlx5_0: rc rc rc ud"],
        ),
        row(
            "fallback takes UD first",
            vec![rc(), ud(), tcp_connect()],
            &[],
            &["verbs:mlx5_0: rc rc rc ud"],
        ),
        row(
            "prefer takes the list first",
            vec![rc(), ud(), tcp_connect()],
            &[("TIELINE_CONNECT_POLICY", "prefer")],
            &["verbs:mlx5_0: rc rc rc tcp-connect"],
        ),
        row(
            "prefer falls back to UD",
            vec![rc(), ud()],
            &[("TIELINE_CONNECT_POLICY", "prefer")],
            &["verbs:mlx5_0: rc rc rc ud"],
        ),
        row(
            "the order of TIELINE_CONNECT",
            vec![rc(), rdmacm(), tcp_connect()],
            &[("TIELINE_CONNECT", "rdmacm,tcp-connect")],
            &["verbs:mlx5_0: rc rc rc rdmacm"],
        ),
        row(
            "the order of the default TIELINE_CONNECT",
            vec![rc(), rdmacm(), tcp_connect()],
            &[],
            &["verbs:mlx5_0: rc rc rc tcp-connect"],
        ),
        row(
            "TIELINE_CONNECT bars UD",
            vec![rc(), ud(), tcp_connect()],
            &[("TIELINE_CONNECT", "^*/ud")],
            &["verbs:mlx5_0: rc rc rc tcp-connect"],
        ),
        row(
            "UD filtered for data and not named for connections",
            vec![rc(), ud()],
            &[("TIELINE_MODULES", "*/rc")],
            &["!verbs:mlx5_0: rc rc rc -"],
        ),
        row(
            "UD filtered for data and named for connections",
            vec![rc(), ud()],
            &[("TIELINE_MODULES", "*/rc"), ("TIELINE_CONNECT", "ud")],
            &["verbs:mlx5_0: rc rc rc ud"],
        ),
        row(
            "a domain for connections only",
            vec![rc(), data("tcp", "tcp", "stream", MESSAGES, 1)],
            &[("TIELINE_DOMAINS", "verbs:*"), ("TIELINE_CONNECT", "tcp")],
            &["verbs:mlx5_0: rc rc rc stream"],
        ),
        row("UD alone needs nobody", vec![ud(), tcp_connect()], &[], &["verbs:mlx5_0: ud ~ ~ -"]),
        row("shm and cma", vec![cma(), shm()], &[], &["shm: mem mem mem -", "shm-cma: - copy - -"]),
        row(
            "the order of TIELINE_DOMAINS",
            vec![cma(), shm()],
            &[("TIELINE_DOMAINS", "shm-cma,shm")],
            &["shm-cma: - copy - -", "shm: mem mem mem -"],
        ),
        row("a connection-only domain is no path", vec![tcp_connect()], &[], &[]),
    ];
    for Row { case, candidates, set, paths } in rows {
        assert_eq!(shape(&compose(&candidates, &preferences(set))), paths, "{case}");
    }
}

#[test]
fn the_result_does_not_depend_on_the_order_of_discovery() {
    let mut all = vec![rc(), ud(), rdmacm(), tcp_connect(), shm(), cma()];
    let first = compose(&all, &preferences(&[]));
    all.reverse();
    let second = compose(&all, &preferences(&[]));
    assert_eq!(first.paths, second.paths);
    assert_eq!(first.records, second.records);
}

#[test]
fn every_candidate_has_a_record() {
    for set in [&[][..], &[("TIELINE_MODULES", "^*/rc")], &[("TIELINE_CONNECT_POLICY", "prefer")]] {
        let all = [rc(), ud(), rdmacm(), tcp_connect(), shm(), cma()];
        let composition = compose(&all, &preferences(set));
        for candidate in &all {
            let subject = candidate.at.to_string();
            assert!(!verdicts(&composition, &subject).is_empty(), "{subject} {set:?}");
        }
    }
}

#[test]
fn a_choice_says_by_which_rule() {
    let composition = compose(&[rc(), ud()], &preferences(&[]));
    assert_eq!(
        verdicts(&composition, "verbs:mlx5_0/rc"),
        [
            "used for message, RMA, atomic: message: before ud: priority 60 over 10; RMA: priority 60, alone in its domain; atomic: priority 60, alone in its domain"
        ]
    );
    assert_eq!(
        verdicts(&composition, "verbs:mlx5_0/ud"),
        ["used for connection: of the same domain, and needs no connection itself"]
    );
}

#[test]
fn the_policy_is_said_openly() {
    let all = [rc(), ud(), tcp_connect()];
    let fallback = compose(&all, &preferences(&[]));
    assert_eq!(
        verdicts(&fallback, "tcp-connect/tcp-connect"),
        ["not needed: closed again: verbs:mlx5_0 is connected by verbs:mlx5_0/ud"]
    );
    let prefer = compose(&all, &preferences(&[("TIELINE_CONNECT_POLICY", "prefer")]));
    assert_eq!(
        verdicts(&prefer, "tcp-connect/tcp-connect"),
        [
            "used for connection: first available of TIELINE_CONNECT=tcp-connect,oob,rdmacm, by TIELINE_CONNECT_POLICY=prefer"
        ]
    );
    assert_eq!(
        verdicts(&prefer, "verbs:mlx5_0/ud"),
        [
            "outranked by verbs:mlx5_0/rc: priority 60 over 10",
            "outranked by tcp-connect/tcp-connect: for connection: first available of TIELINE_CONNECT=tcp-connect,oob,rdmacm, by TIELINE_CONNECT_POLICY=prefer"
        ]
    );
}

#[test]
fn an_unneeded_connection_module_is_closed_again() {
    let composition = compose(&[shm(), tcp_connect()], &preferences(&[]));
    assert_eq!(composition.not_needed, [tcp_connect().at]);
    assert_eq!(
        verdicts(&composition, "tcp-connect/tcp-connect"),
        ["not needed: closed again: no path needs it"]
    );
}

#[test]
fn a_connection_only_module_never_carries_data() {
    let mut boastful = tcp_connect();
    boastful.facts.caps = MESSAGES | RMA | caps::ATOMICS;
    let composition =
        compose(&[boastful], &preferences(&[("TIELINE_MODULES", "tcp-connect/tcp-connect")]));
    assert!(composition.paths.is_empty());
}

#[test]
fn a_path_that_nobody_can_connect_is_disabled_with_the_reason() {
    let composition = compose(&[rc(), ud(), shm()], &preferences(&[("TIELINE_MODULES", "^*/ud")]));
    assert_eq!(
        verdicts(&composition, "verbs:mlx5_0"),
        [
            "disabled: verbs:mlx5_0/rc needs another module to form its connections: ud is left out by \
          TIELINE_MODULES=^*/ud; nothing else that TIELINE_CONNECT=tcp-connect,oob,rdmacm names is there"
        ]
    );
    assert_eq!(verdicts(&composition, "verbs:mlx5_0/rc"), ["disabled: its path is disabled"]);
    assert_eq!(composition.usable().count(), 1);
}

#[test]
fn a_priority_of_the_user_overrides_the_modules_own() {
    let mut ud = ud();
    ud.priority = Some((99, "TIELINE_PRIORITY_VERBS_UD=99 (environment)".into()));
    let composition = compose(&[rc(), ud], &preferences(&[]));
    assert_eq!(shape(&composition), ["verbs:mlx5_0: ud rc rc ud"]);
    let verdict = &verdicts(&composition, "verbs:mlx5_0/ud")[0];
    assert!(
        verdict.contains("priority 99 by TIELINE_PRIORITY_VERBS_UD=99 (environment) over 60"),
        "{verdict}"
    );
}

#[test]
fn a_negative_priority_disables() {
    let mut ud = ud();
    ud.priority = Some((-1, "TIELINE_PRIORITY_VERBS=-1 (environment)".into()));
    let composition = compose(&[rc(), ud], &preferences(&[]));
    assert_eq!(shape(&composition), ["!verbs:mlx5_0: rc rc rc -"]);
    assert_eq!(
        verdicts(&composition, "verbs:mlx5_0/ud"),
        ["disabled: TIELINE_PRIORITY_VERBS=-1 (environment): a negative priority disables"]
    );
}

#[test]
fn a_module_whose_own_priority_is_negative_has_to_be_asked_for() {
    let shy = data("toy", "toy", "loop", MESSAGES, -1);
    assert!(compose(std::slice::from_ref(&shy), &preferences(&[])).paths.is_empty());
    let by_module = preferences(&[("TIELINE_MODULES", "toy/loop")]);
    assert_eq!(shape(&compose(std::slice::from_ref(&shy), &by_module)), ["toy: loop ~ ~ -"]);
    let by_glob = preferences(&[("TIELINE_MODULES", "toy/*")]);
    assert!(compose(std::slice::from_ref(&shy), &by_glob).paths.is_empty());
    let by_provider = FoundModule { provider_asked_for: true, ..shy };
    assert_eq!(shape(&compose(&[by_provider], &preferences(&[]))), ["toy: loop ~ ~ -"]);
}

#[test]
fn equal_priorities_are_decided_by_cost_and_then_by_name() {
    let mut fast = data("x", "x", "z", MESSAGES, 10);
    fast.facts.cost[0].latency_ns = 100.0;
    let slow = data("x", "x", "a", MESSAGES, 10);
    let composition = compose(&[slow.clone(), fast], &preferences(&[]));
    assert_eq!(shape(&composition), ["x: z ~ ~ -"]);
    assert_eq!(
        verdicts(&composition, "x/a"),
        ["outranked by x/z: a message of 8 bytes in 151 ns against 551 ns"]
    );
    let twin = data("x", "x", "b", MESSAGES, 10);
    assert_eq!(shape(&compose(&[twin, slow], &preferences(&[]))), ["x: a ~ ~ -"]);
}

#[test]
fn half_a_capability_is_named() {
    let composition = compose(&[data("x", "x", "w", caps::PUT, 1)], &preferences(&[]));
    assert_eq!(verdicts(&composition, "x/w"), ["unfit: for RMA: lacks get"]);
    // A module that does not report the arrival of puts is replaced by messages.
    let memory = caps::PUT | caps::GET;
    let composition = compose(&[data("x", "x", "rw", memory, 1)], &preferences(&[]));
    let lacks = "unfit: for RMA: lacks completion at the target (REMOTE_COMPLETION)";
    assert_eq!(verdicts(&composition, "x/rw"), [lacks]);
}

#[test]
fn a_filter_says_which_variable() {
    let composition = compose(&[shm(), cma()], &preferences(&[("TIELINE_DOMAINS", "^shm-cma")]));
    assert_eq!(shape(&composition), ["shm: mem mem mem -"]);
    assert_eq!(verdicts(&composition, "shm-cma"), ["left out by TIELINE_DOMAINS=^shm-cma"]);
    let composition = compose(&[shm()], &preferences(&[("TIELINE_MODULES", "shm/men")]));
    assert_eq!(
        verdicts(&composition, "shm/men"),
        [
            "not found: did you mean shm/mem? looked in the modules that were found, for TIELINE_MODULES=shm/men"
        ]
    );
}

#[test]
fn missing_required_module_is_an_error() {
    let required = |set: &[(&str, &str)], candidates: &[FoundModule]| {
        let preferences = preferences(set);
        compose(candidates, &preferences).check_required(&preferences)
    };
    let verbs = &[("TIELINE_DOMAINS", "required:verbs:*,shm")];
    assert!(required(verbs, &[rc(), ud(), shm()]).is_ok());
    let error = required(verbs, &[shm()]).unwrap_err();
    assert!(error.why().contains("there are only shm"), "{error}");
    let error = required(&[("TIELINE_DOMAINS", "required:verbs:mlx5_0")], &[rc()]).unwrap_err();
    assert!(error.why().contains("form its connections"), "{error}");
    let module = &[("TIELINE_MODULES", "required:verbs:mlx5_0/rc,verbs:mlx5_0/ud,shm/mem")];
    assert!(required(module, &[rc(), ud(), shm()]).is_ok());
    let error = required(module, &[rc(), shm()]).unwrap_err();
    assert!(error.why().contains("form its connections"), "{error}");
    let other = &[("TIELINE_MODULES", "required:shm/mem,verbs:mlx5_0/rc")];
    assert!(required(other, &[rc(), shm()]).is_ok(), "what is wrong with another is no matter");
    // An excluded domain has one record, rather than one for each of its modules.
    let left_out = &[("TIELINE_MODULES", "required:shm/mem"), ("TIELINE_DOMAINS", "^shm")];
    let error = required(left_out, &[shm(), cma()]).unwrap_err();
    assert!(error.why().contains("left out by TIELINE_DOMAINS=^shm"), "{error}");
    let connect = &[("TIELINE_CONNECT", "required:tcp-connect")];
    assert!(required(connect, &[shm(), tcp_connect()]).is_ok());
    assert!(required(connect, &[shm()]).is_err());
}

#[test]
fn operations_without_module_are_emulated_over_messages() {
    let of = |caps: u64| data("net", "net:0", "all", caps, 50);
    let rows = [
        (MESSAGES, (true, true)),
        (MESSAGES | RMA, (false, true)),
        (MESSAGES | caps::ATOMICS | caps::REMOTE_COMPLETION, (true, false)),
        (MESSAGES | RMA | caps::ATOMICS, (false, false)),
        // A domain without messages has no emulation.
        (RMA, (false, false)),
        (caps::ATOMICS | caps::REMOTE_COMPLETION, (false, false)),
    ];
    for (caps, emulated) in rows {
        let candidate = of(caps);
        let prefer = preferences(&[]);
        let composition = compose(&[candidate], &prefer);
        let found = composition.paths.first().map(|path| (path.emulated.rma, path.emulated.atomic));
        assert_eq!(found, Some(emulated), "{caps:#x}");
    }
}
