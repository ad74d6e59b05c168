//! The verbs through the table and the inline functions, as programs call them.

mod address_handles;
mod attributes;
mod changes;
mod completion_queues;
mod devices;
mod domains;
mod events;
mod extended;
#[cfg(not(miri))]
mod forks;
mod loopback;
mod multicast;
mod other_regions;
mod regions;
mod traffic;
mod windows;
mod words;
mod xrc;
