//! Flow steering: rules that direct packets from the wire to a queue pair.
//!
//! A [`FlowAttribute`] describes packets layer by layer, with a value and a mask for each, and the
//! actions for them. While the [`Flow`] that is [made](QueuePairControl::create_flow) from it
//! exists, the queue pair gets the packets.
//!
//! It is for datagram and raw packet queue pairs of devices with
//! [`ManagedFlowSteering`](super::device_attr::DeviceCapabilityFlags::ManagedFlowSteering), and
//! needs the capability `CAP_NET_RAW`. SoftRoCE and the software device steer no packets, and
//! return [`Unsupported`]. ESP offload (`ibv_create_flow_action_esp`) is not wrapped.
//!
//! ```no_run
//! use sideway::ibverbs::flow::{EthernetFilter, FlowAttribute, FlowSpec, Match, PortFilter};
//! # use sideway::ibverbs::queue_pair::QueuePairControl;
//! # fn example(control: QueuePairControl) -> Result<(), Box<dyn std::error::Error>> {
//! // UDP packets to port 4791 of this Ethernet address.
//! let dst_mac = [0x66, 0x11, 0x22, 0x33, 0x44, 0x55];
//! let mac = EthernetFilter { dst_mac, ..EthernetFilter::default() };
//! let mask = EthernetFilter { dst_mac: [0xff; 6], ..EthernetFilter::default() };
//!
//! let port = PortFilter { dst_port: 4791, src_port: 0 };
//! let port_mask = PortFilter { dst_port: 0xffff, src_port: 0 };
//!
//! let mut attr = FlowAttribute::new(1);
//! attr.add(FlowSpec::Ethernet(Match::new(mac, mask)))
//!     .add(FlowSpec::Udp(Match::new(port, port_mask)));
//! let flow = control.create_flow(&attr)?;
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::io;
use std::mem::{ManuallyDrop, offset_of};
use std::ptr::NonNull;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use super::counters::Counters;
use super::queue_pair::QueuePairControl;
use super::{Unsupported, check};
use crate::error::{ConsumeError, Error, ErrorKind};

c_enum! {
    /// The kind of a rule (`ibv_flow_attr_type`).
    pub struct FlowType(u32) {
        /// Packets that match the rule's layers.
        Normal = ibv_flow_attr_type::IBV_FLOW_ATTR_NORMAL.0,
        /// All packets that match no other rule.
        AllDefault = ibv_flow_attr_type::IBV_FLOW_ATTR_ALL_DEFAULT.0,
        /// All multicast packets that match no other rule.
        MulticastDefault = ibv_flow_attr_type::IBV_FLOW_ATTR_MC_DEFAULT.0,
        /// All packets that the port sees.
        Sniffer = ibv_flow_attr_type::IBV_FLOW_ATTR_SNIFFER.0,
    }
}

display_as_debug!(FlowType);

c_flags! {
    /// Options of a rule (`ibv_flow_flags`).
    pub struct FlowFlags(u32) {
        /// Rules of lower priority get the packets too.
        DontTrap = ibv_flow_flags::IBV_FLOW_ATTR_FLAGS_DONT_TRAP.0,
        /// The rule applies to packets that are sent.
        Egress = ibv_flow_flags::IBV_FLOW_ATTR_FLAGS_EGRESS.0,
    }
}

/// A match on one layer of a packet: the value's bits that are set in the mask must be equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Match<F> {
    /// The bits to compare with.
    pub value: F,
    /// The bits that are compared. Most devices accept all bits of a field, or none.
    pub mask: F,
    /// Whether the layer is inside a tunnel (`IBV_FLOW_SPEC_INNER`).
    pub inner: bool,
}

impl<F> Match<F> {
    /// A layer of the outer packet.
    pub const fn new(value: F, mask: F) -> Self {
        Self { value, mask, inner: false }
    }

    /// A layer of the packet inside a tunnel.
    pub const fn inner(value: F, mask: F) -> Self {
        Self { value, mask, inner: true }
    }
}

/// The Ethernet header (`ibv_flow_eth_filter`). Numbers are in host byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EthernetFilter {
    /// The destination address.
    pub dst_mac: [u8; 6],
    /// The source address.
    pub src_mac: [u8; 6],
    /// The Ethertype after the last VLAN tag.
    pub ether_type: u16,
    /// The VLAN tag: priority, drop eligible bit, and in the low 12 bits the VLAN ID.
    pub vlan_tag: u16,
}

