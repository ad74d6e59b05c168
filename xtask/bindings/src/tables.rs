//! The function tables: one `library_table!` call for each library, from bindgen's prototypes and
//! the symbol lists.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use quote::ToTokens;
use syn::{FnArg, ForeignItemFn};

use super::symbols::Symbol;

/// Table, shared object, the `int` for "not supported", description.
const LIBRARIES: [(&str, &str, &str, &str); 4] = [
    ("Verbs", "libibverbs.so.1", "libc::EOPNOTSUPP", "The functions that libibverbs exports."),
    ("RdmaCm", "librdmacm.so.1", "-1", "The functions that librdmacm exports."),
    ("Mlx5dv", "libmlx5.so.1", "libc::EOPNOTSUPP", "The direct verbs that libmlx5 exports."),
    ("Efadv", "libefa.so.1", "libc::EOPNOTSUPP", "The direct verbs that libefa exports."),
];

/// Writes `tables.rs`.
pub(super) fn write(
    header: &str,
    functions: &[ForeignItemFn],
    symbols: &BTreeMap<String, Symbol>,
) -> Result<String> {
    let mut text = format!(
        "{header}//! One table of function pointers for each library.\n\nuse core::ffi::*;\n\nuse super::types::*;\n"
    );
    text += "use libc::{FILE, epoll_event, fd_set, iovec, msghdr, nfds_t, off_t, pollfd, sockaddr, socklen_t, ssize_t, timeval};\n";
    lost(functions, symbols)?;
    for (table, library, failure, doc) in LIBRARIES {
        let mut required = String::new();
        let mut optional = String::new();
        for function in functions {
            let name = function.sig.ident.to_string();
            let Some(symbol) = symbols.get(&name).filter(|s| s.library == library) else { continue };
            let line = format!("        {:?} {:?} {};\n", symbol.version, symbol.since, prototype(function));
            let variadic = function.sig.variadic.is_some();
            if symbol.is_required() && !variadic { required += &line } else { optional += &line }
        }
        if required.is_empty() && optional.is_empty() {
            bail!("no function of {library} is both declared and exported");
        }
        text += &format!(
            "\nlibrary_table! {{\n    #[doc = {doc:?}]\n    {table}, {library:?}, {failure};\n    required {{\n{required}    }}\n    \
             optional {{\n{optional}    }}\n}}\n"
        );
    }
    Ok(text)
}

/// Functions that a library still exports although no header declares them.
const UNDECLARED: [&str; 10] = [
    "ibv_copy_ah_attr_from_kern",
    "ibv_copy_path_rec_from_kern",
    "ibv_copy_path_rec_to_kern",
    "ibv_copy_qp_attr_from_kern",
    "ibv_dofork_range",
    "ibv_dontfork_range",
    "ibv_get_sysfs_path",
    "ibv_read_sysfs_file",
    "ibv_register_driver",
    "mlx5dv_create_flow",
];

/// Fails if a library exports a function that no table would have, because bindgen was not asked
/// for it.
fn lost(functions: &[ForeignItemFn], symbols: &BTreeMap<String, Symbol>) -> Result<()> {
    let is_ours = |symbol: &Symbol| LIBRARIES.iter().any(|(_, library, ..)| *library == symbol.library);
    // A version is a symbol, too, and names of the private node have no version here.
    let is_function = |name: &str, symbol: &Symbol| name != symbol.version && !symbol.version.is_empty();
    let is_declared =
        |name: &str| functions.iter().any(|f| f.sig.ident == name) || UNDECLARED.contains(&name);
    let exported = symbols.iter().filter(|(name, symbol)| is_ours(symbol) && is_function(name, symbol));
    let lost: Vec<&str> = exported.map(|(name, _)| name.as_str()).filter(|name| !is_declared(name)).collect();
    if !lost.is_empty() {
        bail!("exported, but not in the bindings: {}", lost.join(", "));
    }
    Ok(())
}

/// A declaration on one line, without its semicolon.
pub(super) fn prototype(function: &ForeignItemFn) -> String {
    let mut arguments: Vec<String> = Vec::new();
    for argument in &function.sig.inputs {
        let FnArg::Typed(typed) = argument else { continue };
        arguments.push(format!("{}: {}", compact(&typed.pat), compact(&typed.ty)));
    }
    if function.sig.variadic.is_some() {
        arguments.push("...".into());
    }
    let output = match &function.sig.output {
        syn::ReturnType::Default => String::new(),
        syn::ReturnType::Type(_, ty) => format!(" -> {}", compact(ty)),
    };
    format!("fn {}({}){output}", function.sig.ident, arguments.join(", "))
}

fn compact(tokens: &impl ToTokens) -> String {
    let text = tokens.to_token_stream().to_string();
    text.replace(":: core :: ffi :: ", "").replace("* const", "*const").replace("* mut", "*mut")
}
