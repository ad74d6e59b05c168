//! What the programs in this folder share, so that each of them shows only
//! what it is about.
//!
//! | module | has |
//! | --- | --- |
//! | [`program`] | arguments, output and exit codes |
//! | [`devices`] | finding and opening devices |
//! | [`table`] | the table of `show_gids` |
//! | [`devinfo`] | the lines of `ibv_devinfo` |
//! | [`pingpong`] | what both ping-pong programs need besides verbs |
//! | [`crew`] | queue pairs that are connected to themselves, for programs about completions |
//! | [`deposits`] | what the workers of `worker` have to do |
//! | [`mailbox`] | a channel of the standard library whose receiver can sleep for other things as well |

pub mod crew;
pub mod deposits;
pub mod devices;
pub mod devinfo;
pub mod mailbox;
pub mod pingpong;
pub mod program;
pub mod table;
