//! Checks the prose: the share of sentences that are hard to read, and names that are too long or are no names.
//!
//! A sentence is flagged if it begins with a relative clause, contains one of a list of phrases, or has more than 35 words. The
//! check does not find every such sentence, and [`SOUND`] lists its exceptions.

mod texts;

use super::Count;
use super::rules::is_test;
use crate::package::known_to_git;
use crate::sh::{Outcome, root};
use std::path::Path;
use texts::{Form, Piece, pieces, sentences};

/// The parts of the project that are measured, and the maximum number of flagged sentences per 1000 sentences in each part.
const PARTS: [(&str, usize); 7] = [
    ("pages of the root", 30),
    ("docs", 30),
    ("C headers", 30),
    ("documentation of the code", 30),
    ("comments", 30),
    ("Python docstrings", 30),
    ("errors and help", 30),
];

/// The words with which a sentence begins that has a relative clause as its subject.
const OPEN: &str = "Who Whoever What Whatever Where Wherever Whose Of Nobody Somebody";

/// Phrases that contain such a clause, or that are not words of the field.
const WORN: &[&str] = &[
    "hears that",
    "hears so",
    "hears of",
    "hears it",
    "hears why",
    "is told",
    "are told",
    "to who",
    "by who",
    "of who",
    "for who",
    "who asks",
    "who waits",
    "who has",
    "who gets",
    "says so",
    "nobody else",
    "in its turn",
    "is felt",
    "lets go",
    "hung up on",
    "what it brings",
    "what it has",
    "what it says",
    "what they bring",
    "what they have",
    "what they say",
    "what is there",
    "what is here",
    "as it came",
    "all the same",
];

/// Beginnings and phrases that are correct English although they match.
const SOUND: &[&str] = &["Of course", "What to do", "What next", "Where to read"];

const LONGEST: usize = 35;

/// The maximum length of a name, which states subject, condition and result.
const LONGEST_NAME: usize = 70;

/// Words with which no name of a function or type may begin.
const NO_NAMES: &[&str] = &[
    "who", "whoever", "what", "whatever", "where", "wherever", "whose", "of", "nobody", "somebody",
];

/// Files whose text is not checked: released files, and files that are generated from texts that are measured.
const GIVEN: &[&str] =
    &["tests/old-providers/1.", "docs/checks.md", "docs/configuration.md", "LICENSE", "CHANGELOG-"];

struct Flag {
    part: usize,
    file: String,
    line: usize,
    text: String,
}

#[derive(Default)]
struct Measure {
    sentences: [usize; PARTS.len()],
    flags: Vec<Flag>,
    names: Vec<Flag>,
}

/// Runs the check: no part may exceed its share, and no name may be flagged.
pub(super) fn check() -> Count {
    let found = match measure(&[]) {
        Ok(found) => found,
        Err(text) => return Count::one(Err(text)),
    };
    let mut wrong = Vec::new();
    for (part, (name, most)) in PARTS.iter().enumerate() {
        let (all, flagged) = (found.sentences[part], found.flagged(part));
        if flagged * 1000 > all * most {
            wrong.push(format!(
                "{name}: {flagged} of {all} sentences are flagged, {most} of 1000 may be"
            ));
        }
    }
    wrong.extend(
        found.names.iter().map(|flag| format!("{}:{}: {}", flag.file, flag.line, flag.text)),
    );
    if wrong.is_empty() {
        return Count::one(Ok(()));
    }
    wrong.push("`cargo xtask prose` lists the sentences and names".to_owned());
    Count::one(Err(wrong.join("; ")))
}

/// Runs `cargo xtask prose [PATH...]`: prints every flagged sentence and name, then a line for each part.
pub(crate) fn show(places: &[&str]) -> Outcome {
    let found = measure(places)?;
    for flag in found.flags.iter().chain(&found.names) {
        println!("{}:{}: [{}] {}", flag.file, flag.line, PARTS[flag.part].0, flag.text);
    }
    for (part, (name, _)) in PARTS.iter().enumerate() {
        let (all, flagged) = (found.sentences[part], found.flagged(part));
        let share = flagged as f64 * 100.0 / all.max(1) as f64;
        println!("{name}: {all} sentences, {flagged} flagged ({share:.1} %)");
    }
    println!("{} names", found.names.len());
    Ok(())
}

