//! The choice of ports for a connection over several devices, and the reason for each port.
//!
//! [`choose`] is a pure function: the caller finds the [`Candidate`]s and opens the chosen ones. The
//! order of the candidates does not matter.
//!
//! Without a list of the program, a port must be active, reach the peer, and have at least a quarter
//! of the fastest one's rate. The first port is the one nearest to the process, then the fastest.
//! All others have its link layer. A port whose card no chosen port is on goes before one of another
//! function of such a card, and that one before a second port of a function. The reason is that ports
//! of a card share its link to the host: two of them together are hardly faster than one.
//!
//! With a list, its order and all its ports that work are kept.

use std::cmp::Reverse;
use std::fmt;

use sideway::ibverbs::port::{EffectiveSpeed, LinkLayer};
use sideway::topology::{PciAddress, RdmaDevice, RdmaPort};

/// Ports with less than this part of the fastest one's rate are not used, as in UCX: the fast ports
/// would wait for them.
const SLOWEST_PART: u64 = 4;

/// A port that a connection could use. No two candidates of a choice are the same port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) device: String,
    pub(crate) port: u8,
    pub(crate) status: PortStatus,
    pub(crate) link_layer: LinkLayer,
    /// In units of 100 Mb/s. `None` if it is unknown, which counts as the slowest.
    pub(crate) rate: Option<u64>,
    /// `None` if it is unknown, or if the device is not on PCI. The device then counts as one.
    pub(crate) function: Option<PciAddress>,
    /// For a virtual function, the physical one of the same card.
    pub(crate) physical_function: Option<PciAddress>,
    pub(crate) numa_node: Option<u32>,
    /// The place in the program's list, which has all ports of a device that it names without a
    /// port. `None` if the program has no list, or does not name the port.
    pub(crate) listed: Option<usize>,
}

/// Whether a port can be used for the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortStatus {
    /// It is active and reaches the peer.
    Usable,
    /// A list names it, and it does not exist.
    Absent,
    /// Its state is not `PORT_ACTIVE`.
    NotActive,
    /// None of its addresses reaches the peer.
    Unreachable,
}

impl Candidate {
    /// A port of the kernel. `reaches_peer` counts only if the port is active.
    pub(crate) fn of(
        device: &RdmaDevice,
        port: &RdmaPort,
        reaches_peer: bool,
        listed: Option<usize>,
    ) -> Self {
        let status = match (port.is_active(), reaches_peer) {
            (false, _) => PortStatus::NotActive,
            (true, false) => PortStatus::Unreachable,
            (true, true) => PortStatus::Usable,
        };
        Self {
            device: device.name.clone(),
            port: port.port_num,
            status,
            link_layer: port.link_layer.unwrap_or(LinkLayer::Unspecified),
            rate: port.rate.map(EffectiveSpeed::hundreds_of_mbps),
            function: device.pci.as_ref().map(|function| function.address),
            physical_function: device.pci.as_ref().and_then(|function| function.physical_function),
            numa_node: device.numa_node,
            listed,
        }
    }

    fn link_layer(&self) -> LinkLayer {
        match self.link_layer {
            LinkLayer::Unspecified => LinkLayer::InfiniBand,
            known => known,
        }
    }

    /// What the two ports share.
    fn sharing(&self, other: &Self) -> Sharing {
        let same_function = match (self.function, other.function) {
            (Some(own), Some(other)) => own == other,
            _ => self.device == other.device,
        };
        if same_function {
            return Sharing::Function;
        }
        let card = |port: &Self| {
            let function = port.physical_function.or(port.function)?;
            Some((function.domain(), function.bus(), function.device()))
        };
        if card(self).is_some() && card(self) == card(other) { Sharing::Card } else { Sharing::Nothing }
    }

