//! Effects of fault rules on ports, devices and calls.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdma_mummy_sys::types::{ibv_event_type, ibv_port_state};

use super::{Action, Call, Rule, drawn_between, mix};
use crate::objects::context::Context;
use crate::objects::device::Device;
use crate::objects::event::{AsyncEvent, EventElement};
use crate::objects::rnic::Rnic;
use crate::objects::setup::ProcessSetup;

/// Ports that change at a given time. The lock is held during every change of a port, so that
/// [`heal`] has the last word.
static DUE: Mutex<Vec<PortTimer>> = Mutex::new(Vec::new());
/// The number of open contexts whose device has failed.
static FAILED: AtomicUsize = AtomicUsize::new(0);
/// The owner of a timer that belongs to no queue pair.
const NOBODY: u32 = u32::MAX;

/// The next change of a port.
#[derive(Debug)]
struct PortTimer {
    at: Instant,
    device: u8,
    port: u8,
    /// Whether the port comes up.
    up: bool,
    flap: Option<Flap>,
}

/// The state of a port that goes down and up repeatedly.
#[derive(Clone, Debug)]
struct Flap {
    /// The bounds of each duration.
    down: (Duration, Duration),
    up: (Duration, Duration),
    /// How often the port still goes down, this time included; `None`: without end.
    left: Option<u32>,
    /// The random number of the rule's match, and how often a duration was drawn from it.
    drawn: u64,
    draws: u64,
    /// The generation of the rules that it belongs to.
    generation: u64,
}

impl Flap {
    /// The duration of the next phase.
    fn draw(&mut self, up: bool) -> Duration {
        let (least, most) = if up { self.up } else { self.down };
        self.draws += 1;
        drawn_between(least, most, mix(self.drawn ^ mix(self.draws)))
    }
}

impl PortTimer {
    /// The change that follows this one in a series. The time counts from `now`, so that a late
    /// timer does not shorten the phase that it begins.
    fn next(&self, now: Instant) -> Option<Self> {
        let mut flap = self.flap.clone()?;
        if self.up {
            flap.left = flap.left.map(|left| left - 1);
        }
        if flap.left == Some(0) {
            return None;
        }
        let lasting = flap.draw(self.up);
        Some(Self { at: now + lasting, up: !self.up, flap: Some(flap), ..*self })
    }
}

fn due() -> MutexGuard<'static, Vec<PortTimer>> {
    DUE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Applies an action to a port or a device; other actions have no effect here.
/// `drawn` is the random number of the rule's match.
pub(crate) fn happen(rnic: &Rnic, device: &'static Device, port: u8, action: &Action, drawn: u64) {
    match action {
        Action::PortDown(lasting) => {
            let mut due = due();
            set_port(rnic, device, port, false);
            if let Some(lasting) = lasting {
                let at = Instant::now() + *lasting;
                let timer = PortTimer { at, device: device.number, port, up: true, flap: None };
                schedule(rnic, &mut due, timer);
            }
        }
        Action::PortFlap { down, up, times } => {
            let flap =
                Flap { down: *down, up: *up, left: *times, drawn, draws: 0, generation: super::generation() };
            begin_flap(rnic, device, port, flap);
        }
        Action::PortUp => {
            let _due = due();
            set_port(rnic, device, port, true);
        }
        Action::DeviceFatal => fail_device(rnic, device),
        _ => {}
    }
}

/// Takes a port down for the first time of a series, unless a series of the same rules goes on.
fn begin_flap(rnic: &Rnic, device: &'static Device, port: u8, flap: Flap) {
    if device.port(port.into()).is_none() {
        return;
    }
    let mut due = due();
    let goes_on = |timer: &PortTimer| {
        let same_port = (timer.device, timer.port) == (device.number, port);
        same_port && timer.flap.as_ref().is_some_and(|of| of.generation == flap.generation)
    };
    if !due.iter().any(goes_on) {
        due.retain(|timer| timer.flap.is_none() || (timer.device, timer.port) != (device.number, port));
        set_port(rnic, device, port, false);
        let now = Instant::now();
        let begun = PortTimer { at: now, device: device.number, port, up: false, flap: Some(flap) };
        if let Some(next) = begun.next(now) {
            schedule(rnic, &mut due, next);
        }
    }
}

fn schedule(rnic: &Rnic, due: &mut Vec<PortTimer>, timer: PortTimer) {
    let (at, number, port) = (timer.at, timer.device, timer.port);
    due.push(timer);
    if let Err(error) = rnic.node().wake_surely_at(at, NOBODY) {
        log::error!("port {port} of soft{number} stays as it is, as nobody can keep the time: {error}");
    }
}

