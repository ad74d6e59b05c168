//! Which paths lead into the tree.

/// The folders that the tree has instead of the system, by their components.
const FOLDERS: [&[&[u8]]; 5] = [
    &[b"dev", b"infiniband"],
    &[b"sys", b"class", b"infiniband"],
    &[b"sys", b"class", b"infiniband_verbs"],
    &[b"sys", b"devices", b"virtual", b"infiniband"],
    &[b"sys", b"devices", b"virtual", b"infiniband_verbs"],
];

/// The longest path that is redirected, with its NUL. The names in the tree are short. This lies on
/// the stack of every call, also of a signal handler with a small one.
pub(crate) const LONGEST: usize = 512;

/// Writes the path in the tree, with a NUL at its end, and returns its length without the NUL;
/// `None` if the path is of no such folder.
pub(crate) fn redirected(path: &[u8], tree: &[u8], out: &mut [u8; LONGEST]) -> Option<usize> {
    if path.first() != Some(&b'/') || tree.is_empty() {
        return None;
    }
    let (folder, rest) = FOLDERS.iter().find_map(|folder| below(path, folder).map(|rest| (*folder, rest)))?;
    let mut length = 0;
    let mut push = |bytes: &[u8]| {
        out.get_mut(length..length + bytes.len())?.copy_from_slice(bytes);
        length += bytes.len();
        Some(())
    };
    push(tree)?;
    for component in folder {
        push(b"/")?;
        push(component)?;
    }
    push(rest)?;
    push(b"\0")?;
    Some(length - 1)
}

/// What follows a folder in a path: nothing, or a slash and more.
fn below<'a>(path: &'a [u8], folder: &[&[u8]]) -> Option<&'a [u8]> {
    folder.iter().try_fold(path, |path, component| {
        let rest = after_slashes(path)?.strip_prefix(*component)?;
        matches!(rest.first(), None | Some(b'/')).then_some(rest)
    })
}

/// A path without the slashes at its beginning, of which there is at least one, and without `.` as
/// a component there.
fn after_slashes(path: &[u8]) -> Option<&[u8]> {
    let mut rest = path.strip_prefix(b"/")?;
    loop {
        rest = match rest {
            [b'/', rest @ ..] | [b'.', b'/', rest @ ..] => rest,
            _ => return Some(rest),
        };
    }
}

/// The number of bytes to drop from the beginning of a path of the tree, so that it is the path
/// that the program knows.
pub(crate) fn tree_prefix(path: &[u8], tree: &[u8]) -> usize {
    match path.strip_prefix(tree) {
        Some([b'/', ..]) if !tree.is_empty() => tree.len(),
        _ => 0,
    }
}

/// The library of this project that replaces a library of rdma-core, given by its path or name. The
/// name may be the system's, or a renamed copy's in a Python wheel, such as
/// `libibverbs-1b2c3d4e.so.1.14.44.0`.
pub(crate) fn replaced_library(path: &[u8]) -> Option<&'static [u8]> {
    const LIBRARIES: [(&[u8], &[u8]); 2] =
        [(b"libibverbs", b"libibverbs.so.1\0"), (b"librdmacm", b"librdmacm.so.1\0")];
    let name = path.rsplit(|byte| *byte == b'/').next()?;
    LIBRARIES.iter().find_map(|(stem, ours)| {
        let rest = name.strip_prefix(*stem)?;
        let hash = match rest {
            [b'-', rest @ ..] => rest.iter().take_while(|byte| byte.is_ascii_hexdigit()).count() + 1,
            _ => 0,
        };
        let version = rest[hash..].strip_prefix(b".so")?;
        let is_version = match version {
            [] => true,
            [b'.', rest @ ..] => rest.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.'),
            _ => false,
        };
        (is_version && hash != 1).then_some(*ours)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &str) -> Option<String> {
        let mut out = [0; LONGEST];
        let length = redirected(path.as_bytes(), b"/t", &mut out)?;
        assert_eq!(out[length], 0);
        Some(String::from_utf8(out[..length].to_vec()).unwrap())
    }

    #[test]
    fn paths_of_the_devices_are_those_of_the_tree() {
        for (path, expected) in [
            ("/dev/infiniband", "/t/dev/infiniband"),
            ("/dev/infiniband/soft0", "/t/dev/infiniband/soft0"),
            ("//dev/./infiniband//soft0/", "/t/dev/infiniband//soft0/"),
            ("/sys/class/infiniband/soft0/../..", "/t/sys/class/infiniband/soft0/../.."),
            ("/sys/class/infiniband_verbs/abi_version", "/t/sys/class/infiniband_verbs/abi_version"),
            ("/sys/devices/virtual/infiniband/soft0", "/t/sys/devices/virtual/infiniband/soft0"),
        ] {
            assert_eq!(of(path).as_deref(), Some(expected), "{path}");
        }
    }

    #[test]
    fn other_paths_stay() {
        let long = format!("/dev/infiniband/{}", "x".repeat(LONGEST));
        for path in [
            "",
            "/",
            "/dev",
            "/dev/null",
            "dev/infiniband",
            "/dev/infinibandage",
            "/sys/class/infiniband_mad",
            "/sys/class",
            "/sys/class/net/eth0",
            "/home/dev/infiniband",
            &long,
        ] {
            assert_eq!(of(path), None, "{path}");
        }
        assert_eq!(redirected(b"/dev/infiniband", b"", &mut [0; LONGEST]), None, "no tree");
    }

    #[test]
    fn results_lose_the_trees_name() {
        assert_eq!(tree_prefix(b"/t/sys/x", b"/t"), 2);
        assert_eq!(tree_prefix(b"/tea/sys", b"/t"), 0);
        assert_eq!(tree_prefix(b"/t", b"/t"), 0);
        assert_eq!(tree_prefix(b"/t/sys", b""), 0);
    }

    #[test]
    fn copies_of_the_libraries_are_recognised() {
        for name in ["libibverbs.so.1", "libibverbs.so", "/a/b/libibverbs-1b2c3D.so.1.14.44.0"] {
            assert_eq!(replaced_library(name.as_bytes()), Some(&b"libibverbs.so.1\0"[..]), "{name}");
        }
        assert_eq!(replaced_library(b"x.libs/librdmacm-0123.so.1"), Some(&b"librdmacm.so.1\0"[..]));
        for name in
            ["", "libibverbs-.so.1", "libibverbs-rust.so", "libibverbs.so.1a", "libmlx5.so.1", "libibverbs"]
        {
            assert_eq!(replaced_library(name.as_bytes()), None, "{name}");
        }
    }
}
