//! Compares the bindings with the C headers of this machine.
//!
//! A C program prints the size, alignment and offsets of every struct, and the value of every
//! constant, that both the bindings and these headers have. All of them must be equal. Headers of
//! an older release lack some fields and constants, and only names that really do not occur in them
//! may be left out. `RDMA_HEADERS` names another include folder, such as the pinned one:
//!
//! ```sh
//! RDMA_HEADERS=target/bindings/headers/usr/include \
//!     cargo test -p rdma-mummy-sys --test main layout:: -- --nocapture
//! ```
//!
//! Without a C compiler or headers it is skipped, and prints the reason.

#![cfg(all(target_env = "gnu", not(miri)))]

mod bindings;
mod headers;
mod probe;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use bindings::{Constant, Type};
use headers::Headers;
use probe::Probe;
use test_harness::report_skip;

/// The smallest number of comparisons; fewer mean that the test has lost its input.
const MINIMUM: usize = 2000;

/// Structs that grow at their front: their offsets count from the end.
const GROWS_AT_THE_FRONT: [&str; 1] = ["verbs_context"];

/// The folder of `RDMA_HEADERS`, relative to the workspace's root; else the system's.
fn folder() -> PathBuf {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    std::env::var_os("RDMA_HEADERS").map_or_else(|| "/usr/include".into(), |folder| root.join(folder))
}

/// Prints past the test harness, which captures the output of a passing test.
fn report(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("standard error");
}

#[test]
fn the_bindings_are_laid_out_as_in_c() {
    let (types, constants) = (bindings::types(), bindings::constants());
    let folder = folder();
    let outcome = match probe::run(&folder, &probes(&types, &constants)) {
        Ok(outcome) => outcome,
        Err(reason) => {
            assert!(std::env::var_os("RDMA_HEADERS").is_none(), "{reason}");
            return report_skip("the_bindings_are_laid_out_as_in_c", reason);
        }
    };
    let headers = Headers::read(&folder);
    let mut wrong = differences(&types, &constants, &outcome.values);
    wrong.extend(unexplained(&headers, &outcome.unknown));
    assert!(wrong.is_empty(), "{} differ from {}:\n{}", wrong.len(), folder.display(), wrong.join("\n"));
    let compared = outcome.values.len();
    assert!(compared >= MINIMUM, "only {compared} values compared");
    report(&format!(
        "layout: {compared} values agree with {}; {} names are not there yet",
        folder.display(),
        outcome.unknown.len()
    ));
}

/// All questions to the C compiler.
fn probes(types: &[Type], constants: &[Constant]) -> Vec<Probe> {
    let mut probes = Vec::new();
    for ty in types {
        probes.push(Probe::size(&ty.c_name));
        probes.push(Probe::alignment(&ty.c_name));
        probes.extend(ty.fields.iter().map(|field| Probe::offset(&ty.c_name, &field.path)));
    }
    probes.extend(constants.iter().map(|constant| Probe::constant(&constant.name)));
    probes
}

/// The answers of the C program that differ from the bindings.
fn differences(types: &[Type], constants: &[Constant], values: &BTreeMap<Probe, i64>) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut compare = |probe: &Probe, expected: i64| {
        if let Some(found) = values.get(probe).filter(|found| **found != expected) {
            wrong.push(format!("{probe}: {expected} in Rust, {found} in C"));
        }
    };
    for ty in types {
        let Some(&c_size) = values.get(&Probe::size(&ty.c_name)) else { continue };
        // Only a missing field explains a smaller size.
        let offsets = ty.fields.iter().map(|field| Probe::offset(&ty.c_name, &field.path));
        let is_older = offsets.clone().any(|probe| !values.contains_key(&probe));
        if !is_older || c_size > ty.size {
            compare(&Probe::size(&ty.c_name), ty.size);
        }
        compare(&Probe::alignment(&ty.c_name), ty.alignment);
        let missing_front = if GROWS_AT_THE_FRONT.contains(&ty.name.as_str()) { ty.size - c_size } else { 0 };
        for (field, probe) in ty.fields.iter().zip(offsets) {
            // New fields take the place of reserved ones.
            if !(is_older && field.path.contains("reserved")) {
                compare(&probe, field.offset - missing_front);
            }
        }
    }
    for constant in constants {
        compare(&Probe::constant(&constant.name), constant.value);
    }
    wrong
}

