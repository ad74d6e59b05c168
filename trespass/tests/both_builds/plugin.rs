//! A shared library that uses trespass.

use std::io::{Read, Write};

use trespass::{Listener, Stream};

/// Sends four bytes over a new connection. Returns whether they have arrived.
#[unsafe(no_mangle)]
pub extern "C" fn converse() -> bool {
    let conversation = || -> std::io::Result<[u8; 4]> {
        let listener = Listener::bind("127.0.0.1:0")?;
        let mut client = Stream::connect(listener.local_addr()?)?;
        client.write_all(b"ping")?;
        let mut got = [0; 4];
        listener.accept()?.0.read_exact(&mut got)?;
        Ok(got)
    };
    conversation().is_ok_and(|got| got == *b"ping")
}
