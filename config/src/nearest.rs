//! The nearest known spelling of an unknown name.

/// Returns the candidate that is nearest to `name`, or `None` if more than a third of the letters, and more than one, would have to
/// change.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (name.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .filter(|candidate| *candidate != name)
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Returns the number of letters to add, drop, change or swap with a neighbour (optimal string alignment).
pub(crate) fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().flat_map(char::to_lowercase).collect();
    let b: Vec<char> = b.chars().flat_map(char::to_lowercase).collect();
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let change = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = change.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_keyboard_is_understood() {
        let names = ["PROVIDERS", "PROVIDER_PATH", "DOMAINS", "PROBE", "shm-cma", "shm"];
        assert_eq!(nearest("PROVIDRS", names), Some("PROVIDERS"));
        assert_eq!(nearest("PROVIDER", names), Some("PROVIDERS"));
        assert_eq!(nearest("DOMIANS", names), Some("DOMAINS"));
        assert_eq!(nearest("shmcma", names), Some("shm-cma"));
        assert_eq!(nearest("smh", names), Some("shm"));
    }

    #[test]
    fn nothing_is_suggested_for_a_name_that_is_far_from_all() {
        assert_eq!(nearest("infiniband", ["shm", "tcp"]), None);
        assert_eq!(nearest("x", []), None);
    }

    /// At most a third of the letters may change, but one letter may always change. Among equally near candidates, the first by
    /// name is chosen.
    #[test]
    fn nearness_is_counted_in_letters() {
        assert_eq!(nearest("abcdef", ["abcdxy"]), Some("abcdxy"));
        assert_eq!(nearest("abcdef", ["abcxyz"]), None);
        assert_eq!(nearest("abcde", ["abcxy"]), None);
        assert_eq!(nearest("ab", ["ax"]), Some("ax"));
        assert_eq!(nearest("ab", ["xy"]), None);
        assert_eq!(nearest("shm", ["sim", "sham"]), Some("sham"));
        assert_eq!(nearest("shmem", ["shm", "shmen"]), Some("shmen"));
        assert_eq!(nearest("shm", ["shm"]), None, "it is there");
        assert_eq!(nearest("äöü", ["äöx"]), Some("äöx"));
    }

    #[test]
    fn letters_are_added_dropped_changed_and_swapped_at_either_end() {
        for (a, b, steps) in [
            ("abc", "abc", 0),
            ("abc", "ABC", 0),
            ("abc", "bac", 1),
            ("abc", "acb", 1),
            ("abc", "cab", 2),
            ("abc", "bca", 2),
            ("ab", "xba", 2),
            ("abc", "xabc", 1),
            ("abc", "abcx", 1),
            ("abc", "bc", 1),
            ("abc", "", 3),
            ("abab", "baba", 2),
            ("aab", "aba", 1),
        ] {
            assert_eq!((distance(a, b), distance(b, a)), (steps, steps), "{a} {b}");
        }
    }

    #[test]
    fn a_swap_of_neighbours_counts_once() {
        assert_eq!(distance("abcd", "abdc"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
