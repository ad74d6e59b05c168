//! The oldest glibc on which a program starts.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use object::{Object, ObjectSection};

/// The glibc of the older guest.
const OLDEST: Version = Version(2, 36);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32, u32);

/// Refuses a program that would not start in the older guest.
pub(super) fn check(program: &Path) -> Result<()> {
    let data = fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let file =
        object::File::parse(&*data).with_context(|| format!("{} is no ELF file", program.display()))?;
    // The names of the needed versions are in the dynamic string table.
    let strings =
        file.section_by_name(".dynstr").map(|section| section.data()).transpose()?.unwrap_or_default();
    let needed = newest(strings);
    ensure!(
        needed <= OLDEST,
        "{} needs glibc {}.{}, and the older guest has {}.{}; build on a system with an older glibc, and see \
         whether a dependency or RUSTFLAGS brings the newer symbol (objdump -T)",
        program.display(),
        needed.0,
        needed.1,
        OLDEST.0,
        OLDEST.1
    );
    Ok(())
}

/// The highest `GLIBC_x.y` in a string table.
fn newest(strings: &[u8]) -> Version {
    strings.split(|byte| *byte == 0).filter_map(version).max().unwrap_or(Version(0, 0))
}

fn version(name: &[u8]) -> Option<Version> {
    let mut numbers = str::from_utf8(name).ok()?.strip_prefix("GLIBC_")?.split('.').map(str::parse);
    Some(Version(numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::{Version, newest};

    #[test]
    fn the_highest_version_counts_by_number() {
        let strings = b"\0memcpy\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.4\0GLIBC_PRIVATE\0GCC_3.0\0";
        assert_eq!(newest(strings), Version(2, 34));
        assert!(Version(2, 9) < Version(2, 36));
        assert_eq!(newest(b"\0"), Version(0, 0));
    }
}
