//! The state of a port.

use std::fmt;

use rdma_mummy_sys::types::ibv_port_attr;

/// The attributes of a port (`ibv_port_attr`).
#[derive(Clone, Copy)]
pub struct PortAttr {
    attr: ibv_port_attr,
}

impl PortAttr {
    pub(crate) fn new(attr: ibv_port_attr) -> Self {
        Self { attr }
    }

    /// The C struct.
    pub fn raw(&self) -> &ibv_port_attr {
        &self.attr
    }

    /// The logical state: traffic flows only when it is [`PortState::Active`].
    pub fn port_state(&self) -> PortState {
        PortState::from_raw(self.attr.state.0)
    }

    /// The physical state of the link.
    pub fn phys_state(&self) -> PhysicalState {
        PhysicalState::from_raw(self.attr.phys_state)
    }

    /// The largest MTU that the port can have.
    pub fn max_mtu(&self) -> Mtu {
        Mtu::from_raw(self.attr.max_mtu.0)
    }

    /// The MTU that the port has now.
    pub fn active_mtu(&self) -> Mtu {
        Mtu::from_raw(self.attr.active_mtu.0)
    }

    /// The length of the GID table.
    pub fn gid_tbl_len(&self) -> i32 {
        self.attr.gid_tbl_len
    }

    /// The length of the partition key table.
    pub fn pkey_tbl_len(&self) -> u16 {
        self.attr.pkey_tbl_len
    }

    /// The longest message, in bytes.
    pub fn max_msg_sz(&self) -> u32 {
        self.attr.max_msg_sz
    }

    /// The port's local identifier; 0 where the link layer is Ethernet.
    pub fn lid(&self) -> u16 {
        self.attr.lid
    }

    /// The subnet manager's local identifier.
    pub fn sm_lid(&self) -> u16 {
        self.attr.sm_lid
    }

    /// How many low bits of the LID are path bits.
    pub fn lmc(&self) -> u8 {
        self.attr.lmc
    }

    /// What the port is plugged into.
    pub fn link_layer(&self) -> LinkLayer {
        LinkLayer::from_raw(self.attr.link_layer)
    }

    /// The number of lanes in use.
    pub fn active_width(&self) -> PortWidth {
        PortWidth::from_raw(self.attr.active_width)
    }

    /// The speed of a lane (`active_speed_ex` where the library reports it, as speeds from XDR on need).
    pub fn active_speed(&self) -> PortSpeed {
        let speed = u32::from(self.attr.active_speed);
        PortSpeed::from_raw(if self.attr.active_speed_ex == 0 { speed } else { self.attr.active_speed_ex })
    }

    /// Whether every packet needs a global routing header (`IBV_QPF_GRH_REQUIRED`).
    pub fn is_grh_required(&self) -> bool {
        self.attr.flags & 1 != 0
    }

    /// Capabilities, one bit each.
    pub fn port_cap_flags(&self) -> u32 {
        self.attr.port_cap_flags
    }
}

impl fmt::Debug for PortAttr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortAttr")
            .field("state", &self.port_state())
            .field("active_mtu", &self.active_mtu())
            .field("lid", &self.lid())
            .field("link_layer", &self.link_layer())
            .finish_non_exhaustive()
    }
}

c_enum! {
    /// A path's maximum transfer unit (`ibv_mtu`). The order of values is the order of sizes.
    pub struct Mtu(u32) {
        /// 256 bytes.
        Mtu256 = 1,
        /// 512 bytes.
        Mtu512 = 2,
        /// 1024 bytes.
        Mtu1024 = 3,
        /// 2048 bytes.
        Mtu2048 = 4,
        /// 4096 bytes.
        Mtu4096 = 5,
    }
}

impl Mtu {
    /// In bytes; `None` for a value that this crate does not know.
    pub const fn bytes(self) -> Option<u32> {
        match self.raw() {
            value @ 1..=5 => Some(128 << value),
            _ => None,
        }
    }

