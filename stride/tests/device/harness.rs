//! The harness of tests that need a device.

use std::panic::resume_unwind;
use std::process::ExitCode;
use std::thread::{self, ScopedJoinHandle};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::device_attr::DeviceCapabilityFlags;
use sideway::ibverbs::port::PortState;
use test_harness::{device_is_required, print_summary};

/// The outcome of a test; `Skipped` carries the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ran,
    Skipped(&'static str),
}

/// A test's name and its function.
pub(crate) type Test = (&'static str, fn(&Device) -> Outcome);

/// The device that the tests use.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) is_soft: bool,
    pub(crate) port: u8,
    pub(crate) known: Vec<String>,
    pub(crate) max_qp_wr: u32,
    pub(crate) max_cqe: u32,
    pub(crate) max_qp_init_rd_atom: u32,
    pub(crate) max_msg_sz: u64,
    pub(crate) gid_table_length: u32,
    pub(crate) mtu: u32,
    pub(crate) pkeys: u32,
    pub(crate) max_dm_size: u64,
    pub(crate) max_sge: u32,
    pub(crate) max_sge_rd: u32,
    pub(crate) has_xrc: bool,
    pub(crate) max_srq: u32,
    pub(crate) max_srq_wr: u32,
    /// Indices of the port's GID table with a GID.
    pub(crate) gid_indices: Vec<u32>,
}

/// Runs the tests one after the other, because each occupies one or two processors.
pub(crate) fn run(tests: Vec<Test>) -> ExitCode {
    let device = Device::find();
    let required = device_is_required();
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(1);
    if let Some(reason) = device.as_ref().err().filter(|_| !arguments.list) {
        println!("{} device tests have nothing to run on: {reason}", tests.len());
    }
    let trials = tests.into_iter().map(|(name, test)| trial(name, test, device.clone(), required)).collect();
    print_summary(&arguments, &libtest_mimic::run(&arguments, trials), required)
}

/// Calls `each` for all values, several at a time if the device is software. It suits runs that
/// wait or take a given time, and whose figures need not be accurate. A system's device may be in a
/// machine with a single emulated processor.
pub(crate) fn side_by_side<T: Sync>(device: &Device, all: &[T], each: impl Fn(&T) + Sync) {
    for some in all.chunks(if device.is_soft { 4 } else { 1 }) {
        thread::scope(|scope| {
            let running: Vec<_> = some.iter().map(|one| scope.spawn(|| each(one))).collect();
            for ended in running.into_iter().map(ScopedJoinHandle::join) {
                // With the original message, which the suite shows.
                ended.unwrap_or_else(|panic| resume_unwind(panic));
            }
        });
    }
}

fn trial(
    name: &'static str,
    test: fn(&Device) -> Outcome,
    device: Result<Device, String>,
    required: bool,
) -> Trial {
    match device {
        Ok(device) => Trial::ignorable_test(name, move || match test(&device) {
            Outcome::Ran => Ok(Completion::Completed),
            Outcome::Skipped(reason) => Ok(Completion::ignored_with(reason)),
        }),
        Err(reason) if required => Trial::test(name, move || Err(Failed::from(reason))),
        Err(_) => Trial::ignorable_test(name, || Ok(Completion::ignored_with("no device"))),
    }
}

impl Device {
    /// The first device with an active port, subject to the environment's choice.
    fn find() -> Result<Self, String> {
        let list = DeviceList::new().map_err(|error| error.to_string())?;
        let known: Vec<_> = list.iter().map(|device| device.name()).collect();
        let wanted = std::env::var("SOFTROCE_DEVICE").ok();
        for device in list.iter().filter(|device| wanted.as_ref().is_none_or(|name| *name == device.name())) {
            let context = device.open().map_err(|error| error.to_string())?;
            let attr = context.query_device().map_err(|error| error.to_string())?;
            for port in 1..=attr.phys_port_cnt() {
                let port_attr = context.query_port(port).map_err(|error| error.to_string())?;
                if port_attr.port_state() != PortState::Active {
                    continue;
                }
                let gids = context.query_gid_table().map_err(|error| error.to_string())?;
                let here =
                    gids.iter().filter(|gid| gid.port_num() == u32::from(port) && !gid.gid().is_zero());
                return Ok(Self {
                    name: device.name(),
                    is_soft: context.is_soft(),
                    port,
                    known,
                    max_qp_wr: attr.max_qp_wr().unsigned_abs(),
                    max_cqe: attr.max_cqe().unsigned_abs(),
                    max_qp_init_rd_atom: attr.max_qp_init_rd_atom().unsigned_abs(),
                    max_msg_sz: port_attr.max_msg_sz().into(),
                    gid_table_length: port_attr.gid_tbl_len().unsigned_abs(),
                    mtu: port_attr.active_mtu().bytes().unwrap(),
                    pkeys: port_attr.pkey_tbl_len().into(),
                    has_xrc: DeviceCapabilityFlags::from_bits_retain(attr.device_cap_flags())
                        .contains(DeviceCapabilityFlags::Xrc),
                    max_dm_size: attr.max_dm_size(),
                    max_sge: attr.max_sge().unsigned_abs(),
                    max_sge_rd: match attr.max_sge_rd() {
                        0 => attr.max_sge(),
                        limit => limit,
                    }
                    .unsigned_abs(),
                    max_srq: attr.max_srq().unsigned_abs(),
                    max_srq_wr: attr.max_srq_wr().unsigned_abs(),
                    gid_indices: here.map(|gid| gid.gid_index()).collect(),
                });
            }
        }
        Err("there is no RDMA device with an active port".to_owned())
    }

    /// The flags with this device's name.
    pub(crate) fn flags(&self, flags: &str) -> String {
        format!("{flags} -d {}", self.name)
    }
}
