//! The environment variables: `TRESPASS_DEV`, `TRESPASS_GID_INDEX`, `TRESPASS_TRANSPORT`,
//! `TRESPASS_PROBE_TIMEOUT`, `TRESPASS_CONTROL_KEEPALIVE`, `TRESPASS_EXIT_TIMEOUT` and
//! `TRESPASS_LOG`.
//!
//! They override the program, because a user sets them for programs that cannot be changed. A
//! program that has more rights than this user ignores them. An
//! invalid value is an error and never ignored, so that no setting is lost silently.

use std::ffi::OsString;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tracing::level_filters::LevelFilter;

use super::{ConfigError, secure};
use crate::wire::Policy;

/// The devices: `NAME` or `NAME:PORT`, or several of them separated by commas.
pub(crate) const DEVICE: &str = "TRESPASS_DEV";
/// The index in the port's GID table: 0 to 255.
pub(crate) const GID_INDEX: &str = "TRESPASS_GID_INDEX";
/// The transport: `auto`, `rdma` or `tcp`.
pub(crate) const TRANSPORT: &str = "TRESPASS_TRANSPORT";
/// The time limit for the proof of the data path, in milliseconds.
pub(crate) const PROBE_TIMEOUT: &str = "TRESPASS_PROBE_TIMEOUT";
/// The interval between two bytes of the control connection, in milliseconds; 0 sends none.
pub(crate) const CONTROL_KEEPALIVE: &str = "TRESPASS_CONTROL_KEEPALIVE";
/// The time limit for the end of the process, in milliseconds.
pub(crate) const EXIT_TIMEOUT: &str = "TRESPASS_EXIT_TIMEOUT";
/// The log level of standard error: `off`, `error`, `warn`, `info`, `debug` or `trace`.
pub(crate) const LOG: &str = "TRESPASS_LOG";

/// The form of one device.
const DEVICE_FORM: &str = "NAME or NAME:PORT, the port a number from 1 to 255";

/// The maximum length of a device name. The kernel's limit is 63 too.
const MAX_DEVICE_NAME: usize = 63;

/// A device, and optionally a port of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceName {
    pub(crate) name: String,
    pub(crate) port: Option<u8>,
}

impl DeviceName {
    /// Parses `NAME` or `NAME:PORT`. An error names `parameter`.
    pub(crate) fn parse(parameter: &'static str, text: &str) -> Result<Self, ConfigError> {
        Self::parse_item(text).map_err(|remedy| {
            let remedy = if text.contains(',') { "`devices` takes several" } else { remedy };
            ConfigError::new(parameter, format!("{text:?}"), DEVICE_FORM, remedy)
        })
    }

    /// Parses one or several of them, separated by commas. An error names `parameter`.
    pub(crate) fn parse_list(parameter: &'static str, text: &str) -> Result<Vec<Self>, ConfigError> {
        let refused = |remedy: String| {
            let bound = format!("{DEVICE_FORM}, or several of them separated by commas");
            ConfigError::new(parameter, format!("{text:?}"), bound, remedy)
        };
        let mut names: Vec<Self> = Vec::new();
        for item in text.split(',') {
            let name = Self::parse_item(item).map_err(|remedy| match item == text {
                true => refused(remedy.to_owned()),
                false => refused(format!("{item:?} is none; {remedy}")),
            })?;
            if let Some(same) = names.iter().find(|same| same.overlaps(&name)) {
                return Err(refused(format!("leave out {name}, since {same} is named before it")));
            }
            names.push(name);
        }
        Ok(names)
    }

