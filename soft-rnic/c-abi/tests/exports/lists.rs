//! The symbols, compared with the committed lists and with what is installed.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::elf::{self, Versioned};
use crate::{CheckResult, Skipped, library, shared_object};

const VERSION_SCRIPT: &str = include_str!("../../src/libibverbs/libibverbs.map");
const RDMACM_SCRIPT: &str = include_str!("../../src/librdmacm/librdmacm.map");
const PRIVATE_NAMES: &str = include_str!("../../src/libibverbs/private.txt");

const SONAME: &str = "libibverbs.so.1";
pub(crate) const RDMACM: &str = "librdmacm.so.1";
/// The version node that holds the functions to which our librdmacm jumps.
const FORWARD_NODE: &str = "SOFT_RNIC_RDMACM";
/// The prefix of those functions' names.
const FORWARD: &str = "soft_rnic_";

/// The libraries that import from libibverbs.
const PROVIDERS: [&str; 7] = [
    "libmlx5.so.1",
    "libmlx4.so.1",
    "libefa.so.1",
    "libmana.so.1",
    "libhns.so.1",
    "libionic.so.1",
    "librdmacm.so.1",
];

/// The programs of ibverbs-utils, perftest and rdmacm-utils that import libibverbs or librdmacm.
const PROGRAMS: [&str; 31] = [
    "ibv_asyncwatch",
    "ibv_devices",
    "ibv_devinfo",
    "ibv_rc_pingpong",
    "ibv_srq_pingpong",
    "ibv_uc_pingpong",
    "ibv_ud_pingpong",
    "ibv_xsrq_pingpong",
    "ib_atomic_bw",
    "ib_atomic_lat",
    "ib_read_bw",
    "ib_read_lat",
    "ib_send_bw",
    "ib_send_lat",
    "ib_write_bw",
    "ib_write_lat",
    "raw_ethernet_bw",
    "raw_ethernet_lat",
    "rping",
    "ucmatose",
    "udaddy",
    "mckey",
    "cmtime",
    "rcopy",
    "rdma_client",
    "rdma_server",
    "rdma_xclient",
    "rdma_xserver",
    "riostream",
    "rstream",
    "udpong",
];

/// What a version script says.
fn script(text: &str) -> BTreeSet<Versioned> {
    let mut expected = BTreeSet::new();
    let mut version = "";
    for line in text.lines() {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            [node, "{"] => version = node,
            [name] if name.ends_with(';') && !name.starts_with(['}', '*']) => {
                let name = name.trim_end_matches(';').to_owned();
                expected.insert(Versioned { name, version: version.into(), is_default: true });
            }
            _ => {}
        }
    }
    expected
}

/// What the committed lists say of libibverbs.
pub(crate) fn expected() -> BTreeSet<Versioned> {
    let mut expected = script(VERSION_SCRIPT);
    for line in PRIVATE_NAMES.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or_default();
        let numbers: Vec<&str> = words.collect();
        expected.extend(numbers.iter().map(|number| Versioned {
            name: name.to_owned(),
            version: format!("IBVERBS_PRIVATE_{number}"),
            is_default: Some(number) == numbers.last(),
        }));
    }
    expected
}

pub(crate) fn exactly_the_committed_lists() -> CheckResult {
    let expected = expected();
    let count = |prefix: &str| expected.iter().filter(|symbol| symbol.version.starts_with(prefix)).count();
    if count("IBVERBS_1.") < 95 || count("IBVERBS_PRIVATE_") < 399 {
        return Err(format!("the committed lists have only {} names", expected.len()));
    }
    exports_exactly(&elf::symbols(&library()?)?, &expected).map(Ok)
}

fn exports_exactly(found: &elf::Symbols, expected: &BTreeSet<Versioned>) -> Result<(), String> {
    let missing: Vec<_> = expected.difference(&found.exported).collect();
    let surplus: Vec<_> = found.exported.difference(expected).collect();
    if !missing.is_empty() || !surplus.is_empty() || !found.bare.is_empty() {
        let bare = &found.bare;
        return Err(format!("missing: {missing:?}\nsurplus: {surplus:?}\nwithout a version: {bare:?}"));
    }
    Ok(())
}

