//! The configuration of the device: from environment variables, or from a [`Config`] that the
//! program makes.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use rdma_mummy_sys::secure_var_os;

use crate::faults::{self, Rule};

/// The most devices that a process can have.
pub const MAX_DEVICES: u8 = 16;
/// The most ports that a device can have.
pub const MAX_PORTS: u8 = 8;

/// The longest message in bytes (`max_msg_sz`), which is the longest of the InfiniBand
/// specification.
pub(crate) const MAX_MESSAGE: u32 = 1 << 31;

/// When a posted work request is executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// In the call that posts it, if possible.
    #[default]
    Inline,
    /// When completions are polled. Until then the request is outstanding, as in hardware.
    Deferred,
}

/// The kind of link that all ports have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Link {
    /// Ethernet: a port is addressed by its GIDs (RoCE v2).
    #[default]
    Ethernet,
    /// InfiniBand: a port is addressed by its LID, with or without GIDs. It has two P_Keys.
    InfiniBand,
}

/// The path that payload may take between two processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Path {
    /// The fastest path available.
    #[default]
    Auto,
    /// `process_vm_writev` and `process_vm_readv`, even for shared memory.
    Vm,
    /// The service thread of the process that owns the memory copies.
    Call,
}

/// The limits that the device reports and enforces.
///
/// The defaults are its real limits. Lower values simulate a smaller device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The most protection domains.
    pub max_pd: u32,
    /// The most memory regions.
    pub max_mr: u32,
    /// The most memory windows.
    pub max_mw: u32,
    /// The most bytes of a memory region.
    pub max_mr_size: u64,
    /// The most bytes of device memory in each context.
    pub max_dm_size: u64,
    /// The most completion queues.
    pub max_cq: u32,
    /// The most entries of a completion queue.
    pub max_cqe: u32,
    /// The most queue pairs.
    pub max_qp: u32,
    /// The most outstanding work requests of a send or receive queue.
    pub max_qp_wr: u32,
    /// The most scatter/gather entries of a work request.
    pub max_sge: u32,
    /// The most bytes of inline data.
    pub max_inline_data: u32,
    /// The most outstanding RDMA READs and atomics of a queue pair, in each direction.
    pub max_qp_rd_atom: u32,
    /// The most address handles.
    pub max_ah: u32,
    /// The most multicast groups.
    pub max_mcast_grp: u32,
    /// The most queue pairs in one multicast group.
    pub max_mcast_qp_attach: u32,
    /// The most queue pairs in all multicast groups together. A queue pair counts once for each
    /// group that it is in.
    pub max_total_mcast_qp_attach: u32,
    /// The most shared receive queues.
    pub max_srq: u32,
    /// The most outstanding work requests of a shared receive queue.
    pub max_srq_wr: u32,
    /// The most scatter entries of a work request of a shared receive queue.
    pub max_srq_sge: u32,
}

/// Calls a macro with the names of all limits that are `u32`.
macro_rules! each_limit {
    ($do:ident) => {
        $do!(
            max_pd,
            max_mr,
            max_mw,
            max_cq,
            max_cqe,
            max_qp,
            max_qp_wr,
            max_sge,
            max_inline_data,
            max_qp_rd_atom,
            max_ah,
            max_mcast_grp,
            max_mcast_qp_attach,
            max_total_mcast_qp_attach,
            max_srq,
            max_srq_wr,
            max_srq_sge
        )
    };
}

impl Default for Limits {
    fn default() -> Self {
        use crate::shared::segment;
        let table = |entries: usize| entries as u32 - 1;
        Self {
            max_pd: 1 << 16,
            max_mr: table(segment::MAX_REGIONS),
            max_mw: table(segment::MAX_REGIONS),
            max_mr_size: 1 << 47,
            max_dm_size: 1 << 28,
            max_cq: table(segment::MAX_COMPLETION_QUEUES),
            max_cqe: 1 << 22,
            max_qp: table(segment::MAX_QUEUE_PAIRS),
            max_qp_wr: segment::MAX_SLOTS,
            max_sge: segment::MAX_SGE as u32,
            max_inline_data: 1024,
            max_qp_rd_atom: 128,
            max_ah: 1 << 20,
            max_mcast_grp: segment::MAX_MEMBERS as u32,
            max_mcast_qp_attach: segment::MAX_MEMBERS as u32,
            max_total_mcast_qp_attach: segment::MAX_MEMBERS as u32,
            max_srq: table(segment::MAX_SHARED_QUEUES),
            max_srq_wr: segment::MAX_SLOTS,
            max_srq_sge: segment::MAX_SGE as u32,
        }
    }
}

