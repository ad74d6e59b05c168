//! Hole 10: events acknowledged twice. Events cannot be acknowledged by programs, or cloned.

use sideway::rdmacm::Event;

fn twice(event: Event) -> (Event, Event) {
    event.ack();
    (event.clone(), event)
}

fn main() {}