/// Its functions, each a jump to ours of the same name, and nothing else.
pub(crate) fn librdmacm_is_its_list_and_jumps() -> CheckResult {
    let expected = script(RDMACM_SCRIPT);
    if expected.len() < 70 {
        return Err(format!("the committed list has only {} names", expected.len()));
    }
    let found = elf::symbols(&shared_object(RDMACM)?)?;
    exports_exactly(&found, &expected)?;
    let jumps: BTreeSet<_> = expected
        .iter()
        .map(|symbol| (format!("{FORWARD}{}", symbol.name), FORWARD_NODE.to_owned()))
        .collect();
    if found.imported == jumps {
        Ok(Ok(()))
    } else {
        Err(format!("it imports {:?}", found.imported.symmetric_difference(&jumps).collect::<Vec<_>>()))
    }
}

/// Independent witnesses of the lists: the libraries that are installed, and the newest ones.
pub(crate) fn default_versions_are_rdma_cores() -> CheckResult {
    let Some(system) = system_library(SONAME) else {
        return Ok(Err(Skipped("no libibverbs.so.1 of the system (Debian: libibverbs1)".into())));
    };
    same_versions(SONAME, &system, 70).map(Ok)
}

pub(crate) fn librdmacms_default_versions_are_rdma_cores() -> CheckResult {
    let Some(system) = system_library(RDMACM) else {
        return Ok(Err(Skipped("no librdmacm.so.1 of the system (Debian: librdmacm1)".into())));
    };
    same_versions(RDMACM, &system, 60).map(Ok)
}

pub(crate) fn default_versions_are_the_newest_rdma_cores() -> CheckResult {
    if !pinned().join(SONAME).exists() {
        return Ok(Err(Skipped(NO_PINNED.into())));
    }
    same_versions(SONAME, &pinned().join(SONAME), 70)?;
    same_versions(RDMACM, &pinned().join(RDMACM), 60).map(Ok)
}

/// Fails if our library lacks a public function of theirs, has it in another version, or lacks a
/// private function.
fn same_versions(soname: &str, theirs: &Path, at_least: usize) -> Result<(), String> {
    let ours = elf::symbols(&shared_object(soname)?)?.exported;
    let found = elf::symbols(theirs)?.exported;
    let version_in_ours: BTreeMap<&str, &str> = (ours.iter().filter(|symbol| symbol.is_default))
        .map(|symbol| (&*symbol.name, &*symbol.version))
        .collect();
    let public = found.iter().filter(|symbol| symbol.is_default && !symbol.version.contains("PRIVATE"));
    let wrong: Vec<_> = public
        .clone()
        .filter(|symbol| version_in_ours.get(&*symbol.name) != Some(&&*symbol.version))
        .collect();
    let names = |symbol: &Versioned| (symbol.name.clone(), symbol.version.clone());
    let ours: BTreeSet<_> = ours.iter().map(names).collect();
    let private = found.iter().filter(|symbol| symbol.version.contains("PRIVATE"));
    let absent: Vec<_> = private.map(names).filter(|symbol| !ours.contains(symbol)).collect();
    if public.count() < at_least || !wrong.is_empty() || !absent.is_empty() {
        return Err(format!("{}: public: {wrong:?}, private: {absent:?}", theirs.display()));
    }
    Ok(())
}

/// Returns how many symbols the file imports. Fails if our libraries lack a symbol of libibverbs or
/// librdmacm that the file imports.
fn imports(file: &Path) -> Result<usize, String> {
    let mut ours = elf::symbols(&library()?)?.exported;
    ours.extend(elf::symbols(&shared_object(RDMACM)?)?.exported);
    let ours: BTreeSet<(String, String)> =
        ours.into_iter().map(|symbol| (symbol.name, symbol.version)).collect();
    let is_theirs = |version: &str| version.starts_with("IBVERBS_") || version.starts_with("RDMACM_");
    let imported = elf::symbols(file)?.imported;
    let imported = imported.into_iter().filter(|(_, version)| is_theirs(version));
    let imported: BTreeSet<_> = imported.collect();
    let missing: Vec<_> = imported.difference(&ours).collect();
    if !missing.is_empty() {
        return Err(format!("{} imports {missing:?}", file.display()));
    }
    Ok(imported.len())
}

