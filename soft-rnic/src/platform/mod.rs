//! The interface to the operating system: memory, processes, sockets, clocks.

pub(crate) mod clock;
pub(crate) mod command;
pub(crate) mod copy;
pub(crate) mod errno;
pub(crate) mod event_counter;
pub(crate) mod exit;
pub(crate) mod file_table;
pub(crate) mod fork;
pub(crate) mod identity_page;
pub(crate) mod limits;
pub(crate) mod listeners;
pub(crate) mod mappings;
pub(crate) mod memory;
pub(crate) mod network;
pub(crate) mod nowhere;
pub(crate) mod process;
pub(crate) mod socket;
pub(crate) mod threads;
pub(crate) mod tokens;
pub(crate) mod user;
pub(crate) mod user_memory;
pub(crate) mod vm;
