//! Checks dependencies between files: the order of the core's modules, which ARCHITECTURE.md states, and cycles of files that use
//! each other.
//!
//! The uses of a file are read from its `use` items and from paths that begin with `crate`, `self`, `super` or a module of its own.
//! Re-exports are followed to the definition of the name. Tests do not count: they may use every module.

use std::collections::{BTreeMap, BTreeSet};

/// The maximum number of files of a package that may use each other in a cycle. These numbers may only be decreased.
const MOST: [(usize, &str); 3] = [
    (4, "core host"),
    (3, "choose job order providers/tcp"),
    (
        2,
        "config explain lookup net plugin-api providers/memory-file providers/registration providers/shm providers/shm-cma \
         providers/shm-knem providers/shm-xpmem providers/single-copy providers/tcp-connect providers/verbs tag tools trial wireup",
    ),
];

/// A module's path in its package: `["endpoint", "key"]`; empty for the root of the package.
type Path = Vec<String>;

pub(super) fn too_large(texts: &[(String, String)]) -> Vec<String> {
    let each = |(most, packages): &(usize, &'static str)| {
        let most = *most;
        packages.split(' ').map(move |package| (most, package))
    };
    let too_large = |(most, package): (usize, &str)| {
        let found = largest(&modules(&format!("{package}/src"), texts));
        let names: Vec<String> = found.iter().map(|path| path.join("/")).collect();
        (found.len() > most).then(|| {
            format!(
                "{} files of {package}/src use each other in a circle, {most} are the most: {}",
                names.len(),
                names.join(", ")
            )
        })
    };
    MOST.iter().flat_map(each).filter_map(too_large).collect()
}

/// The heading of the order of the core's modules. The list has one line for each module, or for several that use each other.
const ORDER: &str = "```order of core/src\n";

/// Returns the modules of the core that use a module that follows them in the order of the page.
pub(super) fn backwards(page: &str, texts: &[(String, String)]) -> Vec<String> {
    let order = page.split(ORDER).nth(1).and_then(|rest| rest.split("```").next());
    let Some(order) = order else {
        return vec!["ARCHITECTURE.md says no order of core/src".into()];
    };
    let line_of = |room: &str| {
        order.lines().position(|line| line.split_whitespace().any(|word| word == room))
    };
    let mut wrong = BTreeSet::new();
    for (from, uses) in uses(&modules("core/src", texts)) {
        let Some(room) = from.first() else { continue };
        let Some(own) = line_of(room) else {
            let _ =
                wrong.insert(format!("ARCHITECTURE.md does not say where core/src/{room} stands"));
            continue;
        };
        for to in &uses {
            if to[0] != *room && line_of(&to[0]).is_some_and(|line| line > own) {
                let _ = wrong.insert(format!(
                    "core/src/{} uses {}, which comes after it",
                    from.join("/"),
                    to.join("::")
                ));
            }
        }
    }
    wrong.into_iter().collect()
}

/// Returns the text of every module below a directory, without tests and comments.
fn modules(folder: &str, texts: &[(String, String)]) -> BTreeMap<Path, String> {
    let mut modules = BTreeMap::new();
    for (name, text) in texts.iter().filter(|(name, _)| !super::rules::is_test(name)) {
        let Some(rest) = name.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/')) else {
            continue;
        };
        let mut path: Path = rest.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        if path.last().is_some_and(|last| last == "mod" || last == "lib" && path.len() == 1) {
            let _ = path.pop();
        }
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
        let _ = modules.insert(path, lines.collect::<Vec<_>>().join("\n"));
    }
    modules
}