impl Limits {
    /// Whether a limit with this name exists.
    pub(crate) fn has(name: &str) -> bool {
        macro_rules! has {
            ($($field:ident),*) => { name == "max_mr_size" || name == "max_dm_size" $(|| name == stringify!($field))* };
        }
        each_limit!(has)
    }

    /// Lowers the limit with this name, which must exist.
    pub(crate) fn lower(&mut self, name: &str, value: u64) {
        macro_rules! lower {
            ($($field:ident),*) => {
                match name {
                    $(stringify!($field) => self.$field = self.$field.min(value.try_into().unwrap_or(u32::MAX)),)*
                    "max_dm_size" => self.max_dm_size = self.max_dm_size.min(value),
                    _ => self.max_mr_size = self.max_mr_size.min(value),
                }
            };
        }
        each_limit!(lower);
    }

    /// Sets the limit with this name.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let default = Self::default();
        let number: u64 = value.parse().map_err(|_| format!("a number for {name}, not {value:?}"))?;
        let at_most = |most: u64| {
            if number <= most { Ok(number) } else { Err(format!("{name} of at most {most}, not {number}")) }
        };
        macro_rules! set {
            ($($field:ident),*) => {
                match name {
                    $(stringify!($field) => self.$field = at_most(default.$field.into())? as u32,)*
                    "max_mr_size" => self.max_mr_size = at_most(default.max_mr_size)?,
                    "max_dm_size" => self.max_dm_size = at_most(default.max_dm_size)?,
                    _ => return Err(concat!(
                        "a list of NAME=NUMBER with the names max_mr_size, max_dm_size", $(", ", stringify!($field)),*
                    ).to_owned() + &format!(", not {name:?}")),
                }
            };
        }
        each_limit!(set);
        Ok(())
    }
}

impl FromStr for Limits {
    type Err = String;

    fn from_str(list: &str) -> Result<Self, String> {
        let mut limits = Self::default();
        for item in list.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (name, value) = item.split_once('=').unwrap_or((item, ""));
            limits.set(name.trim(), value.trim())?;
        }
        Ok(limits)
    }
}

/// The configuration of the device.
///
/// ```
/// let mut config = soft_rnic::Config::default();
/// config.devices = 2;
/// config.limits.max_sge = 1;
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// `SOFT_RNIC_DEVICES`: the number of devices, which are named from `soft0` on: 1 to 16.
    pub devices: u8,
    /// `SOFT_RNIC_PORTS`: the number of ports of each device: 1 to 8.
    pub ports: u8,
    /// `SOFT_RNIC_LINK`: `roce` or `ib`. Processes that connect need the same.
    pub link: Link,
    /// `SOFT_RNIC_MODE`: `inline` or `deferred`.
    pub mode: Mode,
    /// `SOFT_RNIC_TIME_SCALE`: a factor for acknowledgement timeouts and RNR timers.
    pub time_scale: f64,
    /// `SOFT_RNIC_REVOKE_MS`: how long a call waits for peers to release memory before it fails
    /// with `EBUSY`.
    pub revoke: Duration,
    /// `SOFT_RNIC_PATH`: `auto`, `vm` or `call`.
    pub path: Path,
    /// `SOFT_RNIC_SHM`: `1` also shares regions in files of `/dev/shm`. If the owner truncates such
    /// a file while a peer copies, the peer gets SIGBUS.
    pub shm: bool,
    /// `SOFT_RNIC_FABRIC`: only processes with the same fabric see each other.
    pub fabric: String,
    /// `SOFT_RNIC_LIMITS`: a list such as `max_sge=1,max_cqe=16`.
    pub limits: Limits,
    /// `SOFT_RNIC_FAULTS`: fault rules, or `@FILE` to read them from a file.
    pub faults: Option<Faults>,
    /// `SOFT_RNIC_SEED`: the seed of the random numbers.
    pub seed: u64,
    /// `SOFT_RNIC_LOG`: the level that is logged to standard error if the program installs no
    /// logger: `off`, `error`, `warn`, `info`, `debug`, `trace`.
    pub log: log::LevelFilter,
}

/// Where the fault rules come from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Faults {
    /// The text of the rules.
    Rules(String),
    /// A file that contains the rules.
    File(PathBuf),
}

