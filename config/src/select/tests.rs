use super::*;
use proptest::prelude::*;

const P: &str = "TIELINE_PROVIDERS";

fn parse(value: &str) -> Selection {
    Selection::parse(P, value).unwrap()
}

fn refusal(value: &str) -> String {
    Selection::parse(P, value).unwrap_err().to_string()
}

#[test]
fn the_empty_list_admits_everything() {
    assert_eq!(parse(" ").admits("anything", None), Ok(0));
    assert!(parse("").unmatched(&[], "nowhere").is_empty());
}

#[test]
fn the_order_of_an_include_list_is_the_preference() {
    let list = parse("verbs, shm,shm-*");
    assert_eq!(list.admits("verbs", None), Ok(0));
    assert_eq!(list.admits("shm", None), Ok(1));
    assert_eq!(list.admits("shm-cma", None), Ok(2));
    let Err(Verdict::Filtered { by }) = list.admits("tcp", None) else { panic!("tcp is admitted") };
    assert_eq!(by, "TIELINE_PROVIDERS=verbs, shm,shm-*, which does not name it");
}

#[test]
fn a_plain_name_decides_before_a_glob() {
    let all_and_tcp_last = parse("*,tcp");
    assert_eq!(all_and_tcp_last.admits("shm", None), Ok(0));
    assert_eq!(all_and_tcp_last.admits("tcp", None), Ok(1));
}

#[test]
fn a_leading_caret_excludes_the_whole_list() {
    let list = parse("^shm-*,tcp");
    assert_eq!(list.admits("shm", None), Ok(0));
    assert!(list.admits("shm-cma", None).is_err());
    assert!(list.admits("tcp", None).is_err());
    assert!(list.bars("tcp") && !list.bars("shm"));
}

#[test]
fn including_and_excluding_do_not_mix() {
    let text = refusal("shm,^tcp");
    assert!(text.contains("either includes or excludes"), "{text}");
    assert!(text.contains("write `^tcp` alone"), "{text}");
    let text = refusal("^shm,^tcp");
    assert!(text.contains("write `^shm,tcp`"), "{text}");
}

#[test]
fn a_name_that_is_there_twice_is_an_error() {
    assert!(refusal("shm,tcp,shm").contains("`shm` is there twice"));
    assert!(refusal("shm,required:shm@1").contains("`shm` is there twice"));
}

#[test]
fn malformed_lists_are_refused_with_the_variable_and_the_reason() {
    for (value, reason) in [
        ("shm,,tcp", "a name is missing at a comma"),
        ("shm,", "a name is missing at a comma"),
        ("^", "it excludes nothing"),
        ("^required:shm", "required and excluded at once"),
        ("required:", "holds no name"),
        ("shm tcp", "has ' ' in it"),
        ("shm[", "a `[` has no `]`"),
        ("verbs@new", "is no version requirement"),
        ("@1", "holds no name"),
    ] {
        let text = refusal(value);
        assert!(text.contains(reason), "{value}: {text}");
        assert!(text.starts_with(&format!("TIELINE_PROVIDERS={value} cannot be used")), "{text}");
    }
    let text = Selection::parse("TIELINE_DOMAINS", "shm@1").unwrap_err().to_string();
    assert!(text.contains("only providers have one"), "{text}");
}

#[test]
fn a_version_requirement_is_semvers() {
    let list = parse("verbs@^1.2,*");
    assert_eq!(list.admits("verbs", Some(&Version::new(1, 3, 0))), Ok(0));
    assert_eq!(list.admits("shm", Some(&Version::new(0, 1, 0))), Ok(1));
    let Err(Verdict::Filtered { by }) = list.admits("verbs", Some(&Version::new(2, 0, 0))) else {
        panic!("2.0.0 is admitted")
    };
    assert_eq!(by, "TIELINE_PROVIDERS=verbs@^1.2,*; its version is 2.0.0");
    assert!(list.admits("verbs", None).is_err());
}

#[test]
fn an_excluding_list_may_name_the_bad_versions() {
    let list = parse("^verbs@<1.2");
    assert!(list.admits("verbs", Some(&Version::new(1, 1, 0))).is_err());
    assert_eq!(list.admits("verbs", Some(&Version::new(1, 2, 0))), Ok(0));
}

