//! Finds the prose in a file: Markdown, comments, docstrings and messages. Each piece records the line on which it starts.

use super::super::quotes;

/// A piece of prose, written as Markdown, and the line of its file on which it starts.
pub(super) struct Piece {
    pub(super) line: usize,
    pub(super) form: Form,
    pub(super) text: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Document,
    Comment,
    /// A string of the program: an error text or a line of help.
    Literal,
}

pub(super) fn pieces(name: &str, text: &str) -> Vec<Piece> {
    let found = match name.rsplit('.').next() {
        Some("md") => {
            return vec![Piece { line: 1, form: Form::Document, text: text.to_owned() }];
        }
        Some("rs") => scanned(text, false),
        Some("c" | "h" | "hpp" | "cpp") => scanned(text, true),
        Some("py") => python(text),
        _ => Vec::new(),
    };
    joined(found)
}

fn joined(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut all: Vec<Piece> = Vec::new();
    let mut next = 0;
    for piece in pieces {
        let lines = piece.text.matches('\n').count() + 1;
        match all.last_mut() {
            Some(last)
                if piece.form != Form::Literal && last.form == piece.form && next == piece.line =>
            {
                last.text.push('\n');
                last.text.push_str(&piece.text);
                next += lines;
            }
            _ => {
                next = piece.line + lines;
                all.push(piece);
            }
        }
    }
    all
}

/// Returns the comments and strings of a Rust or C source. In C, a comment that begins with two stars is documentation.
fn scanned(text: &str, c: bool) -> Vec<Piece> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        let rest = &text[at..];
        let start = line;
        let (form, length, words) = if rest.starts_with("//") {
            let words = rest.lines().next().unwrap_or("");
            let document = !c
                && (words.starts_with("///") || words.starts_with("//!"))
                && !words.starts_with("////");
            let form = if document { Form::Document } else { Form::Comment };
            let told = words.trim_start_matches('/').trim_start_matches('!');
            (form, words.len(), told.strip_prefix(' ').unwrap_or(told).to_owned())
        } else if rest.starts_with("/*") {
            let length = rest.find("*/").map_or(rest.len(), |end| end + 2);
            let form = if rest.starts_with("/**") { Form::Document } else { Form::Comment };
            let inner = rest[..length].trim_start_matches('/').trim_end_matches('/');
            let stars = |line: &str| {
                let line = line.trim().trim_matches('*');
                line.strip_prefix(' ').unwrap_or(line).to_owned()
            };
            (form, length, inner.lines().map(stars).collect::<Vec<_>>().join("\n"))
        } else if !c && raw(bytes, at).is_some() {
            let (open, hashes) = raw(bytes, at).unwrap_or((0, 0));
            let close = format!("\"{}", "#".repeat(hashes));
            let inner = &rest[open..];
            let length = inner.find(&close).unwrap_or(inner.len());
            (
                Form::Literal,
                (open + length + close.len()).min(rest.len()),
                inner[..length].to_owned(),
            )
        } else if bytes[at] == b'"' {
            let length = string(rest);
            (Form::Literal, length, unescaped(&rest[1..length.max(2) - 1]))
        } else if bytes[at] == b'\'' {
            // The quote begins a character, or the name of a lifetime.
            let length = match rest.chars().nth(1) {
                Some('\\') => rest[2..].find('\'').map_or(1, |end| end + 3).max(4),
                Some(other) if rest[1 + other.len_utf8()..].starts_with('\'') => {
                    other.len_utf8() + 2
                }
                _ => 1,
            };
            at += length.min(rest.len());
            continue;
        } else {
            line += usize::from(bytes[at] == b'\n');
            at += rest.chars().next().map_or(1, char::len_utf8);
            continue;
        };
        line += rest[..length].matches('\n').count();
        at += length;
        found.push(Piece { line: start, form, text: words });
    }
    found
}

/// Returns the start of the text of a raw string, and the number of its `#`.
fn raw(bytes: &[u8], at: usize) -> Option<(usize, usize)> {
    let before = at.checked_sub(1).map(|before| bytes[before]);
    if bytes[at] != b'r'
        || before.is_some_and(|b| b.is_ascii_alphanumeric() && b != b'b' || b == b'_')
    {
        return None;
    }
    let hashes = bytes[at + 1..].iter().take_while(|b| **b == b'#').count();
    (bytes.get(at + 1 + hashes) == Some(&b'"')).then_some((hashes + 2, hashes))
}