impl Default for Config {
    fn default() -> Self {
        Self {
            devices: 1,
            ports: 1,
            link: Link::Ethernet,
            mode: Mode::Inline,
            time_scale: 1.0,
            revoke: Duration::from_secs(2),
            path: Path::Auto,
            shm: false,
            fabric: String::new(),
            limits: Limits::default(),
            faults: None,
            seed: 0,
            log: log::LevelFilter::Warn,
        }
    }
}

/// An invalid value in the configuration.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable} is {value:?}; set it to {allowed}")]
#[non_exhaustive]
pub struct ConfigError {
    /// The variable, also for a field of [`Config`].
    pub variable: &'static str,
    /// The invalid value.
    pub value: String,
    /// The values that are allowed.
    pub allowed: String,
}

debug_as_text!(ConfigError);

impl Config {
    /// Reads the configuration from the environment. Variables that are not set have their
    /// defaults. So have all in a program with more rights than its user ([`secure_var_os`]).
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the variable, its value and what is allowed. An empty variable counts
    /// as unset.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_variables(|variable| {
            let text = secure_var_os(variable).map(OsString::into_string).transpose();
            text.map_err(|value| ConfigError {
                variable,
                value: value.to_string_lossy().into_owned(),
                allowed: "Unicode text".to_owned(),
            })
        })
    }

    fn from_variables(
        look_up: impl Fn(&'static str) -> Result<Option<String>, ConfigError>,
    ) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        let read = |variable, set: &mut dyn FnMut(&str) -> Result<(), String>| {
            let value = look_up(variable)?.unwrap_or_default();
            let value = value.trim();
            let wrong = |allowed| ConfigError { variable, value: value.to_owned(), allowed };
            if value.is_empty() { Ok(()) } else { set(value).map_err(wrong) }
        };
        let c = &mut config;
        read("SOFT_RNIC_DEVICES", &mut |v| number(v, 1, MAX_DEVICES.into()).map(|n| c.devices = n as u8))?;
        read("SOFT_RNIC_PORTS", &mut |v| number(v, 1, MAX_PORTS.into()).map(|n| c.ports = n as u8))?;
        read("SOFT_RNIC_LINK", &mut |v| {
            one_of(v, &[("roce", Link::Ethernet), ("ib", Link::InfiniBand)]).map(|link| c.link = link)
        })?;
        read("SOFT_RNIC_MODE", &mut |v| {
            one_of(v, &[("inline", Mode::Inline), ("deferred", Mode::Deferred)]).map(|mode| c.mode = mode)
        })?;
        read("SOFT_RNIC_TIME_SCALE", &mut |v| {
            v.parse().map_err(|_| SCALES.to_owned()).map(|scale| c.time_scale = scale)
        })?;
        read("SOFT_RNIC_REVOKE_MS", &mut |v| {
            number(v, 0, MAX_REVOKE.as_millis() as u64).map(|ms| c.revoke = Duration::from_millis(ms))
        })?;
        read("SOFT_RNIC_PATH", &mut |v| {
            one_of(v, &[("auto", Path::Auto), ("vm", Path::Vm), ("call", Path::Call)])
                .map(|path| c.path = path)
        })?;
        read("SOFT_RNIC_SHM", &mut |v| one_of(v, &[("0", false), ("1", true)]).map(|shm| c.shm = shm))?;
        read("SOFT_RNIC_FABRIC", &mut |v| {
            c.fabric = v.to_owned();
            Ok(())
        })?;
        read("SOFT_RNIC_LIMITS", &mut |v| v.parse().map(|limits| c.limits = limits))?;
        read("SOFT_RNIC_FAULTS", &mut |v| {
            c.faults = Some(match v.strip_prefix('@') {
                Some(file) => Faults::File(file.into()),
                None => Faults::Rules(v.to_owned()),
            });
            Ok(())
        })?;
        read("SOFT_RNIC_SEED", &mut |v| number(v, 0, u64::MAX).map(|seed| c.seed = seed))?;
        read("SOFT_RNIC_LOG", &mut |v| {
            v.parse()
                .map_err(|_| "one of off, error, warn, info, debug, trace".to_owned())
                .map(|level| c.log = level)
        })?;
        config.validate()?;
        Ok(config)
    }

    /// Reads and parses the fault rules.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if the file cannot be read or a rule is invalid.
    pub(crate) fn fault_rules(&self) -> Result<Vec<Rule>, ConfigError> {
        match &self.faults {
            None => Ok(Vec::new()),
            Some(Faults::Rules(rules)) => parse_faults(rules),
            Some(Faults::File(file)) => match std::fs::read_to_string(file) {
                Ok(rules) => parse_faults(&rules),
                Err(error) => {
                    let allowed = format!("fault rules, or @FILE with a readable file ({error})");
                    Err(wrong_faults(format!("@{}", file.display()), allowed))
                }
            },
        }
    }

    /// Checks that the device can be set up with this configuration.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the field by its variable.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let check = |variable, holds: bool, value: &dyn fmt::Display, allowed: &dyn fmt::Display| {
            let wrong = || ConfigError { variable, value: value.to_string(), allowed: allowed.to_string() };
            if holds { Ok(()) } else { Err(wrong()) }
        };
        let (devices, ports) = (self.devices, self.ports);
        check(
            "SOFT_RNIC_DEVICES",
            (1..=MAX_DEVICES).contains(&devices),
            &devices,
            &format_args!("a number from 1 to {MAX_DEVICES}"),
        )?;
        check(
            "SOFT_RNIC_PORTS",
            (1..=MAX_PORTS).contains(&ports),
            &ports,
            &format_args!("a number from 1 to {MAX_PORTS}"),
        )?;
        let scale = self.time_scale;
        check("SOFT_RNIC_TIME_SCALE", (1e-6..=1e6).contains(&scale), &scale, &SCALES)?;
        check(
            "SOFT_RNIC_REVOKE_MS",
            self.revoke <= MAX_REVOKE,
            &self.revoke.as_millis(),
            &format_args!("at most {}", MAX_REVOKE.as_millis()),
        )?;
        let fabric = &self.fabric;
        let plain = fabric.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        check(
            "SOFT_RNIC_FABRIC",
            plain && fabric.len() <= 32,
            fabric,
            &"at most 32 letters, digits, '-', '_' and '.'",
        )?;
        let most = Limits::default();
        macro_rules! check_limits {
            ($($field:ident),*) => {$(
                check(
                    "SOFT_RNIC_LIMITS",
                    self.limits.$field <= most.$field,
                    &format_args!("{}={}", stringify!($field), self.limits.$field),
                    &format_args!("{} of at most {}", stringify!($field), most.$field),
                )?;
            )*};
        }
        each_limit!(check_limits);
        check(
            "SOFT_RNIC_LIMITS",
            self.limits.max_mr_size <= most.max_mr_size,
            &format_args!("max_mr_size={}", self.limits.max_mr_size),
            &format_args!("max_mr_size of at most {}", most.max_mr_size),
        )?;
        check(
            "SOFT_RNIC_LIMITS",
            self.limits.max_dm_size <= most.max_dm_size,
            &format_args!("max_dm_size={}", self.limits.max_dm_size),
            &format_args!("max_dm_size of at most {}", most.max_dm_size),
        )?;
        match &self.faults {
            Some(Faults::Rules(rules)) => parse_faults(rules).map(|_| ()),
            _ => Ok(()),
        }
    }
}

