//! What the programs in this folder share, so that each of them shows only
//! what it is about.
//!
//! | module | has |
//! | --- | --- |
//! | [`program`] | arguments, output and exit codes |
//! | [`devices`] | finding and opening devices |
//! | [`table`] | the table of `show_gids` |
//! | [`devinfo`] | the lines of `ibv_devinfo` |

pub mod devices;
pub mod devinfo;
pub mod program;
pub mod table;
