//! Rules of fault injection: an action and the conditions under which it applies.

use std::fmt;
use std::time::Duration;

use rdma_mummy_sys::types::{ibv_qp_type, ibv_wc_status};

use super::words::{Call, CmMessage, ERRNOS, Opcode, QP_TYPES, RATE_UNITS, STATUSES, Step, word_of};

/// The most copies of a message, because the device makes each of them.
pub(super) const MOST_COPIES: u32 = 100;

/// The shortest time for which a flapping port stays down or up, because each change is an event.
const SHORTEST_PHASE: Duration = Duration::from_millis(1);
/// The highest rate limit: 1 Tb/s.
pub(super) const FASTEST: u64 = 1_000_000_000_000;

/// The fault that a rule causes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Action {
    /// The request gets no answer, this often (`None`: every time). The queue pair retransmits a
    /// reliable request after its timeout, and completes it with `RETRY_EXC_ERR` after the last
    /// retry; an unreliable one is lost.
    Drop(Option<u32>),
    /// The request waits for a time drawn between the two. The requests behind it in its queue pair
    /// wait as well.
    Delay(Duration, Duration),
    /// The request waits until other queue pairs of the process have executed this many requests,
    /// but no longer than the duration.
    Hold(u32, Duration),
    /// The requests of each device execute at no more than this many bits of payload per second.
    /// They wait in their queue pairs, and later requests wait behind them.
    Rate(u64),
    /// The request neither executes nor completes until the rules change; the requests behind it in
    /// its queue pair wait as well.
    Hang {
        /// In the error state, the queue pair does not flush this request and those behind it, and
        /// no receive, as if the device had died.
        silent: bool,
    },
    /// The request completes with this status without being executed; a receive completes with it
    /// whatever arrived.
    Status(ibv_wc_status),
    /// The receiver is not ready, this often (`None`: every time).
    Rnr(Option<u32>),
    /// This many bits of the payload are flipped on arrival.
    Flip(u32),
    /// All bytes but the last eight arrive at once, the last eight after this time.
    Split(Duration),
    /// The completion queue is overrun: `IBV_EVENT_CQ_ERR`, and it receives no more completions.
    CqOverrun,
    /// `IBV_EVENT_SRQ_LIMIT_REACHED` for the shared receive queue that a receive came from.
    SrqLimit,
    /// The port goes down, for a time or for good: `IBV_EVENT_PORT_ERR`. Messages through it get no
    /// answer.
    PortDown(Option<Duration>),
    /// The port comes up again: `IBV_EVENT_PORT_ACTIVE`.
    PortUp,
    /// The port goes down and up repeatedly: `IBV_EVENT_PORT_ERR` and `IBV_EVENT_PORT_ACTIVE` each
    /// time. Each duration is drawn between its two bounds, which are at least a millisecond.
    PortFlap {
        /// How long the port is down each time.
        down: (Duration, Duration),
        /// How long it is up in between.
        up: (Duration, Duration),
        /// How often it goes down (`None`: until the rules change).
        times: Option<u32>,
    },
    /// `IBV_EVENT_QP_FATAL`: the queue pair goes to the error state.
    QpFatal,
    /// `IBV_EVENT_DEVICE_FATAL`: every call of every context that is open fails with `EIO`.
    DeviceFatal,
    /// The call fails with this error and does nothing.
    Errno(i32),
    /// The process aborts at this step of the message.
    Crash(Step),
    /// The process stops (SIGSTOP) at this step of the message.
    Stop(Step),
    /// The sending thread pauses for this time at this step of the message.
    Pause(Step, Duration),
    /// The device differs from the ordinary one; give this rule in the configuration, before the
    /// devices are listed.
    Trait(Trait),
    /// The CM message arrives this many additional times.
    Duplicate(u32),
    /// The CM message is lost, and each side receives a rejection of the connection with this
    /// reason (`None`: a rejection by the program).
    Reject(Option<u8>),
}

