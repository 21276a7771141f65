//! The nearest spelling of a name that does not exist.

/// The name among `candidates` that `name` was probably meant to be, or none when nothing is near: more
/// than a third of the letters would have to change.
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

/// How many letters to add, drop, change or swap with their neighbour (optimal string alignment).
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

    #[test]
    fn a_swap_of_neighbours_counts_once() {
        assert_eq!(distance("abcd", "abdc"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
