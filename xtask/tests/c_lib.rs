//! Tests of the C companion: the exports of its archive, its headers compared with rdma-core's, and
//! programs with and without rdma-core.
//!
//! A check whose tools or libraries are missing on this machine is ignored, with the reason in
//! brackets.

#[path = "c_lib/facts.rs"]
mod facts;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::sync::LazyLock;

use libtest_mimic::{Arguments, Failed, Trial};
use test_harness::{Grant, PrivilegedCopy};

const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-pedantic", "-Werror"];
const HEADERS: [&str; 5] = ["verbs.h", "rdma_cma.h", "rdma_verbs.h", "rsocket.h", "tm_types.h"];

/// The workspace's folder.
static ROOT: LazyLock<PathBuf> =
    LazyLock::new(|| Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default());

/// A separate installation, so that these tests need no other command first.
static INSTALLED: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| {
    let prefix = scratch().join("prefix");
    let mut install = Command::new(env!("CARGO_BIN_EXE_xtask"));
    run(install.arg("c-lib").arg("--prefix").arg(&prefix)).map(|_| prefix)
});

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let c = lacks("cc").or(lacks("ar"));
    let cpp = c.clone().or(lacks("c++"));
    let pkg_config = cpp.clone().or(lacks("pkg-config"));
    let libraries = pkg_config.clone().or_else(lacks_libraries);
    let development = c.clone().or_else(lacks_libraries).or_else(lacks_development);
    let trials = vec![
        trial("only_prefixed_symbols", c.clone().or(lacks("nm")), only_prefixed_symbols),
        trial("nothing_runs_before_main", c.clone().or(lacks("objdump")), nothing_runs_before_main),
        trial("headers_are_clean_c_and_cpp", cpp.clone(), headers_are_clean),
        trial("headers_cannot_be_mixed_up", c.clone(), headers_cannot_be_mixed_up),
        trial("layouts_are_those_of_the_bindings", c.clone(), layouts),
        trial("layouts_are_those_of_the_originals", c.clone().or_else(lacks_originals), original_layouts),
        trial(
            "prototypes_are_those_of_the_originals",
            c.clone().or_else(lacks_originals),
            original_prototypes,
        ),
        trial("constants_are_those_of_the_bindings", c.clone(), constants),
        trial("every_inline_function_is_there", c.clone(), every_inline_function),
        trial("inline_functions_in_c", c.clone(), inline_functions_in_c),
        trial("inline_functions_in_cpp", cpp, inline_functions_in_cpp),
        trial("hello_with_rdma_core", libraries, hello_with_rdma_core),
        trial("hello_without_rdma_core", pkg_config, hello_without_rdma_core),
        trial("missing_library", c.clone(), missing_library),
        trial("unversioned_library", c.clone(), unversioned_library),
        trial("library_without_the_versions", c.clone(), library_without_the_versions),
        trial(MORE_RIGHTS, c, a_program_with_more_rights_than_its_user_ignores_the_variable),
        trial("together_with_the_real_libraries", development, together),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A test, or an ignored one that shows the reason.
fn trial(name: &str, lacking: Option<String>, test: fn() -> Result<(), String>) -> Trial {
    let trial = Trial::test(name, move || test().map_err(Failed::from));
    match lacking {
        Some(what) => trial.with_kind(format!("skipped: no {what}")).with_ignored_flag(true),
        None => trial,
    }
}

fn lacks(program: &str) -> Option<String> {
    let found = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    (!found).then(|| program.to_owned())
}

fn lacks_libraries() -> Option<String> {
    let cache =
        Command::new("/sbin/ldconfig").arg("-p").output().map(|output| output.stdout).unwrap_or_default();
    let cache = String::from_utf8_lossy(&cache).into_owned();
    ["libibverbs.so.1", "librdmacm.so.1"].into_iter().find(|name| !cache.contains(name)).map(str::to_owned)
}

fn lacks_development() -> Option<String> {
    let includes =
        "#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\nint main(void) { return 0; }\n";
    let source = write("development.c", includes);
    let linked = run(Command::new("cc").arg(source).arg("-o").arg(scratch().join("development")).args(REAL));
    linked.err().map(|_| "libibverbs-dev and librdmacm-dev".to_owned())
}

/// The pinned headers, as `cargo xtask bindings` unpacked them.
fn originals() -> PathBuf {
    ROOT.join("target/bindings/headers/usr/include")
}

fn lacks_originals() -> Option<String> {
    let found = originals().join("infiniband/verbs.h").exists() && cfg!(target_arch = "x86_64");
    (!found).then(|| "pinned headers for this machine: run `cargo xtask bindings --check`".to_owned())
}

const REAL: [&str; 2] = ["-libverbs", "-lrdmacm"];

fn scratch() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c_lib");
    std::fs::create_dir_all(&folder).expect("cargo's folder for tests can be written to");
    folder
}

