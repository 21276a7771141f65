//! Tests of files whose functions change registers or memory of their caller, or rely on uninitialised state.

mod common;

use common::{assert_refused, assert_the_rest_works, is_found, open, open_with, verdicts};
use tieline::explain::Verdict;
use tieline_bad_providers::Directory;

#[test]
#[cfg(target_arch = "x86_64")]
fn a_function_that_changes_registers_of_its_caller_is_found_by_the_trial() {
    let directory = Directory::new();
    let change = "__asm__ volatile (\"incq %%r15\" : :)";
    for (name, step) in
        [("entry", "ENTRY"), ("domain", "DOMAIN"), ("module", "MODULE"), ("end", "FINALIZER")]
    {
        let _ = directory.compile(name, &[&format!("{step}={change}")]);
    }
    let _ = directory.compile("good", &[]);
    let context = open(&[&directory]);
    let expected = "functions and finalizers run to their end";
    for (name, step) in [
        ("entry", "called its entry function"),
        ("domain", "opened its domains"),
        ("module", "opened its domains"),
        ("end", "ran its finalizers"),
    ] {
        let found =
            format!("a child process that {step} found that a function had changed registers");
        assert_refused(&context, name, "probe", expected, &found);
    }
    assert!(is_found(&context, "good"));
}

#[test]
#[cfg(target_arch = "x86_64")]
fn trial_detects_a_function_that_overwrites_its_callers_stack() {
    let directory = Directory::new();
    let change = "((volatile char *)__builtin_frame_address(0))[256] = 1";
    for (name, step) in [("entry", "ENTRY"), ("domain", "DOMAIN")] {
        let _ = directory.compile(name, &[&format!("{step}={change}")]);
    }
    let context = open(&[&directory]);
    let found = "a function had written over the stack of its caller";
    assert_refused(&context, "entry", "probe", "", found);
    assert_refused(&context, "domain", "probe", "", found);
}

/// A register or variable that a function has not set holds no valid address in the trial.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_function_that_uses_what_it_has_not_set_is_found_by_the_trial() {
    let directory = Directory::new();
    let _ = directory
        .compile("kept", &["ENTRY=__asm__ volatile (\"movb $1, (%%r15)\" : : : \"memory\")"]);
    let unset = "DOMAIN=__asm__ volatile (\"movq -2048(%%rsp), %%rax; movb (%%rax), %%al\" : : : \"rax\", \"memory\")";
    let _ = directory.compile("stack", &[unset]);
    let context = open(&[&directory]);
    assert_refused(&context, "kept", "probe", "", "called its entry function was killed by SIG");
    assert_refused(&context, "stack", "probe", "", "opened its domains was killed by SIG");
}

const BESIDE: [(&str, &str); 5] = [
    ("front", "ENTRY=((volatile uint64_t *)out)[-1] = 1"),
    ("before", "DOMAIN=if (capacity) ((volatile uint64_t *)out)[-1] = 1"),
    ("behind", "DOMAIN=if (capacity) ((volatile uint64_t *)(out + capacity))[2] = 1"),
    ("count", "DOMAIN=((volatile size_t *)count)[1] = 1"),
    ("modules", "MODULE=if (capacity) ((volatile uint64_t *)(out + capacity))[0] = 1"),
];

#[test]
fn a_function_that_writes_beside_its_room_is_found_by_the_trial() {
    let directory = Directory::new();
    for (name, step) in BESIDE {
        let _ = directory.compile(name, &[step]);
    }
    let context = open(&[&directory]);
    for (name, _) in BESIDE {
        assert_refused(&context, name, "probe", "", "a function had written beside the room");
    }
}

#[test]
fn without_a_trial_an_overrun_of_an_answer_costs_its_provider_alone() {
    let directory = Directory::new();
    for (name, step) in BESIDE {
        let _ = directory.compile(name, &[step]);
    }
    let context = open_with(&[&directory], &[("TIELINE_PROBE", "off")]);
    for (name, _) in BESIDE {
        let verdicts = verdicts(&context, name);
        let is_named = |verdict: &Verdict| {
            let Verdict::Refused { found, .. } = verdict else { return false };
            found.contains("beside the room that it was given")
                || found.contains("in front of the room that the entry function was given")
        };
        assert!(verdicts.iter().any(is_named), "{name}: {verdicts:?}");
    }
    assert_the_rest_works(&context);
}
