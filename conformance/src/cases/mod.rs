//! The cases, by area.
#![deny(unsafe_code)]

mod absent;
mod attributes;
mod completion;
mod device_memory;
mod devices;
mod domains;
mod ece;
mod events;
mod import;
mod memory;
mod multicast;
mod pairs;
mod placement;
mod posting;
mod rc_data;
mod rc_errors;
mod regions;
mod srq;
mod states;
mod transitions;
mod uc;
mod ud;
mod windows;
mod xrc;

use crate::harness::Suite;

/// Why SoftRoCE's extended pairs run no case with a list.
const LIST_REASON: &str = "takes every entry of ibv_wr_set_sge_list to be as long as the first";

/// Why SoftRoCE's extended pairs run no case with inline data.
const INLINE_REASON: &str = "does not tell the kernel that a request of ibv_wr_set_inline_data is inline";

/// Why SoftRoCE runs no case about local memory.
const LOCAL_REASON: &str =
    "reports a local queue pair operation error, or a flush, for local memory that a request may not use";

/// All of them, in the order in which they run.
pub(crate) fn all() -> Suite {
    let mut suite = Suite::default();
    devices::cases(&mut suite);
    absent::cases(&mut suite);
    domains::cases(&mut suite);
    memory::cases(&mut suite);
    completion::cases(&mut suite);
    pairs::cases(&mut suite);
    transitions::cases(&mut suite);
    attributes::cases(&mut suite);
    states::cases(&mut suite);
    rc_data::cases(&mut suite);
    rc_errors::cases(&mut suite);
    posting::cases(&mut suite);
    uc::cases(&mut suite);
    ud::cases(&mut suite);
    windows::cases(&mut suite);
    placement::cases(&mut suite);
    multicast::cases(&mut suite);
    srq::cases(&mut suite);
    xrc::cases(&mut suite);
    regions::cases(&mut suite);
    device_memory::cases(&mut suite);
    import::cases(&mut suite);
    ece::cases(&mut suite);
    events::cases(&mut suite);
    suite
}
