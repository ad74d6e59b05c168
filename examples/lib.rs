//! The parts that the programs in this folder share, so that each program shows only its subject.
//!
//! | module | contents |
//! | --- | --- |
//! | [`program`] | arguments, output and exit codes |
//! | [`devices`] | finding and opening devices |
//! | [`text_table`] | the table of `show_gids` |
//! | [`devinfo`] | the lines of `ibv_devinfo` |
//! | [`rping_data`] | the messages and texts of `rping` |
//! | [`pingpong`] | the ping-pong programs |
//! | [`client_load`] | the clients of `many_clients` |
//! | [`shared_queues`] | the queues and the memory that many connections of one thread share |
//! | [`shared_store`] | the values of a store with several threads, and its answers |
//! | [`reactor`] | epoll over connection manager events and completions |
//! | [`cm_steps`] | the steps of connecting and disconnecting, which `cmtime` times |
//! | [`loopback`] | queue pairs connected to themselves, for programs about completions |
//! | [`deposits`] | the workload of `worker` |
//! | `runtimes` (feature `local`) | a server with a runtime of `trespass::local` on each of several threads |
//! | [`waking_channel`] | a standard channel whose receiver can also sleep on a file descriptor |

pub mod client_load;
pub mod cm_steps;
pub mod deposits;
pub mod devices;
pub mod devinfo;
pub mod loopback;
pub mod pingpong;
pub mod program;
pub mod reactor;
pub mod rping_data;
#[cfg(feature = "local")]
pub mod runtimes;
pub mod shared_queues;
pub mod shared_store;
pub mod text_table;
pub mod waking_channel;
