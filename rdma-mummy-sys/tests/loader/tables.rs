//! The generated tables' lines for each library, and the addresses in a loaded table.

use std::ffi::CString;

const TABLES: &str = include_str!("../../src/bindings/tables.rs");

/// One line of a table.
struct TableLine {
    required: bool,
    version: String,
    name: String,
}

/// The lines of one library.
fn lines(library: &str) -> Vec<TableLine> {
    let start = TABLES.find(&format!("{library:?}")).expect("a table of this library");
    let mut required = true;
    let mut lines = Vec::new();
    for line in TABLES[start..].lines().take_while(|line| *line != "}") {
        required &= line.trim() != "optional {";
        let mut quoted = line.split('"').skip(1);
        let Some((version, name)) = quoted.next().zip(line.split(" fn ").nth(1)) else { continue };
        let name = name.split('(').next().unwrap_or_default().to_owned();
        lines.push(TableLine { required, version: version.to_owned(), name });
    }
    assert!(lines.len() > 10, "{library}: the tables are no longer understood");
    lines
}

/// The functions that a library must have.
pub(crate) fn required(library: &str) -> Vec<String> {
    required_versions(library).into_iter().map(|(name, _)| name).collect()
}

/// The functions that a library must have, and in which version.
pub(crate) fn required_versions(library: &str) -> Vec<(String, String)> {
    let lines = lines(library).into_iter().filter(|line| line.required);
    lines.map(|line| (line.name, line.version)).collect()
}

/// Checks every function in `table`, printed with `Debug`. Its address must equal both lookups of
/// the dynamic loader: with the version, and without one, which yields the library's default.
#[cfg(target_env = "gnu")]
pub(crate) fn check_defaults(library: &str, table: &str) {
    let name = CString::new(library).expect("no NUL");
    // SAFETY: the library is loaded already; its constructors have run.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null(), "{library}");
    let mut found = 0;
    for line in lines(library).iter().filter(|line| !line.version.is_empty()) {
        let (name, version) =
            (CString::new(&*line.name).expect("no NUL"), CString::new(&*line.version).expect("no NUL"));
        // SAFETY: the handle is open, and the strings end with a zero byte.
        let versioned = unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) }.addr();
        // SAFETY: the handle is open, and the string ends with a zero byte.
        let default = unsafe { libc::dlsym(handle, name.as_ptr()) }.addr();
        let loaded = address(table, &line.name);
        assert_eq!(loaded, versioned, "{} {}", line.name, line.version);
        assert_eq!(loaded, default, "{} has another default version than {}", line.name, line.version);
        assert!(loaded != 0 || !line.required, "{}", line.name);
        found += usize::from(loaded != 0);
    }
    println!("loader: {library}: {found} functions are the library's defaults");
    assert!(found > 5, "{library}: only {found} functions found");
}

/// The address that a printed table has for a function; 0 for one that it lacks.
#[cfg(target_env = "gnu")]
fn address(table: &str, name: &str) -> usize {
    // Every field but the first has a comma before it.
    let text = table.split([',', '{']).map(str::trim).find_map(|field| {
        let (field, value) = field.split_once(": ")?;
        (field == name).then_some(value)
    });
    let text = text.unwrap_or_else(|| panic!("{name} is not in the table"));
    let digits = text.trim_start_matches("Some(").trim_end_matches([')', ' ', '}']);
    match digits.strip_prefix("0x") {
        Some(digits) => usize::from_str_radix(digits, 16).expect("an address"),
        None => 0,
    }
}
