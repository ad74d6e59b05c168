//! The facts of the committed bindings, as C assertions. bindgen made the bindings, and another
//! program the C headers: if both agree, neither has misread the originals.

use std::fmt::Write as _;
use std::path::Path;

/// Names that the C companion leaves out: other libraries' and the kernel's own.
const ELSEWHERE: [&str; 6] = ["mlx5", "MLX5", "efa", "EFA", "RDMA_DRIVER_", "ib_uverbs_flow_action_esp_mlx5"];

fn is_ours(name: &str) -> bool {
    !ELSEWHERE.iter().any(|prefix| name.starts_with(prefix))
}

fn read(root: &Path, path: &str) -> Result<String, String> {
    let path = root.join("rdma-mummy-sys").join(path);
    std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The generated headers in one text.
fn headers(root: &Path) -> Result<String, String> {
    let names = ["verbs", "rdma_cma", "rdma_verbs", "rsocket", "tm_types"];
    names.iter().map(|name| read(root, &format!("c/include/rdma-mummy/abi/{name}.h"))).collect()
}

/// Sizes of all types, and offsets of all named fields.
pub(crate) fn layouts(root: &Path) -> Result<String, String> {
    let arch = std::env::consts::ARCH;
    let headers = headers(root)?;
    let layout = read(root, &format!("src/bindings/layout_{arch}.rs"))?;
    let (mut assertions, mut unknown, mut sizes) = (String::new(), Vec::new(), 0);
    for fact in layout.split('"') {
        let (is_size, name) = match (fact.strip_prefix("Size of "), fact.strip_prefix("Offset of field: ")) {
            (Some(name), _) => (true, name),
            (_, Some(name)) => (false, name),
            _ => continue,
        };
        let (rust_type, field) = name.split_once("::").unwrap_or((name, ""));
        if rust_type.contains("__bindgen") || field.contains("__bindgen") {
            continue; // Has no name in C.
        }
        let after = &layout[fact.as_ptr() as usize - layout.as_ptr() as usize + fact.len()..];
        let value = number_before(after, "usize]").ok_or_else(|| format!("no value for {fact}"))?;
        let tag = rust_type.replace("ib_uverbs_", "ibv_");
        let Some(keyword) =
            ["struct", "union"].into_iter().find(|keyword| headers.contains(&format!("{keyword} {tag} {{")))
        else {
            if is_ours(rust_type) {
                unknown.push(rust_type);
            }
            continue;
        };
        if is_size {
            sizes += 1;
            let _ = writeln!(assertions, "_Static_assert(sizeof({keyword} {tag}) == {value}, \"{tag}\");");
        } else {
            let field = field.trim_end_matches('_');
            let _ = writeln!(
                assertions,
                "_Static_assert(offsetof({keyword} {tag}, {field}) == {value}, \"{tag}.{field}\");"
            );
        }
    }
    let defined = headers.lines().filter(|line| is_definition(line)).count();
    if !unknown.is_empty() || sizes != defined {
        return Err(format!(
            "{sizes} sizes for {defined} types of the headers; not in the headers: {unknown:?}"
        ));
    }
    Ok(assertions)
}

/// Whether a line begins a top-level definition of a struct or union.
fn is_definition(line: &str) -> bool {
    (line.starts_with("struct ") || line.starts_with("union ")) && line.ends_with(" {")
}

/// The decimal digits right before `end`.
fn number_before<'a>(text: &'a str, end: &str) -> Option<&'a str> {
    let text = &text[..text.find(end)?];
    Some(&text[text.rfind(|c: char| !c.is_ascii_digit())? + 1..])
}

/// The prototypes of the headers, under the functions' own names.
pub(crate) fn prototypes(root: &Path) -> Result<String, String> {
    let headers = headers(root)?;
    let declared: Vec<&str> = headers
        .lines()
        .filter_map(|line| line.split_once(" RDMA_MUMMY_SYMBOL("))
        .map(|(line, _)| line)
        .collect();
    if declared.len() < 150 {
        return Err(format!("only {} prototypes", declared.len()));
    }
    // The originals hide some of their functions behind macros of the same names.
    let macros = ["ibv_query_port", "ibv_reg_mr", "ibv_reg_mr_iova"].map(|name| format!("#undef {name}\n"));
    Ok(macros.concat() + &declared.join(";\n").replace("rdma_mummy_", "") + ";")
}

/// Values of all enumerators and of all numeric macros.
pub(crate) fn constants(root: &Path) -> Result<String, String> {
    let headers = headers(root)?;
    let words: std::collections::HashSet<&str> =
        headers.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let types = read(root, "src/bindings/types.rs")?;
    let (mut assertions, mut unknown) = (String::new(), Vec::new());
    for constant in types.split("pub const ").skip(1) {
        let Some((name, rest)) = constant.split_once(':') else { continue };
        let Some(value) = rest.split_once('=').and_then(|(_, value)| value.split(';').next()) else {
            continue;
        };
        let value: String = value.chars().filter(|c| c.is_ascii_digit() || *c == '-' || *c == '(').collect();
        let value = value.rsplit('(').next().unwrap_or_default();
        let is_number = value.parse::<i128>().is_ok();
        let prefixes = ["IBV_", "RDMA_", "RAI_", "SOL_", "IB_UVERBS_"];
        if !is_number || !is_ours(name) || !prefixes.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let name = name.replace("IB_UVERBS_", "IBV_");
        if words.contains(name.as_str()) {
            let suffix = if value.starts_with('-') { "ll" } else { "ull" };
            let _ = writeln!(
                assertions,
                "_Static_assert((unsigned int)({name}) == (unsigned int){value}{suffix}, \"{name}\");"
            );
        } else {
            unknown.push(name);
        }
    }
    let count = assertions.lines().count();
    if unknown.is_empty() && count > 400 {
        return Ok(assertions);
    }
    Err(format!("{count} constants known; not in the headers: {unknown:?}"))
}

/// The inline functions of the originals that a program calls.
pub(crate) fn inline_functions(root: &Path) -> Result<Vec<String>, String> {
    let list = read(root, "src/bindings/inlines.txt")?;
    let names =
        list.lines().filter_map(|line| line.split_once(' ')).filter(|(header, _)| !header.ends_with("dv.h"));
    // Names with `__` are parts of macros, whose own names are these four.
    let own = names.map(|(_, name)| name).filter(|name| !name.starts_with("__"));
    let macros = ["ibv_get_device_list", "ibv_query_port", "ibv_reg_mr", "ibv_reg_mr_iova"];
    let names: Vec<String> = own.chain(macros).map(str::to_owned).collect();
    if names.len() < 100 { Err(format!("only {} inline functions", names.len())) } else { Ok(names) }
}

/// The functions that a library must export.
pub(crate) fn required(root: &Path, library: &str) -> Result<Vec<String>, String> {
    let list = read(root, "c/src/functions.def")?;
    let prefixes = [format!("FUNCTION({library}, "), format!("PROCEDURE({library}, ")];
    let lines = list.lines().filter(|line| line.contains(", REQUIRED, "));
    let names =
        lines.filter_map(|line| prefixes.iter().find_map(|prefix| line.strip_prefix(prefix.as_str())));
    Ok(names.filter_map(|rest| rest.split(',').next()).map(str::to_owned).collect())
}
