//! Tests of files with a valid note and broken code.

mod common;

use common::{assert_refused, assert_the_rest_works, is_found, open, open_with, verdicts};
use tieline::explain::Verdict;
use tieline_bad_providers::Directory;
use tieline_plugin_api::abi::ABI_MINOR;

#[test]
fn a_constructor_that_crashes_costs_a_line_of_text() {
    let directory = Directory::new();
    let _ = directory.compile("segv", &["CONSTRUCTOR=raise(SIGSEGV)"]);
    let _ = directory.compile("null", &["CONSTRUCTOR=*(volatile int *)(uintptr_t)8 = 1"]);
    let _ = directory.compile("abort", &["CONSTRUCTOR=abort()"]);
    let _ = directory.compile("good", &[]);
    let context = open(&[&directory]);
    let expected = "functions and finalizers run to their end";
    assert_refused(&context, "segv", "probe", expected, "killed by SIGSEGV");
    assert_refused(&context, "null", "probe", expected, "killed by SIGSEGV");
    assert_refused(&context, "abort", "probe", expected, "killed by SIGABRT");
    assert!(is_found(&context, "good"));
}

#[test]
fn a_constructor_that_ends_the_process_ends_only_the_child() {
    let directory = Directory::new();
    let _ = directory.compile("exits", &["CONSTRUCTOR=_exit(3)"]);
    let _ = directory.compile("leaves", &["CONSTRUCTOR=exit(0)"]);
    let context = open(&[&directory]);
    assert_refused(&context, "exits", "probe", "", "exited with status 3");
    assert_refused(&context, "leaves", "probe", "", "exited with status 0");
}

#[test]
fn a_constructor_that_hangs_is_killed() {
    let directory = Directory::new();
    let _ = directory.compile("hangs", &["CONSTRUCTOR=for (;;) pause()"]);
    let _ = directory.compile("good", &[]);
    let context = open(&[&directory]);
    assert_refused(&context, "hangs", "probe", "", "did not come back within 5 s and was killed");
    assert!(is_found(&context, "good"));
}

#[test]
fn crashing_hanging_or_exiting_entry_function_costs_one_report_line() {
    let directory = Directory::new();
    let _ = directory.compile("segv", &["ENTRY=raise(SIGSEGV)"]);
    let _ = directory.compile("exits", &["ENTRY=exit(3)"]);
    let _ = directory.compile("loops", &["ENTRY=for (;;) pause()"]);
    let _ = directory.compile("good", &[]);
    let context = open(&[&directory]);
    let (expected, child) =
        ("functions and finalizers run to their end", "a child process that called its entry");
    assert_refused(&context, "segv", "probe", expected, "function was killed by SIGSEGV");
    assert_refused(&context, "exits", "probe", expected, "exited with status 3");
    assert_refused(&context, "loops", "probe", expected, "did not come back within 5 s");
    assert!(common::refusal(&context, "loops").2.contains(child));
    assert!(is_found(&context, "good"));
}

#[test]
fn the_trial_gives_the_entry_function_the_settings_that_it_will_have() {
    const NAME: &str = "TIELINE_MOODY_MOOD";
    let directory = Directory::new();
    let ask = format!(
        "ENTRY=const uint8_t *name = (const uint8_t *)\"{NAME}\"; size_t len = {}; \
         struct tieline_config_var var = {{ .size = sizeof var, .name = name, .name_len = len, .kind = TIELINE_CONFIG_TEXT }}; \
         struct tieline_config_value mood = {{ .size = sizeof mood }}; \
         if (host->config_declare(host->context, &var, 1)) return TIELINE_INVALID; \
         if (!host->config_get(host->context, name, len, &mood) && mood.text_len) abort()",
        NAME.len()
    );
    let _ = directory.compile("moody", &[&ask]);
    let context = open_with(&[&directory], &[(NAME, "bad")]);
    assert_refused(
        &context,
        "moody",
        "probe",
        "",
        "called its entry function was killed by SIGABRT",
    );
    assert!(is_found(&open(&[&directory]), "moody"));
}

