//! Tests of the documents. The table of C verbs in `docs/migrating.md` must list every function of
//! libibverbs and librdmacm, and name existing items. The tables of `docs/comparison.md`, the
//! invariants of `docs/internals/trespass-invariants.md`, and each promise of the documentation of
//! trespass's root and of `docs/moving-from-tcp.md` must name existing tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The parts of a text in backticks.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The cells of each row of the tables below a heading, up to the next one of its level or above.
fn rows<'a>(document: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    let (_, section) =
        document.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no {heading}"));
    let level = heading.split(' ').next().map_or(0, str::len);
    let ends = |line: &str| (1..=level).any(|n| line.starts_with(&format!("{} ", "#".repeat(n))));
    let table = section.lines().take_while(|line| !ends(line)).filter(|line| line.starts_with('|'));
    table.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// Every path of the public API, without the crate's name:
/// `ibverbs::queue_pair::QueuePairBuilder::build`.
fn public_items() -> BTreeSet<String> {
    let listing = read("docs/generated/api/sideway.txt");
    let mut items = BTreeSet::new();
    for line in listing.lines().filter(|line| line.contains("pub ")) {
        // A type's generic parameters precede the name of its method.
        let mut depth = 0;
        let mut plain = String::new();
        for letter in line.chars() {
            match letter {
                '<' => depth += 1,
                '>' if !plain.ends_with('-') => depth -= 1,
                _ if depth == 0 => plain.push(letter),
                _ => {}
            }
        }
        let Some((_, path)) = plain.split_once("sideway::") else { continue };
        let end = path.find(['(', ' ', '=']).unwrap_or(path.len());
        items.insert(path[..end].trim_end_matches(':').to_owned());
    }
    // The listing has the items of a type at the shortest of its paths.
    let is_type = |name: &str| name.starts_with(|letter: char| letter.is_uppercase());
    let name = |path: &str| path.rsplit("::").next().unwrap_or_default().to_owned();
    let mut types = BTreeMap::<String, Vec<&String>>::new();
    for path in items.iter().filter(|path| is_type(&name(path))) {
        types.entry(name(path)).or_default().push(path);
    }
    let members = items.iter().filter_map(|path| path.rsplit_once("::"));
    let longer: Vec<_> = members
        .flat_map(|(of, item)| {
            types.get(&name(of)).into_iter().flatten().map(move |path| format!("{path}::{item}"))
        })
        .collect();
    items.extend(longer);
    assert!(items.contains("ibverbs::queue_pair::QueuePairBuilder::build"), "the listing is not understood");
    items
}

/// The table of verbs: the C functions in the first column, and the text in the second.
fn verbs(document: &str) -> Vec<(Vec<String>, String)> {
    let mut found = Vec::new();
    for row in rows(document, "## From C") {
        let names: Vec<_> = code(row[0])
            .filter(|name| name.starts_with("ibv_") || name.contains("_ibv_"))
            .filter(|name| !name.contains('*'))
            .map(str::to_owned)
            .collect();
        if names.iter().any(|name| name != "ibv_destroy_*") {
            found.push((names, row[1].to_owned()));
        }
    }
    found
}

/// The functions in the table of a library.
fn exported(table: &str) -> Vec<String> {
    let tables = read("rdma-mummy-sys/src/bindings/tables.rs");
    let (_, functions) = tables.split_once(table).unwrap_or_else(|| panic!("no table {table}"));
    let functions = functions.split("library_table!").next().unwrap_or_default();
    let names = functions.lines().filter_map(|line| line.split_once(" fn ")?.1.split('(').next());
    names.map(str::to_owned).collect()
}

