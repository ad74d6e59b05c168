//! Checks that a peer process belongs to the same user.

use std::sync::OnceLock;

/// The user id, as the system reports it of peers, or `None` where it cannot tell this user from
/// others.
///
/// In a user namespace, all users without a mapping appear as the *overflow* user. A process that
/// itself runs as that user cannot tell who a peer is.
pub(crate) fn own() -> Option<u32> {
    let user = effective();
    (user != overflow_user() || all_users_have_names()).then_some(user)
}

/// The effective user id.
pub(crate) fn effective() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn overflow_user() -> u32 {
    static USER: OnceLock<u32> = OnceLock::new();
    *USER.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
        text.trim().parse().unwrap_or(65534)
    })
}

/// Whether this is the initial user namespace, or one that maps all users identically.
fn all_users_have_names() -> bool {
    std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| names_all_users(&map))
}

fn names_all_users(map: &str) -> bool {
    let mut fields = map.split_whitespace();
    let mut next = || fields.next().and_then(|field| field.parse::<u32>().ok());
    next() == Some(0) && next().is_some() && next() == Some(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::names_all_users;

    #[test]
    fn namespaces_with_nameless_users_are_told_apart() {
        assert!(names_all_users("         0          0 4294967295\n"));
        assert!(!names_all_users("         0       1000          1\n"));
        assert!(!names_all_users("0 1000 1\n1 100000 65536\n"));
        assert!(!names_all_users(""));
        assert!(!names_all_users("0 0 junk"));
    }
}