/// Returns switches for a provider that declares these text variables at start, and fails unless the host returns `expected`.
fn that_declares(names: &[&str], expected: &str) -> String {
    let record = |name: &&str| {
        format!(
            "{{ .size = sizeof(struct tieline_config_var), .name = (const uint8_t *)\"{name}\", .name_len = {}, \
             .kind = TIELINE_CONFIG_TEXT }}",
            name.len()
        )
    };
    let records: Vec<String> = names.iter().map(record).collect();
    format!(
        "ENTRY=struct tieline_config_var vars[] = {{ {} }}; \
         int32_t said = host->config_declare(host->context, vars, {}); \
         if (said != {expected} && said != TIELINE_OK) return TIELINE_INVALID; \
         if (said == TIELINE_OK && {expected} != TIELINE_OK) return TIELINE_NO_DEVICE",
        records.join(", "),
        names.len()
    )
}

#[test]
fn list_of_variables_with_one_mistake_is_refused_as_a_whole() {
    let directory = Directory::new();
    let names = ["TIELINE_HALFWAY_A", "TIELINE_OTHER_B"];
    let _ = directory.compile("halfway", &[&that_declares(&names, "TIELINE_PROVIDER_FAILED")]);
    let context = open_with(&[&directory], &[("TIELINE_HALFWAY_A", "7"), ("TIELINE_PROBE", "off")]);
    assert!(is_found(&context, "halfway"), "it goes on without");
    let report = context.report();
    let of = |name: &str| report.config.iter().find(|view| view.name == name);
    assert_eq!(of("TIELINE_HALFWAY_A").expect("it was set").owner, "unknown");
    assert!(of("TIELINE_OTHER_B").is_none());
}

#[test]
fn variable_records_of_bad_length_or_later_minor_are_refused() {
    let directory = Directory::new();
    let declares = |size: &str| {
        format!(
            "ENTRY=struct {{ struct tieline_config_var var; uint64_t later; }} list = \
             {{ {{ .size = {size}, .name = (const uint8_t *)\"TIELINE_X\", .name_len = 9, .kind = TIELINE_CONFIG_TEXT }}, 7 }}; \
             if (host->config_declare(host->context, &list.var, 1)) return TIELINE_INVALID"
        )
    };
    let _ = directory.compile("short", &[&declares("16")]);
    let _ = directory.compile("later", &[&declares("sizeof list")]);
    let context = open(&[&directory]);
    let expected = "a provider that starts";
    let short = "a record of a variable says that it is 16 bytes long";
    assert_refused(&context, "short", "init", expected, short);
    let later = "a field that this core does not know, and that is not zero";
    assert_refused(&context, "later", "init", expected, later);
}

#[test]
fn a_name_belongs_to_the_provider_whose_name_it_fits_best() {
    let directory = Directory::new();
    let name = ["TIELINE_AA_BB_SIZE"];
    let _ = directory.compile("aa", &[&that_declares(&name, "TIELINE_PROVIDER_FAILED")]);
    let _ = directory.compile("aa-bb", &[&that_declares(&name, "TIELINE_OK")]);
    let context =
        open_with(&[&directory], &[("TIELINE_AA_BB_SIZE", "any"), ("TIELINE_PROBE", "off")]);
    assert!(is_found(&context, "aa") && is_found(&context, "aa-bb"));
    let report = context.report();
    let view = report.config.iter().find(|view| view.name == name[0]).expect("it was declared");
    assert_eq!(view.owner, "aa-bb");
    // If no other provider's name is a prefix of the variable's name, the variable belongs to the first provider.
    let alone = Directory::new();
    let _ = alone.compile("aa", &[&that_declares(&name, "TIELINE_OK")]);
    assert!(is_found(&open_with(&[&alone], &[("TIELINE_PROBE", "off")]), "aa"));
}

