//! The causes for not using RDMA, with their numbers on the wire.

/// The reason why RDMA is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// The configuration allows TCP only.
    TcpOnly,
    /// The program was built without the feature `rdma`.
    BuiltWithout,
    /// The verbs library is missing or too old.
    NoLibrary,
    /// The system has no RDMA device.
    NoDevice,
    /// No device or port matches the configuration.
    DeviceNotFound,
    /// The port is down, or its link is not yet up.
    PortNotActive,
    /// No GID equals the socket's address.
    NoGid,
    /// The device, or the process's limits, lack a resource that a connection needs.
    Resources,
    /// The two ports cannot reach each other: one is on InfiniBand, the other on Ethernet.
    LinkLayer,
    /// The queue pair could not be connected.
    Connect,
    /// No probe arrived over the data path in time.
    ProbeTimedOut,
    /// The device reported an error while the data path was probed.
    ProbeFailed,
    /// It gave up because the peer had.
    PeerGaveUp,
    /// The pool has no room for the connection.
    PoolExhausted,
    /// The process has no free descriptors.
    Descriptors,
    /// The process may not lock more memory, which the device needs.
    LockedMemory,
    /// The device makes no more queue pairs.
    QueuePairs,
    /// The peer's program did not attend while the data path was proved.
    PeerBusy,
    /// This side had too little processor time to prove the data path.
    MachineBusy,
    /// No probe arrived over a software device in time.
    SoftProbeTimedOut,
    /// An environment variable that chooses or configures devices is invalid.
    InvalidVariable,
    /// The device, or its library, failed while it was opened or queried.
    DeviceFailed,
    /// A cause of a newer version, or none (0).
    Unknown(u16),
}

impl Cause {
    /// Every cause with its number. The numbers are frozen, because peers exchange them.
    pub(crate) const CODES: [(u16, Self); 22] = [
        (1, Self::TcpOnly),
        (2, Self::BuiltWithout),
        (3, Self::NoLibrary),
        (4, Self::NoDevice),
        (5, Self::DeviceNotFound),
        (6, Self::PortNotActive),
        (7, Self::NoGid),
        (8, Self::Resources),
        (9, Self::LinkLayer),
        (10, Self::Connect),
        (11, Self::ProbeTimedOut),
        (12, Self::ProbeFailed),
        (13, Self::PeerGaveUp),
        (14, Self::PoolExhausted),
        (15, Self::Descriptors),
        (16, Self::LockedMemory),
        (17, Self::QueuePairs),
        (18, Self::PeerBusy),
        (19, Self::MachineBusy),
        (20, Self::SoftProbeTimedOut),
        (21, Self::InvalidVariable),
        (22, Self::DeviceFailed),
    ];

    pub(crate) fn code(self) -> u16 {
        match self {
            Self::Unknown(code) => code,
            known => Self::CODES.iter().find(|entry| entry.1 == known).map_or(0, |entry| entry.0),
        }
    }

    pub(crate) fn from_code(code: u16) -> Self {
        Self::CODES.iter().find(|entry| entry.0 == code).map_or(Self::Unknown(code), |entry| entry.1)
    }

