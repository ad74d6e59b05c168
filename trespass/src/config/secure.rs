//! Secure execution: the program has more rights than the user who started it.

/// Whether the environment is that of a user with fewer rights than the program, because the program
/// is set-user-ID, set-group-ID, or has file capabilities. Such an environment is ignored.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn is_secure() -> bool {
    // SAFETY: `getauxval` only reads values that the kernel left at the start of the process. (Miri
    // lacks it.)
    !cfg!(miri) && unsafe { libc::getauxval(libc::AT_SECURE) } != 0
}

/// The same where the kernel does not report it.
#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
pub(super) fn is_secure() -> bool {
    // SAFETY: the four calls take nothing and cannot fail.
    unsafe { libc::getuid() != libc::geteuid() || libc::getgid() != libc::getegid() }
}

/// Other systems do not have such programs.
#[cfg(not(unix))]
pub(super) fn is_secure() -> bool {
    false
}