/// The IPv4 header (`ibv_flow_ipv4_filter`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv4Filter {
    /// The source address.
    pub src_ip: [u8; 4],
    /// The destination address.
    pub dst_ip: [u8; 4],
}

/// The IPv4 header with more of its fields (`ibv_flow_ipv4_ext_filter`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv4ExtFilter {
    /// The source address.
    pub src_ip: [u8; 4],
    /// The destination address.
    pub dst_ip: [u8; 4],
    /// The protocol.
    pub proto: u8,
    /// The type of service.
    pub tos: u8,
    /// The time to live.
    pub ttl: u8,
    /// The fragmentation flags.
    pub flags: u8,
}

/// The IPv6 header (`ibv_flow_ipv6_filter`). Numbers are in host byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv6Filter {
    /// The source address.
    pub src_ip: [u8; 16],
    /// The destination address.
    pub dst_ip: [u8; 16],
    /// The flow label, 20 bits.
    pub flow_label: u32,
    /// The next header.
    pub next_hdr: u8,
    /// The traffic class: DSCP in the upper 6 bits, ECN in the lower 2.
    pub traffic_class: u8,
    /// The hop limit, which each router decrements.
    pub hop_limit: u8,
}

/// The ports of TCP or UDP (`ibv_flow_tcp_udp_filter`), in host byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortFilter {
    /// The destination port.
    pub dst_port: u16,
    /// The source port.
    pub src_port: u16,
}

/// The header of VXLAN (`ibv_flow_tunnel_filter`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelFilter {
    /// The tunnel ID (VNI), in host byte order.
    pub tunnel_id: u32,
}

/// The header of GRE (`ibv_flow_gre_filter`), in host byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GreFilter {
    /// The flags and the version: C, K, S and the bits after them.
    pub c_ks_res0_ver: u16,
    /// The protocol of the payload.
    pub protocol: u16,
    /// The key, if the flag K is set.
    pub key: u32,
}

/// The header of MPLS (`ibv_flow_mpls_filter`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MplsFilter {
    /// All 32 bits, in host byte order.
    pub label: u32,
}

/// The header of ESP (`ibv_flow_esp_filter`), in host byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EspFilter {
    /// The security parameter index.
    pub spi: u32,
    /// The sequence number.
    pub seq: u32,
}

/// One part of a rule: a layer to match, or an action for the packets (`ibv_flow_spec_*`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlowSpec {
    /// The Ethernet header (`IBV_FLOW_SPEC_ETH`).
    Ethernet(Match<EthernetFilter>),
    /// The IPv4 addresses (`IBV_FLOW_SPEC_IPV4`).
    Ipv4(Match<Ipv4Filter>),
    /// IPv4, with more fields.
    Ipv4Ext(Match<Ipv4ExtFilter>),
    /// The IPv6 header (`IBV_FLOW_SPEC_IPV6`).
    Ipv6(Match<Ipv6Filter>),
    /// The TCP ports (`IBV_FLOW_SPEC_TCP`).
    Tcp(Match<PortFilter>),
    /// The UDP ports (`IBV_FLOW_SPEC_UDP`).
    Udp(Match<PortFilter>),
    /// The VXLAN header (`IBV_FLOW_SPEC_VXLAN_TUNNEL`).
    VxlanTunnel(Match<TunnelFilter>),
    /// The GRE header (`IBV_FLOW_SPEC_GRE`).
    Gre(Match<GreFilter>),
    /// MPLS; its position among the parts is its position in the packet.
    Mpls(Match<MplsFilter>),
    /// The ESP header: SPI and sequence number (`IBV_FLOW_SPEC_ESP`).
    Esp(Match<EspFilter>),
    /// Action: the packets get a tag, which completions report.
    Tag(u32),
    /// Action: the packets are dropped.
    Drop,
    /// Action: the packets are counted.
    Count(Counters),
}

/// A rule (`ibv_flow_attr` and the specifications after it).
#[derive(Clone, Debug)]
#[must_use]
pub struct FlowAttribute {
    flow_type: FlowType,
    priority: u16,
    port: u8,
    flags: FlowFlags,
    specs: Vec<FlowSpec>,
}

impl FlowAttribute {
    /// A normal rule of the highest priority, which matches all packets of a port.
    pub fn new(port: u8) -> Self {
        Self { flow_type: FlowType::Normal, priority: 0, port, flags: FlowFlags::empty(), specs: Vec::new() }
    }

    /// Sets the kind of the rule.
    pub fn setup_type(&mut self, flow_type: FlowType) -> &mut Self {
        self.flow_type = flow_type;
        self
    }