/// Handles an expired timer: changes the ports that are due.
pub(crate) fn on_timer(rnic: &Rnic) {
    let mut due = due();
    let now = Instant::now();
    let mut at = 0;
    while at < due.len() {
        if due[at].at > now {
            at += 1;
            continue;
        }
        let timer = due.remove(at);
        let replaced = timer.flap.as_ref().is_some_and(|flap| flap.generation != super::generation());
        let Some(device) = device_of(timer.device) else { continue };
        // The series of former rules ends with the port up.
        if replaced && !timer.up {
            continue;
        }
        set_port(rnic, device, timer.port, timer.up);
        if let Some(next) = timer.next(now).filter(|_| !replaced) {
            schedule(rnic, &mut due, next);
        }
    }
}

/// Gives a new instance the timers that a former one had when its last context was closed.
pub(crate) fn rearm(rnic: &Rnic) {
    for timer in due().iter() {
        if let Err(error) = rnic.node().wake_surely_at(timer.at, NOBODY) {
            log::error!("no port changes any more, as nobody can keep the time: {error}");
        }
    }
}

/// Lets requests that former rules have made hang go on, or be flushed.
pub(super) fn resume() {
    if let Some(rnic) = Rnic::current() {
        rnic.queue_pairs().all().iter().for_each(|queue_pair| queue_pair.resume_hung());
    }
}

fn device_of(number: u8) -> Option<&'static Device> {
    ProcessSetup::made()?.devices.get(usize::from(number))
}

/// Takes a port down or up. Programs get the asynchronous event, and peers see the state. The send
/// path checks the port itself. The caller holds the lock of [`DUE`].
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
    // Before the lock, because a thread that makes an instance locks in this order.
    let rnic = Rnic::current();
    let mut due = due();
    due.clear();
    let Some(setup) = ProcessSetup::made() else { return };
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
    let _due = due();
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
        set.on_call(call, device.number, |rule, drawn| match rule.action {
            Action::Errno(number) => error = Some(number),
            ref other => happen(context.rnic(), device, rule.port.unwrap_or(1), other, drawn),
        });
    }
    if context.has_failed() && !(call.destroys() && allows_destruction()) {
        return Err(libc::EIO);
    }
    error.map_or(Ok(()), Err)
}

/// The same decision for opening a device, which has no context yet. Returns the rules for
/// [`opened`], with their random numbers.
#[cold]
pub(crate) fn admit_opening(device: &Device) -> Result<Vec<(Rule, u64)>, i32> {
    let mut error = None;
    let mut rules = Vec::new();
    if let Some(set) = super::current() {
        set.on_call(Call::OpenDevice, device.number, |rule, drawn| match rule.action {
            Action::Errno(number) => error = Some(number),
            _ => rules.push((rule.clone(), drawn)),
        });
    }
    if device.is_gone() { Err(libc::EIO) } else { error.map_or(Ok(rules), Err) }
}

/// Applies rules to a device that was just opened: now a context exists that can receive their
/// events.
pub(crate) fn opened(context: &Context, rules: &[(Rule, u64)]) {
    for (rule, drawn) in rules {
        happen(context.rnic(), context.device(), rule.port.unwrap_or(1), &rule.action, *drawn);
    }
}

/// Whether destroying an object of a failed device counts as success (`ibv_open_device(3)`).
fn allows_destruction() -> bool {
    rdma_mummy_sys::secure_var_os("RDMAV_ALLOW_DISASSOC_DESTROY").is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The times from each change of a series to the next, and whether the port then comes up.
    fn phases(times: Option<u32>, drawn: u64) -> Vec<(Duration, bool)> {
        let ms = Duration::from_millis;
        let flap = Flap {
            down: (ms(5), ms(20)),
            up: (ms(100), ms(100)),
            left: times,
            drawn,
            draws: 0,
            generation: 1,
        };
        let mut timer = PortTimer { at: Instant::now(), device: 0, port: 1, up: false, flap: Some(flap) };
        let mut all = Vec::new();
        for late in 0..50 {
            let now = timer.at + ms(late);
            let Some(next) = timer.next(now) else { break };
            all.push((next.at - now, next.up));
            timer = next;
        }
        all
    }

    #[test]
    fn a_series_goes_down_and_up_within_its_bounds() {
        let all = phases(Some(10), 7);
        assert_eq!(all.len(), 19, "ten times down, nine times up in between");
        for (at, (lasting, up)) in all.iter().enumerate() {
            assert_eq!(*up, at % 2 == 0);
            let (least, most) = if *up { (5, 20) } else { (100, 100) };
            assert!((least..=most).contains(&lasting.as_millis()), "{lasting:?}");
        }
        assert!(all.iter().any(|(lasting, up)| *up && *lasting != all[0].0));
        assert_eq!(all, phases(Some(10), 7));
        assert_ne!(all, phases(Some(10), 8));
        assert_eq!(phases(Some(1), 7), all[..1]);
        assert_eq!(phases(None, 7).len(), 50);
    }
}