    /// An error is the remedy.
    fn parse_item(text: &str) -> Result<Self, &'static str> {
        let (name, port) = match text.split_once(':') {
            None => (text, None),
            Some((name, port)) => match u8::from_str(port) {
                Ok(port @ 1..) => (name, Some(port)),
                _ => return Err("ports count from 1, see `ibv_devinfo`"),
            },
        };
        let strange = |c: char| c.is_whitespace() || c.is_control() || c == '/' || c == ',';
        if name.is_empty() || name.len() > MAX_DEVICE_NAME || name.contains(strange) {
            return Err("the devices are listed by `ibv_devices`");
        }
        Ok(Self { name: name.to_owned(), port })
    }

    /// Whether it names this port of the device.
    #[cfg(feature = "rdma")]
    pub(crate) fn includes(&self, device: &str, port: u8) -> bool {
        self.name == device && self.port.is_none_or(|own| own == port)
    }

    /// Whether both name one port. A device without a port stands for any of its ports.
    fn overlaps(&self, other: &Self) -> bool {
        self.name == other.name && (self.port == other.port || self.port.is_none() || other.port.is_none())
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

/// The parsed environment variables. An unset one is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Environment {
    /// Empty if the variable is not set.
    pub(crate) devices: Vec<DeviceName>,
    pub(crate) gid_index: Option<u8>,
    pub(crate) transport: Option<Policy>,
    pub(crate) probe_timeout: Option<Duration>,
    /// Zero sends no bytes.
    pub(crate) control_keepalive: Option<Duration>,
    pub(crate) exit_timeout: Option<Duration>,
    pub(crate) log: Option<LevelFilter>,
}

impl Environment {
    /// Reads the environment of the process.
    pub(crate) fn of_process() -> Result<Self, ConfigError> {
        Self::read(|name| if secure::is_secure() { None } else { std::env::var_os(name) })
    }

    /// Reads the variables through `value`, for tests.
    pub(crate) fn read(value: impl Fn(&str) -> Option<OsString>) -> Result<Self, ConfigError> {
        let text = |name: &'static str| value(name).map(|value| readable(name, value)).transpose();
        Ok(Self {
            devices: match text(DEVICE)? {
                Some(text) => DeviceName::parse_list(DEVICE, &text)?,
                None => Vec::new(),
            },
            gid_index: text(GID_INDEX)?.map(|text| gid_index(&text)).transpose()?,
            transport: text(TRANSPORT)?.map(|text| transport(&text)).transpose()?,
            probe_timeout: text(PROBE_TIMEOUT)?.map(|text| probe_timeout(&text)).transpose()?,
            control_keepalive: text(CONTROL_KEEPALIVE)?.map(|text| control_keepalive(&text)).transpose()?,
            exit_timeout: text(EXIT_TIMEOUT)?.map(|text| exit_timeout(&text)).transpose()?,
            log: text(LOG)?.map(|text| log(&text)).transpose()?,
        })
    }
}

/// Converts the value to a string.
fn readable(name: &'static str, value: OsString) -> Result<String, ConfigError> {
    let refused = |value: String, remedy| Err(ConfigError::new(name, value, "a word", remedy));
    match value.into_string() {
        Ok(text) if text.is_empty() => refused("\"\"".into(), "unset the variable if nothing is meant"),
        Ok(text) => Ok(text),
        Err(value) => refused(format!("{value:?}"), "write it in UTF-8"),
    }
}

fn gid_index(text: &str) -> Result<u8, ConfigError> {
    u8::from_str(text).map_err(|_| {
        let remedy = "the entries are in /sys/class/infiniband/NAME/ports/PORT/gids";
        ConfigError::new(GID_INDEX, format!("{text:?}"), "a number from 0 to 255", remedy)
    })
}

fn transport(text: &str) -> Result<Policy, ConfigError> {
    match text {
        "auto" => Ok(Policy::Auto),
        "rdma" => Ok(Policy::RequireRdma),
        "tcp" => Ok(Policy::TcpOnly),
        _ => {
            let remedy = "auto takes RDMA where it works, rdma insists on it, tcp does without";
            Err(ConfigError::new(TRANSPORT, format!("{text:?}"), "auto, rdma or tcp", remedy))
        }
    }
}

fn probe_timeout(text: &str) -> Result<Duration, ConfigError> {
    match u32::from_str(text) {
        Ok(ms @ 1..=3_600_000) => Ok(Duration::from_millis(ms.into())),
        _ => {
            let bound = "a number of milliseconds from 1 to 3600000";
            let remedy = "300 is the default; more is for busy machines";
            Err(ConfigError::new(PROBE_TIMEOUT, format!("{text:?}"), bound, remedy))
        }
    }
}

