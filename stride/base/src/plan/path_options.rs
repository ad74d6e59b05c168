//! Options of the path between two queue pairs, and of retransmission.

use std::fmt;

use serde::{Deserialize, Serialize};
use sideway::ibverbs::connect::ConnectOptions;
use sideway::ibverbs::port::Mtu;

use super::{ConnectionType, DeviceLimits, TestPlan};
use crate::cli::PathArgs;

/// The path options that the user gave; perftest's defaults replace the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathOptions {
    /// The MTU in bytes.
    pub mtu: Option<u32>,
    /// The service level of packets.
    pub service_level: Option<u32>,
    /// The traffic class of the global header.
    pub traffic_class: Option<u32>,
    /// The index of the partition key.
    pub pkey_index: Option<u32>,
    /// The acknowledgement timeout: 4.096 us times 2 to the power of this.
    pub timeout: Option<u32>,
    /// Retransmissions of an unacknowledged message.
    pub retry_count: Option<u32>,
    /// Whether rdma_cm connects the queue pairs.
    pub rdma_cm: bool,
    /// The type of service, for rdma_cm.
    pub type_of_service: Option<u32>,
}

/// Path options that are invalid or conflict.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathOptionsError {
    /// The value exceeds its field in the packet header.
    #[error(
        "{flag} {given} is above the largest {what} that packets have room for, {limit}: give {flag} {limit} or less"
    )]
    AboveField {
        /// The flag that gave it.
        flag: &'static str,
        /// The flag's value.
        given: u32,
        /// The field's name.
        what: &'static str,
        /// The field's largest value.
        limit: u32,
    },
    /// The value exceeds its field in the queue pair's attributes.
    #[error(
        "{flag} {given} is above the largest {what} of a queue pair, {limit}: give {flag} {limit} or less"
    )]
    AboveAttribute {
        /// The flag that gave it.
        flag: &'static str,
        /// The flag's value.
        given: u32,
        /// The attribute's name.
        what: &'static str,
        /// The attribute's largest value.
        limit: u32,
    },
    /// The MTU is none of the five valid ones.
    #[error("-m {given} is no MTU that RDMA has: give -m 256, 512, 1024, 2048 or 4096")]
    NoMtu {
        /// The MTU that the user gave.
        given: u32,
    },
    /// The MTU exceeds the port's.
    #[error("-m {given} is above the active MTU of {device} port {port}, {limit}: give -m {limit} or less")]
    MtuAbovePort {
        /// The MTU that the user gave.
        given: u32,
        /// The device's name.
        device: String,
        /// The port's number.
        port: u8,
        /// The port's MTU.
        limit: u32,
    },
    /// The index exceeds the port's table of partition keys.
    #[error(
        "--pkey-index {given} is above the last index of the partition keys of {device} port {port}, {last}: give --pkey-index \
         {last} or less"
    )]
    NoSuchPartition {
        /// The index that the user gave.
        given: u32,
        /// The device's name.
        device: String,
        /// The port's number.
        port: u8,
        /// The last index of the table.
        last: u32,
    },
    /// A datagram must fit into one packet.
    #[error(
        "{flag} {given} is above -m {mtu}, which no datagram exceeds: give {flag} {mtu} or less, or a larger -m"
    )]
    SizeAboveMtu {
        /// The flag that gave the size.
        flag: &'static str,
        /// The size in bytes.
        given: u64,
        /// The MTU that the user gave.
        mtu: u32,
    },
    /// rdma_cm chooses the path itself.
    #[error(
        "{flags} and -R do not go together, as rdma_cm finds the way by itself: leave {flags} out, or -R"
    )]
    WithManager {
        /// The conflicting flags.
        flags: String,
    },
    /// Only rdma_cm uses a type of service.
    #[error(
        "-T {given} without -R, to whose rdma_cm it is told: give --tclass {given} in place of it, or add -R"
    )]
    NoManager {
        /// The value that the user gave.
        given: u32,
    },
    /// rdma_cm connects reliable connections only.
    #[error("-R and -c {connection} do not go together: leave -R out, or give -c RC")]
    ManagerConnects {
        /// The connection type that the user gave.
        connection: ConnectionType,
    },
    /// rdma_cm connects the queue pairs of one thread over one device.
    #[error(
        "{flag} and -R do not go together, as rdma_cm makes the connections of one thread, over one device: leave {flag} out, or -R"
    )]
    ManagerOfOne {
        /// The conflicting flag with its value.
        flag: String,
    },
    /// Unreliable transports neither acknowledge nor retransmit.
    #[error(
        "{flags} and -c {connection} do not go together, as nothing is acknowledged there: leave {flags} out, or give -c RC"
    )]
    NotAcknowledged {
        /// The conflicting flags.
        flags: String,
        /// The connection type.
        connection: ConnectionType,
    },
}