/// The questions that the compiler rejected although the headers have the name.
fn unexplained(headers: &Headers, unknown: &[Probe]) -> Vec<String> {
    let has = |probe: &&Probe| match probe {
        Probe::Size(ty) | Probe::Alignment(ty) => headers.defines(ty),
        Probe::Offset(ty, path) => headers.has_field(ty, path),
        Probe::Constant(name) => headers.mentions(name),
    };
    unknown.iter().filter(has).map(|probe| format!("{probe}: in the headers, but C refuses it")).collect()
}

mod checks {
    //! Checks that the test can fail.

    use super::*;

    fn parsed() -> (Vec<Type>, Vec<Constant>) {
        (bindings::types(), bindings::constants())
    }

    /// The answers of a C program that agrees.
    fn agreeing(types: &[Type], constants: &[Constant]) -> BTreeMap<Probe, i64> {
        let mut values = BTreeMap::new();
        for ty in types {
            values.insert(Probe::size(&ty.c_name), ty.size);
            values.insert(Probe::alignment(&ty.c_name), ty.alignment);
            let offsets = ty.fields.iter().map(|f| (Probe::offset(&ty.c_name, &f.path), f.offset));
            values.extend(offsets);
        }
        values.extend(constants.iter().map(|c| (Probe::constant(&c.name), c.value)));
        values
    }

    #[test]
    fn every_single_difference_is_found() {
        let (types, constants) = parsed();
        let values = agreeing(&types, &constants);
        assert_eq!(values.len(), probes(&types, &constants).len());
        assert_eq!(differences(&types, &constants, &values), Vec::<String>::new());
        for probe in [
            Probe::size("struct ibv_qp_ex"),
            Probe::alignment("struct ibv_qp_ex"),
            Probe::offset("struct ibv_send_wr", "wr.ud.remote_qkey"),
            Probe::offset("struct verbs_context", "query_port"),
            Probe::constant("IBV_ACCESS_REMOTE_ATOMIC"),
        ] {
            let mut values = values.clone();
            *values.get_mut(&probe).unwrap_or_else(|| panic!("{probe} is not compared")) += 8;
            assert_eq!(differences(&types, &constants, &values).len(), 1, "{probe}");
        }
    }

    #[test]
    fn an_older_struct_is_shorter_by_fields_that_it_lacks() {
        let (types, constants) = parsed();
        let mut values = agreeing(&types, &constants);
        values.insert(Probe::size("struct ibv_qp_ex"), 352);
        assert_eq!(differences(&types, &constants, &values).len(), 1, "shorter for no reason");
        values.remove(&Probe::offset("struct ibv_qp_ex", "wr_flush"));
        assert_eq!(differences(&types, &constants, &values), Vec::<String>::new());
        values.insert(Probe::size("struct ibv_qp_ex"), 368);
        assert_eq!(differences(&types, &constants, &values).len(), 1, "longer than the bindings");
    }

    #[test]
    fn a_name_is_left_out_only_if_it_is_not_there() {
        let headers =
            Headers::of("struct a {\n\tint x;\n\tstruct {\n\t\tint deep;\n\t} y;\n};\nenum { A_B };\n");
        let unknown = |probe| unexplained(&headers, &[probe]).len();
        assert_eq!(unknown(Probe::size("struct a")), 1);
        assert_eq!(unknown(Probe::size("struct b")), 0);
        assert_eq!(unknown(Probe::offset("struct a", "y.deep")), 1);
        assert_eq!(unknown(Probe::offset("struct a", "y.new")), 0);
        assert_eq!(unknown(Probe::constant("A_B")), 1);
        assert_eq!(unknown(Probe::constant("A")), 0);
    }
}
