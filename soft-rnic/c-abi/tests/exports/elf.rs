//! The versioned symbols of a shared object or program.

use std::collections::BTreeSet;
use std::path::Path;

use object::elf::FileHeader64;
use object::read::elf::{ElfFile, VersionTable};
use object::{Endianness, Object, ObjectSymbol};

/// A symbol with its version, and whether that is its default one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Versioned {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) is_default: bool,
}

/// The symbols that a file offers, or those that it wants, which have a version.
pub(crate) struct Symbols {
    pub(crate) exported: BTreeSet<Versioned>,
    pub(crate) imported: BTreeSet<(String, String)>,
    /// Exported without a version.
    pub(crate) bare: BTreeSet<String>,
}

/// Reads a 64-bit file of this machine's byte order.
pub(crate) fn symbols(path: &Path) -> Result<Symbols, String> {
    let explain = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let data = std::fs::read(path).map_err(|error| explain(&error))?;
    let file = ElfFile::<'_, FileHeader64<Endianness>>::parse(&*data).map_err(|error| explain(&error))?;
    let endian = file.endian();
    let versions: VersionTable<'_, FileHeader64<Endianness>> = file
        .elf_section_table()
        .versions(endian, &*data)
        .map_err(|error| explain(&error))?
        .unwrap_or_default();
    let mut symbols = Symbols { exported: BTreeSet::new(), imported: BTreeSet::new(), bare: BTreeSet::new() };
    for symbol in file.dynamic_symbols() {
        let name = symbol.name().map_err(|error| explain(&error))?.to_owned();
        let index = versions.version_index(endian, symbol.index());
        let version = versions.version(index.index()).map_err(|error| explain(&error))?;
        let version = version.map(|version| String::from_utf8_lossy(version.name()).into_owned());
        match version {
            Some(version) if symbol.is_undefined() => drop(symbols.imported.insert((name, version))),
            // The node itself is a symbol as well.
            Some(version) if version != name => {
                let is_default = !index.is_hidden();
                symbols.exported.insert(Versioned { name, version, is_default });
            }
            None if !symbol.is_undefined() => {
                symbols.bare.insert(name);
            }
            _ => {}
        }
    }
    Ok(symbols)
}
