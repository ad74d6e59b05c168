//! Hole 6: an address that dangles. An address is a value, which the call copies: it need not live any longer, and nobody gives a pointer.

use sideway::rdmacm::Identifier;

fn bind(id: &Identifier, address: *mut u8) {
    let _ = id.bind_addr(address);
}

fn main() {}