/// A difference between a device and the ordinary one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trait {
    /// A lower limit: its name in [`Limits`](crate::Limits), and its value. It holds for all
    /// devices.
    Limit(String, u64),
    /// The vendor id in the device attributes.
    VendorId(u32),
    /// The part id in the device attributes.
    VendorPartId(u32),
    /// The hardware version in the device attributes.
    HwVer(u32),
    /// The node GUID in the device attributes.
    NodeGuid(u64),
    /// The GID tables are empty.
    NoGids,
    /// The device supports no atomic operations.
    NoAtomics,
}

/// Selects among the events that match a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Which {
    /// Every match.
    #[default]
    All,
    /// One match, counted from 1.
    Nth(u64),
    /// The first matches, this many.
    First(u64),
    /// This match, counted from 1, and every later one.
    From(u64),
    /// Every k-th match: the last one of each k.
    Every(u64),
    /// Each match with this probability.
    Chance(f64),
}

/// A rule: an action, the events that it applies to, and how often.
///
/// ```
/// use soft_rnic::faults::{Action, Opcode, Rule};
///
/// let rule = Rule::new(Action::Drop(None)).opcode(Opcode::Send).nth(3);
/// assert_eq!(rule, "drop opcode=send nth=3".parse()?);
/// # Ok::<(), soft_rnic::faults::RuleError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    pub(super) action: Action,
    pub(super) device: Option<u8>,
    pub(super) port: Option<u8>,
    pub(super) qpn: Option<u32>,
    pub(super) qp_types: Vec<ibv_qp_type>,
    pub(super) opcodes: Vec<Opcode>,
    /// The smallest and the largest size, both included.
    pub(super) size: Option<(u64, u64)>,
    pub(super) call: Option<Call>,
    pub(super) cm: Vec<CmMessage>,
    pub(super) which: Which,
}

impl Rule {
    /// Creates a rule that applies to all requests, or to all receives for [`Action::SrqLimit`]. A
    /// rule for calls must [name](Self::call) them, and a rule for [CM messages](Self::cm) too.
    pub fn new(action: Action) -> Self {
        Self {
            action,
            device: None,
            port: None,
            qpn: None,
            qp_types: Vec::new(),
            opcodes: Vec::new(),
            size: None,
            call: None,
            cm: Vec::new(),
            which: Which::All,
        }
    }

    /// Restricts the rule to `softN`.
    #[must_use]
    pub fn device(mut self, number: u8) -> Self {
        self.device = Some(number);
        self
    }

    /// Restricts the rule to queue pairs of this port; together with a call, names the port that
    /// goes down or up.
    #[must_use]
    pub fn port(mut self, number: u8) -> Self {
        self.port = Some(number);
        self
    }

    /// Restricts the rule to the queue pair with this number.
    #[must_use]
    pub fn qpn(mut self, number: u32) -> Self {
        self.qpn = Some(number);
        self
    }

    /// Restricts the rule to this type of queue pair; further calls add types.
    #[must_use]
    pub fn qp_type(mut self, qp_type: ibv_qp_type) -> Self {
        self.qp_types.push(qp_type);
        self
    }

    /// Restricts the rule to this operation; further calls add operations.
    #[must_use]
    pub fn opcode(mut self, opcode: Opcode) -> Self {
        self.opcodes.push(opcode);
        self
    }

    /// Restricts the rule to messages of this many bytes.
    #[must_use]
    pub fn size(mut self, bytes: std::ops::RangeInclusive<u64>) -> Self {
        self.size = Some((*bytes.start(), *bytes.end()));
        self
    }

    /// Applies the rule to calls of this verb.
    #[must_use]
    pub fn call(mut self, call: Call) -> Self {
        self.call = Some(call);
        self
    }

    /// Applies the rule to CM messages of this kind; further calls add kinds. A retransmission is
    /// another match.
    #[must_use]
    pub fn cm(mut self, message: CmMessage) -> Self {
        self.cm.push(message);
        self
    }