fn string(rest: &str) -> usize {
    let mut escaped = false;
    for (at, b) in rest.bytes().enumerate().skip(1) {
        match b {
            b'"' if !escaped => return at + 1,
            b'\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    rest.len()
}

/// Returns a string with its line breaks: `\n` is a line break, and a backslash at the end of a line is not.
fn unescaped(text: &str) -> String {
    quotes::joined(text).replace("\\n", "\n").replace("\\\"", "\"")
}

fn python(text: &str) -> Vec<Piece> {
    let mut found = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let piece = |form, text: String| Piece { line: at + 1, form, text };
        if let Some((_, opened)) = line.split_once("\"\"\"") {
            let mut inner = vec![opened.split("\"\"\"").next().unwrap_or("").to_owned()];
            if !opened.contains("\"\"\"") {
                for (_, next) in lines.by_ref() {
                    inner.push(next.split("\"\"\"").next().unwrap_or("").trim().to_owned());
                    if next.contains("\"\"\"") {
                        break;
                    }
                }
            }
            found.push(piece(Form::Document, inner.join("\n")));
        } else if let Some(comment) = line.trim_start().strip_prefix('#') {
            found.push(piece(Form::Comment, comment.trim().to_owned()));
        } else if let Some((_, comment)) = line.split_once("  # ") {
            found.push(piece(Form::Comment, comment.to_owned()));
        } else if let Some(inner) = line.split('"').nth(1) {
            found.push(piece(Form::Literal, inner.to_owned()));
        }
    }
    found
}

/// Returns the sentences of a piece of Markdown, each with its line. Code and headings contain no sentences; a cell of a table is a
/// paragraph.
pub(super) fn sentences(piece: &Piece) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut paragraph: Vec<(usize, &str)> = Vec::new();
    let (mut code, mut hidden) = (false, false);
    for (at, line) in piece.text.lines().enumerate() {
        let at = piece.line + at;
        let bare = line.trim().trim_start_matches("> ");
        let fence = bare.starts_with("```");
        hidden |= bare.starts_with("<!--");
        let listed = item(bare);
        let table = bare.starts_with('|');
        let skipped = fence || code || hidden || table || bare.starts_with(['#', '<']);
        if skipped || bare.is_empty() || listed.is_some() {
            cut(&paragraph, &mut found);
            paragraph.clear();
        }
        code ^= fence;
        if table && !code && !hidden && !bare.starts_with("|-") && !bare.starts_with("|:") {
            for cell in bare.split('|') {
                let cell: Vec<_> = cell.split_whitespace().map(|word| (at, word)).collect();
                cut(&cell, &mut found);
            }
        }
        let indented =
            piece.form != Form::Literal && line.starts_with("    ") && paragraph.is_empty();
        if !(skipped || indented && listed.is_none()) {
            paragraph.extend(listed.unwrap_or(bare).split_whitespace().map(|word| (at, word)));
        }
        hidden &= !bare.ends_with("-->");
    }
    cut(&paragraph, &mut found);
    found
}

fn item(line: &str) -> Option<&str> {
    let number = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let numbered = if number.len() < line.len() { number.strip_prefix(". ") } else { None };
    numbered.or_else(|| line.strip_prefix("- ")).or_else(|| line.strip_prefix("* "))
}

fn cut(words: &[(usize, &str)], found: &mut Vec<(usize, String)>) {
    let mut sentence: Vec<&str> = Vec::new();
    let mut start = 0;
    for (at, (line, word)) in words.iter().enumerate() {
        if sentence.is_empty() {
            start = *line;
        }
        sentence.push(word);
        let ends = word.trim_end_matches([')', '"', '`', '*']).ends_with(['.', '!', '?']);
        let next = words.get(at + 1).and_then(|(_, next)| next.chars().next());
        let begins = next.is_none_or(|c| c.is_uppercase() || "`*[\"(".contains(c));
        if ends && begins && !word.ends_with("e.g.") || next.is_none() {
            if sentence.len() >= 3 {
                found.push((start, sentence.join(" ").trim_matches(['*', ' ']).to_owned()));
            }
            sentence.clear();
        }
    }
}