    /// The description, to follow the name of a side.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::TcpOnly => "is configured to use TCP only",
            Self::BuiltWithout => "was built without RDMA",
            Self::NoLibrary => "has no usable libibverbs",
            Self::NoDevice => "has no RDMA device",
            Self::DeviceNotFound => "has no such device or port",
            Self::PortNotActive => "has no active port",
            Self::NoGid => "has no GID for the socket's address",
            Self::Resources => "could not get what a queue pair needs",
            Self::LinkLayer => "is on another kind of link",
            Self::Connect => "could not connect its queue pair",
            Self::ProbeTimedOut => "saw nothing come through the data path in time",
            Self::ProbeFailed => "got an error from the data path",
            Self::PeerGaveUp => "gave up because the other side had",
            Self::PoolExhausted => "has no room in its pool",
            Self::Descriptors => "has no free descriptors",
            Self::LockedMemory => "may not lock more memory",
            Self::QueuePairs => "got no queue pair from its device",
            Self::PeerBusy => "got no answer from a busy peer",
            Self::MachineBusy => "had too little processor time to prove the data path",
            Self::SoftProbeTimedOut => "saw nothing come through the software device in time",
            Self::InvalidVariable => "has an invalid environment variable",
            Self::DeviceFailed => "cannot use its RDMA device",
            Self::Unknown(_) => "did not say why it has no RDMA",
        }
    }

    /// The remedy on that side.
    pub(crate) fn remedy(self) -> &'static str {
        match self {
            Self::TcpOnly => "set the policy or TRESPASS_TRANSPORT to \"auto\" if that was not meant",
            Self::BuiltWithout => "build it with the feature `rdma`",
            Self::NoLibrary => "install rdma-core (`libibverbs1`, `ibverbs-providers`)",
            Self::NoDevice => {
                "see whether `ibv_devices` lists one; load its driver, or pass it into the container"
            }
            Self::DeviceNotFound => {
                "compare TRESPASS_DEV, `Builder::device` or `Builder::devices` with what `ibv_devices` lists"
            }
            Self::PortNotActive => "see its state with `ibv_devinfo`, and bring its interface up",
            Self::NoGid => {
                "see `rdma link` and the GIDs of the port (`::ffff:` is IPv4, `fe80::` link-local); behind a bridge set TRESPASS_DEV and \
                 TRESPASS_GID_INDEX"
            }
            Self::Resources => {
                "see what the device has with `ibv_devinfo -v`, raise `ulimit -l`, or make rx_slots smaller"
            }
            Self::LinkLayer => "choose another device with TRESPASS_DEV on one of the sides",
            Self::Connect => {
                "see whether both addresses are on networks that reach each other, and the GID's index"
            }
            Self::ProbeTimedOut => {
                "see whether UDP port 4791 passes between the hosts, whether both use the same RoCE version (GID index), and the MTU"
            }
            Self::ProbeFailed => {
                "see whether the hosts reach each other over the device's own network, and the GID's index"
            }
            Self::PeerGaveUp => "see the other side's reason",
            Self::PoolExhausted => "raise pool_max, make rx_slots smaller, or drop received buffers",
            Self::Descriptors => "raise the limit of open files (`ulimit -n`)",
            Self::LockedMemory => {
                "raise the limit of locked memory (`ulimit -l`, `LimitMEMLOCK` of a service), or make the pool smaller"
            }
            Self::PeerBusy => "see what the peer's program or machine is doing, and connect again later",
            Self::MachineBusy => "run less on this machine, and connect again later",
            Self::SoftProbeTimedOut => {
                "compare SOFT_RNIC_FABRIC of both sides, see whether SOFT_RNIC_FAULTS holds messages back, and raise TRESPASS_PROBE_TIMEOUT on a busy machine"
            }
            Self::QueuePairs => {
                "see its max_qp with `ibv_devinfo -v`, raise `ulimit -l`, or close connections"
            }
            Self::InvalidVariable => "correct it, or unset it",
            Self::DeviceFailed => {
                "see whether `ibv_devinfo` can, the kernel's log (`dmesg`), and the permissions of /dev/infiniband"
            }
            Self::Unknown(_) => "see its log",
        }
    }
}

/// The reason why one side has no data path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unavailable {
    /// The cause as a number on the wire.
    pub(crate) cause: Cause,
    /// Names and numbers, or empty.
    pub(crate) detail: String,
}

impl Unavailable {
    pub(crate) fn new(cause: Cause, detail: impl Into<String>) -> Self {
        Self { cause, detail: detail.into() }
    }

    /// No reason is given.
    pub(crate) fn unspecified() -> Self {
        Self::new(Cause::Unknown(0), "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_keep_their_numbers() {
        for (index, (code, cause)) in Cause::CODES.into_iter().enumerate() {
            assert_eq!(usize::from(code), index + 1);
            assert_eq!(cause.code(), code);
            assert_eq!(Cause::from_code(code), cause);
        }
        for code in [0, 23, u16::MAX] {
            assert_eq!(Cause::from_code(code), Cause::Unknown(code));
            assert_eq!(Cause::Unknown(code).code(), code);
        }
    }
}
