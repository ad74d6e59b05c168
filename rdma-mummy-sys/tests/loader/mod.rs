//! Finding, opening and refusing libraries.
//!
//! The tests build the libraries with the rustc that runs them (and cc for symbol versions). A
//! loaded library stays loaded and changes later results, so that each test runs in a separate
//! process.

#![cfg(not(any(miri, all(target_env = "musl", target_feature = "crt-static"))))]

mod fake;
mod tables;
mod vendor;

use std::path::{Path, PathBuf};
use std::process::Command;

use fake::{FakeSource, Folder};
use rdma_mummy_sys::types::ibv_device;
use rdma_mummy_sys::{LIB_DIR_VARIABLE, LoadError, Mlx5dv, Provider, RdmaCm, Verbs};
use test_harness::{Grant, PrivilegedCopy, repeat_errors, report_skip};

const VERBS: &str = "libibverbs.so.1";
const RDMACM: &str = "librdmacm.so.1";

/// The environment variable with which a test gives its name to its child process.
const CHILD: &str = "LOADER_TEST_CHILD";

/// Runs `body` in a separate process, in which `RDMA_MUMMY_LIB_DIR` is `lib_dir`.
fn isolated(test: &str, lib_dir: Option<&Path>, body: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    let mut command = Command::new(std::env::current_exe().expect("a program"));
    command.args(["--exact", &format!("loader::{test}"), "--nocapture", "--test-threads=1"]).env(CHILD, test);
    match lib_dir {
        Some(folder) => command.env(LIB_DIR_VARIABLE, folder),
        None => command.env_remove(LIB_DIR_VARIABLE),
    };
    let output = command.output().expect("this very program");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{errors}");
    // A skip of the child is a skip of this test.
    repeat_errors(&errors);
}

/// Skips the isolated test of this process.
fn skip(reason: &str) {
    report_skip(&std::env::var(CHILD).expect("an isolated test"), reason);
}

/// Every function that a library must export, without effect.
fn complete(library: &str) -> FakeSource {
    FakeSource::new(tables::required(library))
}

/// The error of loading a library.
#[track_caller]
fn refused(folder: &Path) -> LoadError {
    Provider::from_folder(folder).expect_err("a library that cannot be used")
}

#[test]
fn a_missing_library_is_named_with_the_remedy() {
    let folder = Folder::new("missing");
    isolated("a_missing_library_is_named_with_the_remedy", Some(folder.path()), || {
        let tried_path = folder.path().join(VERBS);
        let error = Provider::open().expect_err("there is nothing");
        let LoadError::NotFound { library, ref tried } = error else { panic!("{error:?}") };
        assert_eq!((library, error.library()), (VERBS, VERBS));
        assert_eq!(tried.len(), 1);
        assert_eq!(tried[0].path, tried_path);
        let text = error.to_string();
        for part in [
            &format!("cannot load {VERBS}"),
            &format!("tried {}: ", tried_path.display()),
            "No such file or directory",
            "install rdma-core",
            "libibverbs1",
            "RDMA_MUMMY_LIB_DIR",
        ] {
            assert!(text.contains(part), "`{part}` is not in: {text}");
        }
        assert!(!text.contains('\n'), "{text}");
    });
}