    /// Sets the priority: if a packet matches two rules, the one with the lower number applies.
    pub fn setup_priority(&mut self, priority: u16) -> &mut Self {
        self.priority = priority;
        self
    }

    /// Sets the rule's options.
    pub fn setup_flags(&mut self, flags: FlowFlags) -> &mut Self {
        self.flags = flags;
        self
    }

    /// Adds a layer or an action.
    pub fn add(&mut self, spec: FlowSpec) -> &mut Self {
        self.specs.push(spec);
        self
    }

    /// The rule as C structs; `None` if the size or the number of parts does not fit the C fields.
    fn encode(&self) -> Option<Encoded> {
        let mut bytes = Encoded::new(size_of::<ibv_flow_attr>());
        self.specs.iter().for_each(|spec| spec.encode(&mut bytes));
        let size = u16::try_from(bytes.len).ok()?;
        bytes.put(0, offset_of!(ibv_flow_attr, type_), self.flow_type.raw());
        bytes.put(0, offset_of!(ibv_flow_attr, size), size);
        bytes.put(0, offset_of!(ibv_flow_attr, priority), self.priority);
        bytes.put(0, offset_of!(ibv_flow_attr, num_of_specs), u8::try_from(self.specs.len()).ok()?);
        bytes.put(0, offset_of!(ibv_flow_attr, port), self.port);
        bytes.put(0, offset_of!(ibv_flow_attr, flags), self.flags.bits());
        Some(bytes)
    }

    fn counters(&self) -> impl Iterator<Item = &Counters> {
        self.specs.iter().filter_map(|spec| match spec {
            FlowSpec::Count(counters) => Some(counters),
            _ => None,
        })
    }
}

/// C structs packed without gaps into an aligned buffer; bytes that nothing wrote are zero.
struct Encoded {
    words: Vec<u64>,
    len: usize,
}

impl Encoded {
    fn new(len: usize) -> Self {
        let mut new = Self { words: Vec::new(), len: 0 };
        new.append(len);
        new
    }

    /// Appends zeroed room for a struct, and returns its offset.
    fn append(&mut self, len: usize) -> usize {
        let begin = self.len;
        self.len += len;
        self.words.resize(self.len.div_ceil(size_of::<u64>()), 0);
        begin
    }

    /// Writes a field of the struct that starts at offset `begin`.
    fn put<T: Copy>(&mut self, begin: usize, offset: usize, value: T) {
        let at = begin + offset;
        assert!(at + size_of::<T>() <= self.len);
        // SAFETY: the assertion above keeps the write within the words; `write_unaligned` needs no
        // alignment.
        unsafe { self.words.as_mut_ptr().byte_add(at).cast::<T>().write_unaligned(value) };
    }
}

/// Writes the fields of a layer, for the value and for the mask.
macro_rules! layer {
    ($bytes:ident, $Spec:ident, $Filter:ident, $type:ident, $layer:expr, |$filter:ident| { $($field:ident: $value:expr,)* }) => {{
        let layer = $layer;
        let begin = $bytes.append(size_of::<$Spec>());
        let inner = if layer.inner { ibv_flow_spec_type::IBV_FLOW_SPEC_INNER.0 } else { 0 };
        $bytes.put(begin, offset_of!($Spec, type_), ibv_flow_spec_type::$type.0 | inner);
        $bytes.put(begin, offset_of!($Spec, size), size_of::<$Spec>() as u16);
        for (offset, $filter) in [(offset_of!($Spec, val), layer.value), (offset_of!($Spec, mask), layer.mask)] {
            $($bytes.put(begin + offset, offset_of!($Filter, $field), $value);)*
        }
    }};
}