impl From<&PathArgs> for PathOptions {
    fn from(args: &PathArgs) -> Self {
        let PathArgs { mtu, sl, tclass, pkey_index, qp_timeout, retry_count, rdma_cm, tos } = *args;
        Self {
            mtu,
            service_level: sl,
            traffic_class: tclass,
            pkey_index,
            timeout: qp_timeout,
            retry_count,
            rdma_cm,
            type_of_service: tos,
        }
    }
}

/// The given flags with their values, joined.
fn given<const N: usize>(flags: [(&str, Option<u32>); N]) -> Option<String> {
    let given = flags.iter().filter_map(|(flag, value)| value.map(|value| format!("{flag} {value}")));
    Some(given.collect::<Vec<_>>().join(", ")).filter(|given| !given.is_empty())
}

impl PathOptions {
    /// Checks the options without a device.
    pub(super) fn validate(&self, connection: ConnectionType) -> Result<(), PathOptionsError> {
        self.validate_ranges()?;
        let found = [
            ("-m", self.mtu),
            ("-S", self.service_level),
            ("--tclass", self.traffic_class),
            ("--pkey-index", self.pkey_index),
        ];
        if self.rdma_cm
            && let Some(flags) = given(found)
        {
            return Err(PathOptionsError::WithManager { flags });
        }
        if let (Some(given), false) = (self.type_of_service, self.rdma_cm) {
            return Err(PathOptionsError::NoManager { given });
        }
        if self.rdma_cm && connection != ConnectionType::Rc {
            return Err(PathOptionsError::ManagerConnects { connection });
        }
        match given([("-u", self.timeout), ("--retry-count", self.retry_count)]) {
            Some(flags) if !connection.is_reliable() => {
                Err(PathOptionsError::NotAcknowledged { flags, connection })
            }
            _ => Ok(()),
        }
    }

    fn validate_ranges(&self) -> Result<(), PathOptionsError> {
        let fields = [
            ("-S", self.service_level, "service level", 15),
            ("--tclass", self.traffic_class, "traffic class", 255),
            ("-T", self.type_of_service, "type of service", 255),
        ];
        for (flag, given, what, limit) in fields {
            if let Some(given) = given.filter(|given| *given > limit) {
                return Err(PathOptionsError::AboveField { flag, given, what, limit });
            }
        }
        let attributes =
            [("-u", self.timeout, "timeout", 31), ("--retry-count", self.retry_count, "retry count", 7)];
        for (flag, given, what, limit) in attributes {
            if let Some(given) = given.filter(|given| *given > limit) {
                return Err(PathOptionsError::AboveAttribute { flag, given, what, limit });
            }
        }
        match self.mtu {
            Some(given) if Mtu::from_bytes(given).is_none() => Err(PathOptionsError::NoMtu { given }),
            _ => Ok(()),
        }
    }

    /// Checks the options against the port's limits.
    pub(super) fn check(&self, limits: &DeviceLimits) -> Result<(), PathOptionsError> {
        let DeviceLimits { device, port, mtu, pkeys, .. } = limits;
        if let Some(given) = self.mtu.filter(|given| given > mtu) {
            return Err(PathOptionsError::MtuAbovePort {
                given,
                device: device.clone(),
                port: *port,
                limit: *mtu,
            });
        }
        match self.pkey_index {
            Some(given) if given >= (*pkeys).max(1) => Err(PathOptionsError::NoSuchPartition {
                given,
                device: device.clone(),
                port: *port,
                last: pkeys.saturating_sub(1),
            }),
            _ => Ok(()),
        }
    }

    /// The MTU in bytes over a port with the MTU `port`.
    pub fn mtu(&self, port: u32) -> u32 {
        self.mtu.unwrap_or(port)
    }

    /// Returns connect options with the given path options applied.
    pub fn applied_to(&self, options: ConnectOptions) -> ConnectOptions {
        // The validation has checked every range.
        let small = |asked: Option<u32>, default: u8| asked.map_or(default, |asked| asked as u8);
        ConnectOptions {
            mtu: self.mtu.and_then(Mtu::from_bytes),
            service_level: small(self.service_level, options.service_level),
            traffic_class: small(self.traffic_class, options.traffic_class),
            pkey_index: self.pkey_index.map_or(options.pkey_index, |asked| asked as u16),
            timeout: small(self.timeout, options.timeout),
            retry_cnt: small(self.retry_count, options.retry_cnt),
            ..options
        }
    }
}

impl fmt::Display for PathOptions {
    /// The options that were given, each after a comma.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asked = [
            ("MTU", self.mtu),
            ("service level", self.service_level),
            ("traffic class", self.traffic_class),
            ("P_Key index", self.pkey_index),
            ("timeout", self.timeout),
            ("retry count", self.retry_count),
            ("type of service", self.type_of_service),
        ];
        for (name, value) in asked {
            if let Some(value) = value {
                write!(f, ", {name} {value}")?;
            }
        }
        if self.rdma_cm { f.write_str(", by rdma_cm") } else { Ok(()) }
    }
}

