//! Hole 11: private data that is only pointed to. What a parameter is given is copied, so this is allowed; what an event has cannot be kept
//! longer than the event.

use sideway::rdmacm::{ConnectionParameter, Event};

fn allowed() -> ConnectionParameter {
    let mut parameter = ConnectionParameter::new();
    parameter.setup_private_data(&vec![1, 2, 3]);
    parameter
}

fn kept(event: Event) -> &'static [u8] {
    let data = event.private_data();
    let _ = allowed();
    drop(event);
    data
}

fn main() {}