impl FlowSpec {
    fn encode(&self, bytes: &mut Encoded) {
        match self {
            Self::Ethernet(layer) => {
                layer!(bytes, ibv_flow_spec_eth, ibv_flow_eth_filter, IBV_FLOW_SPEC_ETH, layer, |of| {
                    dst_mac: of.dst_mac,
                    src_mac: of.src_mac,
                    ether_type: of.ether_type.to_be(),
                    vlan_tag: of.vlan_tag.to_be(),
                });
            }
            Self::Ipv4(layer) => {
                layer!(bytes, ibv_flow_spec_ipv4, ibv_flow_ipv4_filter, IBV_FLOW_SPEC_IPV4, layer, |of| {
                    src_ip: of.src_ip,
                    dst_ip: of.dst_ip,
                });
            }
            Self::Ipv4Ext(layer) => {
                layer!(bytes, ibv_flow_spec_ipv4_ext, ibv_flow_ipv4_ext_filter, IBV_FLOW_SPEC_IPV4_EXT, layer, |of| {
                    src_ip: of.src_ip,
                    dst_ip: of.dst_ip,
                    proto: of.proto,
                    tos: of.tos,
                    ttl: of.ttl,
                    flags: of.flags,
                });
            }
            Self::Ipv6(layer) => {
                layer!(bytes, ibv_flow_spec_ipv6, ibv_flow_ipv6_filter, IBV_FLOW_SPEC_IPV6, layer, |of| {
                    src_ip: of.src_ip,
                    dst_ip: of.dst_ip,
                    flow_label: of.flow_label.to_be(),
                    next_hdr: of.next_hdr,
                    traffic_class: of.traffic_class,
                    hop_limit: of.hop_limit,
                });
            }
            Self::Tcp(layer) => {
                layer!(bytes, ibv_flow_spec_tcp_udp, ibv_flow_tcp_udp_filter, IBV_FLOW_SPEC_TCP, layer, |of| {
                    dst_port: of.dst_port.to_be(),
                    src_port: of.src_port.to_be(),
                });
            }
            Self::Udp(layer) => {
                layer!(bytes, ibv_flow_spec_tcp_udp, ibv_flow_tcp_udp_filter, IBV_FLOW_SPEC_UDP, layer, |of| {
                    dst_port: of.dst_port.to_be(),
                    src_port: of.src_port.to_be(),
                });
            }
            Self::VxlanTunnel(layer) => {
                layer!(bytes, ibv_flow_spec_tunnel, ibv_flow_tunnel_filter, IBV_FLOW_SPEC_VXLAN_TUNNEL, layer, |of| {
                    tunnel_id: of.tunnel_id.to_be(),
                });
            }
            Self::Gre(layer) => {
                layer!(bytes, ibv_flow_spec_gre, ibv_flow_gre_filter, IBV_FLOW_SPEC_GRE, layer, |of| {
                    c_ks_res0_ver: of.c_ks_res0_ver.to_be(),
                    protocol: of.protocol.to_be(),
                    key: of.key.to_be(),
                });
            }
            Self::Mpls(layer) => {
                layer!(bytes, ibv_flow_spec_mpls, ibv_flow_mpls_filter, IBV_FLOW_SPEC_MPLS, layer, |of| {
                    label: of.label.to_be(),
                });
            }
            Self::Esp(layer) => {
                layer!(bytes, ibv_flow_spec_esp, ibv_flow_esp_filter, IBV_FLOW_SPEC_ESP, layer, |of| {
                    spi: of.spi.to_be(),
                    seq: of.seq.to_be(),
                });
            }
            Self::Tag(tag) => {
                type Spec = ibv_flow_spec_action_tag;
                let begin = bytes.action(ibv_flow_spec_type::IBV_FLOW_SPEC_ACTION_TAG, size_of::<Spec>());
                bytes.put(begin, offset_of!(Spec, tag_id), *tag);
            }
            Self::Drop => {
                let size = size_of::<ibv_flow_spec_action_drop>();
                bytes.action(ibv_flow_spec_type::IBV_FLOW_SPEC_ACTION_DROP, size);
            }
            Self::Count(counters) => {
                type Spec = ibv_flow_spec_counter_action;
                let begin = bytes.action(ibv_flow_spec_type::IBV_FLOW_SPEC_ACTION_COUNT, size_of::<Spec>());
                bytes.put(begin, offset_of!(Spec, counters), counters.as_raw().as_ptr());
            }
        }
    }
}

impl Encoded {
    /// Appends an action, which starts with its type and size as all of them do.
    fn action(&mut self, spec_type: ibv_flow_spec_type, size: usize) -> usize {
        let begin = self.append(size);
        self.put(begin, offset_of!(ibv_flow_spec_action_drop, type_), spec_type.0);
        self.put(begin, offset_of!(ibv_flow_spec_action_drop, size), size as u16);
        begin
    }
}