pub(crate) fn imports_of_the_providers() -> CheckResult {
    let Some(folder) = PROVIDERS.iter().find_map(|name| system_library(name)) else {
        return Ok(Err(Skipped("no provider library (Debian: ibverbs-providers)".into())));
    };
    imports_in(folder.parent().unwrap_or(&folder)).map(Ok)
}

pub(crate) fn imports_of_the_newest_providers() -> CheckResult {
    if !pinned().join(SONAME).exists() {
        return Ok(Err(Skipped(NO_PINNED.into())));
    }
    imports_in(&pinned()).map(Ok)
}

/// Checks the provider libraries of a folder, and their plug-ins where those are files of their
/// own.
fn imports_in(folder: &Path) -> Result<(), String> {
    let libraries = PROVIDERS.iter().map(|name| folder.join(name));
    let plugins = std::fs::read_dir(folder.join("libibverbs")).into_iter().flatten().flatten();
    let files: Vec<PathBuf> =
        libraries.chain(plugins.map(|entry| entry.path())).filter(|path| path.is_file()).collect();
    let imported = files.iter().map(|file| imports(file)).sum::<Result<usize, String>>()?;
    if imported > 100 { Ok(()) } else { Err(format!("only {imported} symbols are imported by {files:?}")) }
}

pub(crate) fn imports_of_the_programs() -> CheckResult {
    let programs: Vec<PathBuf> = PROGRAMS.iter().filter_map(|name| on_path(name)).collect();
    if programs.is_empty() {
        return Ok(Err(Skipped("no program (Debian: ibverbs-utils, perftest, rdmacm-utils)".into())));
    }
    let imported = programs.iter().map(|file| imports(file)).sum::<Result<usize, String>>()?;
    if imported == 0 { Err(format!("nothing is imported by {programs:?}")) } else { Ok(Ok(())) }
}

/// The dynamic loader's own judgement, with everything bound at the start.
pub(crate) fn programs_start_without_complaint() -> CheckResult {
    let folder = library()?.with_file_name("");
    let mut started = 0;
    for program in PROGRAMS.iter().filter_map(|name| on_path(name)) {
        let mut command = Command::new(&program);
        command.env("LD_LIBRARY_PATH", &folder).env("LD_BIND_NOW", "1");
        // A flag that none of them knows, or that prints their help: none goes on to wait for a peer.
        let output = command.arg("-h").output().map_err(|error| format!("{}: {error}", program.display()))?;
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        let complaints = ["no version information", "symbol lookup error", "error while loading"];
        if complaints.iter().any(|complaint| words.contains(complaint)) || output.status.code().is_none() {
            return Err(format!("{}: {}\n{words}", program.display(), output.status));
        }
        started += 1;
    }
    if started == 0 {
        return Ok(Err(Skipped("no program (Debian: ibverbs-utils, perftest, rdmacm-utils)".into())));
    }
    Ok(Ok(()))
}

/// Why the newest rdma-core cannot be looked at.
const NO_PINNED: &str = "no libraries of the pinned rdma-core: run `cargo xtask bindings --check`";

/// The libraries of the pinned rdma-core, where `cargo xtask bindings` left them.
fn pinned() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("."));
    root.join("target/bindings/headers/usr/lib/x86_64-linux-gnu")
}

/// Where the dynamic loader finds a library.
pub(crate) fn system_library(name: &str) -> Option<PathBuf> {
    let cache = Command::new("/sbin/ldconfig").arg("-p").output().ok()?.stdout;
    let cache = String::from_utf8_lossy(&cache).into_owned();
    let is_ours = |line: &&str| line.trim().starts_with(name) && line.contains(machine());
    cache.lines().find(is_ours).and_then(|line| line.rsplit(" => ").next()).map(PathBuf::from)
}

/// How `ldconfig` marks this machine's libraries.
fn machine() -> &'static str {
    if cfg!(target_arch = "aarch64") { "AArch64" } else { "x86-64" }
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.is_file())
}