#[test]
fn refused_value_fails_the_open_and_error_names_its_source() {
    let open = |settings: &[(&str, &str)]| {
        let builder = tieline::Context::builder()
            .set("TIELINE_SHM_FASTBOX_SIZE", "5k")
            .set("TIELINE_PROBE", "nocache");
        settings.iter().fold(builder, |builder, (name, value)| builder.set(name, value)).open()
    };
    let error = open(&[]).err().expect("5k is no power of two");
    assert_eq!(error.status(), tieline::Status::Invalid, "{error}");
    assert_eq!(error.what(), "TIELINE_SHM_FASTBOX_SIZE=5k (program) is not valid");
    assert!(error.why().contains("shm") && error.why().contains("power of two"), "{error}");
    let error = open(&[("TIELINE_SHM_FASTBOX_SIZE", "4k"), ("TIELINE_SHM_DIR", "/misspelt")]);
    let error = error.err().expect("there is no such directory");
    assert_eq!(error.what(), "TIELINE_SHM_DIR=/misspelt (program) is not valid");
    assert!(error.why().contains("does not exist"), "{error}");
    // If the provider is not selected, the values of its variables are not checked.
    let directory = Directory::new();
    let _ = directory.compile("good", &[]);
    let path = directory.path().to_str().unwrap();
    let without =
        open(&[("TIELINE_PROVIDERS", "good"), ("TIELINE_PROVIDER_PATH", path)]).expect("a context");
    assert_the_rest_works(&without);
}

#[test]
fn a_provider_that_refuses_what_nobody_set_is_refused_alone() {
    let directory = Directory::new();
    let text = "INIT_ERROR=\"TIELINE_PICKY_SIZE=4 is too small\"";
    let _ = directory.compile("picky", &[text, "INIT_STATUS=TIELINE_INVALID"]);
    let found = "TIELINE_PICKY_SIZE=4 is too small";
    assert_refused(&open(&[&directory]), "picky", "value", "a provider that starts", found);
    let paths = directory.path().to_str().unwrap();
    let set = tieline::Context::builder()
        .set("TIELINE_PROVIDER_PATH", paths)
        .set("TIELINE_PROBE", "nocache")
        .set("TIELINE_PICKY_SIZE", "4");
    let error = set.open().err().expect("a refused value");
    assert_eq!(error.what(), "TIELINE_PICKY_SIZE=4 (program) is not valid");
}

#[test]
fn a_missing_symbol_is_refused_in_the_loaders_words() {
    let directory = Directory::new();
    let _ = directory.compile("depends", &["MISSING_DEPENDENCY"]);
    let found = "a_function_that_no_library_has";
    assert_refused(&open(&[&directory]), "depends", "dlopen", "", found);
}

#[test]
fn a_file_without_the_entry_symbol_is_refused() {
    let directory = Directory::new();
    let _ = directory.compile("mute", &["NO_SYMBOL"]);
    let expected = "the symbol tieline_provider_v1";
    assert_refused(&open(&[&directory]), "mute", "symbol", expected, "no such symbol");
}

#[test]
fn the_entry_symbol_of_a_dependency_is_not_the_providers() {
    let (directory, elsewhere) = (Directory::new(), Directory::new());
    let library = elsewhere.compile("good", &[]);
    let library = library.to_str().unwrap();
    let arguments = ["-Wl,--no-as-needed", library];
    let _ = directory.compile_with("borrows", &["NO_SYMBOL"], &arguments);
    let found = "belongs to another object";
    assert_refused(&open(&[&directory]), "borrows", "symbol", "in the file itself", found);
}

/// Its constructors would have run here, and its finalizers would run at the end of the process.
#[test]
fn a_file_that_a_trial_does_not_load_is_not_loaded_by_the_process() {
    let (directory, elsewhere) = (Directory::new(), Directory::new());
    let library = elsewhere.compile("good", &[]);
    let arguments = ["-Wl,--no-as-needed", library.to_str().unwrap()];
    let files = [
        directory.compile("mute", &["NO_SYMBOL"]),
        directory.compile("depends", &["MISSING_DEPENDENCY"]),
        directory.compile_with("borrows", &["NO_SYMBOL"], &arguments),
    ];
    let context = open(&[&directory]);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    for file in files {
        assert!(!maps.contains(file.to_str().unwrap()), "{}", file.display());
    }
    assert_the_rest_works(&context);
}

#[test]
fn error_text_of_failed_init_is_in_the_record() {
    let directory = Directory::new();
    let says = "INIT_ERROR=\"no card in any slot\"";
    let _ = directory.compile("broken", &[says, "INIT_STATUS=TIELINE_IO"]);
    let _ = directory.compile("absent", &[says]);
    let context = open(&[&directory]);
    let (expected, found) = ("a provider that starts", "no card in any slot (");
    assert_refused(&context, "broken", "init", expected, found);
    // The absence of the device is not a fault of the provider.
    let [Verdict::NotUsed { because }] = &verdicts(&context, "absent")[..] else {
        panic!("{:?}", verdicts(&context, "absent"))
    };
    assert!(because.starts_with("no card in any slot; version "), "{because}");
    assert!(context.report().log.iter().all(|line| line.provider != "absent"));
}

