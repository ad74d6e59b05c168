//! Writes a C declaration from libclang's representation.
//!
//! Only facts pass through: names, types, values, order. Comments, macros and the layout of the
//! original text are lost in libclang's representation.

use std::fmt::Write as _;

use anyhow::{Context, Result, bail};
use clang::{Entity, EntityKind, Type, TypeKind};

/// The name, unless libclang invented it for an anonymous entity.
pub(super) fn name(entity: &Entity<'_>) -> Option<String> {
    entity.get_name().filter(|name| !name.is_empty() && !name.contains('('))
}

/// `struct`, `union` or `enum`, for an entity that is declared with one of them.
pub(super) fn keyword(kind: EntityKind) -> Option<&'static str> {
    match kind {
        EntityKind::StructDecl => Some("struct"),
        EntityKind::UnionDecl => Some("union"),
        EntityKind::EnumDecl => Some("enum"),
        _ => None,
    }
}

/// The definition of a struct, union or enum, without its semicolon.
pub(super) fn definition(entity: &Entity<'_>, indent: usize) -> Result<String> {
    let keyword = keyword(entity.get_kind()).context("only structs, unions and enums are defined")?;
    let tag = name(entity).map(|name| format!(" {name}")).unwrap_or_default();
    let inner = "\t".repeat(indent + 1);
    let mut text = format!("{keyword}{tag} {{\n");
    if keyword == "enum" {
        for constant in entity.get_children() {
            let (Some(name), Some((value, _))) = (constant.get_name(), constant.get_enum_constant_value())
            else {
                continue;
            };
            let _ = writeln!(text, "{inner}{name} = {},", integer(value));
        }
    } else {
        let ty = entity.get_type().context("a record has a type")?;
        for field in ty.get_fields().unwrap_or_default() {
            if field.is_bit_field() {
                bail!("{tag} has a bit field, which this command does not support");
            }
            let ty = field.get_type().context("a field has a type")?;
            let name = name(&field).unwrap_or_default();
            // Every compiler for this ABI supports what ISO C++ and ISO C lack here.
            let flexible = matches!(ty.get_kind(), TypeKind::IncompleteArray)
                || (ty.get_kind() == TypeKind::ConstantArray && ty.get_size() == Some(0));
            let extension = if name.is_empty() || flexible { "__extension__ " } else { "" };
            let _ = writeln!(text, "{inner}{extension}{};", variable(ty, &name, indent + 1)?);
        }
    }
    let packed = entity.get_children().iter().any(|child| child.get_kind() == EntityKind::PackedAttr);
    let packed = if packed { " __attribute__((packed))" } else { "" };
    let _ = write!(text, "{}}}{packed}", "\t".repeat(indent));
    Ok(text)
}

/// An enumerator is an `int` in ISO C; larger values get an unsigned suffix.
fn integer(value: i64) -> String {
    match value {
        i64::MIN..=-2_147_483_648 => format!("({} - 1)", value + 1),
        2_147_483_648..=4_294_967_295 => format!("{value}U"),
        4_294_967_296.. => format!("{value}ULL"),
        _ => value.to_string(),
    }
}

/// Declares `name` with a type; an empty name yields the type alone.
pub(super) fn variable(ty: Type<'_>, name: &str, indent: usize) -> Result<String> {
    let constant = if ty.is_const_qualified() { "const " } else { "" };
    match ty.get_kind() {
        TypeKind::Pointer => {
            let target = ty.get_pointee_type().context("a pointer points to something")?;
            let inner = format!("*{constant}{name}");
            match target.get_kind() {
                TypeKind::FunctionPrototype | TypeKind::ConstantArray => {
                    variable(target, &format!("({inner})"), indent)
                }
                _ => variable(target, &inner, indent),
            }
        }
        TypeKind::ConstantArray | TypeKind::IncompleteArray => {
            let element = ty.get_element_type().context("an array has elements")?;
            let size = ty.get_size().map(|size| size.to_string()).unwrap_or_default();
            variable(element, &format!("{name}[{size}]"), indent)
        }
        TypeKind::FunctionPrototype => {
            let mut parameters = Vec::new();
            for parameter in ty.get_argument_types().unwrap_or_default() {
                parameters.push(variable(parameter, "", indent)?);
            }
            let result = ty.get_result_type().context("a function has a result type")?;
            variable(result, &format!("{name}({})", parameter_list(parameters, ty.is_variadic())), indent)
        }
        _ => {
            let base = base(ty, indent)?;
            let space = if name.is_empty() { "" } else { " " };
            Ok(format!("{constant}{base}{space}{name}"))
        }
    }
}

/// The text between the parentheses of a declaration.
pub(super) fn parameter_list(mut parameters: Vec<String>, variadic: bool) -> String {
    if variadic {
        parameters.push("...".into());
    }
    if parameters.is_empty() { "void".into() } else { parameters.join(", ") }
}

fn base(ty: Type<'_>, indent: usize) -> Result<String> {
    if let Some(entity) = ty.get_declaration() {
        let name = name(&entity);
        match (keyword(entity.get_kind()), name) {
            (Some(keyword), Some(name)) => return Ok(format!("{keyword} {name}")),
            (Some(_), None) => return definition(&entity, indent),
            (None, Some(name)) => return Ok(name),
            (None, None) => {}
        }
    }
    let name = ty.get_display_name();
    Ok(name.trim_start_matches("const ").replace("_Bool", "bool"))
}
