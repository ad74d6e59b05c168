//! Hole 6: dangling addresses. An address is a value that the call copies, not a pointer.

use sideway::rdmacm::Identifier;

fn bind(id: &Identifier, address: *mut u8) {
    let _ = id.bind_addr(address);
}

fn main() {}