/// The functions that librdmacm exports, and the inline functions of its headers.
fn functions_of_librdmacm() -> BTreeSet<String> {
    let inlines = read("rdma-mummy-sys/src/bindings/inlines.txt");
    let inline = inlines.lines().filter_map(|line| line.strip_prefix("rdma/")?.split_once(' '));
    // The header's internal helpers have other prefixes.
    let inline = inline.map(|(_, name)| name.trim()).filter(|name| name.starts_with("rdma_"));
    let mut all: BTreeSet<_> = inline.map(str::to_owned).collect();
    assert!(all.len() > 10, "only {all:?} are inline");
    all.extend(exported("RdmaCm, \"librdmacm.so.1\""));
    assert!(all.len() > 80, "only {} functions were found", all.len());
    all
}

/// The functions that libibverbs exports, and the inline functions of its header.
fn functions_of_libibverbs() -> BTreeSet<String> {
    let exported = exported("Verbs, \"libibverbs.so.1\"");
    let inlines = read("rdma-mummy-sys/src/bindings/inlines.txt");
    let inline = inlines.lines().filter_map(|line| line.strip_prefix("infiniband/verbs.h "));
    // A name with two underscores, or with another prefix, is an internal helper of the header.
    let public = |name: &&str| name.starts_with("ibv_") || name.ends_with("_to_ibv_rate");
    let names = exported.iter().map(String::as_str).chain(inline.map(str::trim));
    let all: BTreeSet<_> = names.filter(public).map(str::to_owned).collect();
    assert!(all.len() > 150, "only {} functions were found", all.len());
    all
}

/// The chapter about the release of the public registry.
const FORMER: &str = "## From sideway 0.4";

#[test]
fn every_path_of_the_migration_notes_exists() {
    let (document, items) = (read("docs/migrating.md"), public_items());
    let mut checked = 0;
    let mut missing = Vec::new();
    for heading in ["## From C", FORMER, "## From the `ibverbs` crate", "## From `async-rdma`"] {
        for row in rows(&document, heading) {
            let modules = ["ibverbs::", "memory::", "mlx5::", "rdmacm::"];
            let is_path = |path: &&str| modules.iter().any(|module| path.starts_with(module));
            let paths: Vec<_> = code(row[1]).filter(is_path).collect();
            checked += paths.len();
            missing.extend(paths.into_iter().filter(|path| !items.contains(*path)));
        }
    }
    assert!(
        missing.is_empty(),
        "docs/migrating.md names what docs/generated/api/sideway.txt lacks: {missing:#?}"
    );
    assert!(checked > 100, "only {checked} paths were found");
}

#[test]
fn every_function_of_libibverbs_is_in_the_migration_notes_once() {
    let document = read("docs/migrating.md");
    let functions = functions_of_libibverbs();
    let mut seen = BTreeSet::new();
    for (names, here) in verbs(&document) {
        assert!(
            here.contains("`ibverbs::") || here.contains("`memory::") || here.starts_with("not wrapped"),
            "{here}"
        );
        for name in names {
            assert!(functions.contains(&name), "libibverbs has no {name}");
            assert!(seen.insert(name.clone()), "{name} is there twice");
        }
    }
    let missing: Vec<_> = functions.difference(&seen).collect();
    assert!(missing.is_empty(), "docs/migrating.md lacks {missing:?}");
}

#[test]
fn every_function_of_librdmacm_is_in_the_migration_notes_once() {
    let document = read("docs/migrating.md");
    let functions = functions_of_librdmacm();
    let mut seen = BTreeSet::new();
    let mut found = 0;
    for row in rows(&document, "### Connection manager").into_iter().skip(2) {
        found += 1;
        assert!(
            row[1].contains("`rdmacm::")
                || row[1].contains("`ibverbs::")
                || row[1].starts_with("not wrapped"),
            "{row:?}"
        );
        for name in code(row[0]) {
            assert!(functions.contains(name), "librdmacm has no {name}");
            assert!(seen.insert(name.to_owned()), "{name} is there twice");
        }
    }
    assert!(found > 20, "only {found} rows were found");
    let missing: Vec<_> = functions.difference(&seen).collect();
    assert!(missing.is_empty(), "docs/migrating.md lacks {missing:?}");
}

