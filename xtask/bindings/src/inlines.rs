//! The names of the inline functions of the C headers. A test checks that Rust has all of them.

use std::path::Path;

use anyhow::{Context, Result, bail};

/// The headers whose inline functions are written in Rust.
const HEADERS: [&str; 5] = [
    "infiniband/verbs.h",
    "infiniband/mlx5dv.h",
    "infiniband/efadv.h",
    "rdma/rdma_cma.h",
    "rdma/rdma_verbs.h",
];

/// One line for each function: header, name.
pub(super) fn list(include: &Path) -> Result<String> {
    let mut lines = String::new();
    for header in HEADERS {
        let text = std::fs::read_to_string(include.join(header)).with_context(|| format!("no {header}"))?;
        let names = names(&text);
        if names.is_empty() && header.contains("verbs.h") {
            bail!("no inline function found in {header}");
        }
        for name in names {
            lines += &format!("{header} {name}\n");
        }
    }
    Ok(lines)
}

/// The name is the last word before the first parenthesis after `static inline`.
fn names(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for (at, keyword) in text.match_indices("static inline") {
        let declaration = &text[at + keyword.len()..];
        let Some(end) = declaration.find('(') else { continue };
        let head = declaration[..end].trim_end();
        let name = head.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_come_from_the_declarations() {
        let text = "static inline int ibv_f(struct a *b)\n{}\nstatic inline struct ibv_x *\nibv_g(void)\n{}";
        assert_eq!(super::names(text), ["ibv_f", "ibv_g"]);
    }
}
