//! The devices and ports of a side.

use super::{LocalOptions, PlanError};
use crate::cli::CommonArgs;

/// A device or port that the user named beside the first one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceChoice {
    /// The device's name; `None` for the first suitable one.
    pub name: Option<String>,
    /// The port's number, if the user gave it.
    pub port: Option<u8>,
}

/// Parses `-d mlx5_0,mlx5_1:2`, or both ports of a device (`--dualport`). The list is empty if the
/// flags name at most one device, which the ordinary options then describe.
///
/// # Errors
///
/// A port is invalid, or a device is named twice.
pub(super) fn asked(args: &CommonArgs) -> Result<Vec<DeviceChoice>, PlanError> {
    let (device, ib_port) = (&args.run.device, args.run.ib_port);
    let choices = match device {
        _ if args.dualport => {
            if ib_port.is_some() || device.as_ref().is_some_and(|names| names.contains([',', ':'])) {
                return Err(PlanError::DualPortOf { given: device.clone().unwrap_or_default() });
            }
            let port = |number| DeviceChoice { name: device.clone(), port: Some(number) };
            vec![port(1), port(2)]
        }
        Some(names) if names.contains([',', ':']) => {
            let choices: Vec<_> =
                names.split(',').map(|word| choice(word, names)).collect::<Result<_, _>>()?;
            if ib_port.is_some() {
                return Err(PlanError::PortOfSeveral { given: names.clone() });
            }
            choices
        }
        _ => return Ok(Vec::new()),
    };
    let twice = choices.iter().enumerate().find(|(index, choice)| choices[..*index].contains(choice));
    match twice {
        Some((_, choice)) => Err(PlanError::SameDevice { given: choice.name.clone().unwrap_or_default() }),
        None => Ok(choices),
    }
}

fn choice(word: &str, names: &str) -> Result<DeviceChoice, PlanError> {
    let refused = || PlanError::NoSuchDeviceName { given: names.to_owned() };
    let (name, port) = match word.split_once(':') {
        Some((name, port)) => (name, Some(port.parse().ok().filter(|port| *port > 0).ok_or_else(refused)?)),
        None => (word, None),
    };
    if name.is_empty() { Err(refused()) } else { Ok(DeviceChoice { name: Some(name.to_owned()), port }) }
}

impl LocalOptions {
    /// The number of devices or ports that a side uses.
    pub fn device_count(&self) -> u32 {
        u32::try_from(self.devices.len()).unwrap_or(u32::MAX).max(1)
    }

    /// The options for each device, which differ only in its name and port.
    pub fn of_each_device(&self) -> Vec<Self> {
        let of = |choice: &DeviceChoice| {
            let DeviceChoice { name, port } = choice.clone();
            Self { device: name, ib_port: port, devices: Vec::new(), ..self.clone() }
        };
        if self.devices.is_empty() { vec![self.clone()] } else { self.devices.iter().map(of).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;
    use crate::plan::RunPlan;

    fn plan(flags: &str) -> Result<RunPlan, PlanError> {
        let words = format!("stride-perf write {flags}");
        RunPlan::new(cli::parse(words.split_whitespace()).unwrap())
    }

    fn devices(flags: &str) -> Vec<(Option<String>, Option<u8>)> {
        let each = plan(flags).unwrap().local.of_each_device();
        each.into_iter().map(|options| (options.device, options.ib_port)).collect()
    }

    #[test]
    fn devices_are_named_with_their_ports() {
        let named = |name: &str, port| (Some(name.to_owned()), port);
        assert_eq!(devices("bw"), [(None, None)]);
        assert_eq!(devices("bw -d a -i 2"), [named("a", Some(2))]);
        assert_eq!(devices("bw -d a,b"), [named("a", None), named("b", None)]);
        assert_eq!(devices("bw -d a:1,a:2,b"), [named("a", Some(1)), named("a", Some(2)), named("b", None)]);
        assert_eq!(devices("bw -d a:3"), [named("a", Some(3))]);
        assert_eq!(devices("bw -d a --dualport"), [named("a", Some(1)), named("a", Some(2))]);
        assert_eq!(devices("bw -O"), [(None, Some(1)), (None, Some(2))]);
    }

    #[test]
    fn each_device_has_a_thread_and_a_queue_pair() {
        let of = |flags: &str| (plan(flags).unwrap().test.threads, plan(flags).unwrap().test.queue_pairs);
        assert_eq!((of("bw -d a,b"), of("bw -d a,b --threads 5 -q 9")), ((Some(2), 2), (Some(5), 9)));
        assert_eq!((of("lat -d a,b,c"), of("bw -d a:1")), ((Some(3), 3), (None, 1)));
        let refused = |flags: &str| plan(flags).unwrap_err().to_string();
        assert!(refused("bw -d a,b --threads 1").starts_with("-d names 2 devices or ports, and --threads 1"));
        assert!(refused("bw -d a,b -q 1").contains("-q 1 is fewer"));
    }

    #[test]
    fn invalid_device_names_are_refused() {
        let refused = |flags: &str| plan(flags).unwrap_err().to_string();
        for flags in ["bw -d a,", "bw -d ,", "bw -d :1", "bw -d a:0,b", "bw -d a:x", "bw -d a:256"] {
            assert!(refused(flags).contains("NAME or NAME:PORT"), "{flags}");
        }
        assert!(refused("bw -d a,b -i 1").contains("-i and -d a,b do not go together"));
        assert!(refused("bw -d a,b,a").contains("names a twice"));
        assert!(refused("bw -d a --dualport -i 1").starts_with("--dualport"));
        assert!(refused("bw -d a:1 --dualport").starts_with("--dualport"));
    }
}
