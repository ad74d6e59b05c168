//! The distribution's symbol lists: which library exports a function, in which version, and which
//! release of rdma-core added it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};

/// An exported function.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Symbol {
    /// The shared object's name.
    pub(crate) library: String,
    /// Its default (newest) symbol version.
    pub(crate) version: String,
    /// The first package version that had it.
    pub(crate) since: String,
}

impl Symbol {
    /// Whether every supported library exports it: rdma-core added it before it merged the
    /// libraries, or soon afterwards.
    pub(crate) fn is_required(&self) -> bool {
        let mut parts = self.since.split('.').map(|p| p.parse::<u32>().unwrap_or(u32::MAX));
        let major = parts.next().unwrap_or(u32::MAX);
        major <= 16
    }
}

/// Reads the lists (dpkg's `symbols` format).
pub(crate) fn read(files: &[PathBuf]) -> Result<BTreeMap<String, Symbol>> {
    let mut symbols = BTreeMap::new();
    for file in files {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        parse(&text, &mut symbols);
    }
    Ok(symbols)
}

fn parse(text: &str, symbols: &mut BTreeMap<String, Symbol>) {
    let mut library = String::new();
    for line in text.lines() {
        if !line.starts_with([' ', '*', '|', '#']) {
            library = line.split_whitespace().next().unwrap_or_default().to_owned();
            continue;
        }
        let mut words = line.split_whitespace();
        let Some((name, version)) = words.next().and_then(|w| w.split_once('@')) else { continue };
        let Some(since) = words.next() else { continue };
        // Every release renames the private version node, so that neither its name nor its age
        // means anything.
        let (version, since) = if version.contains("PRIVATE") { ("", "") } else { (version, since) };
        let symbol = Symbol { library: library.clone(), version: version.into(), since: since.into() };
        let older = |known: &Symbol| ordinal(&known.version) < ordinal(version);
        if symbols.get(name).is_none_or(older) {
            symbols.insert(name.to_owned(), symbol);
        }
    }
}

/// A sort key that puts `IBVERBS_1.10` after `IBVERBS_1.9`.
pub(crate) fn ordinal(version: &str) -> Vec<u32> {
    let digits = version.rsplit('_').next().unwrap_or_default();
    digits.split('.').map(|part| part.parse().unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_is_the_default() {
        let mut symbols = BTreeMap::new();
        let list = "libibverbs.so.1 libibverbs1 #MINVER#\n* Build-Depends-Package: libibverbs-dev\n \
                    ibv_open_device@IBVERBS_1.1 1.1.6\n ibv_open_device@IBVERBS_1.0 1.1.6\n \
                    ibv_reg_dmabuf_mr@IBVERBS_1.12 34\n";
        parse(list, &mut symbols);
        assert_eq!(symbols["ibv_open_device"].version, "IBVERBS_1.1");
        assert!(symbols["ibv_open_device"].is_required());
        assert_eq!(symbols["ibv_reg_dmabuf_mr"].since, "34");
        assert!(!symbols["ibv_reg_dmabuf_mr"].is_required());
        assert!(ordinal("IBVERBS_1.10") > ordinal("IBVERBS_1.9"));
    }
}