/// Returns the files of the largest cycle; empty if there is no cycle.
fn largest(modules: &BTreeMap<Path, String>) -> Vec<Path> {
    let uses = uses(modules);
    let reach = |from: &Path| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(at) = next.pop() {
            for to in uses.get(at).into_iter().flatten() {
                if seen.insert(to) {
                    next.push(to);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&Path, BTreeSet<&Path>> =
        modules.keys().map(|path| (path, reach(path))).collect();
    let circle = |path: &Path| -> Vec<Path> {
        let there = &reached[path];
        let back = there.iter().filter(|to| reached[**to].contains(path));
        back.map(|to| (*to).clone()).collect()
    };
    modules.keys().map(circle).max_by_key(Vec::len).unwrap_or_default()
}

/// Returns the modules that each module uses. The root is only a list of names, so no module depends on it.
fn uses(modules: &BTreeMap<Path, String>) -> BTreeMap<Path, BTreeSet<Path>> {
    let mut names = BTreeMap::new();
    for (module, text) in modules {
        for path in imports(text, true) {
            let (Some(full), Some(name)) = (absolute(modules, module, &path), path.last()) else {
                continue;
            };
            let _ = names.insert((module.clone(), name.clone()), full);
        }
    }
    let mut uses = BTreeMap::new();
    for (module, text) in modules {
        let own =
            modules.keys().filter(|path| path.split_last().is_some_and(|(_, of)| of == module));
        let own: Vec<&str> = own.filter_map(|path| path.last().map(String::as_str)).collect();
        let paths = imports(text, false).into_iter().chain(inline(text, &own));
        let found = paths
            .filter_map(|path| absolute(modules, module, &path))
            .filter_map(|path| stands(modules, &names, path))
            .filter(|to| to != module && !to.is_empty());
        let _ = uses.insert(module.clone(), found.collect());
    }
    uses
}

/// Returns the path from the package's root; `None` if the path leads to another package.
fn absolute(modules: &BTreeMap<Path, String>, module: &Path, path: &[String]) -> Option<Path> {
    let ups = path.iter().take_while(|word| *word == "super").count();
    let (from, rest) = match path.first()?.as_str() {
        "crate" => (&[][..], &path[1..]),
        "self" => (&module[..], &path[1..]),
        "super" => (&module[..module.len().saturating_sub(ups)], &path[ups..]),
        _ if modules.contains_key(&[&module[..], &path[..1]].concat()) => (&module[..], path),
        _ => return None,
    };
    Some([from, rest].concat())
}

fn stands(
    modules: &BTreeMap<Path, String>,
    names: &BTreeMap<(Path, String), Path>,
    mut path: Path,
) -> Option<Path> {
    for _ in 0..8 {
        let length = (0..=path.len()).rev().find(|&n| modules.contains_key(&path[..n]))?;
        let module = path[..length].to_vec();
        let behind = path.get(length).and_then(|name| names.get(&(module.clone(), name.clone())));
        match behind {
            Some(target) => path = [&target[..], &path[length + 1..]].concat(),
            None => return Some(module),
        }
    }
    None
}

/// Returns the position of an item's `use`, and whether the item is a re-export.
fn use_of(item: &str) -> Option<(usize, bool)> {
    let at = item.rfind("use ")?;
    let before = item[..at].rsplit(['\n', '{', '}']).next().unwrap_or_default().trim();
    let public = before.starts_with("pub");
    (before.is_empty() || public).then_some((at, public))
}

/// Returns the paths of `use` items: of re-exports, or of the others.
fn imports(text: &str, public: bool) -> Vec<Path> {
    let mut found = Vec::new();
    for item in text.split(';') {
        if let Some((at, _)) = use_of(item).filter(|(_, re_export)| *re_export == public) {
            tree(&item[at + 4..], &[], &mut found);
        }
    }
    found
}

fn tree(text: &str, prefix: &[String], found: &mut Vec<Path>) {
    let text = text.trim();
    let words = |text: &str| -> Path {
        let text = text.split(" as ").next().unwrap_or_default();
        text.split("::").map(str::trim).filter(|w| !w.is_empty()).map(str::to_owned).collect()
    };
    let Some((head, rest)) = text.split_once('{') else {
        return found.push([prefix, &words(text)].concat());
    };
    let prefix = [prefix, &words(head)].concat();
    let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
    let (mut depth, mut from) = (0, 0);
    for (at, c) in inner.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                tree(&inner[from..at], &prefix, found);
                from = at + 1;
            }
            _ => {}
        }
    }
    if !inner[from..].trim().is_empty() {
        tree(&inner[from..], &prefix, found);
    }
}