fn control_keepalive(text: &str) -> Result<Duration, ConfigError> {
    match u32::from_str(text) {
        Ok(ms @ (0 | 100..=3_600_000)) => Ok(Duration::from_millis(ms.into())),
        _ => {
            let bound = "0, or a number of milliseconds from 100 to 3600000";
            let remedy = "25000 is the default; 0 sends no bytes";
            Err(ConfigError::new(CONTROL_KEEPALIVE, format!("{text:?}"), bound, remedy))
        }
    }
}

fn exit_timeout(text: &str) -> Result<Duration, ConfigError> {
    match u32::from_str(text) {
        Ok(ms @ ..=3_600_000) => Ok(Duration::from_millis(ms.into())),
        _ => {
            let bound = "a number of milliseconds up to 3600000";
            let remedy = "10000 is the default; more is for peers that read late";
            Err(ConfigError::new(EXIT_TIMEOUT, format!("{text:?}"), bound, remedy))
        }
    }
}

fn log(text: &str) -> Result<LevelFilter, ConfigError> {
    match text {
        "off" => Ok(LevelFilter::OFF),
        "error" => Ok(LevelFilter::ERROR),
        "warn" => Ok(LevelFilter::WARN),
        "info" => Ok(LevelFilter::INFO),
        "debug" => Ok(LevelFilter::DEBUG),
        "trace" => Ok(LevelFilter::TRACE),
        _ => {
            let bound = "off, error, warn, info, debug or trace";
            let remedy = "info tells for each connection whether RDMA carries it, and why not";
            Err(ConfigError::new(LOG, format!("{text:?}"), bound, remedy))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, value: &str) -> Result<Environment, ConfigError> {
        Environment::read(|asked| (asked == name).then(|| value.into()))
    }

    #[test]
    fn an_empty_environment_says_nothing() {
        assert_eq!(Environment::read(|_| None), Ok(Environment::default()));
    }

    #[test]
    fn devices_may_have_a_port() {
        for (text, name, port) in
            [("mlx5_0", "mlx5_0", None), ("mlx5_0:2", "mlx5_0", Some(2)), ("soft0:255", "soft0", Some(255))]
        {
            let devices = with(DEVICE, text).expect("allowed").devices;
            let [device] = &devices[..] else { panic!("one device: {devices:?}") };
            assert_eq!((device.name.as_str(), device.port), (name, port));
            assert_eq!(device.to_string(), text);
        }
    }

    #[test]
    fn several_devices_are_separated_by_commas() {
        for text in ["mlx5_0:1,mlx5_1:1", "mlx5_1,mlx5_0", "mlx4_0:1,mlx4_0:2,mlx5_0", "mlx5_1:2"] {
            let devices = with(DEVICE, text).expect("allowed").devices;
            assert_eq!(devices.iter().map(ToString::to_string).collect::<Vec<_>>().join(","), text);
        }
        let refusal = |text| with(DEVICE, text).expect_err("refused").to_string();
        assert_eq!(
            refusal("mlx5_0:1,mlx5_1:0"),
            "TRESPASS_DEV = \"mlx5_0:1,mlx5_1:0\" is refused: it must be NAME or NAME:PORT, the port a number from 1 to 255, \
             or several of them separated by commas; \"mlx5_1:0\" is none; ports count from 1, see `ibv_devinfo`"
        );
        for (text, named) in [
            ("mlx5_0:1,mlx5_1:1,mlx5_0:1", "leave out mlx5_0:1, since mlx5_0:1 is named before it"),
            ("mlx5_0,mlx5_0:2", "leave out mlx5_0:2, since mlx5_0 is named before it"),
            ("mlx5_0:2,mlx5_0", "leave out mlx5_0, since mlx5_0:2 is named before it"),
            ("mlx5_0,", "\"\" is none; the devices are listed by `ibv_devices`"),
            (",mlx5_0", "\"\" is none"),
            ("mlx5_0, mlx5_1", "\" mlx5_1\" is none"),
        ] {
            assert!(refusal(text).contains(named), "{}", refusal(text));
        }
    }

    #[test]
    fn every_word_is_understood() {
        assert_eq!(with(GID_INDEX, "0").expect("allowed").gid_index, Some(0));
        assert_eq!(with(GID_INDEX, "255").expect("allowed").gid_index, Some(255));
        for (text, policy) in
            [("auto", Policy::Auto), ("rdma", Policy::RequireRdma), ("tcp", Policy::TcpOnly)]
        {
            assert_eq!(with(TRANSPORT, text).expect("allowed").transport, Some(policy));
        }
        let ms = |text| with(PROBE_TIMEOUT, text).expect("allowed").probe_timeout.expect("set").as_millis();
        assert_eq!([ms("1"), ms("3600000")], [1, 3_600_000]);
        let ms = |text| {
            with(CONTROL_KEEPALIVE, text).expect("allowed").control_keepalive.expect("set").as_millis()
        };
        assert_eq!([ms("0"), ms("100"), ms("3600000")], [0, 100, 3_600_000]);
        let ms = |text| with(EXIT_TIMEOUT, text).expect("allowed").exit_timeout.expect("set").as_millis();
        assert_eq!([ms("0"), ms("3600000")], [0, 3_600_000]);
        for level in ["off", "error", "warn", "info", "debug", "trace"] {
            let log = with(LOG, level).expect("allowed").log.expect("set");
            assert_eq!(log.to_string(), level);
        }
    }

    /// An invalid value is an error that names the variable and the value.
    #[test]
    fn invalid_values_are_refused() {
        let long = "x".repeat(64);
        for (name, value) in [
            (DEVICE, ""),
            (DEVICE, ":1"),
            (DEVICE, "mlx5_0:"),
            (DEVICE, "mlx5_0:0"),
            (DEVICE, "mlx5_0:256"),
            (DEVICE, "mlx5_0:1:2"),
            (DEVICE, "mlx5_0:-1"),
            (DEVICE, "mlx5 0"),
            (PROBE_TIMEOUT, "0"),
            (PROBE_TIMEOUT, "2s"),
            (PROBE_TIMEOUT, "3600001"),
            (CONTROL_KEEPALIVE, ""),
            (CONTROL_KEEPALIVE, "99"),
            (CONTROL_KEEPALIVE, "none"),
            (CONTROL_KEEPALIVE, "3600001"),
            (EXIT_TIMEOUT, ""),
            (EXIT_TIMEOUT, "-1"),
            (EXIT_TIMEOUT, "10s"),
            (EXIT_TIMEOUT, "3600001"),
            (DEVICE, "/dev/infiniband/uverbs0"),
            (DEVICE, &long),
            (GID_INDEX, ""),
            (GID_INDEX, "256"),
            (GID_INDEX, "-1"),
            (GID_INDEX, "1 "),
            (GID_INDEX, "three"),
            (TRANSPORT, ""),
            (TRANSPORT, "RDMA"),
            (TRANSPORT, "udp"),
            (LOG, ""),
            (LOG, "verbose"),
            (LOG, "1"),
        ] {
            let error = with(name, value).expect_err("refused");
            assert_eq!(error.parameter(), name);
            assert_eq!(error.value(), format!("{value:?}"));
            assert!(!error.bound().is_empty() && !error.remedy().is_empty());
        }
    }

    #[cfg(unix)]
    #[test]
    fn values_that_are_not_utf8_are_refused() {
        use std::os::unix::ffi::OsStringExt;
        for name in [DEVICE, GID_INDEX, TRANSPORT, PROBE_TIMEOUT, CONTROL_KEEPALIVE, EXIT_TIMEOUT, LOG] {
            let value = |asked: &str| (asked == name).then(|| OsString::from_vec(vec![0xff]));
            let error = Environment::read(value).expect_err("refused");
            assert_eq!((error.parameter(), error.value()), (name, "\"\\xFF\""));
        }
    }
}