    /// Acts only on the k-th match.
    #[must_use]
    pub fn nth(self, k: u64) -> Self {
        self.which(Which::Nth(k))
    }

    /// Acts only on these matches.
    #[must_use]
    pub fn which(mut self, which: Which) -> Self {
        self.which = which;
        self
    }

    /// The device trait that the rule sets, and the device it is for.
    pub(crate) fn of_device(&self) -> Option<(&Trait, Option<u8>)> {
        match &self.action {
            Action::Trait(of) => Some((of, self.device)),
            _ => None,
        }
    }

    /// The fault that the rule causes.
    pub fn action(&self) -> &Action {
        &self.action
    }

    /// Checks that the action and the conditions fit together; the error lists the conditions that
    /// do.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        use Action as A;
        let receives = self.opcodes.contains(&Opcode::Recv);
        let restricted = self.port.is_some()
            || self.qpn.is_some()
            || !self.qp_types.is_empty()
            || !self.opcodes.is_empty()
            || self.size.is_some();
        let choosy = self.which != Which::All || self.call.is_some();
        if !self.cm.is_empty() {
            if restricted || self.call.is_some() || self.device.is_some() {
                return Err("an action on messages of the connection manager: it can have cm= and how often");
            }
            return match &self.action {
                A::Duplicate(copies) if !(1..=MOST_COPIES).contains(copies) => {
                    Err("so often: a message arrives 1 to 100 times more")
                }
                A::Drop(None) | A::Delay(..) | A::Duplicate(_) => Ok(()),
                A::Drop(Some(_)) => {
                    Err("counted: a message is lost each time that it is sent; say first= for the first ones")
                }
                A::Reject(_) if self.cm.iter().all(|message| message.can_be_rejected()) => Ok(()),
                A::Reject(_) => Err("an action on what can be rejected: cm= req, rep, rtu, sidr_req"),
                _ => Err("an action on messages of the connection manager: drop, delay=, duplicate, reject"),
            };
        }
        let of_requests = || match (self.call, receives) {
            (None, false) => Ok(()),
            (Some(_), _) => Err("an action on requests: it cannot have call="),
            (_, true) => Err("an action on requests: it cannot have opcode=recv"),
        };
        match &self.action {
            A::Errno(_) if self.call.is_none() => Err("an action on calls: it needs call="),
            A::Errno(_) if restricted => Err("an action on calls: it can have device=, call= and how often"),
            A::Errno(_) => Ok(()),
            A::Duplicate(_) | A::Reject(_) => {
                Err("an action on messages of the connection manager: it needs cm=")
            }
            A::Drop(_) | A::Delay(..) | A::Hold(..) | A::Flip(_) | A::Split(_) => of_requests(),
            A::Crash(_) | A::Stop(_) | A::Pause(..) | A::Hang { .. } => of_requests(),
            A::Rate(bits) if !(1..=FASTEST).contains(bits) => Err("a rate from 1b/s to 1000Gb/s"),
            A::Rate(_) => of_requests(),
            A::PortFlap { down, up, .. } if down.0.min(up.0) < SHORTEST_PHASE => {
                Err("a port that is down and up for at least 1ms each time")
            }
            A::PortFlap { times: Some(0), .. } => Err("a port that goes down at least once"),
            A::Rnr(_) if self.opcodes.iter().all(|opcode| opcode.takes_receive()) => of_requests(),
            A::Rnr(_) => Err(
                "an action on what takes a receive: opcode= send, send_with_imm, send_with_inv, rdma_write_with_imm",
            ),
            A::Status(_) | A::QpFatal | A::CqOverrun if self.call.is_some() => {
                Err("an action on requests and receives: it cannot have call=")
            }
            A::SrqLimit if self.call.is_some() || self.opcodes.iter().any(|o| *o != Opcode::Recv) => {
                Err("an action on receives: it can have opcode=recv only, and no call=")
            }
            A::Trait(Trait::Limit(..)) if restricted || choosy || self.device.is_some() => {
                Err("a limit of all devices: it stands alone")
            }
            A::Trait(_) if restricted || choosy => Err("how a device is made: it can have device= only"),
            _ => Ok(()),
        }
    }

    pub(super) fn matches_message(&self, message: CmMessage) -> bool {
        self.cm.contains(&message)
    }

    /// Whether the conditions match a request or receive, as the sender or receiver sees it.
    pub(super) fn matches_work(&self, seen: &RequestFacts) -> bool {
        let wants_receives = self.action == Action::SrqLimit || self.opcodes.contains(&Opcode::Recv);
        let wants_requests = self.opcodes.is_empty() || self.opcodes.iter().any(|o| *o != Opcode::Recv);
        let right_kind = match (&self.action, seen.opcode) {
            (_, Opcode::Recv) => wants_receives,
            (Action::SrqLimit, _) => false,
            (Action::Rnr(_), opcode) => opcode.takes_receive() && wants_requests,
            _ => wants_requests,
        };
        right_kind
            && self.call.is_none()
            && self.cm.is_empty()
            && !matches!(self.action, Action::Trait(_))
            && self.device.is_none_or(|device| device == seen.device)
            && self.port.is_none_or(|port| port == seen.port)
            && self.qpn.is_none_or(|qpn| qpn == seen.qpn)
            && (self.qp_types.is_empty() || self.qp_types.contains(&seen.qp_type))
            && (self.opcodes.is_empty() || self.opcodes.contains(&seen.opcode))
            && self.size.is_none_or(|(least, most)| (least..=most).contains(&seen.size))
    }

    pub(super) fn matches_call(&self, call: Call, device: u8) -> bool {
        self.call == Some(call) && self.device.is_none_or(|wanted| wanted == device)
    }
}

