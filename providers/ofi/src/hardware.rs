//! Detects a device that only libfabric drives. The search reads the kernel's device lists and loads nothing.

use std::fs;
use std::path::Path;

/// Drivers of devices in `/sys/class/infiniband` that no verbs provider drives fully, and libfabric's names for them.
const DRIVERS: &[(&str, &str)] = &[("efa", "efa"), ("hfi1", "opx"), ("hfi2", "opx")];

/// Describes the first device that only libfabric drives.
pub(crate) fn found(classes: &Path) -> Option<String> {
    let entries = |class: &str| {
        let mut names: Vec<_> =
            fs::read_dir(classes.join(class)).into_iter().flatten().flatten().collect();
        names.sort_by_key(fs::DirEntry::file_name);
        names
    };
    if let Some(entry) = entries("cxi").first() {
        return Some(format!("{} (cxi)", entry.file_name().to_string_lossy()));
    }
    entries("infiniband").iter().find_map(|entry| {
        let driver = fs::read_link(entry.path().join("device/driver")).ok()?;
        let driver = driver.file_name()?.to_str()?;
        let (_, provider) = DRIVERS.iter().find(|(name, _)| *name == driver)?;
        Some(format!("{} ({provider})", entry.file_name().to_string_lossy()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_only_libfabric_drives_are_told_from_others() {
        let at = std::env::temp_dir().join(format!("tieline-ofi-classes-{}", std::process::id()));
        let _ = fs::remove_dir_all(&at);
        assert_eq!(found(&at), None, "a machine without any class");
        for (device, driver) in [("mlx5_0", "mlx5_core"), ("rdmap0", "efa")] {
            let folder = at.join("infiniband").join(device).join("device");
            fs::create_dir_all(&folder).unwrap();
            std::os::unix::fs::symlink(
                format!("/sys/bus/pci/drivers/{driver}"),
                folder.join("driver"),
            )
            .unwrap();
        }
        assert_eq!(found(&at).as_deref(), Some("rdmap0 (efa)"));
        fs::create_dir_all(at.join("cxi/cxi0")).unwrap();
        assert_eq!(found(&at).as_deref(), Some("cxi0 (cxi)"));
        fs::remove_dir_all(&at).unwrap();
    }
}
