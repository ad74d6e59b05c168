//! The export lists of the software device's `libibverbs.so.1` and `librdmacm.so.1`.
//!
//! They contain every public function in its default version. For libibverbs they also contain the
//! private names that the providers of rdma-core import, for each release.
//!
//! Both libraries share one program: `libibverbs.so.1` also has the functions of librdmacm, under
//! other names and a separate version, and `librdmacm.so.1` jumps to them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use syn::ForeignItemFn;

use crate::c_lib::MINUS_ONE;
use crate::symbols::{Symbol, ordinal};
use crate::tables::prototype;

const VERBS: &str = "libibverbs.so.1";
const RDMACM: &str = "librdmacm.so.1";
/// The folder of the files, relative to the workspace.
const FOLDER: &str = "soft-rnic/c-abi/src/libibverbs";
const RDMACM_FOLDER: &str = "soft-rnic/c-abi/src/librdmacm";
/// The prefix and the version node of librdmacm's functions in our `libibverbs.so.1`.
const FORWARD: &str = "soft_rnic_";
const FORWARD_NODE: &str = "SOFT_RNIC_RDMACM";
/// The private names of all releases. Existing lines stay, and those of the pinned release are
/// added.
const PRIVATE_NAMES: &str = "private.txt";
const PRIVATE_NODE: &str = "IBVERBS_PRIVATE_";

/// Generates the files: path relative to the workspace, and text.
pub(crate) fn generate(
    root: &Path,
    header: &str,
    functions: &[ForeignItemFn],
    symbols: &BTreeMap<String, Symbol>,
    lists: &[PathBuf],
) -> Result<BTreeMap<String, String>> {
    let committed = root.join(FOLDER).join(PRIVATE_NAMES);
    let committed = std::fs::read_to_string(&committed)
        .with_context(|| format!("cannot read {}", committed.display()))?;
    let mut private = PrivateNames::parse(&committed)?;
    for list in lists {
        let text =
            std::fs::read_to_string(list).with_context(|| format!("cannot read {}", list.display()))?;
        private.add(&text)?;
    }
    let c_header = header.trim_end().replacen("//", "/*", 1) + " */\n\n";
    let verbs_script =
        version_script(&c_header, symbols, VERBS) + &forwarded(symbols) + &private.version_nodes();
    let files = [
        (FOLDER, "exports.rs", exports(header, functions, symbols, VERBS)?),
        (FOLDER, "private.s", private.assembly(&c_header)),
        (FOLDER, "libibverbs.map", verbs_script),
        (FOLDER, PRIVATE_NAMES, private.text()),
        (RDMACM_FOLDER, "exports.rs", exports(header, functions, symbols, RDMACM)?),
        (RDMACM_FOLDER, "forwards.s", forwards(&c_header, symbols)),
        (RDMACM_FOLDER, "librdmacm.map", version_script(&c_header, symbols, RDMACM)),
    ];
    Ok(files.into_iter().map(|(folder, name, text)| (format!("{folder}/{name}"), text)).collect())
}

fn is_public(library: &str, name: &str, symbol: &Symbol) -> bool {
    symbol.library == library && !symbol.version.is_empty() && name != symbol.version
}

/// One line for each function in the table.
fn exports(
    header: &str,
    functions: &[ForeignItemFn],
    symbols: &BTreeMap<String, Symbol>,
    library: &str,
) -> Result<String> {
    let (mut required, mut optional, mut variadic) = (String::new(), String::new(), String::new());
    for function in functions {
        let name = function.sig.ident.to_string();
        let Some(symbol) = symbols.get(&name).filter(|symbol| is_public(library, &name, symbol)) else {
            continue;
        };
        if BY_HAND.contains(&&*name) {
            continue;
        }
        let failure = failure(library, &name);
        let _ = if function.sig.variadic.is_some() {
            // The other arguments can be omitted only because the function reads no argument.
            writeln!(variadic, "        {failure} => {};", prototype(function).replace(", ...", ""))
        } else if symbol.is_required() {
            writeln!(required, "        {};", prototype(function))
        } else {
            writeln!(optional, "        {failure} => {};", prototype(function))
        };
    }
    if required.is_empty() {
        bail!("no function of {library} is both declared and exported");
    }
    let prefix = if library == RDMACM { FORWARD } else { "" };
    Ok(format!(
        "{header}//! The functions that programs call.\n\nuse core::ffi::*;\n\n{}use rdma_mummy_sys::types::*;\n\n\
         exports! {{\n    super::TABLE, {prefix:?};\n    required {{\n{required}    }}\n    \
         optional {{\n{optional}    }}\n    refused {{\n{variadic}    }}\n}}\n",
        if library == RDMACM { LIBC_TYPES } else { "" },
    ))
}

