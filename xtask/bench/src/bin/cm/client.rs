//! The connecting side.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use sideway::ibverbs::queue_pair::{GenericQueuePair, QueuePair, QueuePairState};
use sideway::rdmacm::{ConnectionParameter, EventChannel, EventType, Identifier, PortSpace};
use xtask_bench::process::{HOST, ServerProcess};

use crate::server::SharedVerbs;

const RESOLUTION: Duration = Duration::from_secs(5);

/// Opens connections through the connection manager. One thread opens all of them and sleeps
/// between events.
pub(crate) struct CmClient {
    channel: EventChannel,
    server: SocketAddr,
    verbs: Option<SharedVerbs>,
    /// In order of creation. The queue pair must be dropped before its identifier.
    made: Vec<(Option<GenericQueuePair>, Identifier)>,
    connected: usize,
}

impl CmClient {
    pub(crate) fn new(port: u16) -> Result<Self> {
        let channel = EventChannel::new()?;
        Ok(Self { channel, server: (HOST, port).into(), verbs: None, made: Vec::new(), connected: 0 })
    }

    /// Opens `batch` connections, `window` at a time. Returns the nanoseconds for each, until the
    /// server has the last one.
    pub(crate) fn batch(&mut self, server: &mut ServerProcess, window: u32, batch: u32) -> Result<f64> {
        let start = Instant::now();
        self.connect(window as usize, batch as usize)?;
        server.expect("batch")?;
        Ok(start.elapsed().as_nanos() as f64 / f64::from(batch))
    }

    /// Opens `more` connections, `window` at a time.
    pub(crate) fn connect(&mut self, window: usize, more: usize) -> Result<()> {
        let goal = self.connected + more;
        while self.connected < goal {
            while self.made.len() < goal.min(self.connected + window) {
                let id = self.channel.create_id(PortSpace::Tcp)?;
                id.setup_user_data(self.made.len() as u64);
                id.resolve_addr(None, self.server, RESOLUTION)?;
                self.made.push((None, id));
            }
            self.step()?;
        }
        Ok(())
    }

    /// Handles the next event.
    fn step(&mut self) -> Result<()> {
        let event = self.channel.get_cm_event()?;
        let (qp, id) = &mut self.made[event.cm_id().user_data() as usize];
        match event.event_type() {
            EventType::AddressResolved => id.resolve_route(RESOLUTION)?,
            EventType::RouteResolved => {
                if self.verbs.is_none() {
                    self.verbs = Some(SharedVerbs::new(id)?);
                }
                let qp = qp
                    .insert(self.verbs.as_ref().context("the verbs objects were just created")?.create_qp()?);
                id.modify_qp(qp, QueuePairState::Init)?;
                id.connect(ConnectionParameter::new().setup_queue_pair(qp.control()))?;
            }
            EventType::ConnectResponse => {
                let qp = qp.as_mut().context("a connecting identifier has a queue pair")?;
                id.modify_qp(qp, QueuePairState::ReadyToReceive)?;
                id.modify_qp(qp, QueuePairState::ReadyToSend)?;
                id.establish()?;
                self.connected += 1;
            }
            other => match event.error() {
                Some(error) => return Err(error.into()),
                None => bail!("unexpected event {other} while connecting"),
            },
        }
        Ok(())
    }

    /// Closes the last connection.
    pub(crate) fn end_last(&mut self) -> Result<()> {
        let (qp, id) = self.made.pop().context("there is none")?;
        self.connected -= 1;
        id.disconnect()?;
        self.wait_for_ends(1)?;
        drop((qp, id));
        Ok(())
    }

    /// Closes all connections.
    pub(crate) fn end_all(&mut self) -> Result<()> {
        for (_, id) in &self.made {
            id.disconnect()?;
        }
        self.wait_for_ends(self.made.len())?;
        self.made.clear();
        self.connected = 0;
        Ok(())
    }

    fn wait_for_ends(&self, mut left: usize) -> Result<()> {
        while left > 0 {
            let event = self.channel.get_cm_event()?;
            match (event.event_type(), event.error()) {
                (EventType::Disconnected, _) => left -= 1,
                (_, Some(error)) => return Err(error.into()),
                (_, None) => {}
            }
        }
        Ok(())
    }
}
