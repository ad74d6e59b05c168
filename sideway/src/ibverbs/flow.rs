//! Flow steering: which packets of the wire a queue pair gets.
//!
//! A [`FlowAttribute`] describes packets layer by layer, with a value and a mask for each, and what is done with them; as long as
//! the [`Flow`] that is [made](QueuePairControl::create_flow) of it is there, the queue pair gets the packets.
//!
//! It is for datagram and raw packet queue pairs of devices that say
//! [`ManagedFlowSteering`](super::device_attr::DeviceCapabilityFlags::ManagedFlowSteering), and needs rights
//! (`CAP_NET_RAW`). SoftRoCE and the software device have no packets to steer, and answer [`Unsupported`]. ESP offload
//! (`ibv_create_flow_action_esp`) is not wrapped.
//!
//! ```no_run
//! use sideway::ibverbs::flow::{EthernetFilter, FlowAttribute, FlowSpec, Match, PortFilter};
//! # fn example(control: sideway::ibverbs::queue_pair::QueuePairControl) -> Result<(), Box<dyn std::error::Error>> {
//! // UDP packets to port 4791 of this Ethernet address.
//! let mac = EthernetFilter { dst_mac: [0x66, 0x11, 0x22, 0x33, 0x44, 0x55], ..EthernetFilter::default() };
//! let mask = EthernetFilter { dst_mac: [0xff; 6], ..EthernetFilter::default() };
//! let port = PortFilter { dst_port: 4791, src_port: 0 };
//! let port_mask = PortFilter { dst_port: 0xffff, src_port: 0 };
//! let mut attr = FlowAttribute::new(1);
//! attr.add(FlowSpec::Ethernet(Match::new(mac, mask))).add(FlowSpec::Udp(Match::new(port, port_mask)));
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
        /// As its specifications say.
        Normal = ibv_flow_attr_type::IBV_FLOW_ATTR_NORMAL.0,
        /// Everything that no other rule takes.
        AllDefault = ibv_flow_attr_type::IBV_FLOW_ATTR_ALL_DEFAULT.0,
        /// All multicast packets that no other rule takes.
        MulticastDefault = ibv_flow_attr_type::IBV_FLOW_ATTR_MC_DEFAULT.0,
        /// Everything that the port sees.
        Sniffer = ibv_flow_attr_type::IBV_FLOW_ATTR_SNIFFER.0,
    }
}

display_as_debug!(FlowType);

c_flags! {
    /// How a rule works (`ibv_flow_flags`).
    pub struct FlowFlags(u32) {
        /// Rules of lower priority see the packets, too.
        DontTrap = ibv_flow_flags::IBV_FLOW_ATTR_FLAGS_DONT_TRAP.0,
        /// The rule is about packets that are sent.
        Egress = ibv_flow_flags::IBV_FLOW_ATTR_FLAGS_EGRESS.0,
    }
}

/// What a layer of a packet has to be: bits of the value count where the mask has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Match<F> {
    /// The bits.
    pub value: F,
    /// Which of them count. Most devices want all bits of a field, or none.
    pub mask: F,
    /// It is about the headers within a tunnel (`IBV_FLOW_SPEC_INNER`).
    pub inner: bool,
}

impl<F> Match<F> {
    /// A layer of the packet itself.
    pub const fn new(value: F, mask: F) -> Self {
        Self { value, mask, inner: false }
    }

    /// A layer of what a tunnel carries.
    pub const fn inner(value: F, mask: F) -> Self {
        Self { value, mask, inner: true }
    }
}

/// The Ethernet header (`ibv_flow_eth_filter`). Numbers are in host byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EthernetFilter {
    /// The receiver.
    pub dst_mac: [u8; 6],
    /// The sender.
    pub src_mac: [u8; 6],
    /// The type after the last VLAN tag.
    pub ether_type: u16,
    /// The VLAN tag.
    pub vlan_tag: u16,
}

