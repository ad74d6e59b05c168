//! Builds libraries for the tests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A test's folder, which the test creates empty and its child process uses.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        // On another machine than the one it was built on, the test has no target folder.
        let built = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let base = if built.exists() { built.to_owned() } else { std::env::temp_dir() };
        let path = base.join("rdma-mummy-sys-loader").join(name);
        if std::env::var_os(super::CHILD).is_none() {
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir_all(&path).expect("the target folder can be written");
        }
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

/// The source of a library: functions without arguments, each with the number that it returns.
pub(crate) struct FakeSource {
    functions: BTreeMap<String, String>,
    needed: Option<PathBuf>,
}

impl FakeSource {
    pub(crate) fn new(functions: Vec<String>) -> Self {
        let functions = functions.into_iter().map(|name| (name, "0".to_owned())).collect();
        Self { functions, needed: None }
    }

    pub(crate) fn with(mut self, function: &str, answer: &str) -> Self {
        self.functions.insert(function.to_owned(), answer.to_owned());
        self
    }

    pub(crate) fn without(mut self, function: &str) -> Self {
        self.functions.remove(function).expect("a function that it had");
        self
    }

    /// Makes it depend on another library, by its name.
    pub(crate) fn needing(mut self, library: &Path) -> Self {
        self.needed = Some(library.to_owned());
        self
    }

    /// Builds the library; false without rustc.
    pub(crate) fn build(self, folder: &Folder, soname: &str) -> bool {
        let mut text = String::from(
            "#![no_std]\n#[panic_handler]\nfn panic(_: &core::panic::PanicInfo) -> ! { loop {} }\n",
        );
        for (name, answer) in &self.functions {
            text += &format!("#[unsafe(no_mangle)] pub extern \"C\" fn {name}() -> usize {{ {answer} }}\n");
        }
        let source = folder.path().join(format!("{soname}.rs"));
        std::fs::write(&source, text).expect("the folder can be written");
        let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
        let mut command = Command::new(rustc);
        command.args(["--edition=2024", "--crate-name=fake", "--crate-type=cdylib", "-Cpanic=abort"]);
        command.arg(format!("-Clink-arg=-Wl,-soname,{soname}"));
        if let Some(library) = &self.needed {
            command.arg("-Clink-arg=-Wl,--no-as-needed").arg(format!("-Clink-arg={}", library.display()));
        }
        command.arg("-o").arg(folder.path().join(soname)).arg(&source);
        run(&mut command)
    }
}

/// The number that a function of this version returns.
pub(crate) fn answer_of(version: &str) -> i32 {
    let digits = version.rsplit('_').next().unwrap_or_default();
    digits.split('.').fold(0, |sum, part| sum * 100 + part.parse::<i32>().expect("a number"))
}

/// Builds a library whose functions have these versions; the first version of a function is its
/// default. False without a C compiler.
pub(crate) fn build_versioned(folder: &Folder, soname: &str, functions: &[(String, String)]) -> bool {
    let mut text = String::new();
    let mut map = String::new();
    let mut defaults: Vec<&str> = Vec::new();
    let mut versions: Vec<&str> = Vec::new();
    for (number, (name, version)) in functions.iter().enumerate() {
        let is_default = !defaults.contains(&name.as_str());
        let at = if is_default { "@@" } else { "@" };
        let answer = answer_of(version);
        text += &format!(
            "int v{number}(void) {{ return {answer}; }}\n__asm__(\".symver v{number}, {name}{at}{version}\");\n"
        );
        defaults.push(name);
        if !versions.contains(&version.as_str()) {
            versions.push(version);
            map += &format!("{version} {{ global: {name}; }};\n");
        }
    }
    let (source, script) = (folder.path().join("versioned.c"), folder.path().join("versioned.map"));
    std::fs::write(&source, text).expect("the folder can be written");
    std::fs::write(&script, map).expect("the folder can be written");
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let mut command = Command::new(cc);
    command.args(["-shared", "-fPIC", "-w"]).arg(format!("-Wl,-soname,{soname}"));
    command.arg(format!("-Wl,--version-script={}", script.display()));
    command.arg("-o").arg(folder.path().join(soname)).arg(&source);
    run(&mut command)
}

/// Runs a compiler: false if it does not exist, a failed test if it fails.
fn run(command: &mut Command) -> bool {
    let Ok(output) = command.output() else { return false };
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    true
}
