//! What the library exports and what the headers declare: symbols, layouts, prototypes.

use std::collections::BTreeSet;
use std::mem::offset_of;
use std::process::Command;

use libtest_mimic::Trial;
use trespass_c::connection::buffers::CCompletion;
use trespass_c::connection::messages::{CPart, CProgress};
use trespass_c::options::{COptions, NAMES, NUMBERS};
use trespass_c::worker::events::CEvent;

use crate::programs::{C, CPP, compiler};
use crate::{TestOutcome, TestResult, elf, installed, read, run, source, trial, write};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("symbols_are_those_of_the_list", &["cc"], symbols),
        trial("the_library_stays_loaded", &["cc", "readelf"], stays_loaded),
        trial("functions_are_those_of_the_header", &[], functions),
        trial("layouts_are_those_of_the_list", &[], layouts),
        trial("layouts_are_those_of_the_header", &["cc", "c++"], header_layouts),
        trial("headers_are_clean", &["cc", "c++"], headers),
        trial("every_parameter_is_an_option", &[], parameters),
    ]
}

/// Compares two lists of lines, and tells what is missing and what is new.
fn same(found: &BTreeSet<String>, listed: &BTreeSet<String>, list: &str) -> TestResult {
    if found == listed {
        return Ok(TestOutcome::Passed);
    }
    let missing: Vec<_> = listed.difference(found).collect();
    let new: Vec<_> = found.difference(listed).collect();
    Err(format!("{list} differs: only there {missing:#?}, only here {new:#?}"))
}

fn lines(path: &str) -> Result<BTreeSet<String>, String> {
    Ok(read(&source(path))?.lines().map(str::to_owned).collect())
}

/// The shared object exports what `abi.txt` lists, with versions, and nothing else.
fn symbols() -> TestResult {
    let symbols = elf::symbols(&installed()?.join("lib/libtrespass.so.0"))?;
    if !symbols.bare.is_empty() {
        return Err(format!("exported without a version: {:?}", symbols.bare));
    }
    if let Some(old) = symbols.exported.iter().find(|symbol| !symbol.is_default) {
        return Err(format!("not a default version: {old:?}"));
    }
    // It starts where there is no rdma-core.
    let needed = |version: &str| version.starts_with("GLIBC_") || version.starts_with("GCC_");
    if let Some(foreign) = symbols.imported.iter().find(|(_, version)| !needed(version)) {
        return Err(format!("it needs {foreign:?}"));
    }
    let found = symbols.exported.iter().map(|symbol| format!("{} {}", symbol.name, symbol.version)).collect();
    same(&found, &lines("abi.txt")?, "abi.txt")
}

fn stays_loaded() -> TestResult {
    let library = installed()?.join("lib/libtrespass.so.0");
    let output = run(Command::new("readelf").arg("-d").arg(library))?;
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    let has = |words_of: &[&str]| words.lines().any(|line| words_of.iter().all(|word| line.contains(word)));
    if has(&["FLAGS_1", "NODELETE"]) && has(&["SONAME", "[libtrespass.so.0]"]) {
        return Ok(TestOutcome::Passed);
    }
    Err(words)
}

/// The functions that the header declares, by their text.
pub(crate) fn declared() -> Result<BTreeSet<String>, String> {
    let header = read(&source("include/trespass.h"))?;
    let code = header.split("/*").map(|part| part.split_once("*/").map_or(part, |(_, code)| code));
    let code: String = code.collect();
    let code = code
        .lines()
        .filter(|line| !line.starts_with('#'))
        .fold(String::new(), |code, line| code + line + "\n");
    let names = code.split(';').filter_map(|declaration| {
        let (before, _) = declaration.split_once('(')?;
        let name = before.rsplit([' ', '*', '\n']).next()?;
        (name.starts_with("trespass_") && !before.contains("static inline")).then(|| name.to_owned())
    });
    Ok(names.collect())
}

/// The header declares what `abi.txt` lists, and a case or a class uses each of the functions.
fn functions() -> TestResult {
    let listed: BTreeSet<_> =
        lines("abi.txt")?.iter().filter_map(|line| line.split(' ').next().map(str::to_owned)).collect();
    same(&declared()?, &listed, "abi.txt")?;
    let mut used = String::new();
    for file in
        ["streams", "messages", "nonblocking", "halves", "options", "zero_copy", "workers", "processes"]
    {
        used += &read(&source(&format!("tests/c/{file}.c")))?;
    }
    used += &read(&source("tests/c/suite.c"))?;
    match listed.iter().find(|name| !used.contains(&format!("{name}("))) {
        Some(name) => Err(format!("no case uses {name} but to be refused")),
        None => Ok(TestOutcome::Passed),
    }
}

/// Makes the lines of a struct: its size, and the place and the size of each member.
macro_rules! layout {
    ($lines:ident, $c:literal, $rust:ty: $($member:ident $name:literal $of:ty),* $(,)?) => {
        $lines.push(format!("{} {}", $c, size_of::<$rust>()));
        $($lines.push(format!("{}.{} {} {}", $c, $name, offset_of!($rust, $member), size_of::<$of>()));)*
    };
}