/// Variadic functions that do something; their crate defines them by hand.
const BY_HAND: [&str; 1] = ["rfcntl"];

/// The types in the prototypes of librdmacm that come from the libc crate.
const LIBC_TYPES: &str =
    "use libc::{epoll_event, fd_set, iovec, msghdr, nfds_t, off_t, pollfd, sockaddr, socklen_t, timeval};\n";

/// The value that reports a failure, for functions that return an `int`.
fn failure(library: &str, name: &str) -> &'static str {
    match name {
        _ if library == RDMACM => "-1",
        "ibv_query_qp_data_in_order" => "0",
        _ if MINUS_ONE.contains(&name) => "-1",
        _ => "libc::EOPNOTSUPP",
    }
}

/// The version nodes, oldest first, each with the public functions whose default version it is.
fn version_script(header: &str, symbols: &BTreeMap<String, Symbol>, library: &str) -> String {
    let mut nodes: BTreeMap<Vec<u32>, (&str, Vec<&str>)> = BTreeMap::new();
    for (name, symbol) in symbols.iter().filter(|(name, symbol)| is_public(library, name, symbol)) {
        let node = nodes.entry(ordinal(&symbol.version)).or_insert((&symbol.version, Vec::new()));
        node.1.push(name);
    }
    let mut text = header.to_owned();
    let mut before = String::new();
    for (version, names) in nodes.values() {
        let _ = write!(text, "{version} {{\n    global:\n");
        for name in names {
            let _ = writeln!(text, "        {name};");
        }
        if before.is_empty() {
            text += "    local:\n        *;\n";
        }
        let _ = write!(text, "}}{before};\n\n");
        before = format!(" {version}");
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

/// The version node with the functions that `librdmacm.so.1` jumps to.
fn forwarded(symbols: &BTreeMap<String, Symbol>) -> String {
    let names = symbols.iter().filter(|(name, symbol)| is_public(RDMACM, name, symbol));
    let names: String = names.map(|(name, _)| format!("        {FORWARD}{name};\n")).collect();
    if names.is_empty() {
        return String::new();
    }
    format!("\n{FORWARD_NODE} {{\n    global:\n{names}}};\n")
}

/// One line for each function of librdmacm, for the macro in `forward.S`.
fn forwards(header: &str, symbols: &BTreeMap<String, Symbol>) -> String {
    let names = symbols.iter().filter(|(name, symbol)| is_public(RDMACM, name, symbol));
    header.to_owned() + &names.map(|(name, _)| format!("    forward {name}\n")).collect::<String>()
}

/// The private names, each with the numbers of its version nodes.
struct PrivateNames {
    comment: String,
    names: BTreeMap<String, BTreeSet<u32>>,
}

impl PrivateNames {
    fn parse(text: &str) -> Result<Self> {
        let mut names = BTreeMap::new();
        let is_comment = |line: &&str| line.starts_with('#');
        for line in text.lines().filter(|line| !is_comment(line)) {
            let mut words = line.split_whitespace();
            let name = words.next().with_context(|| format!("{PRIVATE_NAMES} has an empty line"))?;
            let numbers: Result<BTreeSet<u32>, _> = words.map(str::parse).collect();
            let numbers = numbers.with_context(|| format!("{PRIVATE_NAMES}: not numbers: {line:?}"))?;
            names.insert(name.to_owned(), numbers);
        }
        let comment = text.lines().filter(is_comment).map(|line| format!("{line}\n")).collect();
        Ok(Self { comment, names })
    }

    /// Adds the names of a symbol list.
    fn add(&mut self, list: &str) -> Result<()> {
        for word in list.lines().filter_map(|line| line.split_whitespace().next()) {
            let Some((name, number)) = word.split_once(&format!("@{PRIVATE_NODE}")) else { continue };
            if name.starts_with(PRIVATE_NODE) {
                continue; // The node itself.
            }
            let number = number.parse().with_context(|| format!("not a private interface: {word:?}"))?;
            self.names.entry(name.to_owned()).or_default().insert(number);
        }
        Ok(())
    }

    fn numbers(&self) -> BTreeSet<u32> {
        self.names.values().flatten().copied().collect()
    }

    /// Their nodes in the version script. The nodes are empty, because a script cannot put one name
    /// into two nodes; the names carry their versions themselves.
    fn version_nodes(&self) -> String {
        let nodes = self.numbers().into_iter().map(|number| format!("{PRIVATE_NODE}{number} {{\n}};\n"));
        "\n".to_owned() + &nodes.collect::<String>()
    }

    fn text(&self) -> String {
        let mut text = self.comment.clone();
        for (name, numbers) in &self.names {
            let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
            let _ = writeln!(text, "{name} {}", numbers.join(" "));
        }
        text
    }

    /// One line for each name and node, for the macros in `private.rs`. The newest node is a name's
    /// default version.
    fn assembly(&self, header: &str) -> String {
        let mut text = header.to_owned();
        for (name, numbers) in &self.names {
            for number in numbers {
                let form = if numbers.last() == Some(number) { "private_default" } else { "private" };
                let _ = writeln!(text, "    {form} {name}, {number}, {}", behaviour(name));
            }
        }
        text
    }
}

/// The behaviour of a private function, as a label of `private.rs`.
fn behaviour(name: &str) -> &'static str {
    match name {
        "ibv_query_gid_type" => "query_gid_type",
        "ibv_wr_opcode_str" => "wr_opcode_str",
        "verbs_allow_disassociate_destroy" => "flag",
        "ibv_read_ibdev_sysfs_file" => "minus_one",
        "execute_ioctl" => "failing",
        "__verbs_log" | "verbs_init_cq" | "verbs_set_ops" | "verbs_uninit_context" => "nothing",
        _ if name.starts_with("verbs_register_driver_") => "nothing",
        _ if name.starts_with("ibv_cmd_") => "failing",
        _ => "null",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_release_adds_its_private_names() {
        let mut names = PrivateNames::parse("# why\nexecute_ioctl 34 57\nibv_cmd_old 34\n").unwrap();
        names
            .add(
                "libibverbs.so.1 libibverbs1 #MINVER#\n IBVERBS_PRIVATE_66@IBVERBS_PRIVATE_66 66\n \
             execute_ioctl@IBVERBS_PRIVATE_66 66\n ibv_open_device@IBVERBS_1.1 1.1.6\n",
            )
            .unwrap();
        assert_eq!(names.text(), "# why\nexecute_ioctl 34 57 66\nibv_cmd_old 34\n");
        assert_eq!(names.numbers(), BTreeSet::from([34, 57, 66]));
        let assembly = names.assembly("");
        assert!(assembly.contains("    private execute_ioctl, 57, failing\n"), "{assembly}");
        assert!(assembly.contains("    private_default execute_ioctl, 66, failing\n"), "{assembly}");
    }

    #[test]
    fn librdmacm_is_a_jump_for_each_name() {
        let symbol =
            |version: &str| Symbol { library: RDMACM.into(), version: version.into(), since: "1".into() };
        let symbols = BTreeMap::from([
            ("RDMACM_1.0".to_owned(), symbol("RDMACM_1.0")),
            ("rdma_listen".to_owned(), symbol("RDMACM_1.0")),
            ("rfcntl".to_owned(), symbol("RDMACM_1.0")),
        ]);
        assert_eq!(forwards("", &symbols), "    forward rdma_listen\n    forward rfcntl\n");
        assert_eq!(
            forwarded(&symbols),
            "\nSOFT_RNIC_RDMACM {\n    global:\n        soft_rnic_rdma_listen;\n        soft_rnic_rfcntl;\n};\n"
        );
        let functions = [
            syn::parse_quote!(
                pub fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;
            ),
            syn::parse_quote!(
                pub fn rfcntl(socket: c_int, cmd: c_int, ...) -> c_int;
            ),
        ];
        let text = exports("", &functions, &symbols, RDMACM).unwrap();
        assert!(
            text.contains("        fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;\n"),
            "{text}"
        );
        assert!(!text.contains("rfcntl"), "a variadic function is written by hand: {text}");
    }

    #[test]
    fn each_name_is_in_the_node_of_its_default_version() {
        let symbol =
            |version: &str| Symbol { library: VERBS.into(), version: version.into(), since: "1".into() };
        let symbols = BTreeMap::from([
            ("IBVERBS_1.1".to_owned(), symbol("IBVERBS_1.1")),
            ("ibv_open_device".to_owned(), symbol("IBVERBS_1.1")),
            ("ibv_rate_to_mult".to_owned(), symbol("IBVERBS_1.0")),
            ("ibv_import_pd".to_owned(), symbol("IBVERBS_1.10")),
            ("execute_ioctl".to_owned(), symbol("")),
        ]);
        let private = PrivateNames::parse("execute_ioctl 34\n").unwrap();
        assert_eq!(
            version_script("", &symbols, VERBS) + &private.version_nodes(),
            "IBVERBS_1.0 {\n    global:\n        ibv_rate_to_mult;\n    local:\n        *;\n};\n\n\
             IBVERBS_1.1 {\n    global:\n        ibv_open_device;\n} IBVERBS_1.0;\n\n\
             IBVERBS_1.10 {\n    global:\n        ibv_import_pd;\n} IBVERBS_1.1;\n\n\
             IBVERBS_PRIVATE_34 {\n};\n"
        );
    }
}