    /// The MTU of exactly this many bytes.
    pub const fn from_bytes(bytes: u32) -> Option<Self> {
        match bytes {
            256 => Some(Self::Mtu256),
            512 => Some(Self::Mtu512),
            1024 => Some(Self::Mtu1024),
            2048 => Some(Self::Mtu2048),
            4096 => Some(Self::Mtu4096),
            _ => None,
        }
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes() {
            Some(bytes) => write!(f, "{bytes}"),
            None => write!(f, "{self:?}"),
        }
    }
}

c_enum! {
    /// The logical state of a port (`ibv_port_state`).
    pub struct PortState(u32) {
        /// No state change yet.
        Nop = 0,
        /// The link is down.
        Down = 1,
        /// The link is up; the subnet manager has not configured it.
        Initialize = 2,
        /// Configured, and not yet in use.
        Armed = 3,
        /// In use.
        Active = 4,
        /// In use, with its traffic held back.
        ActiveDefer = 5,
    }
}

c_enum! {
    /// The physical state of a link.
    pub struct PhysicalState(u8) {
        /// Asleep.
        Sleep = 1,
        /// Looking for a partner.
        Polling = 2,
        /// Switched off.
        Disabled = 3,
        /// Training.
        PortConfigurationTraining = 4,
        /// The link is up.
        LinkUp = 5,
        /// Recovering from an error.
        LinkErrorRecovery = 6,
        /// Under test.
        PhyTest = 7,
    }
}

c_enum! {
    /// What a port is plugged into.
    pub struct LinkLayer(u8) {
        /// Not known, which means InfiniBand.
        Unspecified = 0,
        /// InfiniBand.
        InfiniBand = 1,
        /// Ethernet: RoCE or iWARP.
        Ethernet = 2,
    }
}

c_enum! {
    /// The number of lanes of a link.
    pub struct PortWidth(u8) {
        /// One lane.
        Width1X = 1,
        /// Four lanes.
        Width4X = 2,
        /// Eight lanes.
        Width8X = 4,
        /// Twelve lanes.
        Width12X = 8,
        /// Two lanes.
        Width2X = 16,
    }
}

impl PortWidth {
    /// How many lanes.
    pub const fn lanes(self) -> Option<u32> {
        match self {
            Self::Width1X => Some(1),
            Self::Width2X => Some(2),
            Self::Width4X => Some(4),
            Self::Width8X => Some(8),
            Self::Width12X => Some(12),
            _ => None,
        }
    }
}

c_enum! {
    /// The speed of one lane of a link.
    pub struct PortSpeed(u32) {
        /// 2.5 Gb/s.
        Sdr = 1,
        /// 5 Gb/s.
        Ddr = 2,
        /// 10 Gb/s.
        Qdr = 4,
        /// 10.3125 Gb/s.
        Fdr10 = 8,
        /// 14.0625 Gb/s.
        Fdr = 16,
        /// 25.78125 Gb/s.
        Edr = 32,
        /// 53.125 Gb/s.
        Hdr = 64,
        /// 106.25 Gb/s.
        Ndr = 128,
        /// 212.5 Gb/s.
        Xdr = 256,
    }
}

impl PortSpeed {
    /// In Gb/s, rounded as `ibv_devinfo` does; `None` for a speed that this crate does not know.
    pub const fn gbps(self) -> Option<f64> {
        Some(match self {
            Self::Sdr => 2.5,
            Self::Ddr => 5.0,
            Self::Qdr | Self::Fdr10 => 10.0,
            Self::Fdr => 14.0,
            Self::Edr => 25.0,
            Self::Hdr => 50.0,
            Self::Ndr => 100.0,
            Self::Xdr => 200.0,
            _ => return None,
        })
    }
}

display_as_debug!(PortState, PhysicalState, LinkLayer, PortWidth, PortSpeed);