impl Measure {
    fn flagged(&self, part: usize) -> usize {
        self.flags.iter().filter(|flag| flag.part == part).count()
    }

    fn file(&mut self, name: &str, text: &str) {
        let test = is_test(name) || name.ends_with(".py") && name.contains("tests");
        // In other files the tests are at the end.
        let tests =
            text.find("#[cfg(test)]\nmod ").map_or(usize::MAX, |at| text[..at].lines().count());
        for piece in pieces(name, text) {
            let test = test || piece.line > tests;
            let Some(part) = part(name, &piece, test) else { continue };
            for (line, sentence) in sentences(&piece) {
                if piece.form == Form::Literal && !is_prose(&sentence) {
                    continue;
                }
                self.sentences[part] += 1;
                if is_odd(&sentence) {
                    self.flags.push(Flag { part, file: name.to_owned(), line, text: sentence });
                }
            }
        }
        let mut before = "";
        for (at, line) in text.lines().enumerate() {
            // A deprecated alias keeps its earlier name.
            let is_alias = before.trim_start().starts_with("#[deprecated(");
            before = line;
            if is_alias {
                continue;
            }
            for named in names(name, line).filter(|named| is_no_name(named)) {
                self.names.push(Flag {
                    part: 4,
                    file: name.to_owned(),
                    line: at + 1,
                    text: named.to_owned(),
                });
            }
        }
    }
}

/// Measures the files that git knows below these places; all of them if there are no places.
fn measure(places: &[&str]) -> Outcome<Measure> {
    let mut found = Measure::default();
    for name in known_to_git()? {
        let is_chosen =
            places.is_empty() || places.iter().any(|it| Path::new(&name).starts_with(it));
        if !is_chosen || GIVEN.iter().any(|given| name.starts_with(given)) {
            continue;
        }
        if let Ok(text) = std::fs::read_to_string(root().join(&name)) {
            found.file(&name, &text);
        }
    }
    Ok(found)
}

/// Returns the part of the project to which a piece belongs. Strings of tests belong to no part.
fn part(name: &str, piece: &Piece, test: bool) -> Option<usize> {
    let ending = name.rsplit('.').next().unwrap_or("");
    Some(match (piece.form, ending) {
        (Form::Document, "md") if !name.contains('/') && name != "CHANGELOG.md" => 0,
        (Form::Document, "md") => 1,
        (Form::Document | Form::Comment, "h") => 2,
        (Form::Document, "rs") => 3,
        (Form::Document, "py") => 5,
        (Form::Literal, "rs" | "py") if !test => 6,
        (Form::Literal, _) => return None,
        _ => 4,
    })
}

/// Checks whether a string is written for a reader: it has several words, most of which consist of letters.
fn is_prose(sentence: &str) -> bool {
    let words: Vec<&str> = sentence.split_whitespace().collect();
    let plain = words.iter().filter(|word| {
        word.trim_matches(|c: char| ",.;:()".contains(c))
            .chars()
            .all(|c| c.is_alphabetic() || c == '\'')
    });
    words.len() >= 4 && plain.count() * 2 > words.len()
}

fn is_odd(sentence: &str) -> bool {
    if SOUND.iter().any(|sound| sentence.starts_with(sound)) {
        return false;
    }
    let words = sentence.split_whitespace();
    let first = sentence.split(|c: char| !c.is_alphanumeric()).next().unwrap_or("");
    let open = OPEN.split(' ').any(|word| word == first) && !sentence.ends_with('?');
    let padded = format!(
        " {} ",
        sentence.to_lowercase().replace(|c: char| !c.is_alphanumeric() && c != '\'', " ")
    );
    open || words.count() > LONGEST || WORN.iter().any(|worn| padded.contains(&format!(" {worn} ")))
}

