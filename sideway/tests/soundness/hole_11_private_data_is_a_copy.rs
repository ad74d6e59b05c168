//! Hole 11: private data behind a pointer. A parameter copies its data, so this is allowed. An
//! event's data cannot be kept longer than the event.

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