#[test]
fn a_file_that_is_no_library_is_refused_in_the_loaders_words() {
    let folder = Folder::new("no_library");
    isolated("a_file_that_is_no_library_is_refused_in_the_loaders_words", None, || {
        std::fs::write(
            folder.path().join(VERBS),
            "not a library, but long enough to be looked at".repeat(100),
        )
        .expect("a file");
        let error = refused(folder.path());
        assert!(matches!(error, LoadError::NotFound { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("ELF") || text.contains("Exec format"), "{text}");
    });
}

#[test]
fn a_failure_is_not_remembered() {
    let folder = Folder::new("later");
    isolated("a_failure_is_not_remembered", Some(folder.path()), || {
        assert!(Provider::open().is_err());
        if !complete(VERBS).with("ibv_fork_init", "41").build(&folder, VERBS) {
            return skip("no rustc to make a library with");
        }
        let provider = Provider::open().expect("now it is there");
        assert_eq!(provider, Provider::open().expect("the same"));
        assert_eq!(provider, Provider::from_folder(folder.path()).expect("the same"));
        assert_eq!(provider.name(), folder.path().to_str().expect("a plain path"));
        // SAFETY: the function takes nothing and returns a number.
        assert_eq!(unsafe { (provider.verbs().ibv_fork_init)() }, 41);
    });
}

#[test]
fn an_empty_variable_means_the_systems_libraries() {
    isolated("an_empty_variable_means_the_systems_libraries", Some(Path::new("")), || {
        match (Provider::open(), Provider::system()) {
            (Ok(opened), Ok(system)) => assert_eq!((opened, opened.name()), (system, "system")),
            (Err(opened), Err(system)) => {
                assert_eq!(opened, system);
                let LoadError::NotFound { tried, .. } = opened else { panic!("{opened:?}") };
                assert_eq!(tried[0].path, PathBuf::from(VERBS));
            }
            (opened, system) => panic!("{opened:?} {system:?}"),
        }
    });
}

/// The child process's part: prints what `Provider::open` and `Provider::system` find.
#[test]
#[ignore = "run by another test, with more rights than its user"]
fn open_and_tell() {
    let found = |provider: Result<Provider, LoadError>| match provider {
        Ok(provider) => provider.name().to_owned(),
        Err(error) => error.to_string(),
    };
    println!("\nopened: {}\nsystem: {}", found(Provider::open()), found(Provider::system()));
}

/// Such a program would run the code of that library with its rights.
#[test]
fn a_program_with_more_rights_than_its_user_ignores_the_variable() {
    let folder = Folder::new("more_rights");
    let test = "a_program_with_more_rights_than_its_user_ignores_the_variable";
    if !complete(VERBS).build(&folder, VERBS) {
        return report_skip(test, "no rustc to make a library with");
    }
    for copy in Grant::ALL.into_iter().filter_map(|grant| PrivilegedCopy::new(test, grant)) {
        let output = copy.run(|command| {
            command.args(["--ignored", "--exact", "loader::open_and_tell", "--nocapture"]);
            command.env(LIB_DIR_VARIABLE, folder.path());
        });
        let text = String::from_utf8_lossy(&output.stdout);
        let after = |word| text.lines().find_map(|line| line.strip_prefix(word));
        let opened = after("opened: ").unwrap_or_else(|| panic!("{text}{:?}", output.stderr));
        assert_eq!(Some(opened), after("system: "));
    }
}

#[test]
fn a_library_that_lacks_functions_is_too_old() {
    let folder = Folder::new("too_old");
    isolated("a_library_that_lacks_functions_is_too_old", None, || {
        let source = complete(VERBS).without("ibv_open_device").without("ibv_query_port");
        if !source.build(&folder, VERBS) {
            return skip("no rustc to make a library with");
        }
        let error = refused(folder.path());
        let text = error.to_string();
        let LoadError::TooOld { library, path, missing } = error else { panic!("{error:?}") };
        assert_eq!((library, path), (VERBS, folder.path().join(VERBS)));
        assert_eq!(missing, ["ibv_open_device", "ibv_query_port"]);
        for part in ["too old", "ibv_open_device, ibv_query_port", "newer rdma-core"] {
            assert!(text.contains(part), "`{part}` is not in: {text}");
        }
    });
}

#[test]
fn a_library_without_versions_is_looked_up_plainly() {
    let folder = Folder::new("plain");
    isolated("a_library_without_versions_is_looked_up_plainly", None, || {
        let source = complete(VERBS).with("ibv_fork_init", "41").with("ibv_is_fork_initialized", "2");
        if !source.build(&folder, VERBS) {
            return skip("no rustc to make a library with");
        }
        let provider = Provider::from_folder(folder.path()).expect("all that is required");
        let verbs = provider.verbs();
        // SAFETY: the function takes nothing and returns a number.
        assert_eq!(unsafe { (verbs.ibv_fork_init)() }, 41);
        let optional = verbs.ibv_is_fork_initialized().expect("an optional function that it has");
        // SAFETY: the function takes nothing and returns a number.
        assert_eq!(unsafe { optional() }.0, 2);
    });
}

#[test]
fn a_missing_optional_function_is_named_with_its_release() {
    let folder = Folder::new("optional");
    isolated("a_missing_optional_function_is_named_with_its_release", None, || {
        if !complete(VERBS).build(&folder, VERBS) {
            return skip("no rustc to make a library with");
        }
        let provider = Provider::from_folder(folder.path()).expect("all that is required");
        let missing = provider.verbs().ibv_reg_dmabuf_mr().expect_err("an optional function");
        assert_eq!((missing.library, missing.name), (VERBS, "ibv_reg_dmabuf_mr"));
        assert_eq!(
            missing.to_string(),
            "libibverbs.so.1 does not export `ibv_reg_dmabuf_mr` (added in IBVERBS_1.12, rdma-core 34)"
        );
        assert!(provider.verbs().ibv_reg_dmabuf_mr.is_none());
    });
}

#[test]
fn of_two_versions_of_a_function_the_named_one_is_taken() {
    let folder = Folder::new("versions");
    isolated("of_two_versions_of_a_function_the_named_one_is_taken", None, || {
        // A future library, whose default version has another prototype.
        let mut versions = vec![("ibv_fork_init".into(), "IBVERBS_9.0".into())];
        versions.extend(tables::required_versions(VERBS));
        if !fake::build_versioned(&folder, VERBS, &versions) {
            return skip("no C compiler to make a library with versions with");
        }
        let provider = Provider::from_folder(folder.path()).expect("all that is required");
        // SAFETY: the function takes nothing and returns the number of its version.
        assert_eq!(unsafe { (provider.verbs().ibv_fork_init)() }, fake::answer_of("IBVERBS_1.1"));
    });
}

#[test]
fn a_function_of_another_version_is_another_function() {
    let folder = Folder::new("other_version");
    isolated("a_function_of_another_version_is_another_function", None, || {
        let mut versions = tables::required_versions(VERBS);
        for (name, version) in &mut versions {
            if name == "ibv_open_device" {
                "IBVERBS_1.0".clone_into(version);
            }
        }
        if !fake::build_versioned(&folder, VERBS, &versions) {
            return skip("no C compiler to make a library with versions with");
        }
        let error = refused(folder.path());
        let LoadError::TooOld { missing, .. } = error else { panic!("{error:?}") };
        assert_eq!(missing, ["ibv_open_device"]);
    });
}

unsafe extern "C" fn no_devices(n: *mut i32) -> *mut *mut ibv_device {
    // SAFETY: the test passes a valid pointer.
    unsafe { n.write(1234) };
    core::ptr::null_mut()
}

#[test]
fn two_providers_are_open_at_once() {
    let (one, two) = (Folder::new("one"), Folder::new("two"));
    isolated("two_providers_are_open_at_once", None, || {
        let table = Verbs { ibv_get_device_list: no_devices, ..Verbs::unsupported() };
        // SAFETY: an empty list of devices is a valid result, and the other functions refuse.
        let own = unsafe { Provider::from_tables("own", table, None) };
        let mut n = 0;
        // SAFETY: the pointer is valid.
        unsafe { (own.verbs().ibv_get_device_list)(&raw mut n) };
        assert_eq!((n, own.name()), (1234, "own"));
        // SAFETY: the function takes nothing.
        assert_eq!(unsafe { (own.verbs().ibv_fork_init)() }, libc::EOPNOTSUPP);
        if !complete(VERBS).with("ibv_fork_init", "41").build(&one, VERBS) {
            return skip("no rustc to make libraries with");
        }
        complete(VERBS).with("ibv_fork_init", "42").build(&two, VERBS);
        let [first, second] = [&one, &two].map(|f| Provider::from_folder(f.path()).expect("a provider"));
        assert!(first != second && first != own && second != own);
        for (provider, answer) in [(first, 41), (second, 42), (own, libc::EOPNOTSUPP), (first, 41)] {
            // SAFETY: the function takes nothing and returns a number.
            assert_eq!(unsafe { (provider.verbs().ibv_fork_init)() }, answer, "{provider:?}");
        }
        if let Ok(system) = Provider::system() {
            assert!(system != first && system != second && system != own);
            let mut n = -1;
            // SAFETY: the pointer is valid, and the list is returned to the library that made it.
            unsafe {
                let list = (system.verbs().ibv_get_device_list)(&raw mut n);
                if !list.is_null() {
                    (system.verbs().ibv_free_device_list)(list);
                }
            }
            assert_ne!(n, 1234);
        }
    });
}

#[test]
fn a_provider_without_a_library_says_so() {
    let folder = Folder::new("verbs_only");
    isolated("a_provider_without_a_library_says_so", None, || {
        // SAFETY: every function of `Verbs::unsupported` fails without an access to its arguments,
        // so the contract of C holds.
        let own = unsafe { Provider::from_tables("own", Verbs::unsupported(), None) };
        let error = own.rdmacm().expect_err("none was given");
        assert_eq!(error, &LoadError::NotProvided { library: RDMACM, provider: "own" });
        assert_eq!(
            error.to_string(),
            "the provider `own` has no librdmacm.so.1; the system's provider (`Provider::system`) loads it"
        );
        assert_eq!(own.mlx5dv().expect_err("none").library(), Mlx5dv::LIBRARY);
        assert_eq!(own.efadv().expect_err("none").library(), "libefa.so.1");
        // SAFETY: every function of `unsupported` fails without an access to its arguments, so the
        // contract of C holds.
        let with =
            unsafe { Provider::from_tables("with", Verbs::unsupported(), Some(RdmaCm::unsupported())) };
        assert!(with.rdmacm().is_ok());

        if !complete(VERBS).build(&folder, VERBS) {
            return skip("no rustc to make a library with");
        }
        let provider = Provider::from_folder(folder.path()).expect("all that is required");
        let error = provider.rdmacm().expect_err("not in this folder").to_string();
        let path = folder.path().join(RDMACM).display().to_string();
        assert!(error.contains(&path) && error.contains("librdmacm1"), "{error}");
        let error = provider.mlx5dv().expect_err("not in this folder").to_string();
        assert!(error.contains("libmlx5.so.1") && error.contains("ibverbs-providers"), "{error}");
    });
}

/// Two folders, each with libibverbs and a librdmacm that needs libibverbs by name.
fn two_pairs(one: &Folder, two: &Folder) -> bool {
    [(one, "51"), (two, "52")].into_iter().all(|(folder, answer)| {
        complete(VERBS).build(folder, VERBS)
            && complete(RDMACM)
                .with("rdma_listen", answer)
                .needing(&folder.path().join(VERBS))
                .build(folder, RDMACM)
    })
}

#[test]
fn libraries_of_one_folder_belong_together() {
    let (one, two) = (Folder::new("pair_one"), Folder::new("pair_two"));
    isolated("libraries_of_one_folder_belong_together", None, || {
        if !two_pairs(&one, &two) {
            return skip("no rustc to make libraries with");
        }
        let provider = Provider::from_folder(one.path()).expect("all that is required");
        let rdmacm = provider.rdmacm().expect("all that is required");
        // SAFETY: this library's function uses no argument.
        assert_eq!(unsafe { (rdmacm.rdma_listen)(core::ptr::null_mut(), 0) }, 51);
    });
}

#[test]
fn a_library_that_works_on_another_libibverbs_is_refused() {
    let (one, two) = (Folder::new("other_one"), Folder::new("other_two"));
    isolated("a_library_that_works_on_another_libibverbs_is_refused", None, || {
        if !two_pairs(&one, &two) {
            return skip("no rustc to make libraries with");
        }
        let first = Provider::from_folder(one.path()).expect("all that is required");
        let second = Provider::from_folder(two.path()).expect("all that is required");
        // The dynamic loader resolves the second librdmacm's dependency to the libibverbs loaded
        // first.
        let error = second.rdmacm().expect_err("it works on the first one's libibverbs");
        let path = two.path().join(RDMACM);
        assert_eq!(error, &LoadError::OtherVerbs { library: RDMACM, path: path.clone() });
        let text = error.to_string();
        for part in [path.to_str().expect("a plain path"), "another libibverbs", "LD_LIBRARY_PATH"] {
            assert!(text.contains(part), "`{part}` is not in: {text}");
        }
        assert!(first.rdmacm().is_ok());
    });
}

#[test]
#[cfg(target_env = "gnu")]
fn the_systems_functions_are_the_default_versions() {
    isolated("the_systems_functions_are_the_default_versions", None, || {
        let provider = match Provider::system() {
            Ok(provider) => provider,
            Err(error) => return skip(&error.to_string()),
        };
        let loaded = [
            (VERBS, Some(format!("{:?}", provider.verbs()))),
            (RDMACM, provider.rdmacm().ok().map(|table| format!("{table:?}"))),
            ("libmlx5.so.1", provider.mlx5dv().ok().map(|table| format!("{table:?}"))),
            ("libefa.so.1", provider.efadv().ok().map(|table| format!("{table:?}"))),
        ];
        for (library, table) in loaded {
            match table {
                Some(table) => tables::check_defaults(library, &table),
                None => skip(&format!("no {library}")),
            }
        }
    });
}