fn write(name: &str, text: &str) -> PathBuf {
    let path = scratch().join(name);
    std::fs::create_dir_all(path.parent().unwrap_or(&path))
        .expect("cargo's folder for tests can be written to");
    std::fs::write(&path, text).expect("cargo's folder for tests can be written to");
    path
}

fn tests(name: &str) -> PathBuf {
    ROOT.join("rdma-mummy-sys/c/tests").join(name)
}

fn run(command: &mut Command) -> Result<Output, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(output);
    }
    let words = [&output.stdout, &output.stderr].map(|words| String::from_utf8_lossy(words).into_owned());
    Err(format!("{command:?}: {}\n{}", output.status, words.concat()))
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The compiler for a language, with the companion's headers and warnings as errors.
fn compiler(language: &str) -> Result<Command, String> {
    let prefix = INSTALLED.clone()?;
    let mut command = Command::new(if language == "c" { "cc" } else { "c++" });
    command.args(["-x", language, if language == "c" { "-std=c11" } else { "-std=c++17" }]).args(STRICT);
    command.arg("-I").arg(prefix.join("include")).arg("-I").arg(prefix.join("include/rdma-core-mummy"));
    Ok(command)
}

/// Compiles and links a program with the archive.
fn build(language: &str, source: &Path, name: &str) -> Result<PathBuf, String> {
    let program = scratch().join(name);
    let mut command = compiler(language)?;
    command
        .arg(source)
        .arg("-o")
        .arg(&program)
        .args(["-x", "none", "-L"])
        .arg(INSTALLED.clone()?.join("lib"));
    run(command.args(["-lrdma-core-mummy", "-pthread", "-ldl"]))?;
    Ok(program)
}

fn archive() -> Result<PathBuf, String> {
    Ok(INSTALLED.clone()?.join("lib/librdma-core-mummy.a"))
}

fn only_prefixed_symbols() -> Result<(), String> {
    let listing = text(&run(Command::new("nm").args(["-g", "--defined-only", "-P"]).arg(archive()?))?);
    let names: Vec<&str> = listing
        .lines()
        .filter(|line| !line.ends_with(':'))
        .filter_map(|line| line.split(' ').next())
        .collect();
    let foreign: Vec<&&str> = names.iter().filter(|name| !name.starts_with("rdma_mummy_")).collect();
    if !foreign.is_empty() {
        return Err(format!("global symbols without the prefix: {foreign:?}"));
    }
    if names.len() < 150 {
        return Err(format!("only {} symbols: the library is incomplete", names.len()));
    }
    let needed = text(&run(Command::new("nm").args(["-u", "-P"]).arg(archive()?))?);
    let prefixes = ["ibv_", "_ibv_", "rdma_", "mlx5dv_"];
    match needed.lines().find(|line| prefixes.iter().any(|prefix| line.starts_with(prefix))) {
        Some(line) => Err(format!("linking needs rdma-core's {line}")),
        None => Ok(()),
    }
}

