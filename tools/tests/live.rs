//! Tests of `tieline info --pid`, in the form in which an operator calls it.

use serde_json::Value;
use std::process::{Command, Output};
use tieline::Context;

fn info(arguments: &[&str]) -> (Output, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tieline"));
    let output = command.arg("info").args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    (output, out, errors)
}

#[test]
fn running_process_is_shown_with_its_contexts_as_text_and_as_json() {
    let open = || Context::builder().set("TIELINE_PROVIDERS", "shm").open().unwrap();
    let (first, second) = (open(), open());
    let (worker, other) = (first.worker().unwrap(), second.worker().unwrap());
    let endpoint = worker.connect(&other.address().unwrap()).unwrap();
    let _ = endpoint.send(7, 0, b"hello").unwrap();
    while first.status().workers[0].endpoints.is_empty() {
        let _ = (worker.progress(), other.progress());
    }
    let me = std::process::id().to_string();
    let (output, text, errors) = info(&["--pid", &me]);
    assert!(output.status.success(), "{errors}");
    assert_eq!(text.matches(", context ").count(), 2, "{text}");
    assert_eq!(text.matches("WORKER ").count(), 2, "{text}");
    assert!(text.contains(&format!("to process {me} (")), "{text}");
    let (output, text, errors) = info(&["--pid", &me, "--json"]);
    assert!(output.status.success(), "{errors}");
    let all: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(all.as_array().unwrap().len(), 2);
    for context in all.as_array().unwrap() {
        assert_eq!(context["pid"].to_string(), me);
        assert_eq!(context["workers"].as_array().unwrap().len(), 1);
    }
    drop((endpoint, worker));
    drop(first);
    let (_, text, _) = info(&["--pid", &me]);
    assert_eq!(text.matches(", context ").count(), 1, "{text}");
}

#[test]
fn process_that_cannot_be_shown_gives_one_line_and_an_exit_code() {
    for (arguments, says) in [
        (["--pid", "4294967295"], "process 4294967295 is not there"),
        (["--pid", "no"], "invalid value 'no'"),
    ] {
        let (output, text, errors) = info(&arguments);
        assert!(!output.status.success() && text.is_empty(), "{text}");
        assert!(errors.contains(says), "{errors}");
    }
}
