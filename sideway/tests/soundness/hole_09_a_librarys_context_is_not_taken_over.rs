//! Hole 9: contexts closed by code that does not own them. librdmacm's contexts come from
//! identifiers or device lists. Only `unsafe` code makes an owning handle from a pointer.

use sideway::ibverbs::device_context::DeviceContext;
use sideway::rdmacm::Identifier;

fn take(id: &Identifier, provider: sideway::Provider) {
    let verbs = id.as_raw().as_ref().verbs;
    let _ = DeviceContext::from_raw(std::ptr::NonNull::new(verbs).unwrap(), provider);
}

fn main() {}
