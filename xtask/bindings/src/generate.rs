//! Runs bindgen for each target, and sorts its output into files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bindgen::callbacks::{DeriveTrait, ImplementsTrait, IntKind, ParseCallbacks};
use syn::{File, Item};

use super::{Inputs, aliases, c_abi, inlines, symbols, tables};

/// The targets with asserted layouts: clang's name, Debian's name, its multiarch folder, Rust's
/// `target_arch`.
const TARGETS: [(&str, &str, &str, &str); 2] = [
    ("x86_64-unknown-linux-gnu", "amd64", "x86_64-linux-gnu", "x86_64"),
    ("aarch64-unknown-linux-gnu", "arm64", "aarch64-linux-gnu", "aarch64"),
];

/// Types that the libc crate defines; bindgen must not define them.
const LIBC_TYPES: [&str; 21] = [
    "FILE",
    "epoll_event",
    "fd_set",
    "iovec",
    "msghdr",
    "nfds_t",
    "off_t",
    "pollfd",
    "pthread_cond_t",
    "pthread_mutex_t",
    "sa_family_t",
    "sockaddr",
    "sockaddr_in",
    "sockaddr_in6",
    "sockaddr_storage",
    "socklen_t",
    "ssize_t",
    "timespec",
    "timeval",
    "in_addr",
    "in6_addr",
];

/// Structs that C both packs and aligns, which Rust cannot express: their one unaligned field
/// becomes bytes.
const PACKED_AND_ALIGNED: [&str; 11] = [
    "#[repr(C, align(4))]",
    "#[derive(Debug, Default, Copy, Clone)]",
    "pub struct mlx5_wqe_ctrl_seg {",
    "    pub opmod_idx_opcode: __be32,",
    "    pub qpn_ds: __be32,",
    "    pub signature: u8,",
    "    pub dci_stream_channel_id: [u8; 2],",
    "    pub fm_ce_se: u8,",
    "    pub imm: __be32,",
    "}",
    "const _: () = assert!(size_of::<mlx5_wqe_ctrl_seg>() == 16);",
];

/// Generates the files that need bindgen's output: path relative to the workspace, and text.
pub(super) fn generate(root: &Path, inputs: &Inputs) -> Result<BTreeMap<String, String>> {
    // SAFETY: the process has only one thread so far.
    unsafe { std::env::set_var("LIBCLANG_PATH", &inputs.libclang) };
    let mut files = BTreeMap::new();
    let mut common: Option<Sorted> = None;
    for (target, arch, multiarch, rust_arch) in TARGETS {
        let mut sorted = sort(syn::parse_file(&run_bindgen(inputs, target, arch, multiarch)?)?);
        let layout = std::mem::take(&mut sorted.layout);
        if layout.is_empty() {
            bail!("bindgen asserted no layout for {target}");
        }
        let note = format!("Sizes, alignments and offsets of every struct on {rust_arch}.");
        let uses: Item = syn::parse_quote!(
            use super::types::*;
        );
        files.insert(
            format!("layout_{rust_arch}.rs"),
            print(inputs, &note, [uses].into_iter().chain(layout).collect()),
        );
        match &common {
            None => common = Some(sorted),
            Some(first) if *first != sorted => bail!("the types of {target} differ from {}", TARGETS[0].0),
            Some(_) => {}
        }
    }
    let mut common = common.context("no target")?;
    common.types.extend(aliases::items(&inputs.headers.join("usr/include"), &common.types)?);
    let symbols = symbols::read(&inputs.symbols)?;
    files.insert("types.rs".into(), print(inputs, "Types and constants.", common.types));
    files.insert("tables.rs".into(), tables::write(&header(inputs), &common.functions, &symbols)?);
    files.insert("inlines.txt".into(), inlines::list(&inputs.headers.join("usr/include"))?);
    let below = |(name, text)| (format!("rdma-mummy-sys/src/bindings/{name}"), text);
    let mut files: BTreeMap<String, String> = files.into_iter().map(below).collect();
    files.extend(c_abi::generate(root, &header(inputs), &common.functions, &symbols, &inputs.symbols)?);
    Ok(files)
}

/// Tells bindgen that the types of the libc crate are plain data.
#[derive(Debug)]
struct LibcTypes;

impl ParseCallbacks for LibcTypes {
    /// Masks and identifiers of port spaces have 64 bits; otherwise the mask would become a
    /// negative `i32`.
    fn int_macro(&self, name: &str, _: i64) -> Option<IntKind> {
        (name.starts_with("RDMA_IB_IP_") || name.starts_with("RDMA_IB_PS_")).then_some(IntKind::U64)
    }

    fn blocklisted_type_implements_trait(&self, _: &str, wanted: DeriveTrait) -> Option<ImplementsTrait> {
        match wanted {
            DeriveTrait::Copy => Some(ImplementsTrait::Yes),
            _ => Some(ImplementsTrait::No),
        }
    }
}

