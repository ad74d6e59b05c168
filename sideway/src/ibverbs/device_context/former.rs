//! Types that sideway 0.4 has in this module, under the paths that they have there.

/// [`port::PortAttr`](crate::ibverbs::port::PortAttr).
#[deprecated(note = "use `ibverbs::port::PortAttr`")]
pub type PortAttr = crate::ibverbs::port::PortAttr;

/// [`port::PortState`](crate::ibverbs::port::PortState).
#[deprecated(note = "use `ibverbs::port::PortState`")]
pub type PortState = crate::ibverbs::port::PortState;

/// [`port::PhysicalState`](crate::ibverbs::port::PhysicalState).
#[deprecated(note = "use `ibverbs::port::PhysicalState`")]
pub type PhysicalState = crate::ibverbs::port::PhysicalState;

/// [`port::LinkLayer`](crate::ibverbs::port::LinkLayer).
#[deprecated(note = "use `ibverbs::port::LinkLayer`")]
pub type LinkLayer = crate::ibverbs::port::LinkLayer;

/// [`port::PortWidth`](crate::ibverbs::port::PortWidth).
#[deprecated(note = "use `ibverbs::port::PortWidth`")]
pub type PortWidth = crate::ibverbs::port::PortWidth;

/// [`port::PortSpeed`](crate::ibverbs::port::PortSpeed).
#[deprecated(note = "use `ibverbs::port::PortSpeed`")]
pub type PortSpeed = crate::ibverbs::port::PortSpeed;

/// [`port::Mtu`](crate::ibverbs::port::Mtu).
#[deprecated(note = "use `ibverbs::port::Mtu`")]
pub type Mtu = crate::ibverbs::port::Mtu;

/// [`device_attr::DeviceAttr`](crate::ibverbs::device_attr::DeviceAttr).
#[deprecated(note = "use `ibverbs::device_attr::DeviceAttr`")]
pub type DeviceAttr = crate::ibverbs::device_attr::DeviceAttr;

/// [`device_attr::AtomicCapability`](crate::ibverbs::device_attr::AtomicCapability).
#[deprecated(note = "use `ibverbs::device_attr::AtomicCapability`")]
pub type AtomicCapability = crate::ibverbs::device_attr::AtomicCapability;

/// [`device_attr::DeviceCapabilityFlags`](crate::ibverbs::device_attr::DeviceCapabilityFlags).
#[deprecated(note = "use `ibverbs::device_attr::DeviceCapabilityFlags`")]
pub type DeviceCapabilityFlags = crate::ibverbs::device_attr::DeviceCapabilityFlags;

/// [`device_attr::PciAtomicSizes`](crate::ibverbs::device_attr::PciAtomicSizes).
#[deprecated(note = "use `ibverbs::device_attr::PciAtomicSizes`")]
pub type PciAtomicOperationSize = crate::ibverbs::device_attr::PciAtomicSizes;
