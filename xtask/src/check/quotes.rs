//! Checks the quotes in the page for operators, which lists the action for each error text. A quote of a text that the program
//! never prints is an error.

/// Returns rows of a page's tables whose first cell quotes a text that is neither in a source nor in a test. A sentence that is
/// assembled at run time appears as a whole only in a test.
pub(super) fn nowhere_said(page: &str, texts: &[(String, String)]) -> Vec<String> {
    let sources: Vec<String> = texts
        .iter()
        .filter(|(name, _)| !name.starts_with("xtask/"))
        .map(|(_, text)| joined(text))
        .collect();
    let is_said = |words: &str| sources.iter().any(|source| source.contains(words));
    let mut wrong = Vec::new();
    for row in page.lines().filter(|line| line.starts_with("| ")) {
        let cell = row.split('|').nth(1).unwrap_or_default();
        for quote in cell.split('`').skip(1).step_by(2) {
            if let Some(words) = pieces(quote).find(|words| !is_said(words)) {
                wrong.push(format!("docs/operators.md quotes `{quote}`: nothing says `{words}`"));
            }
        }
    }
    wrong
}

/// Returns the pieces of a quote that a source must contain verbatim. Omissions (`...`), numbers and file names are excluded, since
/// a file name may be a constant.
fn pieces(quote: &str) -> impl Iterator<Item = &str> {
    let cut = quote.split("...").flat_map(|part| part.split(|c: char| c.is_ascii_digit()));
    let cut = cut.flat_map(|part| part.split(" /dev/"));
    let whole = cut.map(|piece| piece.trim_matches(|c: char| " .,()".contains(c)));
    let whole = whole.map(|piece| piece.strip_prefix("expected ").unwrap_or(piece));
    whole.filter(|piece| piece.len() > 4)
}

pub(super) fn joined(text: &str) -> String {
    let mut lines = text.split("\\\n");
    let first = lines.next().unwrap_or_default().to_owned();
    lines.fold(first, |all, line| all + line.trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_nothing_says_are_named_and_numbers_may_differ() {
        let source = "format!(\"the limit on locked \\\n    memory is {} KiB\")";
        let texts = vec![("providers/x/src/memory.rs".to_owned(), source.to_owned())];
        let page = |quote: &str| format!("| the line says | do |\n|---|---|\n| `{quote}` | so |\n");
        let wrong = |quote: &str| nowhere_said(&page(quote), &texts).len();
        assert_eq!(wrong("the limit on locked memory is 64 KiB"), 0);
        assert_eq!(wrong("the limit ... memory is 128 KiB"), 0);
        assert_eq!(wrong("the limit on locked /dev/knem"), 0);
        assert_eq!(wrong("the bound on locked memory"), 1);
    }
}
