//! Reads the providers' declarations as text, and writes a comparison for each record, field and constant.
//!
//! If a declaration has no counterpart in the crate, the comparison does not compile.

mod names;

use names::{Field, LIBFABRIC, Names, VERBS};
use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let out = std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    let halves = [("VERBS", "verbs.rs", &VERBS), ("LIBFABRIC", "libfabric.rs", &LIBFABRIC)];
    for (feature, file, names) in halves {
        if std::env::var_os(format!("CARGO_FEATURE_{feature}")).is_some() {
            std::fs::write(Path::new(&out).join(file), comparisons(names)).expect("OUT_DIR");
        }
    }
}

fn comparisons(names: &Names) -> String {
    let (mut records, mut constants) = (String::new(), String::new());
    let (mut declared, mut fields) = (Vec::new(), 0);
    for (module, file) in names.files {
        let path = Path::new("../../providers").join(file);
        println!("cargo::rerun-if-changed={}", path.display());
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{file}: {e}"));
        for record in records_of(&text) {
            records.push_str(&compare_record(names, module, &record));
            fields += record.fields.len();
            declared.extend(record.fields.iter().map(|field| format!("{}.{field}", record.name)));
            declared.push(record.name.to_owned());
        }
        for name in constants_of(&text) {
            constants.push_str(&compare_constant(names, module, name));
            declared.push(name.to_owned());
        }
    }
    for name in names.all() {
        assert!(declared.iter().any(|known| known == name), "names.rs: {name} is not declared");
    }
    let records_count = records.matches("compare_record!").count();
    let constants_count = constants.lines().count();
    format!(
        "fn records() -> Vec<Comparison> {{\n    let mut out = Vec::new();\n{records}    out\n}}\n\n\
         fn constants() -> Vec<Comparison> {{\n    let mut out = Vec::new();\n{constants}    out\n}}\n\n\
         const FOUND: Declared = Declared {{ records: {records_count}, fields: {fields}, \
         constants: {constants_count} }};\n"
    )
}

fn compare_record(names: &Names, module: &str, record: &Record) -> String {
    let Record { name, fields } = record;
    let renamed = names.records.iter().find(|(ours, _)| ours == name).map(|(_, theirs)| *theirs);
    let pair = format!("{module}::{name}, theirs::{}", renamed.unwrap_or(name));
    let size = match (names.heads.contains(name), fields.contains(&"spare")) {
        (true, _) => "head",
        (false, true) => "spare",
        (false, false) => "whole",
    };
    let mut text = format!("    compare_record!(out, {size}, {pair});\n");
    for field in fields {
        let ours = format!("{name}.{field}");
        let known = names.fields.iter().find(|(known, _)| *known == ours);
        let (kind, theirs) = match known.map_or(Field::Is(field), |(_, theirs)| *theirs) {
            Field::Is(theirs) => ("whole", theirs),
            Field::BeginsAt(theirs) => ("offset", theirs),
            Field::Padding => continue,
        };
        text.push_str(&format!("    compare_field!(out, {kind}, {pair}, {field}, {theirs});\n"));
    }
    text
}

fn compare_constant(names: &Names, module: &str, name: &str) -> String {
    if names.absent.contains(&name) {
        return format!("    // The crate has no {name}.\n");
    }
    let known = names.constants.iter().find(|(begin, _)| name.starts_with(begin));
    let theirs = known.map_or("*", |(_, path)| path).replace('*', name);
    format!("    compare_constant!(out, {module}::{name}, theirs::{theirs});\n")
}

struct Record<'t> {
    name: &'t str,
    fields: Vec<&'t str>,
}

fn records_of(text: &str) -> Vec<Record<'_>> {
    let mut records: Vec<Record> = Vec::new();
    let mut within = false;
    for line in text.lines() {
        let head = ["pub(crate) struct ", "pub(crate) union ", "pub struct "];
        if let Some(rest) = head.iter().find_map(|head| line.strip_prefix(head)) {
            records.push(Record { name: word(rest), fields: Vec::new() });
            within = true;
        } else if line == "}" {
            within = false;
        } else if let (true, Some(rest)) = (within, field_of(line)) {
            records.last_mut().expect("a field is in a record").fields.push(word(rest));
        }
    }
    records
}

fn field_of(line: &str) -> Option<&str> {
    line.strip_prefix("    pub(crate) ").or_else(|| line.strip_prefix("    pub "))
}

/// Returns the names in `numbers! { ... }`.
fn constants_of(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().skip_while(|line| *line != "numbers! {").skip(1);
    lines.take_while(|line| *line != "}").map(|line| word(line.trim_start()))
}

fn word(text: &str) -> &str {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    text.split(|letter| !is_part(letter)).next().unwrap_or(text)
}
