//! Tables of vendors' libraries that this crate does not know: loaded, brought, missing, too old.

use std::ffi::c_int;

use rdma_mummy_sys::{LoadError, Mlx5dv, Provider, Verbs, library_table};

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
