//! Tests of names and values: unknown names, origins, and precedence.

use super::*;

#[test]
fn strict_says_what_was_meant_or_where_the_names_are() {
    let said = |name: &str| {
        let config = env(&[(name, "1"), ("TIELINE_STRICT", "1")]).build().unwrap();
        let error = config.check(&[]).unwrap_err();
        assert_eq!(error.setting().unwrap().0, name);
        error.to_string()
    };
    let holds = "no variable has that name and TIELINE_STRICT=1 (environment) holds";
    assert_eq!(
        said("TIELINE_PROVIDRS"),
        format!(
            "TIELINE_PROVIDRS=1 (environment) is not known: {holds}; did you mean TIELINE_PROVIDERS? If not, unset it or TIELINE_STRICT"
        )
    );
    assert_eq!(
        said("TIELINE_ZEBRAS"),
        format!(
            "TIELINE_ZEBRAS=1 (environment) is not known: {holds}; unset it or TIELINE_STRICT; `tieline config` lists the names"
        )
    );
}

#[test]
fn as_many_unknown_names_as_are_told_one_by_one_need_no_count() {
    let of = |count: usize| {
        let names: Vec<String> = (0..count).map(|n| format!("TIELINE_ZEBRA_{n:03}")).collect();
        let set: Vec<(&str, &str)> = names.iter().map(|name| (&**name, "1")).collect();
        env(&set).build().unwrap().check(&[]).unwrap()
    };
    assert_eq!(of(32).len(), 32);
    let more = of(33);
    assert_eq!((more.len(), &*more[32]), (33, "1 more names are not known"));
}

#[test]
fn a_view_has_who_set_it_and_what_it_beats_and_shows_no_secret() {
    let file = Scratch::new("views", "secret = \"a\"\npriority_odd = 3\nwhat = 1\n");
    let config = env(&[("TIELINE_CONFIG", file.file().to_str().unwrap()), ("TIELINE_RANK", "1")])
        .set("TIELINE_SECRET", "b")
        .build()
        .unwrap();
    config.declare("odd", vec![size("TIELINE_ODD_SIZE", "4k")]);
    let views = config.views();
    let of = |name: &str| {
        let view = views.iter().find(|view| view.name == name).unwrap();
        let lost: Vec<String> =
            view.overridden.iter().map(|s| format!("{} ({})", s.value, s.origin)).collect();
        format!("{} {} {} {} {}", view.owner, view.kind, view.value, view.origin, lost.join(", "))
    };
    let path = file.file().display().to_string();
    assert_eq!(of("TIELINE_SECRET"), format!("core text (set) program (set) ({path}:1)"));
    assert_eq!(of("TIELINE_PRIORITY_ODD"), format!("core integer 3 {path}:2 "));
    assert_eq!(of("TIELINE_PRIORITY_<NAME>"), "core integer  default ");
    assert_eq!(of("TIELINE_WHAT"), format!("unknown text 1 {path}:3 "));
    assert_eq!(of("TIELINE_RANK"), "launcher text 1 environment ");
    assert_eq!(of("TIELINE_ODD_SIZE"), "odd size 4k default ");
    assert_eq!(config.origin_text("TIELINE_SECRET").as_deref(), Some("program"));
    assert_eq!(config.origin_text("TIELINE_PROBE"), None);
    let all = config.all();
    let said = |name: &str| all.iter().find(|(known, _)| known == name).map(|(_, value)| &**value);
    assert_eq!((said("TIELINE_SECRET"), said("TIELINE_PROBE")), (Some("b"), Some("on")));
    assert_eq!((said("TIELINE_WHAT"), said("TIELINE_PROVIDERS")), (Some("1"), None));
}

#[test]
fn how_a_value_is_corrected_depends_on_its_default() {
    let fix = |name: &str, value: &str| {
        env(&[(name, value)]).build().unwrap().check(&[]).unwrap_err().fix().to_owned()
    };
    assert_eq!(fix("TIELINE_QUEUE_BYTES", "many"), "correct it, or unset it for the default, 256k");
    assert_eq!(fix("TIELINE_PRIORITY_SHM", "high"), "correct it or unset it");
}

#[test]
fn connect_list_of_domain_overrides_list_of_provider() {
    let config = env(&[
        ("TIELINE_CONNECT_VERBS", "a"),
        ("TIELINE_CONNECT_VERBS_MLX5_0", "b"),
        ("TIELINE_CONNECT_POLICY", "prefer"),
    ])
    .build()
    .unwrap();
    let of = |provider: &str, domain: &str| {
        config.connect_of(provider, domain).unwrap().map(|list| list.cite())
    };
    assert_eq!(of("verbs", "verbs:mlx5_0").as_deref(), Some("TIELINE_CONNECT_VERBS_MLX5_0=b"));
    assert_eq!(of("verbs", "verbs:mlx5_1").as_deref(), Some("TIELINE_CONNECT_VERBS=a"));
    assert_eq!(of("policy", "policy"), None);
    assert_eq!(of("shm", "shm"), None);
    assert!(config.check(&[]).unwrap().is_empty());
}

#[test]
fn first_declaring_provider_owns_variable_and_may_redeclare_it() {
    let config = env(&[]).build().unwrap();
    config.declare("shm", vec![size("TIELINE_SHM_A", "1k")]);
    config.declare("odd", vec![size("TIELINE_SHM_A", "2k")]);
    assert_eq!(config.text("TIELINE_SHM_A"), "1k");
    config.declare("shm", vec![size("TIELINE_SHM_A", "3k")]);
    assert_eq!(config.text("TIELINE_SHM_A"), "3k");
}
