//! The GID table from sysfs, for libraries that cannot read it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::address::{Gid, GidEntry, GidType};

fn port_folder(device: &str, port: u8) -> PathBuf {
    Path::new("/sys/class/infiniband").join(device).join("ports").join(port.to_string())
}

/// One entry; fails with `ENODATA` for an empty one, as the library does.
pub(super) fn gid_entry(device: &str, port: u8, index: u32) -> io::Result<GidEntry> {
    read_entry(&port_folder(device, port), port, index)?
        .ok_or_else(|| io::Error::from_raw_os_error(libc::ENODATA))
}

/// All entries that are not empty and can be read; fails if none can be read.
pub(super) fn gid_table(device: &str, ports: u8) -> io::Result<Vec<GidEntry>> {
    let mut entries = Vec::new();
    for port in 1..=ports {
        entries.extend(port_entries(&port_folder(device, port), port)?);
    }
    Ok(entries)
}

fn port_entries(folder: &Path, port: u8) -> io::Result<Vec<GidEntry>> {
    let mut indices: Vec<u32> = fs::read_dir(folder.join("gids"))?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    indices.sort_unstable();
    let (mut entries, mut failed) = (Vec::new(), None);
    for index in indices {
        match read_entry(folder, port, index) {
            Ok(entry) => entries.extend(entry),
            // The kernel gives EINVAL for some entries, which says nothing of the others.
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.filter(|_| entries.is_empty()).map_or(Ok(entries), Err)
}

fn read_entry(port_folder: &Path, port: u8, index: u32) -> io::Result<Option<GidEntry>> {
    let index_name = index.to_string();
    let text = fs::read_to_string(port_folder.join("gids").join(&index_name))?;
    let gid: Gid = text.trim().parse().map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
    if gid.is_zero() {
        return Ok(None);
    }
    let attributes = port_folder.join("gid_attrs");
    // A port that is neither InfiniBand nor RoCE has no types in sysfs.
    let gid_type = match fs::read_to_string(attributes.join("types").join(&index_name)) {
        Ok(text) if is_ethernet(port_folder) => parse_type(&text),
        _ => GidType::InfiniBand,
    };
    let ifindex = fs::read_to_string(attributes.join("ndevs").join(&index_name))
        .ok()
        .and_then(|name| fs::read_to_string(format!("/sys/class/net/{}/ifindex", name.trim())).ok())
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0);
    Ok(Some(GidEntry::from_parts(gid, port, index, gid_type, ifindex)))
}

/// Whether the port's link layer is Ethernet, where GIDs have a type.
fn is_ethernet(port_folder: &Path) -> bool {
    fs::read_to_string(port_folder.join("link_layer")).is_ok_and(|text| text.trim() == "Ethernet")
}

/// Parses a type on Ethernet. The kernel uses one name, `IB/RoCE v1`, for InfiniBand and for RoCE
/// version 1.
fn parse_type(text: &str) -> GidType {
    if text.trim() == "RoCE v2" { GidType::RoceV2 } else { GidType::RoceV1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_from_the_kernels_files() {
        let folder = std::env::temp_dir().join(format!("sideway-sysfs-{}", std::process::id()));
        for sub in ["gids", "gid_attrs/types", "gid_attrs/ndevs"] {
            fs::create_dir_all(folder.join(sub)).unwrap();
        }
        fs::write(folder.join("link_layer"), "Ethernet\n").unwrap();
        fs::write(folder.join("gids/0"), "fe80:0000:0000:0000:5054:00ff:fe36:7656\n").unwrap();
        fs::write(folder.join("gids/1"), "0000:0000:0000:0000:0000:0000:0000:0000\n").unwrap();
        fs::write(folder.join("gid_attrs/types/0"), "RoCE v2\n").unwrap();
        fs::write(folder.join("gid_attrs/ndevs/0"), "lo\n").unwrap();
        let entry = read_entry(&folder, 1, 0).unwrap().unwrap();
        assert_eq!(entry.gid_type(), GidType::RoceV2);
        assert_eq!(entry.gid().to_string(), "fe80:0000:0000:0000:5054:00ff:fe36:7656");
        assert_eq!(entry.netdev_name().unwrap(), "lo");
        assert_eq!(read_entry(&folder, 1, 1).unwrap(), None);
        assert!(read_entry(&folder, 1, 7).is_err());

        // An entry that cannot be read does not hide the others.
        fs::write(folder.join("gids/1"), "no GID\n").unwrap();
        assert_eq!(port_entries(&folder, 1).unwrap(), [entry]);
        fs::write(folder.join("gids/0"), "no GID\n").unwrap();
        assert_eq!(port_entries(&folder, 1).unwrap_err().kind(), io::ErrorKind::InvalidData);
        fs::write(folder.join("gids/0"), "fe80:0000:0000:0000:5054:00ff:fe36:7656\n").unwrap();

        fs::write(folder.join("gid_attrs/types/0"), "IB/RoCE v1\n").unwrap();
        assert_eq!(read_entry(&folder, 1, 0).unwrap().unwrap().gid_type(), GidType::RoceV1);
        fs::write(folder.join("link_layer"), "InfiniBand\n").unwrap();
        assert_eq!(read_entry(&folder, 1, 0).unwrap().unwrap().gid_type(), GidType::InfiniBand);
        fs::remove_dir_all(folder).unwrap();
    }
}
