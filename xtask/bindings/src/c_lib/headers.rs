//! The generated half of the C companion: `include/rdma-mummy/abi/*.h` and `src/functions.def`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clang::{Clang, Entity, EntityKind, EvaluationResult, Index, TranslationUnit, Unsaved};

use super::{declare, functions};
use crate::generate::{clang_args, header, wrapper};
use crate::{Inputs, symbols};

/// A header of the companion: name, the system headers that it includes, and the originals whose
/// declarations it repeats.
const HEADERS: [(&str, &[&str], &[&str]); 5] = [
    (
        "verbs",
        &["errno.h", "pthread.h", "stddef.h", "stdint.h", "string.h", "sys/types.h", "time.h"],
        &["infiniband/ib_user_ioctl_verbs.h", "infiniband/verbs_api.h", "infiniband/verbs.h"],
    ),
    ("rdma_cma", &["netinet/in.h", "sys/socket.h"], &["infiniband/sa.h", "rdma/rdma_cma.h"]),
    ("rdma_verbs", &[], &["rdma/rdma_verbs.h"]),
    ("rsocket", &["poll.h", "sys/epoll.h", "sys/mman.h", "sys/select.h"], &["rdma/rsocket.h"]),
    ("tm_types", &["stdint.h"], &["infiniband/tm_types.h"]),
];

/// The kernel's header, a part of which `verbs.h` shows under other names. Only that part is taken,
/// under those names, so that a program can include the kernel's header as well.
const KERNEL: &str = "infiniband/ib_user_ioctl_verbs.h";
const KERNEL_NAMES: [(&str, &str); 2] = [("ib_uverbs_", "ibv_"), ("IB_UVERBS_", "IBV_")];

/// Generates the files: path relative to `rdma-mummy-sys/c`, and text.
pub(crate) fn generate(inputs: &Inputs) -> Result<BTreeMap<String, String>> {
    // SAFETY: the process has only one thread so far.
    unsafe { std::env::set_var("LIBCLANG_PATH", &inputs.libclang) };
    let clang = Clang::new().map_err(|error| anyhow::anyhow!("cannot use libclang: {error}"))?;
    let index = Index::new(&clang, false, false);
    let include = inputs.headers.join("usr/include");
    let unit = parse(inputs, &index, "")?;
    let originals = Originals::read(&include, &unit);
    let constants = originals.constants(inputs, &index)?;
    let symbols = symbols::read(&inputs.symbols)?;
    let banner = header(inputs).replacen("// ", "/* ", 1).replacen("Do not edit.", "Do not edit. */", 1);

    let mut files = BTreeMap::new();
    let mut functions = Vec::new();
    for (name, system, sources) in HEADERS {
        let guard = format!("RDMA_MUMMY_ABI_{}_H", name.to_uppercase());
        let mut text = format!("{banner}#ifndef {guard}\n#define {guard}\n\n");
        for header in system {
            let _ = writeln!(text, "#include <{header}>");
        }
        text += "#include \"../base.h\"\n";
        let body = originals.declarations(sources, &constants, &symbols, &mut functions)?;
        let _ = write!(text, "\nRDMA_MUMMY_BEGIN\n\n{body}\nRDMA_MUMMY_END\n\n#endif\n");
        files.insert(format!("include/rdma-mummy/abi/{name}.h"), text);
    }
    files.insert("src/functions.def".into(), banner + &functions::list(&functions, &symbols)?);
    Ok(files)
}

fn parse<'i>(inputs: &Inputs, index: &'i Index<'_>, more: &str) -> Result<TranslationUnit<'i>> {
    let text = format!("#include \"{}\"\n{more}", wrapper().display());
    let mut parser = index.parser("everything.c");
    let parser = parser.arguments(&clang_args(inputs)).unsaved(&[Unsaved::new("everything.c", text)]);
    let unit = parser.detailed_preprocessing_record(true).skip_function_bodies(true).parse();
    unit.map_err(|error| anyhow::anyhow!("libclang cannot read the headers: {error}"))
}

/// The declarations of each original header, in order.
struct Originals<'tu> {
    entities: BTreeMap<String, Vec<Entity<'tu>>>,
}

impl<'tu> Originals<'tu> {
    fn read(include: &Path, unit: &'tu TranslationUnit<'_>) -> Self {
        let mut entities: BTreeMap<String, Vec<Entity<'tu>>> = BTreeMap::new();
        for entity in unit.get_entity().get_children() {
            let file = entity.get_location().and_then(|l| l.get_file_location().file).map(|f| f.get_path());
            let Some(file) = file.as_deref().and_then(|path| path.strip_prefix(include).ok()) else {
                continue;
            };
            entities.entry(file.display().to_string()).or_default().push(entity);
        }
        Self { entities }
    }

    fn of(&self, source: &str) -> &[Entity<'tu>] {
        self.entities.get(source).map(Vec::as_slice).unwrap_or_default()
    }

