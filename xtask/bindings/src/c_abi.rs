//! What `libibverbs.so.1` of the software device exports: every public function
//! in its default version, and the private names that the providers of rdma-core
//! import, release by release.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use syn::ForeignItemFn;

use crate::c_lib::MINUS_ONE;
use crate::symbols::{Symbol, ordinal};
use crate::tables::prototype;

const LIBRARY: &str = "libibverbs.so.1";
/// Where the files are, below the workspace's folder.
const FOLDER: &str = "soft-rnic/c-abi/src/libibverbs";
/// Every release's private names; what is in it stays, the pinned release's are added.
const PRIVATE_NAMES: &str = "private.txt";
const PRIVATE_NODE: &str = "IBVERBS_PRIVATE_";

/// Makes the generated files: path below the workspace's folder, and text.
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
    let files = [
        ("exports.rs", exports(header, functions, symbols)?),
        ("private.s", private.assembly(&c_header)),
        ("libibverbs.map", version_script(&c_header, symbols, &private)),
        (PRIVATE_NAMES, private.text()),
    ];
    Ok(files.into_iter().map(|(name, text)| (format!("{FOLDER}/{name}"), text)).collect())
}

fn is_public(name: &str, symbol: &Symbol) -> bool {
    symbol.library == LIBRARY && !symbol.version.is_empty() && name != symbol.version
}

/// One line a function that the table has.
fn exports(header: &str, functions: &[ForeignItemFn], symbols: &BTreeMap<String, Symbol>) -> Result<String> {
    let (mut required, mut optional) = (String::new(), String::new());
    for function in functions {
        let name = function.sig.ident.to_string();
        let Some(symbol) = symbols.get(&name).filter(|symbol| is_public(&name, symbol)) else { continue };
        if function.sig.variadic.is_some() {
            bail!("{name} takes any number of arguments, which the export has no way to pass on");
        }
        let _ = if symbol.is_required() {
            writeln!(required, "        {};", prototype(function))
        } else {
            writeln!(optional, "        {} => {};", failure(&name), prototype(function))
        };
    }
    if required.is_empty() {
        bail!("no function of {LIBRARY} is both declared and exported");
    }
    Ok(format!(
        "{header}//! The functions that programs call.\n\nuse core::ffi::*;\n\nuse rdma_mummy_sys::types::*;\n\n\
         exports! {{\n    required {{\n{required}    }}\n    optional {{\n{optional}    }}\n}}\n"
    ))
}

/// What the function returns, if that is an `int`, to say that it failed.
fn failure(name: &str) -> &'static str {
    match name {
        "ibv_query_qp_data_in_order" => "0",
        _ if MINUS_ONE.contains(&name) => "-1",
        _ => "libc::EOPNOTSUPP",
    }
}

/// The nodes, oldest first, each with the public functions whose default version it is. The private
/// names bring their version along: a script cannot put one name into two nodes.
fn version_script(header: &str, symbols: &BTreeMap<String, Symbol>, private: &PrivateNames) -> String {
    let mut nodes: BTreeMap<Vec<u32>, (&str, Vec<&str>)> = BTreeMap::new();
    for (name, symbol) in symbols.iter().filter(|(name, symbol)| is_public(name, symbol)) {
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
    for number in private.numbers() {
        let _ = writeln!(text, "{PRIVATE_NODE}{number} {{\n}};");
    }
    text
}

/// The private names, each with the numbers of the nodes that have it.
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

    /// Adds what a symbol list has.
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

    fn text(&self) -> String {
        let mut text = self.comment.clone();
        for (name, numbers) in &self.names {
            let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
            let _ = writeln!(text, "{name} {}", numbers.join(" "));
        }
        text
    }

    /// One line a name and node, for the macros of `private.rs`. The newest is a name's default version.
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

/// What a private function does; the labels are those of `private.rs`.
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
    fn each_name_is_in_the_node_of_its_default_version() {
        let symbol =
            |version: &str| Symbol { library: LIBRARY.into(), version: version.into(), since: "1".into() };
        let symbols = BTreeMap::from([
            ("IBVERBS_1.1".to_owned(), symbol("IBVERBS_1.1")),
            ("ibv_open_device".to_owned(), symbol("IBVERBS_1.1")),
            ("ibv_rate_to_mult".to_owned(), symbol("IBVERBS_1.0")),
            ("ibv_import_pd".to_owned(), symbol("IBVERBS_1.10")),
            ("execute_ioctl".to_owned(), symbol("")),
        ]);
        let private = PrivateNames::parse("execute_ioctl 34\n").unwrap();
        assert_eq!(
            version_script("", &symbols, &private),
            "IBVERBS_1.0 {\n    global:\n        ibv_rate_to_mult;\n    local:\n        *;\n};\n\n\
             IBVERBS_1.1 {\n    global:\n        ibv_open_device;\n} IBVERBS_1.0;\n\n\
             IBVERBS_1.10 {\n    global:\n        ibv_import_pd;\n} IBVERBS_1.1;\n\n\
             IBVERBS_PRIVATE_34 {\n};\n"
        );
    }
}
