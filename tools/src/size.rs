//! Sizes in the form that users write and read: `8`, `4k`, `1m`, `2GiB`; lists of sizes, and sweeps `1:4m`.

/// Parses a size: `64`, `64k`, `64K`, `64KiB`, `1m`, `2g`.
pub(crate) fn parse(text: &str) -> Result<usize, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err(format!("`{text}`: the unit `{unit}` is none of k, m, g")),
    };
    let number: usize =
        number.parse().map_err(|_| format!("`{text}` is not a size such as 8 or 4k"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("`{text}` is too large"))
}

/// Parses a comma-separated list of sizes and sweeps: `8,4k`, or `1:4m`, which doubles from 1 byte to 4 MiB.
pub(crate) fn parse_list(text: &str) -> Result<Vec<usize>, String> {
    let mut sizes = Vec::new();
    for part in text.split(',') {
        match part.split_once(':') {
            None => sizes.push(parse(part)?),
            Some((from, to)) => {
                let (from, to) = (parse(from)?, parse(to)?);
                if from == 0 || from > to {
                    return Err(format!(
                        "`{part}`: a sweep runs from a size above 0 to a larger one"
                    ));
                }
                let doubling = std::iter::successors(Some(from), |size| size.checked_mul(2));
                sizes.extend(doubling.take_while(|&size| size <= to));
            }
        }
    }
    Ok(sizes)
}

/// Formats a size in short form: `8`, `4k`, `1m`, `1000`.
pub(crate) fn show(bytes: usize) -> String {
    for (shift, unit) in [(30, "g"), (20, "m"), (10, "k")] {
        if bytes >= 1 << shift && bytes % (1 << shift) == 0 {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_and_a_sweep_mix() {
        assert_eq!(parse_list("8,4k").unwrap(), [8, 4096]);
        assert_eq!(parse_list("1:8,1MiB").unwrap(), [1, 2, 4, 8, 1 << 20]);
        assert_eq!(parse_list("3:10").unwrap(), [3, 6]);
    }

    #[test]
    fn invalid_size_is_refused_with_its_text() {
        for text in ["", "x", "8q", "8:4", "0:4", "99999999999g"] {
            assert!(parse_list(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_size_reads_back_as_it_was_written() {
        for bytes in [0, 1, 8, 1000, 4096, 1 << 20, 3 << 20, 1 << 30] {
            assert_eq!(parse(&show(bytes)).unwrap(), bytes);
        }
    }
}