impl TestPlan {
    /// The options' names, with their flags, and their values, for the comparison of both sides.
    pub(super) fn way_rows(&self) -> [(&'static str, String); 8] {
        let value = |given: Option<u32>| given.map_or("the default".to_owned(), |given| given.to_string());
        let PathOptions {
            mtu,
            service_level,
            traffic_class,
            pkey_index,
            timeout,
            retry_count,
            rdma_cm,
            type_of_service,
        } = &self.path_options;
        [
            ("MTU (-m)", value(*mtu)),
            ("service level (-S)", value(*service_level)),
            ("traffic class (--tclass)", value(*traffic_class)),
            ("partition (--pkey-index)", value(*pkey_index)),
            ("timeout (-u)", value(*timeout)),
            ("retry count (--retry-count)", value(*retry_count)),
            ("rdma_cm (-R)", rdma_cm.to_string()),
            ("type of service (-T)", value(*type_of_service)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;
    use crate::plan::{PlanError, RunPlan, differences};

    fn test(line: &str) -> TestPlan {
        let words = ["stride-perf"].into_iter().chain(line.split_whitespace());
        RunPlan::new(cli::parse(words).unwrap()).unwrap_or_else(|error| panic!("{line}: {error}")).test
    }

    fn limits() -> DeviceLimits {
        DeviceLimits {
            device: "mlx5_0".to_owned(),
            port: 2,
            mtu: 1024,
            pkeys: 4,
            ..crate::plan::tests::limits()
        }
    }

    #[test]
    fn requested_options_reach_the_queue_pair() {
        let path = test("write bw -m 512 -S 3 --tclass 106 --pkey_index 2 -u 0 --retry-count 1").path_options;
        let options = path.applied_to(ConnectOptions::default());
        assert_eq!(options.mtu, Some(Mtu::Mtu512));
        assert_eq!((options.service_level, options.traffic_class, options.pkey_index), (3, 106, 2));
        assert_eq!((options.timeout, options.retry_cnt, options.rnr_retry), (0, 1, 7));
        assert_eq!(
            path.to_string(),
            ", MTU 512, service level 3, traffic class 106, P_Key index 2, timeout 0, retry count 1"
        );
        let options = test("write bw").path_options.applied_to(ConnectOptions::default());
        assert_eq!((options.mtu, options.timeout, options.retry_cnt), (None, 14, 7));
        assert!(
            test("read lat -R -T 8 -u 9").to_string().ends_with(", timeout 9, type of service 8, by rdma_cm")
        );
    }

    #[test]
    fn options_that_the_port_lacks_are_refused() {
        let refused = |line: &str| test(line).check(&limits()).expect_err(line).to_string();
        assert_eq!(
            refused("write bw -m 2048"),
            "-m 2048 is above the active MTU of mlx5_0 port 2, 1024: give -m 1024 or less"
        );
        assert!(refused("send bw --pkey-index 4").contains("partition keys of mlx5_0 port 2, 3: give"));
        assert!(test("send bw --pkey-index 3 -m 1024").check(&limits()).is_ok());
    }

    #[test]
    fn a_datagram_is_no_longer_than_the_mtu_that_was_asked_for() {
        let fitted = test("send bw -c UD -m 256").fitted(&limits(), true);
        assert_eq!(fitted.sizes.largest(), 256);
        let error = test("send bw -c UD -m 256 -s 300").check(&limits()).unwrap_err();
        assert_eq!(
            error,
            PlanError::Way(PathOptionsError::SizeAboveMtu { flag: "-s", given: 300, mtu: 256 })
        );
    }

    #[test]
    fn both_sides_are_told_where_their_ways_differ() {
        let found = differences(&test("write bw -u 9 -R"), &test("write bw -S 1"));
        let names: Vec<_> = found.iter().map(|found| (found.name, &*found.client, &*found.server)).collect();
        assert_eq!(
            names,
            [
                ("service level (-S)", "the default", "1"),
                ("timeout (-u)", "9", "the default"),
                ("rdma_cm (-R)", "true", "false")
            ]
        );
    }

    #[test]
    fn a_way_survives_the_wire_and_what_comes_from_there_is_checked() {
        let mut sent = test("send lat -S 15 -u 31 -m 4096");
        let text = serde_json::to_string(&sent).unwrap();
        assert_eq!(serde_json::from_str::<TestPlan>(&text).unwrap(), sent);
        sent.path_options.retry_count = Some(300);
        assert!(matches!(
            sent.validate(),
            Err(PlanError::Way(PathOptionsError::AboveAttribute { given: 300, .. }))
        ));
    }
}