/// Returns the paths inside code that begin with `crate`, `self`, `super` or one of these modules.
fn inline(text: &str, own: &[&str]) -> Vec<Path> {
    let is_word = |c: char| c == '_' || c.is_ascii_alphanumeric();
    let mut found = Vec::new();
    for item in text.split(';') {
        let code = use_of(item).map_or(item, |(at, _)| &item[..at]);
        for start in ["crate", "self", "super"].iter().chain(own) {
            for (at, _) in code.match_indices(&format!("{start}::")) {
                let before = &code[..at];
                // A visibility such as `pub(in path)` is no use of that path.
                if before.ends_with(|c: char| is_word(c) || c == ':') || before.ends_with("pub(in ")
                {
                    continue;
                }
                let path = code[at..].split(|c: char| !is_word(c) && c != ':').next();
                let words = path.unwrap_or_default().split("::").filter(|word| !word.is_empty());
                found.push(words.map(str::to_owned).collect());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(of: &[(&str, &str)]) -> Vec<(String, String)> {
        of.iter().map(|(name, text)| (format!("net/src/{name}"), (*text).to_owned())).collect()
    }

    fn circle(of: &[(&str, &str)]) -> Vec<String> {
        let found = largest(&modules("net/src", &files(of)));
        found.iter().map(|path| path.join("/")).collect()
    }

    #[test]
    fn cycles_are_found_through_lists_children_and_re_exports() {
        let a = ("a.rs", "use crate::b::{self, deep::{Thing}};\n");
        let b = ("b/mod.rs", "mod deep;\npub(crate) use deep::Thing;\nuse std::fmt;\n");
        assert!(circle(&[a, b, ("b/deep.rs", "pub struct Thing;")]).is_empty());
        let back = ("b/deep.rs", "fn f() { super::super::a::g() }");
        assert_eq!(circle(&[a, b, back]), ["a", "b/deep"]);
        let parent = ("b/mod.rs", "mod deep;\nfn f() -> deep::Thing { my_deep::g() }");
        assert_eq!(circle(&[parent, ("b/deep.rs", "use super::f;")]), ["b", "b/deep"]);
        let by_name = ("a.rs", "use crate::b::Thing;");
        assert_eq!(circle(&[by_name, b, back]), ["a", "b/deep"]);
    }

    #[test]
    fn tests_comments_and_other_packages_are_no_uses() {
        let a = ("a.rs", "use crate::b::B;\n");
        for text in [
            "// use crate::a::A;",
            "use std::a::A;",
            "#[cfg(test)]\nmod tests {\n use crate::a::A;\n}",
        ] {
            assert!(circle(&[a, ("b.rs", text)]).is_empty(), "{text}");
        }
        assert_eq!(circle(&[a, ("b.rs", "use crate::a::A;")]), ["a", "b"]);
    }

    #[test]
    fn a_list_of_what_the_parent_re_exports_is_no_use_of_the_parent() {
        let b = ("b/mod.rs", "mod c;\npub use c::C;\nuse c::deep::D;\n");
        let deep = |text| circle(&[b, ("b/c/mod.rs", "mod deep;"), ("b/c/deep.rs", text)]);
        assert!(deep("use crate::b::{C};").is_empty());
        assert_eq!(deep("use crate::b::{C, B};"), ["b", "b/c/deep"]);
    }

    #[test]
    fn a_room_that_uses_a_later_one_or_stands_nowhere_is_named() {
        let page = "...\n```order of core/src\nsys\nop mem\nworker\n```\n";
        let file = |name: &str, text: &str| vec![(format!("core/src/{name}"), text.to_owned())];
        let with = |text: &str| {
            let mut files = file("mem/region.rs", text);
            files.extend(file("sys.rs", ""));
            files.extend(file("op.rs", ""));
            files.extend(file("worker.rs", "use crate::mem::region::Region;"));
            backwards(page, &files)
        };
        assert!(with("use crate::sys::Span;\nuse crate::op::Id;").is_empty());
        let named = ["core/src/mem/region uses worker, which comes after it"];
        assert_eq!(with("use crate::worker::Worker;"), named);
        let nowhere = backwards(page, &file("new.rs", ""));
        assert_eq!(nowhere, ["ARCHITECTURE.md does not say where core/src/new stands"]);
    }

    #[test]
    fn a_circle_beyond_what_is_allowed_names_its_files() {
        let names = ["a", "b", "c", "d", "e"];
        let text = |i: usize| format!("use crate::{}::X;", names[(i + 1) % names.len()]);
        let files: Vec<_> =
            (0..names.len()).map(|i| (format!("net/src/{}.rs", names[i]), text(i))).collect();
        assert_eq!(
            too_large(&files),
            ["5 files of net/src use each other in a circle, 2 are the most: a, b, c, d, e"]
        );
    }
}
