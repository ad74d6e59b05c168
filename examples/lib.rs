//! What the programs in this folder share, so that each of them shows only
//! what it is about.
//!
//! | module | has |
//! | --- | --- |
//! | [`program`] | arguments, output and exit codes |
//! | [`devices`] | finding and opening devices |
//! | [`table`] | the table of `show_gids` |
//! | [`devinfo`] | the lines of `ibv_devinfo` |
//! | [`pingdata`] | what `rping` says and sends |
//! | [`pingpong`] | what both ping-pong programs need besides verbs |
//! | [`callers`] | the clients of `many_clients` |
//! | [`cm_steps`] | the steps of making and ending connections, which `cmtime` times |
//! | [`crew`] | queue pairs that are connected to themselves, for programs about completions |
//! | [`deposits`] | what the workers of `worker` have to do |
//! | [`hub`] | what many connections of one thread share |
//! | [`mailbox`] | a channel of the standard library whose receiver can sleep for other things as well |
//! | [`reactor`] | epoll over events of the connection manager and completions |

pub mod callers;
pub mod cm_steps;
pub mod crew;
pub mod deposits;
pub mod devices;
pub mod devinfo;
pub mod hub;
pub mod mailbox;
pub mod pingdata;
pub mod pingpong;
pub mod program;
pub mod reactor;
pub mod table;
