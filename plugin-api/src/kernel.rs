//! Facts that the kernel states in short files, each read with one call.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The maximum length of such a file.
const MOST: usize = 1023;

/// Returns the text of a short file of the kernel, such as one in `/proc`, without blanks around it. The file is read with one call,
/// for which the kernel returns all of it. Empty if the file cannot be read, or is longer than 1023 bytes.
#[must_use]
pub fn kernel_text(path: impl AsRef<Path>) -> String {
    let mut bytes = [0; MOST + 1];
    let got = File::open(path).and_then(|mut file| file.read(&mut bytes));
    let text = match got {
        Ok(got) if got <= MOST => String::from_utf8_lossy(&bytes[..got]),
        _ => return String::new(),
    };
    text.trim().to_owned()
}

/// Returns the id of this boot of the kernel, which tells kernels apart; all zero if it is unknown.
#[must_use]
pub fn boot_id() -> [u8; 16] {
    // Two halves instead of a lock, which a forked child could find held. Threads that race store the same halves.
    static HALVES: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
    static IS_READ: AtomicBool = AtomicBool::new(false);
    let mut id = [0; 16];
    let (first, second) = id.split_at_mut(8);
    if IS_READ.load(Ordering::Acquire) {
        first.copy_from_slice(&HALVES[0].load(Ordering::Relaxed).to_ne_bytes());
        second.copy_from_slice(&HALVES[1].load(Ordering::Relaxed).to_ne_bytes());
        return id;
    }
    let id = parse_id(&kernel_text("/proc/sys/kernel/random/boot_id"));
    for (half, bytes) in HALVES.iter().zip(id.chunks_exact(8)) {
        half.store(bytes.try_into().map_or(0, u64::from_ne_bytes), Ordering::Relaxed);
    }
    IS_READ.store(id != [0; 16], Ordering::Release);
    id
}

/// Reads 32 hexadecimal digits, whatever is between them.
fn parse_id(text: &str) -> [u8; 16] {
    let mut digits = text.chars().filter_map(|c| c.to_digit(16));
    let mut id = [0; 16];
    for byte in &mut id {
        let (Some(high), Some(low)) = (digits.next(), digits.next()) else { return [0; 16] };
        *byte = (high << 4 | low) as u8;
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_files_are_whole_and_others_empty() {
        let path = "/proc/sys/kernel/random/boot_id";
        assert_eq!(kernel_text(path), std::fs::read_to_string(path).unwrap().trim());
        let stat = kernel_text("/proc/self/stat");
        assert!(stat.starts_with(&std::process::id().to_string()), "{stat}");
        assert!(stat.split_ascii_whitespace().count() > 40, "{stat}");
        assert_eq!(kernel_text("/nowhere/at/all"), "");
        assert_eq!(kernel_text("/proc/self"), "", "a directory");
        let long = std::env::temp_dir().join(format!("tieline-kernel-{}", std::process::id()));
        for (len, read) in [(MOST, MOST), (MOST + 1, 0)] {
            std::fs::write(&long, "x".repeat(len)).unwrap();
            assert_eq!(kernel_text(&long).len(), read);
        }
        std::fs::remove_file(&long).unwrap();
    }

    #[test]
    fn id_is_read_from_its_digits_or_zero() {
        let id = parse_id("0b5ae2da-b148-47b5-bef6-ccf172ccca42");
        assert_eq!(u128::from_be_bytes(id), 0x0b5a_e2da_b148_47b5_bef6_ccf1_72cc_ca42);
        assert_eq!(parse_id("0b5ae2da-b148-47b5-bef6-ccf172ccca4"), [0; 16]);
        assert_eq!(parse_id(""), [0; 16]);
        for _ in 0..2 {
            assert_eq!(boot_id(), parse_id(&kernel_text("/proc/sys/kernel/random/boot_id")));
        }
    }
}