/// The IPv4 header (`ibv_flow_ipv4_filter`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv4Filter {
    /// The sender.
    pub src_ip: [u8; 4],
    /// The receiver.
    pub dst_ip: [u8; 4],
}

/// The IPv4 header with more of its fields (`ibv_flow_ipv4_ext_filter`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv4ExtFilter {
    /// The sender.
    pub src_ip: [u8; 4],
    /// The receiver.
    pub dst_ip: [u8; 4],
    /// The protocol.
    pub proto: u8,
    /// The type of service.
    pub tos: u8,
    /// The time to live.
    pub ttl: u8,
    /// The flags of fragments.
    pub flags: u8,
}

/// The IPv6 header (`ibv_flow_ipv6_filter`). Numbers are in host byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv6Filter {
    /// The sender.
    pub src_ip: [u8; 16],
    /// The receiver.
    pub dst_ip: [u8; 16],
    /// The flow label.
    pub flow_label: u32,
    /// The next header.
    pub next_hdr: u8,
    /// The traffic class.
    pub traffic_class: u8,
    /// The hop limit.
    pub hop_limit: u8,
}

/// The ports of TCP or UDP (`ibv_flow_tcp_udp_filter`), in host byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortFilter {
    /// The receiver's.
    pub dst_port: u16,
    /// The sender's.
    pub src_port: u16,
}

/// The header of VXLAN (`ibv_flow_tunnel_filter`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelFilter {
    /// The tunnel's number, in host byte order.
    pub tunnel_id: u32,
}

/// The header of GRE (`ibv_flow_gre_filter`), in host byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GreFilter {
    /// The flags and the version: C, K, S and the bits after them.
    pub c_ks_res0_ver: u16,
    /// The protocol that is carried.
    pub protocol: u16,
    /// The key.
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
    /// The security parameters' index.
    pub spi: u32,
    /// The sequence number.
    pub seq: u32,
}

/// One part of a rule: a layer, or what is done with its packets (`ibv_flow_spec_*`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlowSpec {
    /// Ethernet.
    Ethernet(Match<EthernetFilter>),
    /// IPv4.
    Ipv4(Match<Ipv4Filter>),
    /// IPv4, with more fields.
    Ipv4Ext(Match<Ipv4ExtFilter>),
    /// IPv6.
    Ipv6(Match<Ipv6Filter>),
    /// TCP.
    Tcp(Match<PortFilter>),
    /// UDP.
    Udp(Match<PortFilter>),
    /// VXLAN.
    VxlanTunnel(Match<TunnelFilter>),
    /// GRE.
    Gre(Match<GreFilter>),
    /// MPLS, which has to be given where it stands in the packet.
    Mpls(Match<MplsFilter>),
    /// ESP.
    Esp(Match<EspFilter>),
    /// The packets get a tag, which completions tell.
    Tag(u32),
    /// The packets are dropped.
    Drop,
    /// The packets are counted.
    Count(Counters),
}

/// A rule (`ibv_flow_attr` and what follows it).
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
    /// A normal rule of the highest priority, about all packets of a port.
    pub fn new(port: u8) -> Self {
        Self { flow_type: FlowType::Normal, priority: 0, port, flags: FlowFlags::empty(), specs: Vec::new() }
    }

    /// The kind of the rule.
    pub fn setup_type(&mut self, flow_type: FlowType) -> &mut Self {
        self.flow_type = flow_type;
        self
    }

    /// Of two rules that a packet fits, the one with the lower number has it.
    pub fn setup_priority(&mut self, priority: u16) -> &mut Self {
        self.priority = priority;
        self
    }

    /// How the rule works.
    pub fn setup_flags(&mut self, flags: FlowFlags) -> &mut Self {
        self.flags = flags;
        self
    }

    /// One part more.
    pub fn add(&mut self, spec: FlowSpec) -> &mut Self {
        self.specs.push(spec);
        self
    }

    /// The bytes that C takes; `None` if they, or the parts, are more than can be said.
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