fn nothing_runs_before_main() -> Result<(), String> {
    let sections = text(&run(Command::new("objdump").arg("-h").arg(archive()?))?);
    match [".init_array", ".ctors", ".preinit_array"].iter().find(|name| sections.contains(**name)) {
        Some(name) => Err(format!("the archive has a section {name}")),
        None => Ok(()),
    }
}

fn headers_are_clean() -> Result<(), String> {
    let usual =
        ["infiniband/verbs.h", "infiniband/sa.h", "rdma/rdma_cma.h", "rdma/rdma_verbs.h", "rdma/rsocket.h"];
    let ours = HEADERS.map(|header| format!("rdma-mummy/{header}"));
    // With the kernel's headers as well, which share some names with the originals.
    let all = usual.map(|header| format!("#include <{header}>\n")).concat()
        + "#include <rdma/ib_user_ioctl_verbs.h>\n";
    let single = ours.iter().map(String::as_str).chain(usual).map(|header| format!("#include <{header}>\n"));
    for (n, includes) in single.chain([all]).enumerate() {
        let source = write(&format!("header_{n}.c"), &format!("{includes}int main(void) {{ return 0; }}\n"));
        for language in ["c", "c++"] {
            run(compiler(language)?.arg("-fsyntax-only").arg(&source))?;
        }
    }
    Ok(())
}

fn headers_cannot_be_mixed_up() -> Result<(), String> {
    // If the companion's header comes first, a third header that includes the original gets nothing
    // new. If the original comes first, the companion's header reports it.
    let later = write("mixed_later.c", "#define INFINIBAND_VERBS_H\n#include <rdma-mummy/verbs.h>\n");
    match run(compiler("c")?.arg("-fsyntax-only").arg(later)) {
        Err(words) if words.contains("include <rdma-mummy/verbs.h> in its place, or before it") => Ok(()),
        Err(words) => Err(format!("an unclear error: {words}")),
        Ok(_) => Err("both headers in one file were accepted".into()),
    }
}

fn assertions(name: &str, body: &str) -> PathBuf {
    let includes = [
        "infiniband/verbs.h",
        "rdma/rdma_cma.h",
        "rdma/rdma_verbs.h",
        "rdma/rsocket.h",
        "infiniband/tm_types.h",
        "stddef.h",
    ];
    let includes = includes.map(|header| format!("#include <{header}>\n")).concat();
    write(name, &format!("{includes}\n{body}\nint main(void) {{ return 0; }}\n"))
}

fn layouts() -> Result<(), String> {
    let source = assertions("layout.c", &facts::layouts(&ROOT)?);
    run(compiler("c")?.arg("-fsyntax-only").arg(source)).map(drop)
}

/// The same assertions hold for the original headers.
fn original_layouts() -> Result<(), String> {
    with_originals(&assertions("original_layout.c", &facts::layouts(&ROOT)?))
}

/// C refuses a second declaration of a function that differs from the first.
fn original_prototypes() -> Result<(), String> {
    with_originals(&assertions("original_prototypes.c", &facts::prototypes(&ROOT)?))
}

fn with_originals(source: &Path) -> Result<(), String> {
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-fsyntax-only", "-isystem"]).arg(originals());
    run(command.arg("-isystem").arg(originals().join("x86_64-linux-gnu")).arg(source)).map(drop)
}

fn constants() -> Result<(), String> {
    let source = assertions("constants.c", &facts::constants(&ROOT)?);
    run(compiler("c")?.arg("-fsyntax-only").arg(source)).map(drop)
}

fn every_inline_function() -> Result<(), String> {
    let names = facts::inline_functions(&ROOT)?;
    let list: String = names.iter().map(|name| format!("\t(function){name},\n")).collect();
    let body = format!(
        "typedef void (*function)(void);\nextern const function all[];\nconst function all[] = {{\n{list}}};"
    );
    build("c", &assertions("every_inline.c", &body), "every_inline").map(drop)
}

