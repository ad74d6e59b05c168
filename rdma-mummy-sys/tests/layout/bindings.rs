//! The contents of the generated files: structs with their layout, and constants.
//!
//! The compiler asserts the numbers of the layout file for the Rust types, so that they are the
//! types' own.

use std::collections::BTreeMap;

const TYPES: &str = include_str!("../../src/bindings/types.rs");
#[cfg(target_arch = "x86_64")]
const LAYOUT: &str = include_str!("../../src/bindings/layout_x86_64.rs");
#[cfg(target_arch = "aarch64")]
const LAYOUT: &str = include_str!("../../src/bindings/layout_aarch64.rs");

/// A struct or union with a name in C.
pub(crate) struct Type {
    pub(crate) name: String,
    /// With the keyword: `struct ibv_qp`.
    pub(crate) c_name: String,
    pub(crate) size: i64,
    pub(crate) alignment: i64,
    pub(crate) fields: Vec<Field>,
}

/// A field, or a field of a nested struct without a name in C.
#[derive(Debug)]
pub(crate) struct Field {
    /// As C spells it: `wr.rdma.rkey`.
    pub(crate) path: String,
    /// From the beginning of the named struct.
    pub(crate) offset: i64,
}

/// An enumerator or a macro.
pub(crate) struct Constant {
    pub(crate) name: String,
    pub(crate) value: i64,
}

/// A declaration: its keyword, and its fields with their types.
#[derive(Default)]
struct Declaration {
    keyword: &'static str,
    fields: Vec<(String, String)>,
}

/// Every type that has a name in C and is not opaque.
pub(crate) fn types() -> Vec<Type> {
    let declarations = declarations();
    let mut layout = layout();
    layout.extend(anonymous());
    let mut types = Vec::new();
    for (name, declaration) in &declarations {
        let Some(&size) = layout.get(&format!("Size of {name}")) else { continue };
        let is_opaque = declaration.fields.iter().all(|(field, _)| field == "_unused");
        // Types that bindgen names are reached through the struct that contains them.
        if is_opaque || name.contains("__bindgen_") {
            continue;
        }
        let mut fields = Vec::new();
        walk(name, "", 0, &declarations, &layout, &mut fields);
        let alignment = layout[&format!("Alignment of {name}")];
        let c_name = format!("{} {name}", declaration.keyword);
        types.push(Type { name: name.clone(), c_name, size, alignment, fields });
    }
    types.push(ctrl_seg());
    types
}

/// The one struct that bindgen did not generate: its offsets are read from the type.
fn ctrl_seg() -> Type {
    use rdma_mummy_sys::types::mlx5_wqe_ctrl_seg as Seg;
    macro_rules! fields {
        ($($field:ident)*) => {
            vec![$(Field {
                path: stringify!($field).to_owned(),
                offset: std::mem::offset_of!(Seg, $field) as i64,
            }),*]
        };
    }
    Type {
        name: "mlx5_wqe_ctrl_seg".to_owned(),
        c_name: "struct mlx5_wqe_ctrl_seg".to_owned(),
        size: size_of::<Seg>() as i64,
        alignment: align_of::<Seg>() as i64,
        fields: fields! { opmod_idx_opcode qpn_ds signature dci_stream_channel_id fm_ce_se imm },
    }
}

/// The offsets of anonymous members, which the layout file lacks.
fn anonymous() -> BTreeMap<String, i64> {
    use rdma_mummy_sys::types::*;
    macro_rules! offsets {
        ($($S:ident.$field:ident)*) => {
            [$((
                concat!("Offset of field: ", stringify!($S), "::", stringify!($field)).to_owned(),
                std::mem::offset_of!($S, $field) as i64,
            )),*]
        };
    }
    BTreeMap::from(offsets! {
        ib_uverbs_flow_action_esp_encap.__bindgen_anon_1
        ib_uverbs_flow_action_esp_encap.__bindgen_anon_2
        ibv_flow_spec.__bindgen_anon_1
        ibv_send_wr.__bindgen_anon_1
        ibv_send_wr.__bindgen_anon_2
        ibv_wc.__bindgen_anon_1
        mlx5_cqe64.__bindgen_anon_1
        mlx5_cqe64__bindgen_ty_1.__bindgen_anon_1
        mlx5_wqe_umr_ctrl_seg.__bindgen_anon_1
        mlx5dv_dc_init_attr.__bindgen_anon_1
        mlx5dv_dr_action_dest_attr.__bindgen_anon_1
        mlx5dv_flow_action_attr.__bindgen_anon_1
        rdma_addr.__bindgen_anon_1
        rdma_addr.__bindgen_anon_2
    })
}

