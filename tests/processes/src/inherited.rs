//! The role `inherited`: a process with open contexts forks, and the child lists its descriptors and mappings.
//!
//! The role accepts one order: `NAME=VALUE...`, the settings of the context. The answer has a line `descriptor KIND CLOSED-BY-EXEC`
//! for each of the library's descriptors in the child, and a line `mapping KIND WHERE` for each mapping. WHERE is `parent` for a
//! mapping that the child does not have. The last line is `end`.

use crate::fork::{Child, End};
use crate::parent::Parent;
use std::collections::BTreeMap;
use std::io::Read;
use tieline::{Context, Error, Outcome};

/// Runs the role `inherited`.
pub fn inherited(parent: Parent) {
    while let Some(order) = parent.hear() {
        let (descriptors, mappings) = (descriptors(), mappings());
        let open = Open::new(order.split(' ')).expect("a context");
        let child = Child::fork(End::AtOnce, |mut line| {
            use std::io::Write;
            let told: String = self::descriptors()
                .iter()
                // The last descriptor belongs to the listing of the directory.
                .filter(|(number, kind)| {
                    descriptors.get(*number) != Some(kind) && !kind.starts_with("/proc/")
                })
                .map(|(number, kind)| format!("descriptor {kind} {}\n", is_closed_by_exec(*number)))
                .chain(self::mappings().keys().map(|at| format!("at {at}\n")))
                .collect();
            u8::from(line.write_all(told.as_bytes()).is_err())
        });
        let mut told = String::new();
        let mut line = child.line.try_clone().expect("a descriptor");
        let _ = line.read_to_string(&mut told).expect("the child says it");
        assert_eq!(child.join(), Some(0));
        // The connection between parent and child is not part of the list.
        told.lines()
            .filter(|line| line.starts_with("descriptor"))
            .for_each(|line| parent.say(line));
        let childs: Vec<&str> = told.lines().filter_map(|line| line.strip_prefix("at ")).collect();
        let is_new = |(at, found): &(&String, &_)| mappings.get(*at) != Some(*found);
        for (at, (kind, _)) in self::mappings().iter().filter(is_new) {
            let is_childs = childs.contains(&at.as_str());
            parent.say(&format!("mapping {kind} {}", if is_childs { "both" } else { "parent" }));
        }
        drop(open);
        parent.say("end");
    }
}

/// A context in use: a worker with an endpoint to itself, memory of both kinds, a key, and an eventfd on which other processes
/// wait.
struct Open(#[expect(dead_code)] Box<dyn std::any::Any>);

impl Open {
    fn new<'a>(settings: impl Iterator<Item = &'a str>) -> Result<Open, Error> {
        let mut builder = Context::builder();
        for (name, value) in settings.filter_map(|setting| setting.split_once('=')) {
            builder = builder.set(name, value);
        }
        let context = builder.open()?;
        let worker = context.worker()?;
        let own = worker.connect(&worker.address()?)?;
        let (given, made) = (context.register(vec![0; 5000])?, context.alloc(5000)?);
        let waker = worker.waker()?;
        for memory in [&given, &made] {
            let key = own.import_key(&memory.remote_key()?)?;
            for _ in 0..40 {
                let outcome: Outcome = own.send(1, 0, b"to myself")?;
                let _ = worker.finish(outcome)?;
                let outcome = own.put_bytes(b"theirs", &key, 0)?;
                let _ = worker.finish(outcome)?;
            }
        }
        Ok(Open(Box::new((waker, given, made, own, worker, context))))
    }
}

fn descriptors() -> BTreeMap<i32, String> {
    let all = std::fs::read_dir("/proc/self/fd").expect("/proc").flatten();
    let seen = |entry: std::fs::DirEntry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        let kind = std::fs::read_link(entry.path()).ok()?.display().to_string();
        Some((number, kind.replace(' ', "_")))
    };
    all.filter_map(seen).collect()
}

fn is_closed_by_exec(number: i32) -> bool {
    const CLOSED_BY_EXEC: u32 = 0o2_000_000;
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok()).unwrap_or(0) & CLOSED_BY_EXEC
        != 0
}

/// Returns the kind and the end of each mapping by its first address. The end of the heap changes with allocations.
fn mappings() -> BTreeMap<String, (String, String)> {
    let text = std::fs::read_to_string("/proc/self/maps").expect("/proc");
    let seen = |line: &str| {
        let mut words = line.split_whitespace();
        let (at, rights) = (words.next()?, words.next()?);
        let name = words.skip(3).collect::<Vec<_>>().join("_");
        let name = if name.is_empty() { format!("anonymous_{rights}") } else { name };
        let (first, end) = at.split_once('-')?;
        Some((first.to_owned(), (name, end.to_owned())))
    };
    text.lines().filter_map(seen).collect()
}
