//! Tables of vendors' libraries that this crate does not know: loaded, brought, missing, too old.

use std::ffi::c_int;
use std::sync::OnceLock;

use rdma_mummy_sys::{Library, LibraryTable, LoadError, Mlx5dv, Provider, Verbs, library_table};

use super::fake::{FakeSource, Folder};
use super::{VERBS, complete, isolated, skip};

library_table! {
    #[doc = "The functions of a library that nobody has."]
    Acme, "libacme.so.1", -1;
    required { "" "1" fn acme_reset() -> c_int; }
    optional { "" "2" fn acme_blink() -> c_int; }
}

/// A folder's libibverbs and libacme, which has these functions and needs the libibverbs.
fn build(folder: &Folder, functions: &[&str]) -> bool {
    let functions = functions.iter().map(|name| (*name).to_owned()).collect();
    complete(VERBS).build(folder, VERBS)
        && FakeSource::new(functions)
            .with("acme_own", "7")
            .needing(&folder.path().join(VERBS))
            .build(folder, Acme::LIBRARY)
}

fn open(folder: &Folder) -> Provider {
    Provider::from_folder(folder.path()).expect("all that is required")
}

#[test]
fn a_vendors_library_is_loaded_from_the_providers_folder() {
    let folder = Folder::new("vendor_loaded");
    isolated("vendor::a_vendors_library_is_loaded_from_the_providers_folder", None, || {
        if !build(&folder, &["acme_reset"]) {
            return skip("no rustc to make libraries with");
        }
        let provider = open(&folder);
        let acme = provider.library::<Acme>().expect("all that is required");
        // SAFETY: the library's function takes nothing.
        assert_eq!(unsafe { (acme.acme_reset)() }, 0);
        let missing = acme.acme_blink().expect_err("an older library");
        assert_eq!((missing.library, missing.name, missing.since), ("libacme.so.1", "acme_blink", "2"));
        let again = provider.library::<Acme>().expect("as before");
        assert!(core::ptr::eq(acme, again));
        // The tables are told apart by their types.
        assert_eq!(provider.mlx5dv().expect_err("not in this folder").library(), Mlx5dv::LIBRARY);
    });
}

#[test]
fn a_missing_library_of_a_vendor_is_named_with_the_remedy() {
    let folder = Folder::new("vendor_missing");
    isolated("vendor::a_missing_library_of_a_vendor_is_named_with_the_remedy", None, || {
        if !complete(VERBS).build(&folder, VERBS) {
            return skip("no rustc to make a library with");
        }
        let error = open(&folder).library::<Acme>().expect_err("not in this folder").to_string();
        let path = folder.path().join("libacme.so.1").display().to_string();
        for part in ["cannot load libacme.so.1", &path, "its vendor's package", "RDMA_MUMMY_LIB_DIR"] {
            assert!(error.contains(part), "`{part}` is not in: {error}");
        }
        assert!(!error.contains("rdma-core"), "{error}");
    });
}

#[test]
fn a_vendors_library_that_lacks_functions_is_too_old() {
    let folder = Folder::new("vendor_old");
    isolated("vendor::a_vendors_library_that_lacks_functions_is_too_old", None, || {
        if !build(&folder, &[]) {
            return skip("no rustc to make libraries with");
        }
        let error = open(&folder).library::<Acme>().expect_err("it has no acme_reset");
        let LoadError::TooOld { library, missing, .. } = error else { panic!("{error}") };
        assert_eq!((*library, &**missing), ("libacme.so.1", &["acme_reset"][..]));
        let text = error.to_string();
        assert!(text.ends_with("it does not export acme_reset; install a newer one"), "{text}");
    });
}

#[test]
fn a_vendors_library_that_works_on_another_libibverbs_is_refused() {
    let (one, two) = (Folder::new("vendor_one"), Folder::new("vendor_two"));
    isolated("vendor::a_vendors_library_that_works_on_another_libibverbs_is_refused", None, || {
        if !build(&one, &["acme_reset"]) || !build(&two, &["acme_reset"]) {
            return skip("no rustc to make libraries with");
        }
        let (first, second) = (open(&one), open(&two));
        let error = second.library::<Acme>().expect_err("it works on the first one's libibverbs");
        assert!(matches!(error, LoadError::OtherVerbs { library: "libacme.so.1", .. }), "{error:?}");
        assert!(first.library::<Acme>().is_ok());
    });
}

library_table! {
    #[doc = "The same library, with symbol versions."]
    Versioned, "libacme.so.1", -1;
    required { "ACME_1.0" "1" fn acme_reset() -> c_int; }
    optional { "ACME_1.1" "2" fn acme_blink() -> c_int; }
}

#[test]
#[cfg(target_env = "gnu")]
fn a_vendors_function_of_another_version_is_another_function() {
    use super::fake::{answer_of, build_versioned};

    let (newer, both) = (Folder::new("vendor_newer"), Folder::new("vendor_both"));
    isolated("vendor::a_vendors_function_of_another_version_is_another_function", None, || {
        let version = |of: &str| ("acme_reset".to_owned(), of.to_owned());
        for (folder, versions) in
            [(&newer, vec![version("ACME_2.0")]), (&both, vec![version("ACME_2.0"), version("ACME_1.0")])]
        {
            if !complete(VERBS).build(folder, VERBS) || !build_versioned(folder, Acme::LIBRARY, &versions) {
                return skip("no rustc, or no C compiler, to make libraries with");
            }
        }
        let error = open(&newer).library::<Versioned>().expect_err("it has no acme_reset of ACME_1.0");
        let LoadError::TooOld { missing, .. } = error else { panic!("{error}") };
        assert_eq!(missing, &["acme_reset"]);
        let answer = |folder| {
            let acme = open(folder).library::<Versioned>().expect("all that is required");
            assert!(acme.acme_blink.is_none());
            // SAFETY: the library's function takes nothing.
            unsafe { (acme.acme_reset)() }
        };
        assert_eq!(answer(&both), answer_of("ACME_1.0"));
        // A table without versions takes the default one.
        let plain = open(&both).library::<Acme>().expect("all that is required");
        // SAFETY: the library's function takes nothing.
        assert_eq!(unsafe { (plain.acme_reset)() }, answer_of("ACME_2.0"));
    });
}

