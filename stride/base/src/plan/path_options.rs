//! How packets find their way from queue pair to queue pair, and what becomes of those that are lost.

use std::fmt;

use serde::{Deserialize, Serialize};
use sideway::ibverbs::connect::ConnectOptions;
use sideway::ibverbs::port::Mtu;

use super::{ConnectionType, DeviceLimits, TestPlan};
use crate::cli::PathArgs;

/// What was asked for of the way; what was not is perftest's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathOptions {
    /// Bytes of the largest packet.
    pub mtu: Option<u32>,
    /// The service level.
    pub service_level: Option<u32>,
    /// The traffic class of the global header.
    pub traffic_class: Option<u32>,
    /// The index of the partition key.
    pub pkey_index: Option<u32>,
    /// How long to wait for an acknowledgement: 4.096 us times 2 to the power of this.
    pub timeout: Option<u32>,
    /// How often to send again without acknowledgement.
    pub retry_count: Option<u32>,
    /// rdma_cm connects the queue pairs.
    pub rdma_cm: bool,
    /// The type of service, which rdma_cm is told.
    pub type_of_service: Option<u32>,
}

/// A way that there is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathOptionsError {
    /// Packets have less room for it.
    #[error(
        "{flag} {given} is above the largest {what} that packets have room for, {limit}: give {flag} {limit} or less"
    )]
    AboveField {
        /// The flag.
        flag: &'static str,
        /// Its value.
        given: u32,
        /// What it is.
        what: &'static str,
        /// The largest.
        limit: u32,
    },
    /// Queue pairs count in fewer bits.
    #[error(
        "{flag} {given} is above the largest {what} of a queue pair, {limit}: give {flag} {limit} or less"
    )]
    AboveAttribute {
        /// The flag.
        flag: &'static str,
        /// Its value.
        given: u32,
        /// What it is.
        what: &'static str,
        /// The largest.
        limit: u32,
    },
    /// Packets are of five lengths.
    #[error("-m {given} is no MTU that RDMA has: give -m 256, 512, 1024, 2048 or 4096")]
    NoMtu {
        /// What the user gave.
        given: u32,
    },
    /// The port sends no such packets.
    #[error("-m {given} is above the active MTU of {device} port {port}, {limit}: give -m {limit} or less")]
    MtuAbovePort {
        /// What the user gave.
        given: u32,
        /// The device's name.
        device: String,
        /// The port's number.
        port: u8,
        /// Its MTU.
        limit: u32,
    },
    /// The port's table is shorter.
    #[error(
        "--pkey-index {given} is above the last index of the partition keys of {device} port {port}, {last}: give --pkey-index \
         {last} or less"
    )]
    NoSuchPartition {
        /// What the user gave.
        given: u32,
        /// The device's name.
        device: String,
        /// The port's number.
        port: u8,
        /// The last index.
        last: u32,
    },
    /// A datagram is one packet.
    #[error(
        "{flag} {given} is above -m {mtu}, which no datagram exceeds: give {flag} {mtu} or less, or a larger -m"
    )]
    SizeAboveMtu {
        /// The flag that gave the size.
        flag: &'static str,
        /// The size.
        given: u64,
        /// The MTU that was asked for.
        mtu: u32,
    },
    /// rdma_cm has chosen already.
    #[error(
        "{flags} and -R do not go together, as rdma_cm finds the way by itself: leave {flags} out, or -R"
    )]
    WithManager {
        /// All of them.
        flags: String,
    },
    /// Nobody to tell it to.
    #[error(
        "-T {given} without -R, to whose rdma_cm it is told: give --tclass {given} in place of it, or add -R"
    )]
    NoManager {
        /// What the user gave.
        given: u32,
    },
    /// rdma_cm connects reliably.
    #[error("-R and -c {connection} do not go together: leave -R out, or give -c RC")]
    ManagerConnects {
        /// The type of the connection.
        connection: ConnectionType,
    },
    /// One after the other, over one device.
    #[error(
        "{flag} and -R do not go together, as rdma_cm makes the connections of one thread, over one device: leave {flag} out, or -R"
    )]
    ManagerOfOne {
        /// The flag, with its value.
        flag: String,
    },
    /// Nothing is sent again.
    #[error(
        "{flags} and -c {connection} do not go together, as nothing is acknowledged there: leave {flags} out, or give -c RC"
    )]
    NotAcknowledged {
        /// All of them.
        flags: String,
        /// The type of the connection.
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

/// Those of these flags that were given, with their values.
fn given<const N: usize>(flags: [(&str, Option<u32>); N]) -> Option<String> {
    let given = flags.iter().filter_map(|(flag, value)| value.map(|value| format!("{flag} {value}")));
    Some(given.collect::<Vec<_>>().join(", ")).filter(|given| !given.is_empty())
}

impl PathOptions {
    /// Refuses what no queue pair has.
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

    /// Refuses what this port has not.
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

    /// Bytes of the largest packet, over a port with this MTU.
    pub fn mtu(&self, port: u32) -> u32 {
        self.mtu.unwrap_or(port)
    }

    /// The same options with what was asked for.
    pub fn applied_to(&self, options: ConnectOptions) -> ConnectOptions {
        // All were found in range.
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
    /// What was asked for, each behind a comma.
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
    /// Names of the way's parameters, with their flags, and their values, as differences are told.
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
        } = &self.way;
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
    fn what_was_asked_for_is_what_a_queue_pair_is_told() {
        let way = test("write bw -m 512 -S 3 --tclass 106 --pkey_index 2 -u 0 --retry-count 1").way;
        let options = way.applied_to(ConnectOptions::default());
        assert_eq!(options.mtu, Some(Mtu::Mtu512));
        assert_eq!((options.service_level, options.traffic_class, options.pkey_index), (3, 106, 2));
        assert_eq!((options.timeout, options.retry_cnt, options.rnr_retry), (0, 1, 7));
        assert_eq!(
            way.to_string(),
            ", MTU 512, service level 3, traffic class 106, P_Key index 2, timeout 0, retry count 1"
        );
        let options = test("write bw").way.applied_to(ConnectOptions::default());
        assert_eq!((options.mtu, options.timeout, options.retry_cnt), (None, 14, 7));
        assert!(
            test("read lat -R -T 8 -u 9").to_string().ends_with(", timeout 9, type of service 8, by rdma_cm")
        );
    }

    #[test]
    fn what_the_port_has_not_is_refused() {
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
        sent.way.retry_count = Some(300);
        assert!(matches!(
            sent.validate(),
            Err(PlanError::Way(PathOptionsError::AboveAttribute { given: 300, .. }))
        ));
    }
}