    /// The macros that stand for a number, with the number in C syntax.
    ///
    /// The compiler evaluates them as the initialisers of variables. A macro that is not a number
    /// causes an error there and is left out.
    fn constants(&self, inputs: &Inputs, index: &Index<'_>) -> Result<BTreeMap<String, String>> {
        const PREFIX: &str = "constant_";
        let mut probe = String::new();
        for entity in HEADERS.iter().flat_map(|(_, _, sources)| *sources).flat_map(|source| self.of(source)) {
            let Some(name) = declare::name(entity) else { continue };
            let is_constant = name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
            let is_ours = !name.starts_with("IB_UVERBS") && !name.ends_with("_H");
            let is_macro =
                entity.get_kind() == EntityKind::MacroDefinition && !entity.is_function_like_macro();
            if is_constant && is_ours && is_macro {
                let _ = writeln!(probe, "static const __typeof__({name}) {PREFIX}{name} = {name};");
            }
        }
        let unit = parse(inputs, index, &probe)?;
        let mut constants = BTreeMap::new();
        for variable in unit.get_entity().get_children() {
            let Some(name) = variable.get_name() else { continue };
            let Some(name) = name.strip_prefix(PREFIX) else { continue };
            let ty = variable.get_type().context("a variable has a type")?.get_canonical_type();
            let value = match variable.evaluate() {
                Some(EvaluationResult::SignedInteger(value)) => value.to_string(),
                Some(EvaluationResult::UnsignedInteger(value)) => value.to_string(),
                _ => continue,
            };
            let suffix = match ty.get_display_name().trim_start_matches("const ") {
                "unsigned long long" => "ULL",
                "unsigned long" => "UL",
                "unsigned int" => "U",
                _ => "",
            };
            constants.insert(name.to_owned(), value + suffix);
        }
        Ok(constants)
    }

    /// One header's text and its exported functions.
    fn declarations(
        &self,
        sources: &[&str],
        constants: &BTreeMap<String, String>,
        symbols: &BTreeMap<String, symbols::Symbol>,
        functions: &mut Vec<Entity<'tu>>,
    ) -> Result<String> {
        let (mut numbers, mut forward, mut body) = (String::new(), BTreeSet::new(), String::new());
        let entities = || sources.iter().flat_map(|source| self.of(source).iter().map(move |e| (*source, e)));
        let aliases: BTreeSet<String> =
            entities().filter(|(source, _)| *source != KERNEL).filter_map(|(_, e)| alias(e)).collect();
        let enumerators: BTreeSet<String> = entities()
            .filter(|(source, e)| *source != KERNEL || declare::name(e).is_some_and(|n| aliases.contains(&n)))
            .filter(|(_, e)| e.get_kind() == EntityKind::EnumDecl)
            .flat_map(|(_, e)| e.get_children())
            .filter_map(|constant| constant.get_name().map(|name| rename(&name)))
            .collect();
        for (source, entity) in entities() {
            let name = declare::name(entity);
            if source == KERNEL && name.as_ref().is_none_or(|name| !aliases.contains(name)) {
                continue;
            }
            match (entity.get_kind(), name) {
                (EntityKind::MacroDefinition, Some(name)) => {
                    if let Some(value) = constants.get(&name).filter(|_| !enumerators.contains(&name)) {
                        let _ = writeln!(numbers, "#define {name} {value}");
                    }
                }
                (kind @ (EntityKind::StructDecl | EntityKind::UnionDecl), Some(name)) => {
                    let keyword = declare::keyword(kind).unwrap_or_default();
                    forward.insert(format!("{keyword} {};\n", rename(&name)));
                    if entity.is_definition() {
                        body += &format!("\n{};\n", declare::definition(entity, 0)?);
                    }
                }
                (EntityKind::EnumDecl, _) if entity.is_definition() => {
                    body += &format!("\n{};\n", declare::definition(entity, 0)?);
                }
                (EntityKind::TypedefDecl, Some(name)) => bail!("{name}: typedefs are not expected here"),
                (EntityKind::FunctionDecl, Some(name)) if symbols.contains_key(&name) => {
                    let is_known = functions.iter().any(|f| f.get_name().as_ref() == Some(&name));
                    if is_known || entity.is_inline_function() {
                        continue;
                    }
                    functions.push(*entity);
                    body += &format!("\n{};\n", functions::prototype(entity)?);
                }
                _ => {}
            }
        }
        let forward: String = forward.into_iter().collect();
        let parts = [numbers, forward, body].map(|part| part.trim_start().to_owned());
        Ok(rename(&parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")))
    }
}

/// The kernel's name behind a renaming macro.
fn alias(entity: &Entity<'_>) -> Option<String> {
    let tokens = entity.get_range().filter(|_| entity.get_kind() == EntityKind::MacroDefinition)?.tokenize();
    let [_, target] = tokens.as_slice() else { return None };
    Some(target.get_spelling()).filter(|target| target.starts_with(KERNEL_NAMES[0].0))
}

fn rename(text: &str) -> String {
    KERNEL_NAMES.iter().fold(text.to_owned(), |text, (theirs, ours)| text.replace(theirs, ours))
}