fn inline_functions_in_c() -> Result<(), String> {
    run(&mut Command::new(build("c", &tests("inlines.c"), "inlines_c")?)).map(drop)
}

fn inline_functions_in_cpp() -> Result<(), String> {
    run(&mut Command::new(build("c++", &tests("inlines.c"), "inlines_cpp")?)).map(drop)
}

/// The two examples, built with pkg-config's flags. Each test builds them separately, because a
/// program that another test runs cannot be overwritten.
fn hellos(test: &str) -> Result<[PathBuf; 2], String> {
    let path = INSTALLED.clone()?.join("lib/pkgconfig");
    let mut ask = Command::new("pkg-config");
    ask.args(["--cflags", "--libs", "rdma-core-mummy"]).env("PKG_CONFIG_PATH", path);
    let flags = text(&run(&mut ask)?);
    let mut programs = ["c", "cpp"].map(|language| scratch().join(format!("hello_{test}_{language}")));
    for (program, (compiler, standard, file)) in
        programs.iter_mut().zip([("cc", "-std=c11", "hello.c"), ("c++", "-std=c++17", "hello.cpp")])
    {
        let source = ROOT.join("rdma-mummy-sys/c/examples").join(file);
        let mut command = Command::new(compiler);
        command.arg(standard).args(STRICT).arg(source).arg("-o").arg(&program);
        run(command.args(flags.split_whitespace()))?;
    }
    Ok(programs)
}

fn hello_with_rdma_core() -> Result<(), String> {
    for program in hellos("with")? {
        let words = text(&run(Command::new(program).env_remove("RDMA_MUMMY_LIB_DIR"))?);
        if !words.contains("device") || !words.contains("event channel: ") {
            return Err(format!("its output: {words}"));
        }
    }
    Ok(())
}

fn hello_without_rdma_core() -> Result<(), String> {
    // The first file that the loader finds is not a library, and the library's name leads nowhere
    // else.
    let broken = scratch().join("broken");
    for library in ["libibverbs.so.1", "librdmacm.so.1"] {
        write(&format!("broken/{library}"), "");
    }
    for program in hellos("without")? {
        let hide = |command: &mut Command| command.env("RDMA_MUMMY_LIB_DIR", "/nonexistent").output();
        let spoil = |command: &mut Command| {
            command.env_remove("RDMA_MUMMY_LIB_DIR").env("LD_LIBRARY_PATH", &broken).output()
        };
        for output in [hide(&mut Command::new(&program)), spoil(&mut Command::new(&program))] {
            let output = output.map_err(|error| error.to_string())?;
            let words = String::from_utf8_lossy(&output.stderr).into_owned();
            let readable = words.starts_with("hello: cannot load libibverbs.so.1 (tried ")
                && words.contains("install rdma-core's package")
                && words.lines().count() == 1;
            if output.status.code() != Some(1) || !readable {
                return Err(format!("{}: {words}", output.status));
            }
        }
    }
    Ok(())
}

fn missing_library() -> Result<(), String> {
    let program = build("c", &tests("refusals.c"), "refusals")?;
    run(Command::new(program).arg("missing").env("RDMA_MUMMY_LIB_DIR", "/nonexistent")).map(drop)
}

/// Stand-ins for both libraries, with exactly the required functions and the symbol versions of a
/// script.
fn stand_ins(folder: &str, versions: Option<&str>) -> Result<PathBuf, String> {
    for (library, tag) in [("libibverbs.so.1", "VERBS"), ("librdmacm.so.1", "RDMACM")] {
        let functions = facts::required(&ROOT, tag)?;
        let bodies: String = functions
            .iter()
            .map(|name| format!("long {name}(void); long {name}(void) {{ return 0; }}\n"))
            .collect();
        let source = write(&format!("{folder}/{library}.c"), &bodies);
        let mut command = Command::new("cc");
        command.args(["-shared", "-fPIC", "-o"]).arg(scratch().join(folder).join(library)).arg(source);
        if let Some(versions) = versions {
            let script = write(&format!("{folder}/versions"), versions);
            command.arg(format!("-Wl,--version-script={}", script.display()));
        }
        run(&mut command)?;
    }
    Ok(scratch().join(folder))
}

