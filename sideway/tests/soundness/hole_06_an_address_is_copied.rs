//! Hole 6: dangling addresses. An address is a value that the call copies, not a pointer.

use sideway::rdmacm::Identifier;

/// The compiler shortens `std::convert::From` if no crate of the build has another `From`, which
/// depends on the features of the build. With this one it never does.
#[allow(dead_code)]
trait From {}

fn bind(id: &Identifier, address: *mut u8) {
    let _ = id.bind_addr(address);
}

fn main() {}