    fn nearness(&self, process: Option<u32>) -> Nearness {
        match (self.numa_node, process) {
            (Some(own), Some(process)) if own == process => Nearness::Near,
            (Some(_), Some(_)) => Nearness::Far,
            _ => Nearness::Unknown,
        }
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.device, self.port)
    }
}

/// What two ports share, least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sharing {
    Nothing,
    /// They are of two functions of one card.
    Card,
    /// They are of one PCI function, or of one device whose function is unknown.
    Function,
}

/// Whether a port is on the process's NUMA node, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Nearness {
    Near,
    Unknown,
    Far,
}

/// A port to use, and what spoke for it or against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChosenPort<'a> {
    pub(crate) port: &'a Candidate,
    pub(crate) nearness: Nearness,
    /// What it shares with the earlier port of the choice with which it shares most.
    pub(crate) shared_with: Option<(Sharing, &'a Candidate)>,
}

impl fmt::Display for ChosenPort<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (", self.port)?;
        if self.port.listed.is_some() {
            f.write_str("listed, ")?;
        }
        match self.port.rate {
            Some(rate) => write!(f, "{} Gb/s", rate as f64 / 10.0)?,
            None => f.write_str("unknown rate")?,
        }
        match (self.port.numa_node, self.nearness) {
            (None, _) => f.write_str(", unknown NUMA node")?,
            (Some(node), Nearness::Near) => write!(f, ", NUMA node {node} of the process")?,
            (Some(node), Nearness::Far) => write!(f, ", other NUMA node {node}")?,
            (Some(node), Nearness::Unknown) => write!(f, ", NUMA node {node}")?,
        }
        match self.shared_with {
            Some((Sharing::Function, other)) => write!(f, ", same PCI function as {other}")?,
            Some((Sharing::Card, other)) => write!(f, ", same card as {other}")?,
            Some((Sharing::Nothing, _)) | None => {}
        }
        f.write_str(")")
    }
}

/// A port that is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RejectedPort<'a> {
    pub(crate) port: &'a Candidate,
    pub(crate) why: Rejection<'a>,
}

impl fmt::Display for RejectedPort<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.port, self.why)
    }
}

/// Why a port is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection<'a> {
    Absent,
    NotActive,
    Unreachable,
    /// The program has a list, and does not name it.
    NotListed,
    /// The list names its device without a port, and this earlier port of it works.
    OtherPort(&'a Candidate),
    /// It has less than a quarter of this port's rate.
    Slow(&'a Candidate),
    /// The first port has another link layer.
    OtherLinkLayer(&'a Candidate),
    /// As many ports as are wanted go before it.
    Enough(usize),
}

impl fmt::Display for Rejection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("it does not exist"),
            Self::NotActive => f.write_str("it is not active"),
            Self::Unreachable => f.write_str("it does not reach the peer"),
            Self::NotListed => f.write_str("it is not listed"),
            Self::OtherPort(used) => write!(f, "{used} works"),
            Self::Slow(fastest) => write!(f, "less than a quarter of the rate of {fastest}"),
            Self::OtherLinkLayer(first) => write!(f, "{first} is on {}", first.link_layer()),
            Self::Enough(1) => f.write_str("1 port is wanted"),
            Self::Enough(most) => write!(f, "{most} ports are wanted"),
        }
    }
}

/// The ports to use in order, and the others sorted by name. As text it is one line for the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Choice<'a> {
    pub(crate) chosen: Vec<ChosenPort<'a>>,
    pub(crate) rejected: Vec<RejectedPort<'a>>,
}

impl<'a> Choice<'a> {
    fn reject(&mut self, port: &'a Candidate, why: Rejection<'a>) {
        self.rejected.push(RejectedPort { port, why });
    }