/// Also if its dependencies have versions, as the C library has.
#[test]
fn a_vendors_library_without_versions_is_looked_up_plainly() {
    const NEEDS_LIBC: &str = "unsafe extern \"C\" { safe fn getpid() -> i32; } getpid() as usize";
    let (alone, with_libc) = (Folder::new("vendor_alone"), Folder::new("vendor_with_libc"));
    isolated("vendor::a_vendors_library_without_versions_is_looked_up_plainly", None, || {
        for (folder, body) in [(&alone, "7"), (&with_libc, NEEDS_LIBC)] {
            let source = FakeSource::new(vec!["acme_blink".to_owned()]).with("acme_reset", body);
            if !complete(VERBS).build(folder, VERBS) || !source.build(folder, Acme::LIBRARY) {
                return skip("no rustc to make libraries with");
            }
        }
        let answers = [(&alone, 7), (&with_libc, std::process::id().cast_signed())];
        for (folder, answer) in answers {
            let acme = open(folder).library::<Versioned>().expect("all that is required");
            // SAFETY: the library's function takes nothing.
            assert_eq!(unsafe { (acme.acme_reset)() }, answer);
            assert!(acme.acme_blink.is_some());
        }
    });
}

/// A table that names a library as no macro's caller should.
macro_rules! wrong_name {
    ($Table:ident, $library:literal) => {
        #[derive(Clone, Copy, Debug)]
        struct $Table;

        impl LibraryTable for $Table {
            const LIBRARY: &'static str = $library;

            fn load(_: &Library) -> Result<Self, LoadError> {
                Ok(Self)
            }
        }
    };
}

wrong_name!(AnyPath, "/tmp/libacme.so.1");
wrong_name!(PathInFolder, "../libacme.so.1");
wrong_name!(Nothing, "");

/// Safe code names the library; it is not to choose the folder.
#[test]
fn a_path_in_the_place_of_a_librarys_name_is_refused() {
    let folder = Folder::new("vendor_path");
    isolated("vendor::a_path_in_the_place_of_a_librarys_name_is_refused", None, || {
        if !complete(VERBS).build(&folder, VERBS) {
            return skip("no rustc to make a library with");
        }
        let provider = open(&folder);
        let errors = [
            provider.library::<AnyPath>().expect_err("a path"),
            provider.library::<PathInFolder>().expect_err("a path"),
            provider.library::<Nothing>().expect_err("no name"),
        ];
        for (error, name) in errors.into_iter().zip([AnyPath::LIBRARY, PathInFolder::LIBRARY, ""]) {
            assert_eq!(error, &LoadError::NotAName { library: name });
            assert_eq!(error.library(), name);
            let text = error.to_string();
            assert!(text.starts_with(&format!("`{name}` is not the name of a shared object")), "{text}");
            assert!(text.contains("Provider::from_folder"), "{text}");
        }
    });
}

/// A table that needs another of the same provider.
#[derive(Clone, Copy, Debug)]
struct Wrapper(&'static Acme);

static PROVIDER: OnceLock<Provider> = OnceLock::new();

impl LibraryTable for Wrapper {
    const LIBRARY: &'static str = Acme::LIBRARY;

    fn load(_: &Library) -> Result<Self, LoadError> {
        PROVIDER.get().expect("the test sets it").library().map(Self).map_err(Clone::clone)
    }
}

#[test]
fn a_table_may_need_another_of_the_same_provider() {
    let folder = Folder::new("vendor_wrapper");
    isolated("vendor::a_table_may_need_another_of_the_same_provider", None, || {
        if !build(&folder, &["acme_reset"]) {
            return skip("no rustc to make libraries with");
        }
        let provider = *PROVIDER.get_or_init(|| open(&folder));
        let wrapper = provider.library::<Wrapper>().expect("all that is required");
        assert!(core::ptr::eq(wrapper.0, provider.library::<Acme>().expect("as before")));
    });
}

unsafe extern "C" fn answers_five() -> c_int {
    5
}

#[test]
fn a_program_brings_a_vendors_library() {
    // SAFETY: every function of `Verbs::unsupported` fails without an access to its arguments, so
    // the contract of C holds.
    let own = unsafe { Provider::from_tables("own", Verbs::unsupported(), None) };
    let error = own.library::<Acme>().expect_err("it has none");
    assert_eq!(error, &LoadError::NotProvided { library: "libacme.so.1", provider: "own" });
    let table = Acme { acme_reset: answers_five, ..Acme::unsupported() };
    // SAFETY: the function takes nothing, and the other is missing.
    let with = unsafe { own.with_library(table) };
    let acme = with.library::<Acme>().expect("it was brought");
    // SAFETY: the function takes nothing.
    assert_eq!(unsafe { (acme.acme_reset)() }, 5);
    assert!(with != own && with.name() == "own");
    // The first provider is unchanged, and others still have none.
    assert!(own.library::<Acme>().is_err() && with.mlx5dv().is_err() && with.rdmacm().is_err());
}