fn unversioned_library() -> Result<(), String> {
    let folder = stand_ins("unversioned", None)?;
    let program = build("c", &tests("refusals.c"), "refusals_unversioned")?;
    run(Command::new(program).arg("old").env("RDMA_MUMMY_LIB_DIR", folder)).map(drop)
}

fn library_without_the_versions() -> Result<(), String> {
    let versions = "IBVERBS_0.9 { global: *; };\nIBVERBS_1.1 { global: ibv_get_device_list; };\n";
    let folder = stand_ins("other_versions", Some(versions))?;
    let source = "#include <stdio.h>\n#include <rdma-mummy/verbs.h>\n\
                  int main(void) { int code = rdma_mummy_load(); puts(rdma_mummy_error()); return code; }\n";
    let program = build("c", &write("too_old.c", source), "too_old")?;
    let output = Command::new(program).env("RDMA_MUMMY_LIB_DIR", folder).output();
    let words = text(&output.map_err(|error| error.to_string())?);
    let expected = "is too old to be used as libibverbs.so.1: it does not export ibv_wc_status_str, ";
    if words.contains(expected) { Ok(()) } else { Err(format!("it said: {words}")) }
}

const MORE_RIGHTS: &str = "a_program_with_more_rights_than_its_user_ignores_the_variable";

/// The library would run its code with the rights of the program.
fn a_program_with_more_rights_than_its_user_ignores_the_variable() -> Result<(), String> {
    let source = "#include <unistd.h>\n\
                  __attribute__((constructor)) static void loaded(void) { _exit(77); }\n";
    let source = write("more_rights.c", source);
    let program = build("c", &ROOT.join("rdma-mummy-sys/c/examples/hello.c"), "hello_with_more_rights")?;
    for grant in Grant::ALL {
        let Some(copy) = PrivilegedCopy::of(&program, MORE_RIGHTS, grant) else { continue };
        let library = copy.folder().join("libibverbs.so.1");
        run(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source))?;
        let prepare = |command: &mut Command| {
            command.env("RDMA_MUMMY_LIB_DIR", copy.folder());
        };
        let with = copy.run(prepare);
        copy.revoke();
        let without = copy.run(prepare);
        if without.status.code() != Some(77) {
            return Err(format!("{grant:?}: without more rights the library is not used: {without:?}"));
        }
        if !matches!(with.status.code(), Some(0 | 1)) {
            return Err(format!("{grant:?}: with more rights the library is used: {with:?}"));
        }
    }
    Ok(())
}

fn together() -> Result<(), String> {
    let objects = ["together_mummy.o", "together_real.o"].map(|name| scratch().join(name));
    let mut mummy = Command::new("cc");
    mummy.arg("-DMUMMY").arg("-I").arg(INSTALLED.clone()?.join("include"));
    run(mummy.arg("-c").arg(tests("together.c")).arg("-o").arg(&objects[0]))?;
    run(Command::new("cc").arg("-c").arg(tests("together.c")).arg("-o").arg(&objects[1]))?;
    let program = scratch().join("together");
    let ours = [archive()?.display().to_string(), "-pthread".into(), "-ldl".into()];
    let real = REAL.map(str::to_owned);
    // The order on the command line must not matter.
    for order in [[&ours[..], &real[..]], [&real[..], &ours[..]]] {
        run(Command::new("cc").args(&objects).args(order.concat()).arg("-o").arg(&program))?;
        run(Command::new(&program).env_remove("RDMA_MUMMY_LIB_DIR"))?;
    }
    Ok(())
}
