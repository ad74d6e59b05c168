//! Tests with the vendors' libraries, if installed: none accepts a software device as its own.
//!
//! Without such hardware, the real libraries are called only to detect the device. That detection
//! decides whether anything else is ever called.

use sideway::ErrorKind;
use sideway::ibverbs::Unsupported;
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::device_context::DeviceContext;
use sideway::sys::LoadError;
use sideway::{Provider, efa, mlx5};
use std::error::Error as _;
use test_harness::report_skip;

fn soft0(provider: Provider) -> DeviceContext {
    DeviceList::from_provider(provider).unwrap().first().unwrap().open().unwrap()
}

/// soft0, of a provider with the system's direct verbs; `None`, and a skipped test, if the system
/// has none.
fn with_the_systems_libraries(test: &str) -> Option<DeviceContext> {
    let system = match Provider::system() {
        Ok(system) => system,
        Err(error) => {
            report_skip(test, error);
            return None;
        }
    };
    let (mlx5dv, efadv) = match (system.mlx5dv(), system.efadv()) {
        (Ok(mlx5dv), Ok(efadv)) => (*mlx5dv, *efadv),
        (Err(error), _) | (_, Err(error)) => {
            report_skip(test, error);
            return None;
        }
    };
    let verbs = *sideway::soft::provider().verbs();
    // SAFETY: the functions belong to soft-rnic and rdma-core. soft-rnic's device structs are as
    // long as rdma-core's, so that the latter's detection can read them. No other function of
    // rdma-core is called with them.
    let provider = unsafe {
        Provider::from_tables_with_direct("soft, and the system's", verbs, None, Some(mlx5dv), Some(efadv))
    };
    Some(soft0(provider))
}

#[test]
fn a_software_device_is_not_mlx5s() {
    let Some(context) = with_the_systems_libraries("a_software_device_is_not_mlx5s") else { return };
    match mlx5::DirectVerbs::of(&context).unwrap_err() {
        error if error.unsupported().is_some() => {
            let Unsupported { verb, device, missing, .. } = error.unsupported().unwrap();
            assert_eq!((*verb, device.as_str(), missing), ("mlx5dv_is_supported", "soft0", &None));
        }
        error => panic!("{error}"),
    }
}

#[test]
fn a_software_device_is_not_efas() {
    let Some(context) = with_the_systems_libraries("a_software_device_is_not_efas") else { return };
    match efa::DirectVerbs::of(&context).unwrap_err() {
        error if error.unsupported().is_some() => {
            let Unsupported { verb, device, missing, .. } = error.unsupported().unwrap();
            assert_eq!((*verb, device.as_str(), missing), ("efadv_query_device", "soft0", &None));
        }
        error => panic!("{error}"),
    }
}

#[test]
fn a_provider_without_the_library_names_it() {
    let context = soft0(sideway::soft::provider());
    let errors = [
        (mlx5::DirectVerbs::of(&context).unwrap_err(), "libmlx5.so.1"),
        (efa::DirectVerbs::of(&context).unwrap_err(), "libefa.so.1"),
    ];
    for (error, library) in errors {
        let text = error.to_string();
        assert!(text.contains("soft0") && text.contains(library), "{text}");
        assert_eq!((error.kind(), error.object()), (ErrorKind::Library, Some("device soft0")), "{text}");
        let source = error.source().and_then(|source| source.downcast_ref());
        assert!(matches!(source, Some(LoadError::NotProvided { library: named, .. }) if **named == *library));
    }
}

/// A provider without a vendor's library opens no device through it.
#[test]
fn without_its_library_nothing_is_opened_for_mlx5() {
    let devices = DeviceList::from_provider(sideway::soft::provider()).unwrap();
    let error = mlx5::DirectVerbs::open(&devices.first().unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Library, "{error}");
    let text = "mlx5dv_open_device was not called for device soft0: the device has no direct verbs of mlx5: ";
    assert!(error.to_string().starts_with(text), "{error}");
}
