//! Compositions as `tieline info --why` shows them, and the agreement of two sides with different settings.

use super::*;
use crate::rank::agree;

/// Composes like [`compose`], with a per-domain replacement of `TIELINE_CONNECT`.
fn composed_with(candidates: &[FoundModule], set: &[(&str, &str)]) -> Composition {
    let pairs = set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let config = Config::builder().environment(pairs).build().unwrap();
    let mut candidates = candidates.to_vec();
    for candidate in &mut candidates {
        let at = &candidate.at;
        candidate.connect = config.connect_of(&at.provider, &at.domain).unwrap();
    }
    let known = config.check(&[]).unwrap();
    assert!(known.is_empty(), "{known:?}");
    compose(&candidates, &Preferences::from_config(&config).unwrap())
}

fn line(composition: &Composition, domain: &str) -> String {
    let path = composition.paths.iter().find(|path| path.domain == domain);
    composed_line(path.expect("the domain has a path"), composition)
}

/// Moves a module to the domain `verbs:rxe0`.
fn on_rxe0(mut candidate: FoundModule) -> FoundModule {
    candidate.at.domain = "verbs:rxe0".into();
    candidate
}

/// Describes `tcp/stream`, whose connections another module must form, too.
fn tcp() -> FoundModule {
    let mut tcp = data("tcp", "tcp", "stream", MESSAGES | RMA, 10);
    tcp.facts.connects_to_endpoint = true;
    tcp
}

const WIRED_BY_TCP: &str = "{message rc, RMA rc, atomic rc, connect tcp-connect (fallback: no module of verbs:rxe0 \
                            can carry a connection)}";

#[test]
fn tcp_connect_wires_rc_if_ud_is_excluded_or_missing() {
    let (rc, ud) = (on_rxe0(rc()), on_rxe0(ud()));
    let left_out = composed_with(&[rc.clone(), ud, tcp_connect()], &[("TIELINE_MODULES", "^*/ud")]);
    assert_eq!(line(&left_out, "verbs:rxe0"), WIRED_BY_TCP);
    let without = composed_with(&[rc, tcp_connect()], &[]);
    assert_eq!(line(&without, "verbs:rxe0"), WIRED_BY_TCP);
    assert_eq!(
        verdicts(&without, "tcp-connect/tcp-connect"),
        [
            "used for connection: fallback: no module of verbs:rxe0 can carry a connection; first available of \
          TIELINE_CONNECT=tcp-connect,oob,rdmacm"
        ]
    );
}

#[test]
fn emulated_operations_are_named_in_path() {
    let mut plain = on_rxe0(rc());
    plain.facts.caps &= !caps::ATOMICS;
    plain.facts.fetching_atomics = false;
    let composition = composed_with(&[plain, on_rxe0(ud())], &[]);
    assert_eq!(
        line(&composition, "verbs:rxe0"),
        "{message rc, RMA rc, atomic emulated, connect ud}"
    );
    let composition = composed_with(&[cma(), ud()], &[]);
    assert_eq!(line(&composition, "shm-cma"), "{RMA copy}");
    let emulated = "{message ud, RMA emulated, atomic emulated}";
    assert_eq!(line(&composition, "verbs:mlx5_0"), emulated);
}

#[test]
fn ud_connects_where_it_is_and_tcp_connect_is_closed_again() {
    let all = [on_rxe0(rc()), on_rxe0(ud()), tcp_connect()];
    let composition = composed_with(&all, &[]);
    assert_eq!(line(&composition, "verbs:rxe0"), "{message rc, RMA rc, atomic rc, connect ud}");
    assert_eq!(composition.not_needed, [tcp_connect().at]);
    assert_eq!(
        verdicts(&composition, "tcp-connect/tcp-connect"),
        ["not needed: closed again: verbs:rxe0 is connected by verbs:rxe0/ud"]
    );
}

#[test]
fn with_prefer_tcp_connect_connects_and_ud_does_not() {
    let all = [on_rxe0(rc()), on_rxe0(ud()), tcp_connect()];
    let composition = composed_with(&all, &[("TIELINE_CONNECT_POLICY", "prefer")]);
    assert_eq!(
        line(&composition, "verbs:rxe0"),
        "{message rc, RMA rc, atomic rc, connect tcp-connect (TIELINE_CONNECT_POLICY=prefer)}"
    );
    let schemes: Vec<_> = composition.schemes("verbs:rxe0").map(|c| c.at.to_string()).collect();
    assert_eq!(
        schemes,
        ["tcp-connect/tcp-connect"],
        "ud is not opened, and so no peer is told of it"
    );
    let without = composed_with(&all[..2], &[("TIELINE_CONNECT_POLICY", "prefer")]);
    assert_eq!(
        line(&without, "verbs:rxe0"),
        "{message rc, RMA rc, atomic rc, connect ud (fallback: TIELINE_CONNECT=tcp-connect,oob,rdmacm \
         yields none)}"
    );
}