/// A request or a receive, as the conditions of rules see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestFacts {
    pub(crate) device: u8,
    pub(crate) port: u8,
    pub(crate) qpn: u32,
    pub(crate) qp_type: ibv_qp_type,
    pub(crate) opcode: Opcode,
    pub(crate) size: u64,
}

impl fmt::Display for RequestFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, port, qpn, opcode, size, .. } = self;
        write!(f, "{opcode} of {size} bytes, queue pair {qpn:#x}, soft{device} port {port}")
    }
}

/// A duration in the syntax of rules.
struct RuleTime(Duration);

impl fmt::Display for RuleTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanoseconds = self.0.as_nanos();
        for (unit, length) in [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1000)] {
            if nanoseconds.is_multiple_of(length) {
                return write!(f, "{}{unit}", nanoseconds / length);
            }
        }
        write!(f, "{nanoseconds}ns")
    }
}

/// The bounds of a duration.
struct RuleTimes((Duration, Duration));

impl fmt::Display for RuleTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (least, most) = self.0;
        write!(f, "{}", RuleTime(least))?;
        if least == most { Ok(()) } else { write!(f, "..{}", RuleTime(most)) }
    }
}

/// A rate in the syntax of rules.
struct RuleRate(u64);

impl fmt::Display for RuleRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = RATE_UNITS.iter().find(|(_, bits)| self.0.is_multiple_of(*bits));
        let (unit, bits) = whole.copied().unwrap_or(("b/s", 1));
        write!(f, "{}{unit}", self.0 / bits)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drop(None) => f.write_str("drop"),
            Self::Drop(Some(times)) => write!(f, "drop={times}"),
            Self::Delay(least, most) => write!(f, "delay={}", RuleTimes((*least, *most))),
            Self::Hold(others, most) => write!(f, "hold={others}:{}", RuleTime(*most)),
            Self::Rate(bits) => write!(f, "rate={}", RuleRate(*bits)),
            Self::Hang { silent: false } => f.write_str("hang"),
            Self::Hang { silent: true } => f.write_str("hang=silent"),
            Self::Status(status) => match word_of(STATUSES, status) {
                Some(word) => write!(f, "status={word}"),
                None => write!(f, "status={}", status.0),
            },
            Self::Rnr(None) => f.write_str("rnr"),
            Self::Rnr(Some(times)) => write!(f, "rnr={times}"),
            Self::Flip(bits) => write!(f, "flip={bits}"),
            Self::Split(pause) => write!(f, "split={}", RuleTime(*pause)),
            Self::CqOverrun => f.write_str("cq_overrun"),
            Self::SrqLimit => f.write_str("srq_limit"),
            Self::PortDown(None) => f.write_str("port_down"),
            Self::PortDown(Some(time)) => write!(f, "port_down={}", RuleTime(*time)),
            Self::PortFlap { down, up, times } => {
                write!(f, "port_flap={}:{}", RuleTimes(*down), RuleTimes(*up))?;
                times.map_or(Ok(()), |times| write!(f, ":{times}"))
            }
            Self::PortUp => f.write_str("port_up"),
            Self::QpFatal => f.write_str("qp_fatal"),
            Self::DeviceFatal => f.write_str("device_fatal"),
            Self::Errno(error) => match word_of(ERRNOS, error) {
                Some(word) => write!(f, "errno={word}"),
                None => write!(f, "errno={error}"),
            },
            Self::Crash(step) => write!(f, "crash={step}"),
            Self::Stop(step) => write!(f, "stop={step}"),
            Self::Pause(step, time) => write!(f, "pause={step}:{}", RuleTime(*time)),
            Self::Duplicate(copies) => write!(f, "duplicate={copies}"),
            Self::Reject(None) => f.write_str("reject"),
            Self::Reject(Some(reason)) => write!(f, "reject={reason}"),
            Self::Trait(of) => match of {
                Trait::Limit(name, value) => write!(f, "{name}={value}"),
                Trait::VendorId(id) => write!(f, "vendor_id={id:#x}"),
                Trait::VendorPartId(id) => write!(f, "vendor_part_id={id:#x}"),
                Trait::HwVer(version) => write!(f, "hw_ver={version:#x}"),
                Trait::NodeGuid(guid) => write!(f, "node_guid={guid:#x}"),
                Trait::NoGids => f.write_str("no_gids"),
                Trait::NoAtomics => f.write_str("no_atomics"),
            },
        }
    }
}