fn layout_lines() -> Vec<String> {
    let mut lines = Vec::new();
    layout!(lines, "trespass_options", COptions: size "size" usize, device "device" usize,
        user_data "user_data" usize, user_data_length "user_data_length" usize);
    let numbers = offset_of!(COptions, numbers);
    lines.extend(
        NAMES.iter().enumerate().map(|(n, name)| format!("trespass_options.{name} {} 8", numbers + 8 * n)),
    );
    layout!(lines, "trespass_part", CPart: length "length" usize, last "last" u64, total "total" u64);
    layout!(lines, "trespass_progress", CProgress: done "done" u64, total "total" u64);
    layout!(lines, "trespass_completion", CCompletion: ticket "ticket" u64, buffer "buffer" usize,
        left "left" u64, sent "sent" u64);
    layout!(lines, "trespass_event", CEvent: event "event" u32, ready "ready" u32, key "key" u64,
        listener "listener" u64, tag "tag" u64, completion "completion" CCompletion, error "error" u64,
        text "text" usize, reserved "reserved" [u64; 4]);
    lines
}

/// The structs have not changed since the committed list. Only the options may grow.
fn layouts() -> TestResult {
    let listing = layout_lines().concat_lines();
    let committed = read(&source("layouts.txt"))?;
    if listing != committed {
        return Err(format!("layouts.txt should be:\n{listing}"));
    }
    // Nothing between two members that could be anything but zero.
    if offset_of!(COptions, numbers) + 8 * NUMBERS != size_of::<COptions>() {
        return Err("the options have padding".to_owned());
    }
    Ok(TestOutcome::Passed)
}

trait ConcatLines {
    fn concat_lines(&self) -> String;
}

impl ConcatLines for [String] {
    fn concat_lines(&self) -> String {
        self.iter().map(|line| format!("{line}\n")).collect()
    }
}

/// C and C++ agree with Rust.
fn header_layouts() -> TestResult {
    let mut text =
        "#include <trespass.h>\n#ifndef __cplusplus\n#define static_assert _Static_assert\n#endif\n"
            .to_owned();
    for line in layout_lines() {
        let assertion = match line.split(' ').collect::<Vec<_>>()[..] {
            [name, size] => format!("sizeof({name}) == {size}"),
            [path, place, size] => {
                let (name, member) = path.split_once('.').ok_or("a member has a struct")?;
                format!("offsetof({name}, {member}) == {place} && sizeof((({name} *)0)->{member}) == {size}")
            }
            _ => return Err(format!("what is {line}?")),
        };
        text += &format!("static_assert({assertion}, \"{line}\");\n");
    }
    let file = write("layouts.c", &text)?;
    for (language, x) in [(("cc", "-std=c11"), "c"), (CPP, "c++")] {
        run(compiler(language, &["-fsyntax-only", "-x", x])?.arg(&file))?;
    }
    Ok(TestOutcome::Passed)
}

/// The headers compile alone and without warnings.
fn headers() -> TestResult {
    let c = write("header.c", "#include <trespass.h>\n#include <trespass.h>\n")?;
    let cpp = write("header.cpp", "#include <trespass.hpp>\n#include <trespass.hpp>\n")?;
    for language in [C, ("cc", "-std=c11"), ("cc", "-std=gnu17")] {
        run(compiler(language, &["-fsyntax-only", "-Wconversion", "-Wstrict-prototypes"])?.arg(&c))?;
    }
    for language in [CPP, ("c++", "-std=c++20")] {
        run(compiler(language, &["-fsyntax-only", "-Wconversion", "-x", "c++"])?.arg(&c))?;
        run(compiler(language, &["-fsyntax-only", "-Wconversion", "-Wshadow"])?.arg(&cpp))?;
    }
    Ok(TestOutcome::Passed)
}

/// Each parameter of the builder is a member of the options, but for the pool of the program, which C
/// does not have.
fn parameters() -> TestResult {
    let builder = read(&source("../src/config/builder.rs"))?;
    let setters = builder.lines().filter_map(|line| {
        let line = line.trim_start();
        let method = line.strip_prefix("pub fn ").and_then(|line| line.split_once("(mut self"));
        // In the list of setters a line is `name: type;`.
        let listed = line.strip_suffix(';').and_then(|line| line.split_once(": "));
        let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        method.or(listed).map(|(name, _)| name).filter(|name| is_name(name)).map(str::to_owned)
    });
    let setters: BTreeSet<_> = setters.collect();
    let units = |name: &&str| name.trim_end_matches("_ms").trim_end_matches("_us").to_owned();
    let mut options: BTreeSet<_> = NAMES.iter().map(units).collect();
    options.remove("inline_max");
    options.extend(
        ["inline", "device", "devices", "user_data", "pool", "__srq_alone", "__rail_backoff"]
            .map(str::to_owned),
    );
    // C has no call that returns a client of plain TCP, and gives the address to each call.
    let without = ["plain_tcp", "bind_host", "bind_interface", "hostname", "port"];
    options.extend(without.map(str::to_owned));
    if setters.len() < 40 {
        return Err(format!("only {} parameters were found", setters.len()));
    }
    same(&setters, &options, "the list of options")
}
