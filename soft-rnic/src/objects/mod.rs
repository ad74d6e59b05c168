//! The objects behind the verbs: devices, contexts, protection domains, memory regions, completion
//! queues, address handles.
//!
//! An object has two parts. The C part (`ibv_cq`, ...) belongs to the program, which may read and
//! write it at any time, so it is accessed by raw pointers only ([`c_object`]). The private part is
//! here, shared by `Arc`.

pub(crate) mod acks;
pub(crate) mod address_handle;
pub(crate) mod buffer;
pub(crate) mod c_object;
pub(crate) mod channel;
pub(crate) mod cm_handler;
pub(crate) mod completion;
pub(crate) mod context;
pub(crate) mod device;
pub(crate) mod device_memory;
pub(crate) mod event;
pub(crate) mod lid;
pub(crate) mod memory_region;
pub(crate) mod memory_window;
pub(crate) mod multicast;
pub(crate) mod prefetch;
pub(crate) mod protection_domain;
pub(crate) mod region;
pub(crate) mod rnic;
pub(crate) mod setup;
pub(crate) mod table;
pub(crate) mod thread_domain;
pub(crate) mod use_ref;
pub(crate) mod xrc_domain;
