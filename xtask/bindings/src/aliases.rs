//! Public names for definitions of the kernel's headers.
//!
//! `verbs_api.h` and `mlx5_api.h` rename the kernel's types and constants with macros that bindgen
//! does not follow (`#define IBV_QPF_GRH_REQUIRED IB_UVERBS_QPF_GRH_REQUIRED`).

use std::path::Path;

use anyhow::{Context, Result, bail};
use proc_macro2::{Ident, Span};
use syn::{Expr, Item, Type, parse_quote};

/// The headers with the renaming macros.
const HEADERS: [&str; 2] = ["infiniband/verbs_api.h", "infiniband/mlx5_api.h"];

/// A type or constant for each name that `types` does not define yet.
pub(super) fn items(include: &Path, types: &[Item]) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    for header in HEADERS {
        let text = std::fs::read_to_string(include.join(header)).with_context(|| format!("no {header}"))?;
        for (name, target) in definitions(&text) {
            if constant(types, name).is_some() {
                continue;
            }
            let ident = Ident::new(name, Span::call_site());
            if let Some((ty, value)) = constant(types, target) {
                items.push(parse_quote!(pub const #ident: #ty = #value;));
            } else if has_type(types, target) {
                let target = Ident::new(target, Span::call_site());
                items.push(parse_quote!(pub type #ident = #target;));
            } else {
                bail!("{header} defines {name} as {target}, which the bindings lack");
            }
        }
    }
    Ok(items)
}

/// The macros that expand to one other name.
fn definitions(text: &str) -> Vec<(&str, &str)> {
    let is_name = |word: &str| {
        word.chars().all(|c| c.is_alphanumeric() || c == '_') && !word.starts_with(|c: char| c.is_numeric())
    };
    let mut definitions = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["#define", name, target] = words[..]
            && is_name(name)
            && is_name(target)
        {
            definitions.push((name, target));
        }
    }
    definitions
}

/// The type and the value of a constant, which may be an associated constant of a newtype.
fn constant(types: &[Item], name: &str) -> Option<(Type, Expr)> {
    types.iter().find_map(|item| match item {
        Item::Const(constant) if constant.ident == name => {
            Some(((*constant.ty).clone(), (*constant.expr).clone()))
        }
        Item::Impl(block) => block.items.iter().find_map(|item| match item {
            syn::ImplItem::Const(constant) if constant.ident == name => {
                Some((constant.ty.clone(), constant.expr.clone()))
            }
            _ => None,
        }),
        _ => None,
    })
}

fn has_type(types: &[Item], name: &str) -> bool {
    types.iter().any(|item| match item {
        Item::Struct(item) => item.ident == name,
        Item::Union(item) => item.ident == name,
        Item::Type(item) => item.ident == name,
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_macro_that_is_a_name_is_an_alias() {
        let text = "#define A_H\n#define  IBV_A\tIB_A\n#define IBV_B(x) x\n#define IBV_C 1\n#define t u\n";
        assert_eq!(definitions(text), [("IBV_A", "IB_A"), ("t", "u")]);
    }

    #[test]
    fn an_alias_has_the_value_of_its_target() {
        let file: syn::File = parse_quote! {
            pub struct u(pub u32);
            impl u {
                pub const IB_A: u = u(4);
            }
            pub const IB_B: i32 = 2;
        };
        let value = |name| constant(&file.items, name).map(|(_, value)| value);
        assert_eq!(value("IB_A"), Some(parse_quote!(u(4))));
        assert_eq!(value("IB_B"), Some(parse_quote!(2)));
        assert_eq!(value("IB_C"), None);
        assert!(has_type(&file.items, "u") && !has_type(&file.items, "v"));
    }
}