impl QueuePairControl {
    /// Directs the packets that match a rule to the queue pair, until the flow is closed or dropped
    /// (`ibv_create_flow`).
    ///
    /// # Errors
    ///
    /// Fails if the device cannot steer flows ([`Unsupported`]). Fails with `EINVAL` if the device
    /// or the queue pair's type does not allow the rule, and with `EPERM` without the capability.
    /// Also fails if the device has no room for more rules.
    ///
    /// # References
    ///
    /// `man ibv_create_flow`
    pub fn create_flow(&self, attr: &FlowAttribute) -> Result<Flow, Error> {
        let qp_num = self.qp_number();
        if attr.counters().any(|counters| counters.context() != self.context()) {
            return Err(Error::other_context(
                "ibv_create_flow",
                "the counters are of another context than the queue pair",
            ));
        }
        let mut encoded = attr.encode().ok_or_else(|| {
            let reason = "the rule is longer than 255 parts or 65535 bytes";
            Error::not_called("ibv_create_flow", ErrorKind::LimitExceeded, reason)
                .with("specs", attr.specs.len())
        })?;
        // SAFETY: `self` keeps the queue pair alive, the encoded attributes have the size that they
        // state, and the counters in them live in `attr`.
        let flow =
            unsafe { verbs::ibv_create_flow(self.as_raw().as_ptr(), encoded.words.as_mut_ptr().cast()) };
        match NonNull::new(flow) {
            Some(flow) => {
                let counters = attr.counters().cloned().collect();
                Ok(Flow { flow, control: self.clone(), counters })
            }
            None => {
                let source = io::Error::last_os_error();
                // The manual page has a separate error number for "not supported".
                let unsupported =
                    Unsupported::is_meant_by(&source) || source.raw_os_error() == Some(libc::ENXIO);
                Err(if unsupported {
                    Unsupported::new(self.context(), "ibv_create_flow", "flow steering").into()
                } else {
                    Error::os("ibv_create_flow", source)
                        .of_queue_pair(qp_num)
                        .with("port", attr.port)
                        .remedy("EPERM: it needs CAP_NET_RAW")
                })
            }
        }
    }
}

/// A rule in effect: packets that match it go to a queue pair (`ibv_flow`). Dropping it removes the
/// rule.
///
/// It keeps the queue pair and the rule's counters alive.
pub struct Flow {
    flow: NonNull<ibv_flow>,
    control: QueuePairControl,
    counters: Vec<Counters>,
}

// SAFETY: libibverbs allows verbs on one flow from any thread.
unsafe impl Send for Flow {}
// SAFETY: verbs on one flow may be called from any thread.
unsafe impl Sync for Flow {}

impl Flow {
    /// The queue pair that gets the packets.
    pub fn queue_pair(&self) -> &QueuePairControl {
        &self.control
    }

    /// The counters that count the packets.
    pub fn counters(&self) -> &[Counters] {
        &self.counters
    }

    /// The C object, for verbs that this crate does not wrap. Using it is as unsafe as in C; do not
    /// destroy it.
    pub fn as_raw(&self) -> NonNull<ibv_flow> {
        self.flow
    }

    /// Removes the rule now (`ibv_destroy_flow`), and returns the error that a drop would only log.
    ///
    /// # Errors
    ///
    /// Fails if the device did not remove the rule. The flow comes back with the error.
    ///
    /// # References
    ///
    /// `man ibv_create_flow`
    pub fn close(self) -> Result<(), ConsumeError<Self>> {
        let mut flow = ManuallyDrop::new(self);
        // SAFETY: `flow` owns the rule, and is taken apart below only if this call succeeded.
        match check(unsafe { verbs::ibv_destroy_flow(flow.flow.as_ptr()) }) {
            Ok(()) => {
                let counters = std::mem::take(&mut flow.counters);
                // SAFETY: `flow` is `ManuallyDrop`, so its own drop does not run, and this is the
                // only read of the control.
                drop((unsafe { core::ptr::read(&raw const flow.control) }, counters));
                Ok(())
            }
            Err(source) => Err(ConsumeError {
                object: ManuallyDrop::into_inner(flow),
                error: Error::os("ibv_destroy_flow", source)
                    .remedy("the queue pair still receives the rule's packets"),
            }),
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        // SAFETY: `self` owned the rule until here, and nothing uses it after the drop.
        if let Err(error) = check(unsafe { verbs::ibv_destroy_flow(self.flow.as_ptr()) }) {
            log::error!("ibv_destroy_flow failed for queue pair {:#x}: {error}", self.control.qp_number());
            // The library still has the flow, so the objects that it depends on must stay alive
            // too.
            std::mem::forget((self.control.clone(), std::mem::take(&mut self.counters)));
        }
    }
}

impl fmt::Debug for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flow").field("queue_pair", &self.control).finish_non_exhaustive()
    }
}