/// In the syntax that the parser accepts.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.action)?;
        if let Some(device) = self.device {
            write!(f, " device=soft{device}")?;
        }
        if let Some(port) = self.port {
            write!(f, " port={port}")?;
        }
        if let Some(qpn) = self.qpn {
            write!(f, " qpn={qpn:#x}")?;
        }
        if !self.qp_types.is_empty() {
            let words = self.qp_types.iter().map(|of| word_of(QP_TYPES, of).unwrap_or("?"));
            write!(f, " qp_type={}", words.collect::<Vec<_>>().join(","))?;
        }
        if !self.opcodes.is_empty() {
            let words = self.opcodes.iter().map(ToString::to_string);
            write!(f, " opcode={}", words.collect::<Vec<_>>().join(","))?;
        }
        match self.size {
            None => {}
            Some((least, most)) if least == most => write!(f, " size={least}")?,
            Some((least, u64::MAX)) => write!(f, " size={least}..")?,
            Some((least, most)) => write!(f, " size={least}..{most}")?,
        }
        if let Some(call) = self.call {
            write!(f, " call={call}")?;
        }
        if !self.cm.is_empty() {
            let words = self.cm.iter().map(ToString::to_string);
            write!(f, " cm={}", words.collect::<Vec<_>>().join(","))?;
        }
        match self.which {
            Which::All => Ok(()),
            Which::Nth(k) => write!(f, " nth={k}"),
            Which::First(k) => write!(f, " first={k}"),
            Which::From(k) => write!(f, " from={k}"),
            Which::Every(k) => write!(f, " every={k}"),
            Which::Chance(p) => write!(f, " chance={p}"),
        }
    }
}
