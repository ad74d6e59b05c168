//! Port attributes: state, MTU, LID, link speed and capabilities.
//!
//! [`DeviceContext::query_port`] queries all attributes that the library knows. Attributes that an
//! older library does not know read as 0.
//!
//! ```
//! # #[cfg(feature = "soft")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use sideway::ibverbs::device::DeviceList;
//! # let list = DeviceList::from_provider(sideway::ProviderChoice::Soft.select()?.provider())?;
//! # let context = list.first()?.open()?;
//! let port = context.query_port(1)?;
//! println!("{} at {}, MTU {}", port.port_state(), port.link_layer(), port.active_mtu());
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "soft"))]
//! # fn main() {}
//! ```

use std::fmt;

use rdma_mummy_sys::types::{ibv_port_attr, ibv_port_cap_flags as C, ibv_port_cap_flags2 as C2};
use rdma_mummy_sys::verbs;

use super::device_context::DeviceContext;
use super::{Unsupported, check};
use crate::error::Error;

impl DeviceContext {
    /// Queries the state of a port (`ibv_query_port`). Ports are numbered from 1.
    ///
    /// # Errors
    ///
    /// Fails if the port does not exist, or if the device does not answer.
    ///
    /// # References
    ///
    /// `man ibv_query_port`
    pub fn query_port(&self, port_num: u8) -> Result<PortAttr, Error> {
        let mut attr = ibv_port_attr::default();
        // SAFETY: `self` keeps the context open, and `attr` is a local variable.
        let result = unsafe {
            verbs::ibv_query_port(self.provider().verbs(), self.as_raw().as_ptr(), port_num, &raw mut attr)
        };
        check(result).map_err(|source| {
            Error::os("ibv_query_port", source).with("port_num", port_num).remedy("ports are numbered from 1")
        })?;
        Ok(PortAttr::new(attr))
    }
}

/// The attributes of a port (`ibv_port_attr`).
#[derive(Clone, Copy)]
pub struct PortAttr {
    attr: ibv_port_attr,
}

impl PortAttr {
    pub(crate) fn new(attr: ibv_port_attr) -> Self {
        Self { attr }
    }

    /// The C struct, for fields that have no getter.
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

    /// The largest MTU that the port supports.
    pub fn max_mtu(&self) -> Mtu {
        Mtu::from_raw(self.attr.max_mtu.0)
    }

    /// The MTU in use.
    pub fn active_mtu(&self) -> Mtu {
        Mtu::from_raw(self.attr.active_mtu.0)
    }

    /// The number of entries of the GID table, including empty ones.
    pub fn gid_tbl_len(&self) -> i32 {
        self.attr.gid_tbl_len
    }

    /// The number of entries of the partition key table.
    pub fn pkey_tbl_len(&self) -> u16 {
        self.attr.pkey_tbl_len
    }

    /// The longest message, in bytes.
    pub fn max_msg_sz(&self) -> u32 {
        self.attr.max_msg_sz
    }

    /// The port's LID; 0 on Ethernet.
    pub fn lid(&self) -> u16 {
        self.attr.lid
    }

    /// The subnet manager's LID.
    pub fn sm_lid(&self) -> u16 {
        self.attr.sm_lid
    }

    /// The LID mask control: the number of low bits of the LID that are path bits.
    pub fn lmc(&self) -> u8 {
        self.attr.lmc
    }

    /// The link layer: InfiniBand or Ethernet.
    pub fn link_layer(&self) -> LinkLayer {
        LinkLayer::from_raw(self.attr.link_layer)
    }

    /// The number of lanes in use.
    pub fn active_width(&self) -> PortWidth {
        PortWidth::from_raw(self.attr.active_width)
    }

    /// The speed of a lane. It is `active_speed_ex` if the library reports it, which speeds from
    /// XDR on need.
    pub fn active_speed(&self) -> PortSpeed {
        let speed = u32::from(self.attr.active_speed);
        PortSpeed::from_raw(if self.attr.active_speed_ex == 0 { speed } else { self.attr.active_speed_ex })
    }

    /// Whether every packet needs a global routing header (`IBV_QPF_GRH_REQUIRED`).
    pub fn is_grh_required(&self) -> bool {
        self.attr.flags & 1 != 0
    }

    /// Capabilities (`port_cap_flags`), one bit each.
    pub fn port_cap_flags(&self) -> u32 {
        self.attr.port_cap_flags
    }

    /// The bits of [`port_cap_flags`](Self::port_cap_flags), by name.
    pub fn capability_flags(&self) -> PortCapabilityFlags {
        PortCapabilityFlags::from_bits_retain(self.attr.port_cap_flags)
    }