#[test]
fn rc_without_any_connection_module_is_disabled_and_tcp_stays() {
    let all = [on_rxe0(rc()), on_rxe0(ud()), tcp(), tcp_connect()];
    for variable in ["TIELINE_CONNECT_VERBS", "TIELINE_CONNECT_VERBS_RXE0"] {
        let set = [("TIELINE_MODULES", "^*/ud"), (variable, "^tcp-connect")];
        let composition = composed_with(&all, &set);
        let usable: Vec<&str> = composition.usable().map(|path| path.domain.as_str()).collect();
        assert_eq!(usable, ["tcp"]);
        assert_eq!(
            line(&composition, "verbs:rxe0"),
            "{message rc, RMA rc, atomic rc, connect none}"
        );
        assert_eq!(
            verdicts(&composition, "verbs:rxe0"),
            [format!(
                "disabled: verbs:rxe0/rc needs another module to form its connections: tcp-connect is left \
                 out by {variable}=^tcp-connect; ud is left out by TIELINE_MODULES=^*/ud; there is no other"
            )]
        );
        assert_eq!(
            line(&composition, "tcp"),
            "{message stream, RMA stream, atomic emulated, connect tcp-connect (fallback: no module of tcp can \
             carry a connection)}"
        );
    }
}

#[test]
fn connect_list_of_domain_beats_provider_and_general_list() {
    let mut other = rc();
    other.at.domain = "verbs:rxe1".into();
    let all = [on_rxe0(rc()), other, tcp_connect(), out_of_band_candidate()];
    let set = [
        ("TIELINE_CONNECT", "^*"),
        ("TIELINE_CONNECT_VERBS", "oob"),
        ("TIELINE_CONNECT_VERBS_RXE1", "tcp-connect"),
    ];
    let composition = composed_with(&all, &set);
    let by: Vec<_> = composition.paths.iter().filter_map(|p| p.connection()).collect();
    let by: Vec<_> = by.iter().map(|connection| connection.at.provider.as_str()).collect();
    assert_eq!(by, ["oob", "tcp-connect"]);
}

#[test]
fn without_any_way_to_connect_every_module_says_why() {
    let all = [on_rxe0(rc()), on_rxe0(ud()), on_rxe0(rdmacm()), tcp(), tcp_connect()];
    let composition = composed_with(&all, &[("TIELINE_CONNECT", "^*")]);
    assert_eq!(composition.usable().count(), 0);
    let disabled = &verdicts(&composition, "verbs:rxe0")[0];
    for name in ["rdmacm", "tcp-connect", "ud"] {
        let reason = format!("{name} is left out by TIELINE_CONNECT=^*;");
        assert!(disabled.contains(&reason), "{disabled}");
    }
    assert_eq!(
        verdicts(&composition, "tcp"),
        [
            "disabled: tcp/stream needs another module to form its connections: tcp-connect is left out by \
          TIELINE_CONNECT=^*; verbs:rxe0/rdmacm is left out by TIELINE_CONNECT=^*; there is no other"
        ]
    );
    let nothing = composed_with(&[tcp()], &[]);
    assert_eq!(
        verdicts(&nothing, "tcp"),
        ["disabled: tcp/stream needs another module to form its connections: nothing that \
          TIELINE_CONNECT=tcp-connect,oob,rdmacm names is there"]
    );
}

#[test]
fn the_application_and_rdmacm_can_be_the_one_that_connects() {
    let all = [on_rxe0(rc()), on_rxe0(rdmacm()), tcp_connect(), out_of_band_candidate()];
    let by_oob = composed_with(&all, &[("TIELINE_CONNECT", "oob")]);
    assert_eq!(
        line(&by_oob, "verbs:rxe0"),
        "{message rc, RMA rc, atomic rc, connect oob (fallback: no module of verbs:rxe0 can carry a connection)}"
    );
    let by_rdmacm = composed_with(&all, &[("TIELINE_CONNECT", "rdmacm")]);
    assert_eq!(
        line(&by_rdmacm, "verbs:rxe0"),
        "{message rc, RMA rc, atomic rc, connect rdmacm (fallback: first available of TIELINE_CONNECT=rdmacm)}"
    );
}

/// The schemes that one side advertises for `verbs:rxe0`.
type Told = Vec<(String, i32)>;

fn told(composition: &Composition) -> Told {
    let schemes = composition.schemes("verbs:rxe0");
    schemes.map(|connection| (scheme(&connection.at), connection.rank)).collect()
}