#[test]
fn an_init_that_panics_is_refused_with_the_panics_words() {
    let directory = Directory::new();
    let _ = directory.copy_example("bad_panics", "panics");
    let context = open_with(&[&directory], &[("TIELINE_PANICS_WHERE", "init")]);
    let found = "the provider panicked: as it was told to";
    assert_refused(&context, "panics", "init", "a provider that starts", found);
}

#[test]
fn other_layouts_than_those_of_the_minor_are_refused_with_both_digests() {
    let directory = Directory::new();
    let _ = directory.copy_example("bad_layout_drift", "drifted");
    let expected = format!("the layouts of ABI 1.{ABI_MINOR}, with the digest ");
    let found = "the digest 0000000000000001";
    assert_refused(&open(&[&directory]), "drifted", "layout", &expected, found);
}

#[test]
fn tables_that_are_missing_are_refused() {
    let directory = Directory::new();
    let _ = directory.compile("empty", &["NO_TABLES"]);
    assert_refused(&open(&[&directory]), "empty", "tables", "", "the domain table is missing");
}

#[test]
fn providers_left_out_by_filter_are_never_opened() {
    let directory = Directory::new();
    let _ = directory.compile("segv", &["CONSTRUCTOR=raise(SIGSEGV)"]);
    let settings = [("TIELINE_PROVIDERS", "^segv"), ("TIELINE_PROBE", "off")];
    let context = open_with(&[&directory], &settings);
    assert!(matches!(verdicts(&context, "segv").as_slice(), [Verdict::Filtered { .. }]));
    assert_the_rest_works(&context);
}

#[test]
fn a_file_takes_the_place_of_the_built_in_provider_of_its_name() {
    let directory = Directory::new();
    let file = directory.compile("shm-cma", &["VERSION=\"9.9.9\""]);
    let context = open(&[&directory]);
    let loaded = context.report().providers;
    let view = loaded.iter().find(|view| view.name == "shm-cma").expect("a provider");
    assert_eq!((view.version.as_str(), view.origin.as_str()), ("9.9.9", file.to_str().unwrap()));
    let shadowed = verdicts(&context, "shm-cma").into_iter().any(
        |verdict| matches!(verdict, Verdict::OutrankedBy { rule, .. } if rule.contains("built in")),
    );
    assert!(shadowed);
}

/// The next provider of a name is the next file of that name in the search path, or the built-in provider if there is no such file.
#[test]
fn when_the_file_fails_the_next_provider_of_its_name_is_used() {
    let directory = Directory::new();
    let bad = directory.compile("shm-cma", &["NO_SYMBOL"]);
    let context = open(&[&directory]);
    let loaded = context.report().providers;
    let view = loaded.iter().find(|view| view.name == "shm-cma").expect("a provider");
    assert_ne!(view.origin, bad.display().to_string());
    assert_eq!(view.version, env!("CARGO_PKG_VERSION"));
}

/// Other code in the process may close the provider's file more often than it has opened the file: pointers into the provider's
/// code stay valid.
#[test]
#[allow(unsafe_code)]
fn a_provider_stays_where_it_is_however_often_its_file_is_closed() {
    use std::os::unix::ffi::OsStrExt;
    let directory = Directory::new();
    let file = directory.compile("good", &[]);
    let context = open(&[&directory]);
    assert!(is_found(&context, "good"));
    let path = std::ffi::CString::new(file.as_os_str().as_bytes()).expect("no zero in it");
    for _ in 0..3 {
        // SAFETY: the path is a string that ends with a zero, and the call loads no new file.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        assert!(!handle.is_null(), "it is not there any more");
        // SAFETY: the handle is that of an object that is never unloaded, which this test checks. The first close belongs to this
        // call, the second to the loader's.
        let _ = unsafe { (libc::dlclose(handle), libc::dlclose(handle)) };
    }
    assert_the_rest_works(&context);
}