    /// Moves the ports for which `reason` has one to the rejected ones.
    fn sift(
        &mut self,
        ports: &mut Vec<&'a Candidate>,
        reason: impl Fn(&'a Candidate) -> Option<Rejection<'a>>,
    ) {
        ports.retain(|port| match reason(port) {
            Some(why) => {
                self.reject(port, why);
                false
            }
            None => true,
        });
    }

    /// What a port shares with a chosen one; the most that it shares with any.
    fn sharing(&self, port: &Candidate) -> Option<(Sharing, &'a Candidate)> {
        let shared = self.chosen.iter().map(|chosen| (port.sharing(chosen.port), chosen.port));
        // The first of several that share as much.
        shared.rev().max_by_key(|(sharing, _)| *sharing)
    }
}

impl fmt::Display for Choice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn list<T: fmt::Display>(items: &[T]) -> String {
            if items.is_empty() {
                return "none".to_owned();
            }
            items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        }
        write!(f, "ports: {}; not used: {}", list(&self.chosen), list(&self.rejected))
    }
}

/// Chooses at most `most` ports for a process on the NUMA node `process`.
pub(crate) fn choose(candidates: &[Candidate], process: Option<u32>, most: usize) -> Choice<'_> {
    let mut ports: Vec<&Candidate> = candidates.iter().collect();
    ports.sort_by_key(|port| (&port.device, port.port));
    let mut choice = Choice::default();
    let has_list = ports.iter().any(|port| port.listed.is_some());
    choice.sift(&mut ports, |port| match port.status {
        _ if has_list && port.listed.is_none() => Some(Rejection::NotListed),
        PortStatus::Absent => Some(Rejection::Absent),
        PortStatus::NotActive => Some(Rejection::NotActive),
        PortStatus::Unreachable => Some(Rejection::Unreachable),
        PortStatus::Usable => None,
    });
    if has_list {
        keep_list(&mut choice, &mut ports);
    } else {
        drop_slow(&mut choice, &mut ports);
    }
    while !ports.is_empty() && choice.chosen.len() < most {
        let merit = |choice: &Choice<'_>, port: &Candidate| {
            let sharing = choice.sharing(port).map_or(Sharing::Nothing, |(sharing, _)| sharing);
            (sharing, port.nearness(process), Reverse(port.rate))
        };
        // A list is in its order, and of equal ports the first by name is taken.
        let best =
            if has_list { Some(0) } else { (0..ports.len()).min_by_key(|at| merit(&choice, ports[*at])) };
        let port = ports.remove(best.unwrap_or(0));
        let shared_with = choice.sharing(port).filter(|(sharing, _)| *sharing != Sharing::Nothing);
        choice.chosen.push(ChosenPort { port, nearness: port.nearness(process), shared_with });
        let first = choice.chosen[0].port;
        choice.sift(&mut ports, |port| {
            (port.link_layer() != first.link_layer()).then_some(Rejection::OtherLinkLayer(first))
        });
    }
    choice.sift(&mut ports, |_| Some(Rejection::Enough(most)));
    choice.rejected.sort_by_key(|rejected| (&rejected.port.device, rejected.port.port));
    choice
}

/// Brings listed ports into the list's order, with one port for each of its names.
fn keep_list<'a>(choice: &mut Choice<'a>, ports: &mut Vec<&'a Candidate>) {
    ports.sort_by_key(|port| port.listed);
    let listed = ports.clone();
    let first_of = |port: &Candidate| listed.iter().find(|first| first.listed == port.listed).copied();
    choice.sift(ports, |port| first_of(port).filter(|first| *first != port).map(Rejection::OtherPort));
}

/// Drops ports whose rate is known and too low.
fn drop_slow<'a>(choice: &mut Choice<'a>, ports: &mut Vec<&'a Candidate>) {
    let Some(fastest) = ports.iter().copied().rev().max_by_key(|port| port.rate) else { return };
    choice.sift(ports, |port| {
        let is_slow = port.rate?.saturating_mul(SLOWEST_PART) < fastest.rate?;
        is_slow.then_some(Rejection::Slow(fastest))
    });
}

#[cfg(test)]
mod tests;
