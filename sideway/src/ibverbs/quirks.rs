//! Defects of device libraries that this crate works around.

use std::ptr::NonNull;

use rdma_mummy_sys::types::{ibv_context, ibv_device_attr_ex};
use rdma_mummy_sys::{Provider, verbs};

/// Known defects of a device's library, for which this crate has workarounds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Quirks {
    /// SoftRoCE before rdma-core 55 drops a completion in an `ibv_end_poll` after an
    /// `ibv_next_poll` that found the queue empty. Workaround: end each poll after one completion.
    pub(crate) end_poll_after_each: bool,
    /// Inline data through `ibv_wr_set_inline_data` is broken in every rdma-core up to at least 65.
    ///
    /// SoftRoCE copies the bytes without telling the kernel about them, so that the message fails.
    /// If the queue is full, mlx5 writes them over an outstanding request, where the device may
    /// take them for addresses. `ibv_post_send` is correct in both.
    pub(crate) no_extended_inline: bool,
    /// SoftRoCE's `ibv_wr_set_sge_list` uses the first entry's length for all entries (every
    /// rdma-core before mid-2026). Fewer bytes are moved, or the message fails. `ibv_post_send` is
    /// correct.
    pub(crate) one_extended_entry: bool,
    /// mlx5's `ibv_wr_*` detect a full queue only after they have started to overwrite an
    /// outstanding request (every rdma-core up to at least 65). `ibv_post_send` checks first. So
    /// this crate refuses requests with which safe code could fill the queue.
    pub(crate) overwrites_when_full: bool,
    /// SoftRoCE copies memory on demand from and to the beginnings of its pages, whatever the
    /// offset, and repeats a packet's first bytes on its next page. It looks up pages by the
    /// address in requests, without a check, where that is not the memory's own (Linux up to at
    /// least 7.2). So safe code gets no such memory there, and nobody gets it at other addresses.
    pub(crate) misplaces_on_demand: bool,
}

impl Quirks {
    /// The vendor ID that the kernel's SoftRoCE reports.
    const RXE_VENDOR_ID: u32 = 0x00ff_ffff;

    /// The vendor ID of NVIDIA (Mellanox) NICs.
    const MELLANOX_VENDOR_ID: u32 = 0x02c9;

    const ALL: Self = Self {
        end_poll_after_each: true,
        no_extended_inline: true,
        one_extended_entry: true,
        overwrites_when_full: true,
        misplaces_on_demand: true,
    };

    /// How the firmware version of soft-rnic begins. It has SoftRoCE's vendor ID and none of its
    /// defects. SoftRoCE's version consists of numbers. A device's name tells nothing, because
    /// `rdma link add` gives SoftRoCE any name.
    const SOFT_RNIC_VERSION: &[u8] = b"soft-";

    /// The defects of a device's library, by the device's vendor id. All defects if the device does
    /// not answer, because each workaround is right with every device.
    ///
    /// # Safety
    ///
    /// `context` must be an open context of `provider`.
    pub(super) unsafe fn of(context: NonNull<ibv_context>, provider: Provider) -> Self {
        let mut attr = ibv_device_attr_ex::default();
        // SAFETY: the caller guarantees (`# Safety`) an open context. The input is null, which the
        // verb allows, and `attr` is a local variable.
        let result = unsafe {
            verbs::ibv_query_device_ex(provider.verbs(), context.as_ptr(), core::ptr::null(), &raw mut attr)
        };
        if result != 0 {
            return Self::ALL;
        }
        let version = attr.orig_attr.fw_ver.map(|byte| byte as u8);
        match attr.orig_attr.vendor_id {
            Self::RXE_VENDOR_ID if version.starts_with(Self::SOFT_RNIC_VERSION) => Self::default(),
            Self::RXE_VENDOR_ID => Self { overwrites_when_full: false, ..Self::ALL },
            Self::MELLANOX_VENDOR_ID => {
                Self { no_extended_inline: true, overwrites_when_full: true, ..Self::default() }
            }
            _ => Self::default(),
        }
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use crate::ibverbs::device::DeviceList;

    /// It reports SoftRoCE's vendor ID, and needs none of the workarounds.
    #[test]
    fn the_software_device_has_no_defects() {
        let context =
            DeviceList::from_provider(crate::soft::provider()).unwrap().first().unwrap().open().unwrap();
        assert_eq!(context.query_device().unwrap().vendor_id(), super::Quirks::RXE_VENDOR_ID);
        let quirks = context.quirks();
        assert!(!quirks.end_poll_after_each && !quirks.no_extended_inline && !quirks.one_extended_entry);
        assert!(!quirks.overwrites_when_full && !quirks.misplaces_on_demand);
    }
}