    /// Further capabilities, valid with [`PortCapabilityFlags::CapMask2`].
    pub fn capability_flags2(&self) -> PortCapabilityFlags2 {
        PortCapabilityFlags2::from_bits_retain(self.attr.port_cap_flags2)
    }

    /// The maximum number of virtual lanes, as a code: 1 to 5 stand for 1, 2, 4, 8 and 15 lanes.
    pub fn max_vl_num(&self) -> u8 {
        self.attr.max_vl_num
    }

    /// The number of received packets with a wrong partition key.
    pub fn bad_pkey_cntr(&self) -> u32 {
        self.attr.bad_pkey_cntr
    }

    /// The number of received packets with a wrong Q_Key.
    pub fn qkey_viol_cntr(&self) -> u32 {
        self.attr.qkey_viol_cntr
    }

    /// The service level for packets to the subnet manager.
    pub fn sm_sl(&self) -> u8 {
        self.attr.sm_sl
    }

    /// The maximum time of a packet through the subnet, as an exponent (4.096 us x 2^n).
    pub fn subnet_timeout(&self) -> u8 {
        self.attr.subnet_timeout
    }

    /// The subnet manager's reply about the type of initialisation that it performed.
    pub fn init_type_reply(&self) -> u8 {
        self.attr.init_type_reply
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

c_flags! {
    /// Capabilities of a port (`ibv_port_cap_flags`; InfiniBand specification, chapter 14,
    /// PortInfo).
    pub struct PortCapabilityFlags(u32) {
        /// The port runs a subnet manager.
        SubnetManager = C::IBV_PORT_SM.0,
        /// The port supports notices (`IsNoticeSupported`).
        Notice = C::IBV_PORT_NOTICE_SUP.0,
        /// The port can report events to the subnet manager by traps (`IsTrapSupported`).
        Trap = C::IBV_PORT_TRAP_SUP.0,
        /// Inter-packet delays.
        OptionalIpd = C::IBV_PORT_OPT_IPD_SUP.0,
        /// Automatic path migration.
        AutomaticMigration = C::IBV_PORT_AUTO_MIGR_SUP.0,
        /// Service levels are mapped to virtual lanes.
        SlMap = C::IBV_PORT_SL_MAP_SUP.0,
        /// The management key survives a power cycle.
        MkeyNvram = C::IBV_PORT_MKEY_NVRAM.0,
        /// Partition keys survive a power cycle.
        PkeyNvram = C::IBV_PORT_PKEY_NVRAM.0,
        /// The port has LEDs that can be controlled.
        LedInfo = C::IBV_PORT_LED_INFO_SUP.0,
        /// The GUID of the system is known.
        SystemImageGuid = C::IBV_PORT_SYS_IMAGE_GUID_SUP.0,
        /// Traps of wrong partition keys at switches' external ports.
        PkeySwitchExternalPortTrap = C::IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP.0,
        /// The port supports link speeds beyond QDR (`IsExtendedSpeedsSupported`).
        ExtendedSpeeds = C::IBV_PORT_EXTENDED_SPEEDS_SUP.0,
        /// Further flags exist ([`PortCapabilityFlags2`]).
        CapMask2 = C::IBV_PORT_CAP_MASK2_SUP.0,
        /// The node answers management datagrams that open connections
        /// (`IsCommunicationManagementSupported`).
        CommunicationManagement = C::IBV_PORT_CM_SUP.0,
        /// SNMP through a tunnel.
        SnmpTunnel = C::IBV_PORT_SNMP_TUNNEL_SUP.0,
        /// Reinitialisation.
        Reinit = C::IBV_PORT_REINIT_SUP.0,
        /// The node answers device management datagrams (`IsDeviceManagementSupported`).
        DeviceManagement = C::IBV_PORT_DEVICE_MGMT_SUP.0,
        /// Vendor-specific management.
        VendorClass = C::IBV_PORT_VENDOR_CLASS_SUP.0,
        /// The port supports notices by directed route (`IsDRNoticeSupported`).
        DirectedRouteNotice = C::IBV_PORT_DR_NOTICE_SUP.0,
        /// Notices of changed capabilities.
        CapMaskNotice = C::IBV_PORT_CAP_MASK_NOTICE_SUP.0,
        /// The node answers boot management datagrams (`IsBootManagementSupported`).
        BootManagement = C::IBV_PORT_BOOT_MGMT_SUP.0,
        /// The round-trip latency of the link is known.
        LinkLatency = C::IBV_PORT_LINK_LATENCY_SUP.0,
        /// Clients renew their subscriptions when the subnet manager asks.
        ClientReregistration = C::IBV_PORT_CLIENT_REG_SUP.0,
        /// GIDs are IP addresses (RoCE).
        IpBasedGids = C::IBV_PORT_IP_BASED_GIDS.0,
    }
}

c_flags! {
    /// Further capabilities of a port (`ibv_port_cap_flags2`).
    pub struct PortCapabilityFlags2(u16) {
        /// The node's description can be set.
        SetNodeDescription = C2::IBV_PORT_SET_NODE_DESC_SUP.0,
        /// Extended port information is available.
        ExtendedPortInfo = C2::IBV_PORT_INFO_EXT_SUP.0,
        /// Virtual ports.
        Virtualization = C2::IBV_PORT_VIRT_SUP.0,
        /// A table of the states of a switch's ports.
        SwitchPortStateTable = C2::IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP.0,
        /// A link width of two lanes.
        LinkWidth2X = C2::IBV_PORT_LINK_WIDTH_2X_SUP.0,
        /// HDR: 50 Gbit/s per lane.
        LinkSpeedHdr = C2::IBV_PORT_LINK_SPEED_HDR_SUP.0,
        /// NDR: 100 Gbit/s per lane.
        LinkSpeedNdr = C2::IBV_PORT_LINK_SPEED_NDR_SUP.0,
        /// XDR: 200 Gbit/s per lane.
        LinkSpeedXdr = C2::IBV_PORT_LINK_SPEED_XDR_SUP.0,
    }
}

/// The current speed of a port over all lanes, for example of a bonded device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EffectiveSpeed(u64);

impl EffectiveSpeed {
    pub(crate) const fn from_hundreds_of_mbps(speed: u64) -> Self {
        Self(speed)
    }

    /// The speed in units of 100 Mb/s, as the library reports it.
    pub const fn hundreds_of_mbps(self) -> u64 {
        self.0
    }

    /// The speed in Gb/s.
    pub fn gbps(self) -> f64 {
        self.0 as f64 / 10.0
    }
}

impl DeviceContext {
    /// Queries the current speed of a port (`ibv_query_port_speed`).
    ///
    /// # Errors
    ///
    /// Fails if the port does not exist. Fails as [`Unsupported`] if the device does not report the
    /// speed, or if the library is older than rdma-core 62. [`PortAttr::active_width`] and
    /// [`PortAttr::active_speed`] are available in any case.
    ///
    /// # References
    ///
    /// `man ibv_query_port_speed`
    pub fn query_port_speed(&self, port_num: u8) -> Result<EffectiveSpeed, Error> {
        const WHAT: &str = "effective speed of a port";
        let query = self.provider().verbs().ibv_query_port_speed();
        let query = query.map_err(|symbol| Unsupported::missing(self, WHAT, symbol))?;
        let mut speed = 0;
        // SAFETY: `self` keeps the context open, and `speed` is a local variable.
        let result = check(unsafe { query(self.as_raw().as_ptr(), u32::from(port_num), &raw mut speed) });
        match result {
            Ok(()) => Ok(EffectiveSpeed(speed)),
            Err(source) => Err(Error::of_device(self, "ibv_query_port_speed", WHAT, source)
                .with("port_num", port_num)
                .remedy("ports are numbered from 1")),
        }
    }
}

c_enum! {
    /// The maximum transfer unit of a path (`ibv_mtu`). Values are ordered by size.
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
    /// The size in bytes; `None` for a value that this crate does not know.
    pub const fn bytes(self) -> Option<u32> {
        match self.raw() {
            value @ 1..=5 => Some(128 << value),
            _ => None,
        }
    }

    /// The MTU of exactly `bytes` bytes, if it exists.
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
        /// No state change.
        Nop = 0,
        /// The link is down.
        Down = 1,
        /// The link is up, but the subnet manager has not configured it.
        Initialize = 2,
        /// The port is configured, but not in use yet.
        Armed = 3,
        /// The port is in use.
        Active = 4,
        /// The port is in use, but its traffic is held back.
        ActiveDefer = 5,
    }
}

c_enum! {
    /// The physical state of a link.
    pub struct PhysicalState(u8) {
        /// The link sleeps.
        Sleep = 1,
        /// The port looks for a link partner.
        Polling = 2,
        /// The port is disabled.
        Disabled = 3,
        /// The port trains the link.
        PortConfigurationTraining = 4,
        /// The link is trained and can carry packets.
        LinkUp = 5,
        /// The link recovers from an error.
        LinkErrorRecovery = 6,
        /// The link is under test.
        PhyTest = 7,
    }
}

c_enum! {
    /// The link layer of a port.
    pub struct LinkLayer(u8) {
        /// Not reported, which means InfiniBand.
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
    /// The number of lanes; `None` for a value that this crate does not know.
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
    /// The speed in Gb/s, rounded as `ibv_devinfo` does; `None` for a speed that this crate does
    /// not know.
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
into_integer!(Mtu => u32, PortState => u32);
