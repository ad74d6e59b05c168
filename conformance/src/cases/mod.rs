//! The cases, by area.
#![deny(unsafe_code)]

mod attributes;
mod channels;
mod cm_addresses;
mod cm_channels;
mod cm_connecting;
mod cm_datagrams;
mod cm_disconnecting;
mod cm_endpoints;
mod cm_groups;
mod cm_listening;
mod cm_names;
mod cm_options;
mod cm_pairs;
mod cm_resolving;
mod completion;
pub(crate) mod counts;
mod device_memory;
mod devices;
mod domains;
mod ece;
mod events;
mod implicit;
mod import;
mod infiniband;
mod invalidation;
mod limits;
mod memory;
mod multicast;
mod pairs;
mod placement;
mod posting;
mod rc_data;
mod rc_errors;
mod rc_retries;
mod regions;
mod srq;
mod states;
mod transitions;
mod uc;
mod ud;
mod unsupported;
mod windows;
mod xrc;
mod xrc_objects;

use crate::kit::Suite;

/// Why extended pairs of SoftRoCE skip cases with a scatter/gather list.
const LIST_REASON: &str = "takes every entry of ibv_wr_set_sge_list to be as long as the first";

/// Why extended pairs of SoftRoCE skip cases with inline data.
const INLINE_REASON: &str = "does not tell the kernel that a request of ibv_wr_set_inline_data is inline";

/// Why SoftRoCE skips cases about local memory.
const LOCAL_REASON: &str =
    "reports a local queue pair operation error, or a flush, for local memory that a request may not use";

/// All cases, in the order in which they run.
pub(crate) fn all() -> Suite {
    let mut suite = Suite::default();
    devices::cases(&mut suite);
    unsupported::cases(&mut suite);
    domains::cases(&mut suite);
    memory::cases(&mut suite);
    completion::cases(&mut suite);
    channels::cases(&mut suite);
    pairs::cases(&mut suite);
    transitions::cases(&mut suite);
    attributes::cases(&mut suite);
    states::cases(&mut suite);
    rc_data::cases(&mut suite);
    rc_errors::cases(&mut suite);
    rc_retries::cases(&mut suite);
    posting::cases(&mut suite);
    uc::cases(&mut suite);
    ud::cases(&mut suite);
    windows::cases(&mut suite);
    invalidation::cases(&mut suite);
    placement::cases(&mut suite);
    multicast::cases(&mut suite);
    srq::cases(&mut suite);
    xrc::cases(&mut suite);
    xrc_objects::cases(&mut suite);
    regions::cases(&mut suite);
    implicit::cases(&mut suite);
    device_memory::cases(&mut suite);
    import::cases(&mut suite);
    ece::cases(&mut suite);
    events::cases(&mut suite);
    limits::cases(&mut suite);
    cm_channels::cases(&mut suite);
    cm_addresses::cases(&mut suite);
    cm_resolving::cases(&mut suite);
    cm_listening::cases(&mut suite);
    cm_connecting::cases(&mut suite);
    cm_pairs::cases(&mut suite);
    cm_disconnecting::cases(&mut suite);
    cm_datagrams::cases(&mut suite);
    cm_groups::cases(&mut suite);
    cm_names::cases(&mut suite);
    cm_options::cases(&mut suite);
    cm_endpoints::cases(&mut suite);
    suite
}

/// The cases for a device with an InfiniBand link.
pub(crate) fn of_infiniband() -> Suite {
    let mut suite = all();
    infiniband::cases(&mut suite);
    suite
}

/// The cases for a device with small limits.
pub(crate) fn of_small_device() -> Suite {
    let mut suite = Suite::default();
    counts::cases(&mut suite);
    suite
}
