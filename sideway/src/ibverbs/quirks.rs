//! Defects of device libraries that this crate works around.

use std::ptr::NonNull;

use rdma_mummy_sys::types::{ibv_context, ibv_device_attr_ex};
use rdma_mummy_sys::{Provider, verbs};

/// What is known to be wrong with a device's library.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Quirks {
    /// SoftRoCE's `ibv_end_poll` after an `ibv_next_poll` that found the queue empty drops a completion
    /// (rdma-core before 55): each poll must end after one completion.
    pub(crate) end_poll_after_each: bool,
    /// SoftRoCE's `ibv_wr_set_inline_data` copies the bytes without telling the kernel that they are there
    /// (every rdma-core up to 65 at least), so that the message fails; mlx5's (likewise) writes them over an
    /// outstanding request if the queue is full, where the device may take them for addresses.
    /// `ibv_post_send` has it right in both.
    pub(crate) no_extended_inline: bool,
    /// SoftRoCE's `ibv_wr_set_sge_list` takes every entry to be as long as the first (every rdma-core before
    /// mid-2026), so that fewer bytes are moved, or the message fails; `ibv_post_send` has it right.
    pub(crate) one_extended_entry: bool,
    /// mlx5's `ibv_wr_*` find out that the queue is full only after they have begun to write over an outstanding request (every
    /// rdma-core up to 65 at least); `ibv_post_send` looks first. So requests that safe code could fill the queue with are refused.
    pub(crate) overwrites_when_full: bool,
}

impl Quirks {
    /// The vendor id that the kernel's SoftRoCE reports.
    const RXE_VENDOR_ID: u32 = 0x00ff_ffff;

    /// The vendor id of NVIDIA's (Mellanox') NICs.
    const MELLANOX_VENDOR_ID: u32 = 0x02c9;

    const ALL: Self = Self {
        end_poll_after_each: true,
        no_extended_inline: true,
        one_extended_entry: true,
        overwrites_when_full: true,
    };

    /// The defects of a device's library, by the device's vendor id; all of them if the device does not
    /// answer, because each workaround is right with every device.
    ///
    /// # Safety
    ///
    /// `context` is an open context of `provider`.
    pub(super) unsafe fn of(context: NonNull<ibv_context>, provider: Provider) -> Self {
        let mut attr = ibv_device_attr_ex::default();
        // SAFETY: the caller gives an open context; no input is given and `attr` is a valid place.
        let result = unsafe {
            verbs::ibv_query_device_ex(provider.verbs(), context.as_ptr(), core::ptr::null(), &raw mut attr)
        };
        if result != 0 {
            return Self::ALL;
        }
        match attr.orig_attr.vendor_id {
            Self::RXE_VENDOR_ID => Self { overwrites_when_full: false, ..Self::ALL },
            Self::MELLANOX_VENDOR_ID => {
                Self { no_extended_inline: true, overwrites_when_full: true, ..Self::default() }
            }
            _ => Self::default(),
        }
    }
}
