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
