//! Hole 9: contexts that are closed by those who do not own them. A context of librdmacm's comes from an identifier, or from the list
//! of devices; from a pointer there is a handle only by way of `unsafe`, and it is the owner then.

use sideway::ibverbs::device_context::DeviceContext;
use sideway::rdmacm::Identifier;

fn take(id: &Identifier, provider: sideway::Provider) {
    let verbs = id.as_raw().as_ref().verbs;
    let _ = DeviceContext::from_raw(std::ptr::NonNull::new(verbs).unwrap(), provider);
}

fn main() {}
