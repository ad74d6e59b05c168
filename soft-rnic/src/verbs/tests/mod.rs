//! The verbs through the table and the inline functions, as programs call them.

mod address_handles;
mod completion_queues;
mod devices;
mod events;
#[cfg(not(miri))]
mod forks;
#[cfg(not(miri))]
mod loopback;
mod regions;
mod words;