fn parse_faults(rules: &str) -> Result<Vec<Rule>, ConfigError> {
    faults::parse(rules)
        .map_err(|error| wrong_faults(rules.to_owned(), format!("valid fault rules; {error}")))
}

fn wrong_faults(value: String, allowed: String) -> ConfigError {
    ConfigError { variable: "SOFT_RNIC_FAULTS", value, allowed }
}

const SCALES: &str = "a number from 0.000001 to 1000000";
const MAX_REVOKE: Duration = Duration::from_secs(3600);

fn number(value: &str, least: u64, most: u64) -> Result<u64, String> {
    let allowed = || format!("a number from {least} to {most}");
    value.parse().ok().filter(|number| (least..=most).contains(number)).ok_or_else(allowed)
}

fn one_of<T: Copy>(value: &str, choices: &[(&str, T)]) -> Result<T, String> {
    let names = || choices.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(" or ");
    choices.iter().find(|(name, _)| *name == value).map(|(_, choice)| *choice).ok_or_else(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
        Config::from_variables(|name| {
            Ok(variables.iter().find(|(variable, _)| *variable == name).map(|(_, value)| (*value).to_owned()))
        })
    }

    #[test]
    fn empty_environment_gives_the_defaults() {
        assert_eq!(read(&[]), Ok(Config::default()));
        assert_eq!(read(&[("SOFT_RNIC_DEVICES", " ")]), Ok(Config::default()));
        assert_eq!(Config::default().validate(), Ok(()));
    }

    #[cfg(not(any(miri, loom)))]
    #[test]
    #[ignore = "run by another test, with more rights than its user"]
    fn read_and_tell() {
        println!("\nconfiguration: {:?}", Config::from_env());
    }

    /// A file of fault rules that only the program may read would be printed in the error.
    #[cfg(not(any(miri, loom)))]
    #[test]
    fn a_program_with_more_rights_than_its_user_ignores_the_environment() {
        use test_harness::{Grant, PrivilegedCopy};
        let expected = format!("configuration: {:?}", Ok::<_, ConfigError>(Config::default()));
        let test = "a_program_with_more_rights_than_its_user_ignores_the_environment";
        for copy in Grant::ALL.into_iter().filter_map(|grant| PrivilegedCopy::new(test, grant)) {
            let output = copy.run(|command| {
                command.args(["--ignored", "--exact", "config::tests::read_and_tell", "--nocapture"]);
                command.env("SOFT_RNIC_FAULTS", "@/etc/shadow").env("SOFT_RNIC_DEVICES", "3");
            });
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(text.lines().any(|line| line == expected), "{text}");
        }
    }

    #[test]
    fn every_variable_is_read() {
        let config = read(&[
            ("SOFT_RNIC_DEVICES", "3"),
            ("SOFT_RNIC_PORTS", "2"),
            ("SOFT_RNIC_LINK", "ib"),
            ("SOFT_RNIC_MODE", "deferred"),
            ("SOFT_RNIC_TIME_SCALE", "0.5"),
            ("SOFT_RNIC_REVOKE_MS", "70"),
            ("SOFT_RNIC_PATH", "call"),
            ("SOFT_RNIC_SHM", "1"),
            ("SOFT_RNIC_FABRIC", "test-1"),
            ("SOFT_RNIC_LIMITS", "max_sge=1, max_mr_size=4096"),
            ("SOFT_RNIC_FAULTS", "@rules.txt"),
            ("SOFT_RNIC_SEED", "7"),
            ("SOFT_RNIC_LOG", "debug"),
        ]);
        let expected = Config {
            devices: 3,
            ports: 2,
            link: Link::InfiniBand,
            mode: Mode::Deferred,
            time_scale: 0.5,
            revoke: Duration::from_millis(70),
            path: Path::Call,
            shm: true,
            fabric: "test-1".to_owned(),
            limits: Limits { max_sge: 1, max_mr_size: 4096, ..Limits::default() },
            faults: Some(Faults::File("rules.txt".into())),
            seed: 7,
            log: log::LevelFilter::Debug,
        };
        assert_eq!(config, Ok(expected));
    }

    #[test]
    fn error_names_the_value_and_what_is_allowed() {
        for (variable, value, allowed) in [
            ("SOFT_RNIC_DEVICES", "0", "a number from 1 to 16"),
            ("SOFT_RNIC_DEVICES", "many", "a number from 1 to 16"),
            ("SOFT_RNIC_PORTS", "9", "a number from 1 to 8"),
            ("SOFT_RNIC_LINK", "infiniband", "roce or ib"),
            ("SOFT_RNIC_MODE", "lazy", "inline or deferred"),
            ("SOFT_RNIC_TIME_SCALE", "-1", SCALES),
            ("SOFT_RNIC_TIME_SCALE", "NaN", SCALES),
            ("SOFT_RNIC_REVOKE_MS", "3600001", "a number from 0 to 3600000"),
            ("SOFT_RNIC_PATH", "direct", "auto or vm or call"),
            ("SOFT_RNIC_SHM", "yes", "0 or 1"),
            ("SOFT_RNIC_FABRIC", "a/b", "at most 32 letters, digits, '-', '_' and '.'"),
            ("SOFT_RNIC_LIMITS", "max_sge=x", "a number for max_sge, not \"x\""),
            ("SOFT_RNIC_LIMITS", "max_qp_wr=65537", "max_qp_wr of at most 65536, not 65537"),
            ("SOFT_RNIC_SEED", "1.5", "a number from 0 to 18446744073709551615"),
            ("SOFT_RNIC_LOG", "loud", "one of off, error, warn, info, debug, trace"),
        ] {
            let error = read(&[(variable, value)]).expect_err(value);
            assert_eq!((error.variable, error.allowed.as_str()), (variable, allowed));
            let shown = error.to_string();
            assert!(shown.contains(variable) && shown.contains(value) && shown.contains(allowed), "{shown}");
        }
        let error = read(&[("SOFT_RNIC_LIMITS", "max_cats=1")]).unwrap_err();
        assert_eq!(format!("{error:?}"), error.to_string());
        assert!(error.allowed.contains("max_inline_data") && error.allowed.contains("max_cats"), "{error}");
    }
}