#[test]
fn a_name_that_matches_nothing_is_recorded_with_the_nearest_one() {
    let records = parse("^shm-cam").unmatched(&["shm", "shm-cma"], "/usr/lib");
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].provider, "shm-cam");
    let Verdict::NotFound { looked, nearest } = &records[0].verdict else { panic!("{records:?}") };
    assert_eq!(looked, "/usr/lib, for TIELINE_PROVIDERS=^shm-cam");
    assert_eq!(nearest.as_deref(), Some("shm-cma"));
    let modules = Selection::parse("TIELINE_MODULES", "verbs:mlx5_0/rd").unwrap();
    let records = modules.unmatched(&["verbs:mlx5_0/rc"], "");
    assert_eq!(records[0].provider, "verbs");
    assert_eq!(records[0].domain.as_deref(), Some("verbs:mlx5_0"));
    assert_eq!(records[0].module.as_deref(), Some("rd"));
    let domains = Selection::parse("TIELINE_DOMAINS", "verbs:mlx5_1").unwrap();
    let records = domains.unmatched(&["verbs:mlx5_0"], "");
    assert_eq!(records[0].provider, "verbs");
    assert_eq!(records[0].domain.as_deref(), Some("verbs:mlx5_1"));
    assert_eq!(records[0].module, None);
}

#[test]
fn a_required_name_that_is_missing_is_an_error_with_its_reason() {
    let list = parse("required:verbs,shm");
    assert!(list.check_required(&["shm", "verbs"], |_| None).is_ok());
    let text = list.check_required(&["shm"], |_| None).unwrap_err().to_string();
    assert!(text.contains("verbs is required by TIELINE_PROVIDERS=required:verbs,shm"), "{text}");
    assert!(text.contains("there are only shm"), "{text}");
    let text = list.check_required(&[], |_| Some("no note".into())).unwrap_err().to_string();
    assert!(text.contains("no note"), "{text}");
}

#[test]
fn a_default_warns_about_nothing() {
    let list = Selection::parse("TIELINE_CONNECT", "tcp-connect,oob").unwrap().quiet();
    assert!(list.unmatched(&["shm"], "").is_empty());
}

#[test]
fn only_an_including_list_has_an_order_and_requests_names() {
    let of = |value: &str| {
        let list = parse(value);
        (list.includes(), list.asks_for("shm"), list.asks_for("shm-cma"), list.bars("shm"))
    };
    assert_eq!(of(""), (false, false, false, false));
    assert_eq!(of("tcp,shm"), (true, true, false, false));
    assert_eq!(of("shm*"), (true, false, false, false));
    assert_eq!(of("^shm"), (false, false, false, true));
    assert_eq!(of("^tcp"), (false, false, false, false));
}

#[test]
fn a_required_name_is_refused_with_what_is_there_and_what_is_nearest() {
    let error = |value: &str, usable: &[&str]| {
        parse(value).check_required(usable, |_| None).unwrap_err().to_string()
    };
    let missing = "is required by TIELINE_PROVIDERS=required:shm-cam and cannot be used";
    assert_eq!(
        error("required:shm-cam", &["tcp", "shm-cma"]),
        format!(
            "shm-cam {missing}: there are only tcp, shm-cma; did you mean shm-cma? Otherwise make it available, or drop `required:`"
        )
    );
    assert_eq!(
        error("required:shm-cam", &[]),
        format!("shm-cam {missing}: nothing was found; make it available, or drop `required:`")
    );
    // A required glob is satisfied by any match, and an entry that is not required may be missing.
    assert!(parse("required:shm*,verbs").check_required(&["tcp", "shm-cma"], |_| None).is_ok());
    assert!(parse("required:shm*").check_required(&["tcp"], |_| None).is_err());
}

