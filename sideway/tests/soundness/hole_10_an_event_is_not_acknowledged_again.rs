//! Hole 10: an event that is acknowledged twice. There is nothing to acknowledge, and no second event of one.

use sideway::rdmacm::Event;

fn twice(event: Event) -> (Event, Event) {
    event.ack();
    (event.clone(), event)
}

fn main() {}