/// Bindgen's output, by kind.
#[derive(PartialEq)]
struct Sorted {
    types: Vec<Item>,
    functions: Vec<syn::ForeignItemFn>,
    layout: Vec<Item>,
}

fn sort(file: File) -> Sorted {
    let mut sorted = Sorted { types: Vec::new(), functions: Vec::new(), layout: Vec::new() };
    for item in file.items {
        match item {
            Item::ForeignMod(block) => {
                sorted.functions.extend(block.items.into_iter().filter_map(|i| match i {
                    syn::ForeignItem::Fn(function) => Some(function),
                    _ => None,
                }))
            }
            Item::Const(ref constant) if constant.ident == "_" => sorted.layout.push(item),
            _ => sorted.types.push(item),
        }
    }
    sorted
}

/// The header that includes every header of the bindings.
pub(crate) fn wrapper() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("headers/wrapper.h")
}

/// The clang arguments for the first target, which exclude the machine's own headers.
pub(crate) fn clang_args(inputs: &Inputs) -> Vec<String> {
    let (target, arch, multiarch, _) = TARGETS[0];
    target_args(inputs, target, arch, multiarch)
}

fn target_args(inputs: &Inputs, target: &str, arch: &str, multiarch: &str) -> Vec<String> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("headers");
    let libc = inputs.libc_headers(arch);
    let headers = inputs.headers.join("usr/include");
    let mut args = vec!["-nostdinc".to_owned(), format!("--target={target}")];
    for folder in [own, headers.clone(), libc.join(multiarch), libc, headers.join(multiarch)] {
        args.extend(["-isystem".into(), folder.display().to_string()]);
    }
    args
}

fn run_bindgen(inputs: &Inputs, target: &str, arch: &str, multiarch: &str) -> Result<String> {
    let mut builder = bindgen::Builder::default()
        .header(wrapper().display().to_string())
        .clang_args(target_args(inputs, target, arch, multiarch))
        .rust_target(bindgen::RustTarget::stable(88, 0).map_err(|e| anyhow::anyhow!("{e}"))?)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .use_core()
        .generate_comments(false)
        .layout_tests(true)
        .derive_default(true)
        .prepend_enum_name(false)
        .default_enum_style(bindgen::EnumVariation::NewType { is_bitfield: false, is_global: false })
        .newtype_enum("ibv_.*")
        .bitfield_enum("ibv_(access|device_cap|send|qp_attr|qp_create_send_ops|create_cq_wc).*(flags|mask)$")
        .bitfield_enum("ibv_(access_flags|device_cap_flags|send_flags|qp_attr_mask|wc_flags|odp_.*bits)")
        .constified_enum("_bindgen_ty.*|.*__bindgen_ty_.*")
        .blocklist_type("mlx5_wqe_ctrl_seg")
        .parse_callbacks(Box::new(LibcTypes))
        .allowlist_function(
            "_?ibv_.*|m(ult|bps)_to_ibv_rate|rdma_.*|_*mlx5dv_.*|efadv_.*|r(socket|bind|listen|accept|connect|shutdown|close)",
        )
        .allowlist_function("r(recv|send)(from|to|msg)?|r(read|write)v?|rpoll|rselect|rget(peer|sock)name")
        .allowlist_function("r[gs]etsockopt|rfcntl|rio(map|unmap|write)|repoll_.*")
        .allowlist_type("_?(_compat_)?ibv_.*|ib_uverbs_(flow_action|advise_mr|query_port_flags|access_flags).*|verbs_.*|rdma_.*|mlx5dv_.*|mlx5_.*|efadv_.*")
        .allowlist_var("_?IBV_.*|VERBS_.*|RDMA_.*|RAI_.*|MLX5.*|EFADV_.*|SOL_RDMA|ETH_LAYER_.*")
        .raw_line("use libc::{")
        .raw_line(LIBC_TYPES.join(", "))
        .raw_line("};");
    for name in LIBC_TYPES {
        builder = builder.blocklist_type(name);
    }
    for line in PACKED_AND_ALIGNED {
        builder = builder.raw_line(line);
    }
    let bindings = builder
        .blocklist_type(
            "_IO_.*|__atomic_wide_counter.*|__pthread.*|pthread_.*attr_t|__fd_.*|epoll_data.*|in6_addr_.*",
        )
        .generate();
    Ok(bindings.with_context(|| format!("bindgen failed for {target}"))?.to_string())
}

/// The first line of every generated file.
pub(crate) fn header(inputs: &Inputs) -> String {
    format!("// By `cargo xtask bindings` of {}. Do not edit.\n\n", inputs.described)
}

fn print(inputs: &Inputs, note: &str, items: Vec<Item>) -> String {
    let file = File { shebang: None, frontmatter: None, attrs: Vec::new(), items };
    format!("{}//! {note}\n\n{}", header(inputs), prettyplease::unparse(&file))
}