/// Lists the sides that result from combinations of modules and settings.
fn sides() -> Vec<(String, Told)> {
    let mut sides = Vec::new();
    let devices = [
        vec![on_rxe0(rc())],
        vec![on_rxe0(rc()), on_rxe0(ud())],
        vec![on_rxe0(rc()), on_rxe0(ud()), on_rxe0(rdmacm())],
    ];
    let rest = [
        vec![],
        vec![tcp_connect()],
        vec![tcp(), tcp_connect()],
        vec![tcp(), tcp_connect(), out_of_band_candidate()],
    ];
    for (device, rest) in devices.iter().flat_map(|d| rest.iter().map(move |r| (d, r))) {
        let candidates = [device.clone(), rest.clone()].concat();
        for policy in ["fallback", "prefer"] {
            for modules in ["", "^*/ud"] {
                for connect in ["", "^*/ud", "^tcp-connect", "oob,tcp-connect", "rdmacm,ud"] {
                    for verbs in ["", "^tcp-connect", "ud,tcp-connect"] {
                        let set = [
                            ("TIELINE_CONNECT_POLICY", policy),
                            ("TIELINE_MODULES", modules),
                            ("TIELINE_CONNECT", connect),
                            ("TIELINE_CONNECT_VERBS", verbs),
                        ];
                        let composition = composed_with(&candidates, &set);
                        let names: Vec<_> = candidates.iter().map(|c| c.at.to_string()).collect();
                        let told = told(&composition);
                        let own = composition.usable().find(|path| path.domain == "verbs:rxe0");
                        let own = own.and_then(Path::connection).map(|c| scheme(&c.at));
                        // Between processes with the same modules and settings, the path's own choice is used.
                        assert_eq!(own, agree(&told, &told).ok(), "{names:?} {set:?}");
                        sides.push((format!("{names:?} {set:?}"), told));
                    }
                }
            }
        }
    }
    sides
}

#[test]
fn any_two_sides_agree_or_both_hear_what_each_has() {
    let sides = sides();
    // Many settings have the same result.
    let mut different: Vec<(&str, &Told)> = Vec::new();
    for (name, told) in &sides {
        if !different.iter().any(|(_, known)| *known == told) {
            different.push((name, told));
        }
    }
    let (mut agreed, mut failed) = (0, 0);
    for (here_is, here) in &different {
        for (there_is, there) in &different {
            let common = here.iter().any(|(name, _)| there.iter().any(|(other, _)| other == name));
            match (agree(here, there), agree(there, here)) {
                (Ok(one), Ok(other)) => {
                    assert_eq!(one, other, "{here_is}\n{there_is}");
                    for side in [here, there] {
                        assert!(side.iter().any(|(name, _)| *name == one));
                    }
                    agreed += 1;
                }
                (Err(error), Err(_)) => {
                    assert!(!common, "{error}\n{here_is}\n{there_is}");
                    let names = here.iter().chain(there.iter());
                    for (name, _) in names {
                        assert!(error.why().contains(name.as_str()), "{error}");
                    }
                    failed += 1;
                }
                (one, other) => panic!("{one:?} {other:?}\n{here_is}\n{there_is}"),
            }
        }
    }
    println!(
        "{} sides, {} of them different: {agreed} pairs agree, {failed} do not",
        sides.len(),
        different.len()
    );
    assert!(agreed > failed && failed > 0);
}

#[test]
fn one_side_that_prefers_and_one_that_does_not_meet_at_what_both_have() {
    let all = [on_rxe0(rc()), on_rxe0(ud()), tcp(), tcp_connect()];
    let prefers = told(&composed_with(&all, &[("TIELINE_CONNECT_POLICY", "prefer")]));
    let usual = told(&composed_with(&all, &[]));
    let by_hand = told(&composed_with(&all, &[("TIELINE_CONNECT_VERBS", "^tcp-connect")]));
    let without_ud = told(&composed_with(&all, &[("TIELINE_MODULES", "^*/ud")]));
    let scheme = |a: &Told, b: &Told| agree(a, b).map_err(|e| e.why().to_owned());
    assert_eq!(scheme(&usual, &usual), Ok("verbs/ud".into()));
    assert_eq!(scheme(&prefers, &usual), Ok("tcp-connect/tcp-connect".into()));
    assert_eq!(scheme(&usual, &without_ud), Ok("tcp-connect/tcp-connect".into()));
    assert_eq!(scheme(&usual, &by_hand), Ok("verbs/ud".into()));
    assert_eq!(
        scheme(&by_hand, &without_ud),
        Err("here: verbs/ud; there: tcp-connect/tcp-connect".into())
    );
}
