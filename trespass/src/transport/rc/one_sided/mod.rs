//! Queue pairs for one-sided operations on windows, apart from those of a connection's messages.
//!
//! A side that operates on the peer's memory has an [`Initiator`], which the peer cannot reach. The
//! owner of the memory has a [`Responder`] in a [`WindowDomain`]: a protection domain that has the
//! windows of one connection, and nothing else. A wrong key therefore ends these two queue pairs,
//! and no messages.

mod initiator;
mod responder;
mod work;

use std::time::Duration;

pub(crate) use self::initiator::{
    Initiator, OneSidedOutcome, OneSidedRequest, PerformedAlone, RefusedPost, ShortRequest,
};
pub(crate) use self::responder::{Responder, WindowAccess, WindowDomain, WindowRegion};
pub(crate) use self::work::OneSidedOperation;

use super::device::DevicePort;
use super::path::QpParameters;
use crate::wire::Endpoint;

/// The ports of a connection, with the parameters of its queue pairs.
#[derive(Clone, Debug)]
pub(crate) struct OneSidedPorts {
    pub(super) ports: Vec<DevicePort>,
    pub(super) parameters: QpParameters,
}

impl OneSidedPorts {
    pub(super) fn new(ports: Vec<DevicePort>, parameters: QpParameters) -> Self {
        Self { ports, parameters }
    }

    pub(crate) fn count(&self) -> usize {
        self.ports.len()
    }

    /// Whether each device reads and performs atomic operations correctly, as a requester.
    pub(crate) fn can_read(&self) -> bool {
        self.parameters.reads > 0 && self.ports.iter().all(|port| port.device.limits.reads_out > 0)
    }

    /// How long a request may take before its queue pair is given up.
    pub(crate) fn request_timeout(&self) -> Duration {
        self.parameters.request_timeout
    }

    /// The name of a device.
    pub(crate) fn name(&self, device: usize) -> &str {
        self.ports[device].device.name()
    }
}

/// What one end of a path is told of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OneSidedEnd {
    pub(crate) endpoint: Endpoint,
    /// The READs and atomic operations that it has outstanding, or answers, at a time.
    pub(crate) reads: u8,
}
