//! Effects of fault rules on ports, devices and calls.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdma_mummy_sys::types::{ibv_event_type, ibv_port_state};

use super::{Action, Call, Rule};
use crate::objects::context::Context;
use crate::objects::device::Device;
use crate::objects::event::{AsyncEvent, EventElement};
use crate::objects::rnic::Rnic;
use crate::objects::setup::ProcessSetup;

/// Ports that come up again at a given time.
static DUE: Mutex<Vec<PortUpTimer>> = Mutex::new(Vec::new());
/// The number of open contexts whose device has failed.
static FAILED: AtomicUsize = AtomicUsize::new(0);
/// The owner of a timer that belongs to no queue pair.
const NOBODY: u32 = u32::MAX;

struct PortUpTimer {
    at: Instant,
    device: u8,
    port: u8,
}

fn due() -> MutexGuard<'static, Vec<PortUpTimer>> {
    DUE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Applies an action to a port or a device; other actions have no effect here.
pub(crate) fn happen(rnic: &Rnic, device: &'static Device, port: u8, action: &Action) {
    match action {
        Action::PortDown(lasting) => {
            set_port(rnic, device, port, false);
            if let Some(lasting) = lasting {
                come_up_after(rnic, device, port, *lasting);
            }
        }
        Action::PortUp => set_port(rnic, device, port, true),
        Action::DeviceFatal => fail_device(rnic, device),
        _ => {}
    }
}

fn come_up_after(rnic: &Rnic, device: &Device, port: u8, lasting: Duration) {
    let at = Instant::now() + lasting;
    due().push(PortUpTimer { at, device: device.number, port });
    if let Err(error) = rnic.node().wake_surely_at(at, NOBODY) {
        log::error!("port {port} of {} stays down, as nobody can keep the time: {error}", device.name);
    }
}

/// Handles an expired timer: takes up the ports that are due.
pub(crate) fn on_timer(rnic: &Rnic) {
    let now = Instant::now();
    let mut ready = Vec::new();
    due().retain(|due| {
        let waits = due.at > now;
        if !waits {
            ready.push((due.device, due.port));
        }
        waits
    });
    for (device, port) in ready {
        if let Some(device) = device_of(device) {
            set_port(rnic, device, port, true);
        }
    }
}

fn device_of(number: u8) -> Option<&'static Device> {
    ProcessSetup::made()?.devices.get(usize::from(number))
}

/// Takes a port down or up. Programs get the asynchronous event, and peers see the state. The send
/// path checks the port itself.
fn set_port(rnic: &Rnic, device: &Device, number: u8, up: bool) {
    let state = if up { ibv_port_state::IBV_PORT_ACTIVE } else { ibv_port_state::IBV_PORT_DOWN };
    let Some(port) = device.port(number.into()).filter(|port| port.state() != state) else { return };
    super::activate();
    port.set_state(state);
    for queue_pair in rnic.queue_pairs().all() {
        if queue_pair.context.device().number == device.number {
            queue_pair.show_link(number, up);
        }
    }
    of_device(rnic, device).for_each(|context| context.raise_port(number, state));
}

fn of_device(rnic: &Rnic, device: &Device) -> impl Iterator<Item = Arc<Context>> {
    let number = device.number;
    rnic.contexts().into_iter().filter(move |context| context.device().number == number)
}

/// Fails the device, as if it had been unplugged.
fn fail_device(rnic: &Rnic, device: &'static Device) {
    super::activate();
    device.set_gone(true);
    for queue_pair in rnic.queue_pairs().all() {
        if queue_pair.context.device().number == device.number {
            queue_pair.unplug();
        }
    }
    // Wakes the threads that wait for a completion, so that they poll and see the failure.
    for cq in rnic.completion_queues().all() {
        if cq.context().device().number == device.number {
            cq.wake();
        }
    }
    for context in of_device(rnic, device).filter(|context| context.fail()) {
        FAILED.fetch_add(1, Relaxed);
        context.raise(AsyncEvent {
            kind: ibv_event_type::IBV_EVENT_DEVICE_FATAL,
            element: EventElement::Device,
        });
    }
    if let Some(cm) = rnic.cm_handler().get() {
        cm.device_removed(device.number);
    }
}

/// Counts down when a context whose device had failed is closed.
pub(crate) fn failed_context_closed() {
    FAILED.fetch_sub(1, Relaxed);
}

pub(crate) fn any_context_failed() -> bool {
    FAILED.load(Relaxed) > 0
}

/// Takes up all ports and revives all devices.
pub(crate) fn heal() {
    due().clear();
    let Some(setup) = ProcessSetup::made() else { return };
    let rnic = Rnic::current();
    for device in &setup.devices {
        device.set_gone(false);
        for port in &device.ports {
            match &rnic {
                Some(rnic) => set_port(rnic, device, port.number, true),
                None => port.set_state(ibv_port_state::IBV_PORT_ACTIVE),
            }
        }
    }
}

fn open(device: u8) -> io::Result<(Arc<Rnic>, &'static Device)> {
    let found = Rnic::current().zip(device_of(device));
    found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
}

pub(super) fn port_now(device: u8, port: u8, up: bool) -> io::Result<()> {
    let (rnic, device) = open(device)?;
    device.port(port.into()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
    set_port(&rnic, device, port, up);
    Ok(())
}

pub(super) fn device_now(device: u8) -> io::Result<()> {
    let (rnic, device) = open(device)?;
    fail_device(&rnic, device);
    Ok(())
}

/// Decides whether a verb may proceed.
///
/// # Errors
///
/// The `errno` that a rule gives; `EIO` if the device has failed.
#[cold]
pub(crate) fn admit(context: &Context, call: Call) -> Result<(), i32> {
    let device = context.device();
    let mut error = None;
    if let Some(set) = super::current() {
        set.on_call(call, device.number, |rule, _| match rule.action {
            Action::Errno(number) => error = Some(number),
            ref other => happen(context.rnic(), device, rule.port.unwrap_or(1), other),
        });
    }
    if context.has_failed() && !(call.destroys() && allows_destruction()) {
        return Err(libc::EIO);
    }
    error.map_or(Ok(()), Err)
}

/// The same decision for opening a device, which has no context yet. Returns the rules for
/// [`opened`].
#[cold]
pub(crate) fn admit_opening(device: &Device) -> Result<Vec<Rule>, i32> {
    let mut error = None;
    let mut rules = Vec::new();
    if let Some(set) = super::current() {
        set.on_call(Call::OpenDevice, device.number, |rule, _| match rule.action {
            Action::Errno(number) => error = Some(number),
            _ => rules.push(rule.clone()),
        });
    }
    if device.is_gone() { Err(libc::EIO) } else { error.map_or(Ok(rules), Err) }
}

/// Applies rules to a device that was just opened: now a context exists that can receive their
/// events.
pub(crate) fn opened(context: &Context, rules: &[Rule]) {
    for rule in rules {
        happen(context.rnic(), context.device(), rule.port.unwrap_or(1), &rule.action);
    }
}

/// Whether destroying an object of a failed device counts as success (`ibv_open_device(3)`).
fn allows_destruction() -> bool {
    rdma_mummy_sys::secure_var_os("RDMAV_ALLOW_DISASSOC_DESTROY").is_some()
}