/// Every error has exactly this reason and this remedy.
#[test]
fn each_slip_in_a_list_is_told_with_how_to_write_it() {
    let of = |variable: &str, value: &str| {
        let error = Selection::parse(variable, value).unwrap_err();
        assert_eq!(error.setting().unwrap().0, variable);
        format!("{}; {}", error.why(), error.fix())
    };
    let said = |value: &str| of(P, value);
    let commas = "write names with single commas between them";
    assert_eq!(said("^"), format!("it excludes nothing; {commas}"));
    assert_eq!(said("shm,,tcp"), format!("a name is missing at a comma; {commas}"));
    assert_eq!(
        said("^shm,^tcp"),
        "the first ^ holds for the whole list, `^tcp` needs none; write `^shm,tcp`"
    );
    assert_eq!(
        said("shm,^tcp"),
        "a list either includes or excludes: `^tcp` excludes, what comes before includes; leave `^tcp` out (what the list does not name is not used), or write `^tcp` alone"
    );
    assert_eq!(said("shm,shm"), "`shm` is there twice; leave one out");
    assert_eq!(
        said("^required:shm"),
        "`required:shm` is required and excluded at once; leave `required:` out of a list that begins with ^"
    );
    assert!(said("shm@new").ends_with("; write for example `shm@^1.2` or `shm@=1.2.3`"));
    assert_eq!(
        of(vars::DOMAINS, "shm@1"),
        "`shm@1` asks for a version, and only providers have one; put the version into TIELINE_PROVIDERS"
    );
    assert_eq!(said("required:"), "`required:` holds no name; write a name");
    assert_eq!(
        said("shm\ttcp"),
        "`shm\\ttcp` has '\\t' in it; write names with commas between them, no blanks"
    );
    assert_eq!(
        said("a\u{1}b"),
        "`a\\u{1}b` has '\\u{1}' in it; write names with commas between them, no blanks"
    );
    for (value, why) in [
        ("a[b", "a `[` has no `]`"),
        ("a]b", "a `]` has no `[`"),
        ("a[]", "a `[]` is empty"),
        ("a[!]", "a `[]` is empty"),
        ("[z-a]", "a range in `[]` runs backwards"),
    ] {
        assert_eq!(said(value), format!("`{value}` is no glob: {why}; globs are *, ? and [a-c]"));
    }
}

#[test]
fn citation_of_a_list_names_its_file_or_the_program() {
    let cited = |origin: Origin| {
        let setting = Setting { value: " ^shm ".into(), origin };
        Selection::parse_from(P, setting).unwrap().cite()
    };
    let file = Origin::File("/etc/tieline/tieline.toml".into(), 3);
    assert_eq!(cited(file), "TIELINE_PROVIDERS=^shm (/etc/tieline/tieline.toml:3)");
    assert_eq!(cited(Origin::Program), "TIELINE_PROVIDERS=^shm (program)");
    assert_eq!(cited(Origin::Environment), "TIELINE_PROVIDERS=^shm");
}

#[test]
fn a_list_of_what_is_used_passes_over_the_names_that_it_does_not_have() {
    assert!(parse("verbs,shm").passes_over("tcp"));
    for (list, name) in [("verbs,shm", "shm"), ("shm*", "shm-cma"), ("verbs@^1.2", "verbs")] {
        assert!(!parse(list).passes_over(name), "{list} {name}");
    }
    // An excluding list excludes the names that it contains, and an empty list excludes no name.
    assert!(!parse("^shm").passes_over("shm") && !parse("^shm").passes_over("tcp"));
    assert!(!parse("").passes_over("tcp"));
    let Err(Verdict::Filtered { by }) = parse("verbs").admits("tcp", None) else { panic!() };
    assert_eq!(by.strip_suffix(super::UNNAMED), Some("TIELINE_PROVIDERS=verbs"));
}

#[test]
fn a_list_is_read_with_blanks_around_its_parts() {
    let list = parse(" required: verbs @ ^1.2 , shm ");
    assert_eq!(list.admits("verbs", Some(&Version::new(1, 2, 0))), Ok(0));
    assert_eq!(list.admits("shm", None), Ok(1));
    assert!(parse("^ shm").bars("shm"));
    let Err(Verdict::Filtered { by }) = list.admits("verbs", None) else { panic!("admitted") };
    assert!(by.ends_with("; its version is not known"), "{by}");
}

proptest! {
    #[test]
    fn no_list_however_odd_ends_the_process(list in "[a-c^,@:*?!\\[\\]0-9. -]{0,24}|\\PC{0,24}", name in "\\PC{0,8}") {
        if let Ok(selection) = Selection::parse(P, &list) {
            let _ = selection.admits(&name, None);
            let _ = selection.unmatched(&[&name], "");
        }
    }

    #[test]
    fn excluding_admits_exactly_what_including_does_not(name in "[ab]{1,3}", list in "[ab*?]{1,3}(,[ab]{4}){0,2}") {
        let (Ok(include), Ok(exclude)) = (Selection::parse(P, &list), Selection::parse(P, &format!("^{list}")))
        else { return Ok(()) };
        prop_assert_eq!(include.admits(&name, None).is_ok(), exclude.admits(&name, None).is_err());
    }
}
