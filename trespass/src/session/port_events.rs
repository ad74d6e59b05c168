//! The tasks of the service thread that read what devices report about their ports, one for each
//! device of a connection over several. These connections are then woken (`transport::rc`).

use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use mio::Interest;
use mio::event::Event;
use mio::unix::SourceFd;

use crate::process::PerProcess;
use crate::session::service::{NextTurn, Place, ServiceTask, Task};
use crate::transport::rc::{DevicePort, RdmaDevice};

/// The devices that have a task.
static WATCHED: PerProcess<Mutex<Vec<Weak<RdmaDevice>>>> = PerProcess::new();

/// Has the events of these ports' devices read until the devices fail.
pub(super) fn watch(ports: &[DevicePort]) -> io::Result<()> {
    let mut watched = WATCHED.get().lock().unwrap_or_else(PoisonError::into_inner);
    for DevicePort { device, .. } in ports {
        if watched.iter().any(|known| known.as_ptr() == Arc::as_ptr(device)) {
            continue;
        }
        watched.retain(|known| known.strong_count() > 0);
        let task = ServiceTask::start(|place| {
            let events = device.events_descriptor();
            place.registry().register(&mut SourceFd(&events), place.token(0), Interest::READABLE)?;
            Ok(PortEvents { device: device.clone() })
        })?;
        task.detach();
        watched.push(Arc::downgrade(device));
    }
    Ok(())
}

struct PortEvents {
    device: Arc<RdmaDevice>,
}

impl Task for PortEvents {
    fn turn(&mut self, place: &Place, _: &[&Event], _: Instant) -> NextTurn {
        if self.device.read_async_events() {
            return NextTurn::Event;
        }
        self.failed(place);
        NextTurn::Never
    }

    fn failed(&mut self, place: &Place) {
        if let Err(error) = place.registry().deregister(&mut SourceFd(&self.device.events_descriptor())) {
            tracing::debug!(%error, device = self.device.name(), "its events stay in a set");
        }
    }
}
