//! Taking ownership of an object that C made is unsafe.

use sideway::Provider;
use sideway::ibverbs::device_context::DeviceContext;
use sideway::sys::Verbs;

fn main() {
    let provider = Provider::from_tables("mine", Verbs::unsupported(), None);
    let _ = DeviceContext::from_raw(std::ptr::NonNull::dangling(), provider);
}