/// The C functions that sideway calls, and those that its documentation names.
#[derive(Default)]
struct Mentions {
    called: BTreeSet<String>,
    documented: BTreeSet<String>,
}

impl Mentions {
    fn of_sideway() -> Self {
        let mut mentions = Self::default();
        mentions.read(&root().join("sideway/src"));
        assert!(mentions.called.contains("ibv_create_qp_ex"), "the sources are not understood");
        mentions
    }

    fn read(&mut self, folder: &Path) {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("a file").path();
            if path.is_dir() {
                self.read(&path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("a source file");
                // Calls in tests do not count.
                let text = text.split("\n#[cfg(test)]\nmod tests").next().unwrap_or_default();
                text.lines().for_each(|line| self.note(line.trim_start()));
            }
        }
    }

    fn note(&mut self, line: &str) {
        let names = match line.strip_prefix("//") {
            None => &mut self.called,
            Some(comment) if comment.starts_with(['/', '!']) => &mut self.documented,
            Some(_) => return,
        };
        // A name in a string is part of a message, not a call.
        let plain: Vec<_> = line.split('"').step_by(2).collect();
        let words =
            plain.iter().flat_map(|text| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
        names.extend(words.map(str::to_owned));
    }
}

#[test]
fn functions_that_sideway_calls_are_not_listed_as_unwrapped() {
    let document = read("docs/migrating.md");
    let Mentions { called, .. } = Mentions::of_sideway();
    for (names, here) in verbs(&document) {
        for name in names.iter().filter(|_| here.starts_with("not wrapped")) {
            assert!(!called.contains(name), "sideway calls {name}, which docs/migrating.md says is {here}");
        }
    }
}

#[test]
fn functions_that_sideway_calls_are_named_in_its_documentation() {
    let Mentions { called, documented } = Mentions::of_sideway();
    let functions: BTreeSet<_> = functions_of_libibverbs()
        .into_iter()
        .chain(functions_of_librdmacm())
        .filter(|name| name.contains('_'))
        .collect();
    let silent: Vec<_> =
        functions.iter().filter(|name| called.contains(*name) && !documented.contains(*name)).collect();
    assert!(silent.is_empty(), "no documentation of sideway names {silent:?}: who knows C looks for them");
}

/// Whether a test exists, in a suite or as a unit test.
fn exists(test: &str) -> bool {
    let Some((suite, name)) = test.split_once(' ') else { return false };
    let function = |folder: &str| {
        let (module, case) = name.rsplit_once("::").unwrap_or(("main", name));
        // Unit tests may be at the end of their file.
        [Some(module), module.strip_suffix("::tests")].into_iter().flatten().any(|module| {
            let path = root().join(folder).join(module.replace("::", "/"));
            [path.with_extension("rs"), path.join("mod.rs")].into_iter().any(|path| {
                let text = fs::read_to_string(path).unwrap_or_default();
                text.contains(&format!("fn {case}(")) || text.contains(&format!("fn {case}<"))
            })
        })
    };
    match suite {
        "device" => function("sideway/tests/device"),
        "fake" => function("sideway/tests/fake"),
        "sideway" => function("sideway/tests") || function("sideway/src"),
        "conformance" => function("conformance/src/cases"),
        "examples" => function("examples/tests"),
        "vendor" => function("examples/vendor/tests"),
        "trespass" => function("trespass/tests") || function("trespass/src"),
        "tunnel" => function("trespass/tunnel/tests/main"),
        "trespass-c" => function("trespass/c/tests"),
        // A case of the program in C, or a run of it.
        "c" => read("trespass/c/tests/programs.rs").contains(&format!("\"{name}\"")),
        "tasks" => function("async-tests/tests/tasks") || function("async-tests/tests"),
        "local" => function("async-tests/tests/local") || function("async-tests/tests"),
        "soundness" => root().join("sideway/tests/soundness").join(name).with_extension("stderr").exists(),
        "CI" => read(".ci/run").contains(&format!("\n{name}() {{")),
        _ => false,
    }
}

#[test]
fn every_row_about_the_former_release_names_a_test_that_exists() {
    let document = read("docs/migrating.md");
    let mut count = 0;
    for row in rows(&document, FORMER) {
        let [what, _, _, shown] = row[..] else { panic!("a row has no four cells: {row:?}") };
        if what == "in 0.4" || what == "---" {
            continue;
        }
        let tests: Vec<_> = code(shown).collect();
        assert!(!tests.is_empty(), "{what}: no test");
        for test in tests {
            assert!(exists(test), "{what}: there is no test `{test}`");
        }
        count += 1;
    }
    assert!(count > 30, "only {count} rows were found");
}

#[test]
fn every_row_of_the_feature_tables_names_tests_that_exist() {
    let comparison = read("docs/comparison.md");
    for (table, least) in [("## Verbs wrappers", 15), ("## Messaging libraries", 25)] {
        let mut count = 0;
        for row in rows(&comparison, table).into_iter().skip(2) {
            let [what, ours, .., shown] = row[..] else { panic!("a row is too short: {row:?}") };
            let tests: Vec<_> = code(shown).collect();
            let claims = !ours.starts_with("not yet") && !ours.starts_with("no");
            assert_eq!(
                claims,
                !tests.is_empty(),
                "{what}: what is claimed is shown by a test, and nothing else is"
            );
            for test in tests {
                assert!(exists(test), "{what}: there is no test `{test}`");
                count += 1;
            }
        }
        assert!(count >= least, "only {count} tests are named {table}");
    }
}

#[test]
fn every_promise_names_tests_that_exist() {
    let document = read("docs/promises.md");
    let mut count = 0;
    for title in document.lines().filter(|line| line.starts_with("## ")) {
        let table = rows(&document, title);
        assert!(table.len() > 2, "{title} has no table");
        for row in table.into_iter().skip(2) {
            let [promise, shown] = row[..] else { panic!("a row has no two cells: {row:?}") };
            let tests: Vec<_> = code(shown).collect();
            assert!(!tests.is_empty(), "{promise}: no test");
            for test in tests {
                assert!(exists(test), "{promise}: there is no test `{test}`");
                count += 1;
            }
        }
    }
    assert!(count >= 120, "only {count} tests are named");
}

#[test]
fn every_invariant_of_trespass_is_shown_by_tests_that_exist() {
    let document = read("docs/internals/trespass-invariants.md");
    let table = rows(&document, "## The invariants");
    for (row, number) in table.into_iter().skip(2).zip(1..) {
        let [name, what, simulated, beyond] = row[..] else { panic!("a row has no four cells: {row:?}") };
        assert_eq!(name, format!("I{number}"), "they are numbered in a row");
        let tests = |cell| code(cell).filter(|text| text.starts_with("trespass "));
        assert!(
            tests(simulated).next().is_some() || simulated.starts_with("not yet"),
            "{name}, {what}: no test"
        );
        for test in tests(simulated).chain(tests(beyond)) {
            assert!(exists(test), "{name}: there is no test `{test}`");
        }
        // Conversely, tests in the simulator with an invariant's number must be named.
        let mentions = |case: &str| simulated.contains(&format!("::{case}`"));
        for case in simulations().iter().filter(|case| case.starts_with(&format!("i{number:02}_"))) {
            assert!(mentions(case), "{name} does not name {case}");
        }
    }
    assert_eq!(rows(&document, "## The invariants").len(), 2 + 22);
}

#[test]
fn every_row_of_the_parity_table_names_tests_that_exist() {
    let document = read("docs/internals/trespass-invariants.md");
    let table = rows(&document, "## Parity with `std::net`");
    for row in table.iter().skip(2) {
        let [what, cases] = row[..] else { panic!("a row has no two cells: {row:?}") };
        assert!(code(cases).next().is_some(), "{what}: no test");
        for test in code(cases) {
            assert!(exists(test), "{what}: there is no test `{test}`");
        }
    }
    assert!(table.len() > 25, "only {} rows were found", table.len());
}

/// Paragraphs that promise nothing, by their first words, and why.
const NO_PROMISES: [(&str, &[(&str, &str)]); 2] = [
    (
        "docs/moving-from-tcp.md",
        &[
            ("A project beside a clone", "introduces commands"),
            ("The names in brackets", "tells where the tests are"),
        ],
    ),
    (
        "trespass/src/lib.rs",
        &[
            ("Sockets that use RDMA", "the title, which the next paragraph repeats with its tests"),
            ("The names in brackets", "tells where the tests are"),
            ("There are five", "introduces the list"),
            ("- Nothing is encrypted", "warns of what is missing"),
        ],
    ),
];

/// The names of trespass's tests in a text, which are paths of functions.
fn named_tests(text: &str) -> impl Iterator<Item = &str> {
    let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == ':';
    code(text)
        .filter(move |name| name.contains("::") && name.chars().all(is_letter) && !name.starts_with("std::"))
}

/// The paragraphs and items of lists, without headings, tables and code.
fn paragraphs(document: &str) -> Vec<String> {
    let (mut found, mut is_code) = (vec![String::new()], false);
    for line in document.lines().map(str::trim) {
        let is_fence = line.starts_with("```");
        let is_text = !(is_code || is_fence || line.is_empty() || line.starts_with(['#', '|']));
        if !is_text || line.starts_with("- ") || is_numbered(line) {
            found.push(String::new());
        }
        if let (true, Some(paragraph)) = (is_text, found.last_mut()) {
            paragraph.push_str(line);
            paragraph.push(' ');
        }
        is_code ^= is_fence;
    }
    found.retain(|paragraph| !paragraph.is_empty());
    found
}

/// Whether a line begins an item of a numbered list.
fn is_numbered(line: &str) -> bool {
    line.split_once(". ").is_some_and(|(number, _)| number.parse::<u32>().is_ok())
}

/// Each paragraph of the rustdoc of trespass's root and of the guide names a test, or is listed above.
#[test]
fn every_promise_of_trespass_names_tests_that_exist() {
    for (path, without_promise) in NO_PROMISES {
        let text = read(path);
        let text = match path.ends_with(".rs") {
            true => text.lines().filter_map(|line| line.strip_prefix("//!")).collect::<Vec<_>>().join("\n"),
            false => text,
        };
        let (mut promises, mut listed) = (0, BTreeSet::new());
        for paragraph in paragraphs(&text) {
            let names: Vec<_> = named_tests(&paragraph).collect();
            for name in &names {
                let suites = ["trespass suite::", "trespass ", "tasks ", "local ", "examples "];
                let is_test = suites.iter().any(|suite| exists(&format!("{suite}{name}")));
                assert!(is_test, "{path}: there is no test `{name}`");
            }
            if let Some((begin, _)) = without_promise.iter().find(|(begin, _)| paragraph.starts_with(begin)) {
                assert!(
                    listed.insert(*begin) && names.is_empty(),
                    "{path}: {begin:?} is listed, and names {names:?}"
                );
                continue;
            }
            assert!(!names.is_empty(), "{path}: no test is named by: {paragraph}");
            promises += 1;
        }
        assert_eq!(listed.len(), without_promise.len(), "{path} has only {listed:?}");
        assert!(promises > 12, "{path}: only {promises} paragraphs were found");
    }
}

#[test]
fn the_differences_from_std_are_five_at_most() {
    let rustdoc = read("trespass/src/lib.rs");
    let (_, section) = rustdoc.split_once("//! # Differences from `std::net`\n").expect("the section");
    let (section, _) = section.split_once("\n//! # ").expect("a section after it");
    let lines = section.lines().filter_map(|line| line.strip_prefix("//! "));
    let entries: Vec<_> = lines.filter(|line| is_numbered(line)).collect();
    assert!((1..=5).contains(&entries.len()), "{entries:#?}");
}

/// Tests with processes of two users are skipped unless root runs them.
#[test]
fn workflows_run_tests_of_two_users_as_root() {
    for (workflow, step) in [("ci", "test"), ("nightly", "programs")] {
        let text = read(&format!(".github/workflows/{workflow}.yml"));
        let job =
            text.split_once(&format!("\n  {step}:\n")).map(|(_, rest)| rest).expect("a job of its name");
        let (before, _) =
            job.split_once(&format!("\n      - run: ${{{{ matrix.as }}}} .ci/run {step}\n")).expect("a run");
        assert!(!before.contains("\n\n"), "{workflow}: the run belongs to another job");
        for line in ["            as: \"\"", "            as: sudo -E env \"PATH=$PATH\" \"HOME=$HOME\""] {
            assert!(before.lines().any(|there| there == line), "{workflow}: no {line}");
        }
    }
}

/// The workflows run every step of `.ci/run`, and use actions by the hash of a commit, because a tag
/// can be moved.
#[test]
#[cfg_attr(miri, ignore = "runs a program")]
fn workflows_run_every_step_and_pin_their_actions() {
    for (workflow, which) in [("ci", "change"), ("nightly", "nightly")] {
        let text = read(&format!(".github/workflows/{workflow}.yml"));
        let uses: Vec<_> = text.lines().filter_map(|line| line.split_once("uses: ")).collect();
        assert!(!uses.is_empty(), "{workflow}");
        for (_, action) in uses {
            let pinned = action.split_once('@').and_then(|(_, rest)| rest.split_once(" # v"));
            let is_hash = |text: &str| text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            assert!(pinned.is_some_and(|(hash, _)| is_hash(hash)), "{workflow}: {action}");
        }
        let list = format!(".ci/run --list {which} | grep -vxE '");
        let (_, rest) = text.split_once(&list).unwrap_or_else(|| panic!("{workflow}: no {list}"));
        let (apart, _) = rest.split_once('\'').expect("the pattern ends");
        let output = Command::new(root().join(".ci/run")).args(["--list", which]).output().unwrap();
        let steps = String::from_utf8(output.stdout).unwrap();
        let steps: Vec<_> = steps.lines().collect();
        assert!(output.status.success() && steps.contains(&"tools"), "{steps:?}");
        for step in apart.split('|') {
            assert!(steps.contains(&step), "{workflow}: there is no step {step}");
            let by_matrix = step.strip_prefix("softroce_").is_some_and(|core| {
                let cores = text.split_once("rdma-core: [").and_then(|(_, rest)| rest.split_once(']'));
                text.contains(".ci/run softroce_${{ matrix.rdma-core }}")
                    && cores.is_some_and(|(cores, _)| cores.split(", ").any(|known| known == core))
            });
            let has_job = text.lines().any(|line| line.ends_with(&format!(".ci/run {step}")));
            // Each job begins with this one.
            assert!(has_job || by_matrix || step == "tools", "{workflow}: no job runs {step}");
        }
    }
}

#[test]
fn paragraphs_are_found_without_headings_tables_and_code() {
    let document = "# Heading\n\none\nand on\n\n- two\n  too\n- three\n\n```text\n- code\n\ncode\n```\n\n| a | b |\n\n1. four\n\n   five\n";
    let found: Vec<_> = paragraphs(document).iter().map(|paragraph| paragraph.trim().to_owned()).collect();
    assert_eq!(found, ["one and on", "- two too", "- three", "1. four", "five"]);
    let text = "`std::net`, `Stream::drain`, `exit`, `fork::a_child_may_listen`, `threads`";
    assert_eq!(named_tests(text).collect::<Vec<_>>(), ["fork::a_child_may_listen"]);
}

/// The tests of trespass's simulators.
fn simulations() -> Vec<String> {
    let files = [
        "trespass/src/sim/invariants.rs",
        "trespass/src/sim/closing.rs",
        "trespass/src/sim/crowd.rs",
        "trespass/src/sim/rails.rs",
        "trespass/src/sim/visits.rs",
        "trespass/src/handshake/exhaustive.rs",
    ];
    let files = files.map(read);
    let names = files.iter().flat_map(|text| text.split("#[test]\nfn ").skip(1));
    let names: Vec<_> = names.filter_map(|text| Some(text.split_once('(')?.0.to_owned())).collect();
    assert!(names.len() > 25, "only {} were found", names.len());
    names
}

#[test]
fn a_test_that_there_is_not_is_noticed() {
    assert!(exists("device srq::many_pairs_take_from_one_queue"));
    assert!(
        exists("trespass suite::ready::i8_poll")
            && exists("trespass sim::invariants::i02_credits_are_conserved")
    );
    assert!(!exists("device srq::no_such_case") && !exists("trespass suite::ready::no_such_case"));
    assert!(!exists("elsewhere srq::many_pairs_take_from_one_queue"));
}

/// The public errors in a source whose `Debug` is derived: a `main` that returns one, and `unwrap`,
/// would print names of fields in place of its text.
fn errors_with_derived_debug(source: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (_, item) in source.match_indices("#[derive(").map(|(at, head)| source[at..].split_at(head.len())) {
        let Some((derived, rest)) = item.split_once(")]") else { continue };
        let mut derived = derived.split(',').map(str::trim);
        // Attributes may stand between the derive and the item.
        let mut lines = rest.lines().map(str::trim_start);
        let is_item = |line: &&str| ["pub", "enum ", "struct "].iter().any(|word| line.starts_with(word));
        let Some(item) = lines.find(is_item) else { continue };
        let named = item.strip_prefix("pub enum ").or_else(|| item.strip_prefix("pub struct "));
        let name = named.and_then(|named| named.split(|letter: char| !letter.is_alphanumeric()).next());
        let Some(name) = name else { continue };
        let is_error = derived.clone().any(|one| one.rsplit("::").next() == Some("Error"))
            || source.contains(&format!("Error for {name} "));
        if is_error && derived.any(|one| one == "Debug") {
            found.push(name);
        }
    }
    found
}

/// The Rust sources in a folder, and in those below it.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.expect("a readable folder").path());
    let mut found = Vec::new();
    for path in paths {
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// Decision 0013 names the exception.
#[test]
fn the_debug_form_of_every_public_error_is_its_text() {
    let crates = ["rdma-mummy-sys", "sideway", "soft-rnic", "trespass"];
    let files: Vec<_> = crates.iter().flat_map(|name| sources(&root().join(name).join("src"))).collect();
    assert!(files.len() > 300, "only {} were found", files.len());
    let mut derived = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        derived.extend(errors_with_derived_debug(&text).into_iter().map(str::to_owned));
    }
    assert_eq!(derived, ["ModifyQueuePairError"]);
    assert!(read("docs/decisions/0013-deviations-from-the-seed.md").contains("`ModifyQueuePairError`"));
}

#[test]
fn a_derived_debug_form_of_an_error_is_noticed() {
    let source = "
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[error(
    \"text\"
)]
pub enum Derived {}
#[derive(
    Debug,
    Error,
)]
pub struct Imported(u32);
#[derive(Debug)]
pub struct ByHand;
impl std::error::Error for ByHand {}
#[derive(Debug, thiserror::Error)]
pub(crate) enum Private {}
#[derive(Debug, thiserror::Error)]
enum Hidden {}
#[derive(Clone, thiserror::Error)]
pub enum Text {}
#[derive(Clone, Debug)]
pub struct NoError;
";
    assert_eq!(errors_with_derived_debug(source), ["Derived", "Imported", "ByHand"]);
}