fn names<'a>(file: &str, line: &'a str) -> impl Iterator<Item = &'a str> {
    let words: &[&str] = match file.rsplit('.').next() {
        Some("rs") => &["fn ", "struct ", "enum ", "trait ", "type "],
        Some("py") => &["def ", "class "],
        _ => &[],
    };
    let code = line.split("//").next().unwrap_or("");
    words.iter().filter_map(move |word| {
        let at = code.find(word)?;
        let before = code[..at].chars().next_back();
        let rest = &code[at + word.len()..];
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        (before.is_none_or(|c| c == ' ' || c == '(') && end > 0).then(|| &rest[..end])
    })
}

fn is_no_name(name: &str) -> bool {
    let first = match name.find('_') {
        Some(end) => &name[..end],
        None => return NO_NAMES.iter().any(|no| is_type_of(name, no)),
    };
    name.len() > LONGEST_NAME || NO_NAMES.contains(&first)
}

/// Checks whether the name of a type begins with a word: `WhoAsked` begins with `who`.
fn is_type_of(name: &str, word: &str) -> bool {
    let (first, rest) = name.split_at_checked(word.len()).unwrap_or((name, ""));
    first.to_lowercase() == word
        && first.starts_with(char::is_uppercase)
        && rest.starts_with(char::is_uppercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flagged(name: &str, text: &str) -> Vec<(usize, String)> {
        let mut found = Measure::default();
        found.file(name, text);
        found.flags.into_iter().map(|flag| (flag.line, flag.text)).collect()
    }

    #[test]
    fn clauses_as_subjects_worn_phrases_and_long_sentences_are_flagged() {
        for odd in [
            "Who waits is woken.",
            "Of those the first wins.",
            "The peer hears why it failed.",
            &"word ".repeat(36),
        ] {
            assert!(is_odd(odd), "{odd}");
        }
        for sound in [
            "Who frees it?",
            "Of course it ends.",
            "The peer receives the reason.",
            "Whole pages are copied.",
        ] {
            assert!(!is_odd(sound), "{sound}");
        }
    }

    #[test]
    fn comments_cells_docstrings_and_messages_are_seen_with_their_lines() {
        let rust = "/// A type.\n/// Who drops it waits.\nfn a() {\n    // What is left is kept.\n    let b = '\"';\n    fail(\"Who asks \\\n     for it waits\"); /* Of all one stays. */\n}\n";
        let lines: Vec<usize> =
            flagged("core/src/a.rs", rust).into_iter().map(|(line, _)| line).collect();
        assert_eq!(lines, [2, 4, 6, 7]);
        assert_eq!(
            flagged(
                "docs/a.md",
                "# Who\n\n| a | Who asks is late. |\n|---|---|\n\n```\nWho is code here.\n```\n"
            )
            .len(),
            1
        );
        assert_eq!(
            flagged("include/a.h", "/* Who calls it frees it. */\n/** Fine as it is. */\n").len(),
            1
        );
        assert_eq!(flagged("python/a.py", "def a():\n    \"\"\"Who calls it waits.\n\n    Fine as it is.\"\"\"\n    # What is open is closed.\n").len(), 2);
        assert!(flagged("core/src/tests.rs", "fail(\"Who asks for it waits\");").is_empty());
    }

    #[test]
    fn names_that_are_clauses_or_too_long_are_flagged() {
        let long = format!("fn {}() {{}}", "a".repeat(71) + "_");
        let named = |text: &str| names("a.rs", text).any(is_no_name);
        assert!(
            named("fn who_waits() {")
                && named(&format!("pub struct {};", "WhoAsked"))
                && named(&long)
        );
        assert!(
            !named("fn whole_pages() {") && !named("struct Offset;") && !named("// fn who_waits")
        );
    }
}