/// The fields of `name`, which lies at `base` with `prefix` in the named struct.
fn walk(
    name: &str,
    prefix: &str,
    base: i64,
    declarations: &BTreeMap<String, Declaration>,
    layout: &BTreeMap<String, i64>,
    fields: &mut Vec<Field>,
) {
    for (field, ty) in &declarations[name].fields {
        let offset = layout.get(&format!("Offset of field: {name}::{field}"));
        let offset = base + offset.unwrap_or_else(|| panic!("{name}.{field} has no offset: list it here"));
        let is_nested = ty.contains("__bindgen_ty_") && declarations.contains_key(ty);
        let is_anonymous = field.starts_with("__bindgen_anon_");
        if !is_anonymous {
            fields.push(Field { path: format!("{prefix}{}", c_spelling(field)), offset });
        }
        if is_nested {
            let inner =
                if is_anonymous { prefix.to_owned() } else { format!("{prefix}{}.", c_spelling(field)) };
            walk(ty, &inner, offset, declarations, layout, fields);
        }
    }
}

/// A field that is a Rust keyword has an underscore at its end.
fn c_spelling(field: &str) -> &str {
    field.strip_suffix('_').unwrap_or(field)
}

/// Parses `types.rs`, as a formatter wrote it: each field has a line, four spaces in.
fn declarations() -> BTreeMap<String, Declaration> {
    let mut declarations = BTreeMap::new();
    let mut open: Option<(String, Declaration)> = None;
    for line in TYPES.lines() {
        let header = [("pub struct ", "struct"), ("pub union ", "union")]
            .into_iter()
            .find_map(|(start, keyword)| Some((line.strip_prefix(start)?.strip_suffix(" {")?, keyword)));
        if let Some((name, keyword)) = header {
            open = Some((name.to_owned(), Declaration { keyword, fields: Vec::new() }));
        } else if line == "}" {
            declarations.extend(open.take());
        } else if let Some((_, declaration)) = &mut open {
            let field = line.strip_prefix("    pub ").and_then(|rest| rest.split_once(':'));
            if let Some((name, ty)) = field {
                let ty = ty.trim().trim_end_matches(',').to_owned();
                declaration.fields.push((name.to_owned(), ty));
            }
        }
    }
    assert!(declarations.len() > 250, "types.rs is no longer understood");
    declarations
}

/// Parses the assertions: the asserted expression, and the number that is subtracted from it.
fn layout() -> BTreeMap<String, i64> {
    let mut pieces = LAYOUT.split('"').skip(1);
    let mut layout = BTreeMap::new();
    while let (Some(what), Some(assertion)) = (pieces.next(), pieces.next()) {
        let number = assertion.split("usize]").next().and_then(|text| text.rsplit("- ").next());
        let number = number.and_then(|text| text.trim().parse().ok());
        layout.insert(what.to_owned(), number.unwrap_or_else(|| panic!("no number for `{what}`")));
    }
    layout
}

/// Every constant with a number.
pub(crate) fn constants() -> Vec<Constant> {
    // Joined to one line, because a long constant takes several.
    let text = TYPES.split_whitespace().collect::<Vec<_>>().join(" ");
    let statements = text.split("pub const ").skip(1).filter_map(|rest| rest.split_once(';'));
    let constant = |(statement, _): (&str, &str)| {
        let (head, value) = statement.split_once(" = ")?;
        let (name, _) = head.split_once(": ")?;
        // A newtype's value is in its parentheses.
        let value = value.rsplit('(').next().unwrap_or(value);
        let value = value.trim_end_matches([')', ',', ' ']).trim();
        let value: i128 = value.parse().ok()?;
        Some(Constant { name: name.to_owned(), value: value as i64 })
    };
    let constants: Vec<_> = statements.filter_map(constant).collect();
    assert!(constants.len() > 800, "types.rs is no longer understood");
    constants
}
