//! The exported functions: prototypes for the headers, and the list from which the loader makes its
//! tables and wrappers.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use clang::Entity;

use super::declare;
use crate::symbols::Symbol;

/// Functions whose usual name is an inline function of the C companion, which prefers a newer
/// function where the library has one.
const BEHIND_INLINE: [&str; 3] = ["ibv_query_port", "ibv_reg_mr", "ibv_reg_mr_iova"];

/// Functions of libibverbs that report a failure with -1 and `errno`; the others return the error
/// number.
pub(crate) const MINUS_ONE: [&str; 13] = [
    "ibv_close_device",
    "ibv_dm_export_dmabuf_fd",
    "ibv_export_buf_dmabuf_fd",
    "ibv_get_async_event",
    "ibv_get_cq_event",
    "ibv_get_device_index",
    "ibv_get_pkey_index",
    "ibv_init_ah_from_wc",
    "ibv_query_gid",
    "ibv_query_pkey",
    "ibv_rate_to_mbps",
    "ibv_rate_to_mult",
    "ibv_rereg_mr",
];

/// Each shared object and its name in the list.
const LIBRARIES: [(&str, &str); 2] = [("libibverbs.so.1", "VERBS"), ("librdmacm.so.1", "RDMACM")];

/// The C identifier of a function in the companion's headers.
fn identifier(name: &str) -> String {
    if BEHIND_INLINE.contains(&name) { format!("rdma_mummy_{name}") } else { name.to_owned() }
}

/// The prototype, without its semicolon. The usual name is known to the compiler only: the linker
/// sees the name in the assembler label.
pub(super) fn prototype(function: &Entity<'_>) -> Result<String> {
    let name = function.get_name().context("a function has a name")?;
    let (parameters, _) = parameters(function)?;
    let result = function.get_result_type().context("a function has a result type")?;
    let declarator = format!("{}({parameters})", identifier(&name));
    Ok(format!("{} RDMA_MUMMY_SYMBOL({name})", declare::variable(result, &declarator, 0)?))
}

/// The parameters as declared, and as passed on.
fn parameters(function: &Entity<'_>) -> Result<(String, String)> {
    let (mut declared, mut passed) = (Vec::new(), Vec::new());
    for (n, argument) in function.get_arguments().unwrap_or_default().iter().enumerate() {
        let name = argument.get_name().filter(|name| !name.is_empty()).unwrap_or_else(|| format!("a{n}"));
        let ty = argument.get_type().context("a parameter has a type")?;
        declared.push(declare::variable(ty, &name, 0)?);
        passed.push(name);
    }
    Ok((declare::parameter_list(declared, function.is_variadic()), passed.join(", ")))
}

/// Writes `functions.def`.
pub(super) fn list(functions: &[Entity<'_>], symbols: &BTreeMap<String, Symbol>) -> Result<String> {
    let mut text = String::new();
    for (library, tag) in LIBRARIES {
        let mut any = false;
        for function in functions {
            let name = function.get_name().unwrap_or_default();
            let Some(symbol) = symbols.get(&name).filter(|symbol| symbol.library == library) else {
                continue;
            };
            any = true;
            text += &line(function, &name, tag, symbol)?;
        }
        if !any {
            bail!("no function of {library} is both declared and exported");
        }
    }
    Ok(text)
}

fn line(function: &Entity<'_>, name: &str, library: &str, symbol: &Symbol) -> Result<String> {
    let result = function.get_result_type().context("a function has a result type")?;
    let result = declare::variable(result, "", 0)?;
    let (declared, passed) = parameters(function)?;
    let need = if symbol.is_required() && !function.is_variadic() { "REQUIRED" } else { "OPTIONAL" };
    let common = format!("{library}, {name}, {:?}, {:?}, {need}", symbol.version, symbol.since);
    let signature = format!("{}, ({declared}), ({passed})", identifier(name));
    Ok(match result.as_str() {
        // The wrapper is written by hand, because C cannot forward `...`.
        _ if function.is_variadic() => format!("VARIADIC({common}, {result}, {signature})\n"),
        "void" => format!("PROCEDURE({common}, {signature})\n"),
        _ => format!("FUNCTION({common}, {result}, {signature}, {})\n", failure(name, library, &result)?),
    })
}

/// The value that reports a failure, after `errno` is set.
fn failure(name: &str, library: &str, result: &str) -> Result<String> {
    Ok(match result {
        "const char *" if name.ends_with("_str") => "UNKNOWN".into(),
        pointer if pointer.ends_with('*') => "NULL".into(),
        "__be64" | "__be16" => "0".into(),
        enumeration if enumeration.starts_with("enum ") => format!("({enumeration})0"),
        "int" if name == "ibv_query_qp_data_in_order" => "0".into(),
        "int" if library == "VERBS" && !MINUS_ONE.contains(&name) => "errno".into(),
        "ssize_t" if library == "VERBS" => "-errno".into(),
        "int" | "ssize_t" | "off_t" => "-1".into(),
        "size_t" => "(size_t)-1".into(),
        other => {
            bail!(
                "{name} returns {other}: define in xtask/bindings/src/c_lib/functions.rs how it reports a failure"
            )
        }
    })
}