/// Structs that follow one another without gaps, aligned where they begin; zero where nothing was written.
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

    /// Room for a struct: where it begins.
    fn append(&mut self, len: usize) -> usize {
        let begin = self.len;
        self.len += len;
        self.words.resize(self.len.div_ceil(size_of::<u64>()), 0);
        begin
    }

    /// Writes a field of the struct that begins there.
    fn put<T: Copy>(&mut self, begin: usize, offset: usize, value: T) {
        let at = begin + offset;
        assert!(at + size_of::<T>() <= self.len);
        // SAFETY: within the words, as was just checked; the place may be unaligned.
        unsafe { self.words.as_mut_ptr().byte_add(at).cast::<T>().write_unaligned(value) };
    }
}

/// Writes the parts of a layer that value and mask have in common.
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
    /// A struct that begins with its type and size, as all of them do.
    fn action(&mut self, spec_type: ibv_flow_spec_type, size: usize) -> usize {
        let begin = self.append(size);
        self.put(begin, offset_of!(ibv_flow_spec_action_drop, type_), spec_type.0);
        self.put(begin, offset_of!(ibv_flow_spec_action_drop, size), size as u16);
        begin
    }
}

impl QueuePairControl {
    /// Has the packets of a rule go to the queue pair, until the flow is closed or dropped (`ibv_create_flow`).
    ///
    /// # Errors
    ///
    /// The device steers no flows ([`Unsupported`]); the rule makes no sense to it, or to the type of the queue pair (`EINVAL`);
    /// the process may not (`EPERM`); there are too many rules.
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
        // SAFETY: the queue pair lives; the attributes are as long as they say, and what they point to lives.
        let flow =
            unsafe { verbs::ibv_create_flow(self.as_raw().as_ptr(), encoded.words.as_mut_ptr().cast()) };
        match NonNull::new(flow) {
            Some(flow) => {
                let counters = attr.counters().cloned().collect();
                Ok(Flow { flow, control: self.clone(), counters })
            }
            None => {
                let source = io::Error::last_os_error();
                // The manual has a number of its own for "not supported".
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

/// That packets of a rule go to a queue pair (`ibv_flow`). Dropping it ends that.
///
/// It keeps the queue pair and the rule's counters alive.
pub struct Flow {
    flow: NonNull<ibv_flow>,
    control: QueuePairControl,
    counters: Vec<Counters>,
}

// SAFETY: verbs on one flow may be called from any thread.
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

    /// The C object. Using it is as unsafe as in C, and it must not be destroyed.
    pub fn as_raw(&self) -> NonNull<ibv_flow> {
        self.flow
    }

    /// Ends the rule now (`ibv_destroy_flow`), and says how that went, which a drop only logs.
    ///
    /// # Errors
    ///
    /// The device did not end it. The flow comes back with the error.
    ///
    /// # References
    ///
    /// `man ibv_create_flow`
    pub fn close(self) -> Result<(), ConsumeError<Self>> {
        let mut flow = ManuallyDrop::new(self);
        // SAFETY: the flow lives, and is taken apart below only if this succeeded.
        match check(unsafe { verbs::ibv_destroy_flow(flow.flow.as_ptr()) }) {
            Ok(()) => {
                let counters = std::mem::take(&mut flow.counters);
                // SAFETY: the flow's own drop does not run, so this is the only one of the control.
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
        // SAFETY: the flow lives until here.
        if let Err(error) = check(unsafe { verbs::ibv_destroy_flow(self.flow.as_ptr()) }) {
            log::error!("ibv_destroy_flow failed for queue pair {:#x}: {error}", self.control.qp_number());
            // The flow is still there, so what it depends on has to stay.
            std::mem::forget((self.control.clone(), std::mem::take(&mut self.counters)));
        }
    }
}

impl fmt::Debug for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flow").field("queue_pair", &self.control).finish_non_exhaustive()
    }
}
