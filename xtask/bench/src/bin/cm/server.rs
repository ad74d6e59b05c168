//! The listening side.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use sideway::ibverbs::completion::GenericCompletionQueue;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{GenericQueuePair, QueuePair, QueuePairState};
use sideway::rdmacm::{ConnectionParameter, EventChannel, EventType, Identifier, PortSpace};

/// The address of all processes.
pub(crate) const HOST: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// The verbs objects that the queue pairs of a process share.
pub(crate) struct SharedVerbs {
    pd: ProtectionDomain,
    cq: GenericCompletionQueue,
}

impl SharedVerbs {
    pub(crate) fn new(id: &Identifier) -> Result<Self> {
        let context = id.get_device_context()?;
        Ok(Self { pd: context.alloc_pd()?, cq: context.create_cq_builder().setup_cqe(1).build_generic()? })
    }

    pub(crate) fn create_qp(&self) -> Result<GenericQueuePair> {
        let mut builder = self.pd.create_qp_builder();
        builder.setup_send_cq(&self.cq).setup_recv_cq(&self.cq).setup_max_send_wr(1).setup_max_recv_wr(1);
        Ok(builder.build_generic()?)
    }
}

/// Accepts connections until standard input ends. Prints its port, then `batch` after each `batch`
/// established connections, and `ready` after as many have been closed.
pub(crate) fn serve(batch: u32) -> Result<()> {
    let channel = EventChannel::new()?;
    let listener = channel.create_id(PortSpace::Tcp)?;
    listener.bind_addr(SocketAddr::from((HOST, 0)))?;
    listener.listen(1024)?;
    print_line(&listener.local_port().context("a bound identifier has a port")?.to_string())?;
    end_with_parent(std::process::exit);
    let mut verbs = None;
    let mut connections: HashMap<u32, (GenericQueuePair, Identifier)> = HashMap::new();
    let (mut established, mut gone) = (0, 0);
    loop {
        let event = channel.get_cm_event()?;
        match event.event_type() {
            EventType::ConnectRequest => {
                let id = event.into_cm_id();
                if verbs.is_none() {
                    verbs = Some(SharedVerbs::new(&id)?);
                }
                let mut qp = verbs.as_ref().context("the verbs objects were just created")?.create_qp()?;
                id.modify_qp(&mut qp, QueuePairState::Init)?;
                id.modify_qp(&mut qp, QueuePairState::ReadyToReceive)?;
                id.modify_qp(&mut qp, QueuePairState::ReadyToSend)?;
                id.accept(ConnectionParameter::new().setup_queue_pair(qp.control()))?;
                id.setup_user_data(qp.qp_number().into());
                connections.insert(qp.qp_number(), (qp, id));
            }
            EventType::Established => {
                established += 1;
                if established == batch {
                    established = 0;
                    print_line("batch")?;
                }
            }
            EventType::Disconnected => {
                let id = event.into_cm_id();
                id.disconnect()?;
                drop(connections.remove(&u32::try_from(id.user_data())?));
                gone += 1;
                if gone == batch {
                    gone = 0;
                    print_line("ready")?;
                }
            }
            _ => event.error().map_or(Ok(()), Err)?,
        }
    }
}

/// Ends this process when its parent has ended.
pub(crate) fn end_with_parent(end: fn(i32) -> !) {
    std::thread::spawn(move || {
        let mut line = String::new();
        while std::io::stdin().read_line(&mut line).is_ok_and(|bytes| bytes > 0) {}
        end(0)
    });
}

pub(crate) fn print_line(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{text}")?;
    Ok(stdout.flush()?)
}

/// Another process that runs this program.
pub(crate) struct ServerProcess {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    pub(crate) port: u16,
}

impl ServerProcess {
    pub(crate) fn start(kind: &str, batch: u32) -> Result<Self> {
        let mut server = Self::run(&["serve", kind, &batch.to_string()])?;
        server.port = server.read_line()?.parse()?;
        Ok(server)
    }

    pub(crate) fn run(arguments: &[&str]) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().context("a pipe")?);
        Ok(Self { child, to, from, port: 0 })
    }

    /// The next line of its output.
    pub(crate) fn read_line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.from.read_line(&mut line)? > 0, "the other process has ended");
        Ok(line.trim_end().to_owned())
    }

    pub(crate) fn send_line(&mut self, text: &str) -> Result<()> {
        let to = self.to.as_mut().context("a pipe")?;
        writeln!(to, "{text}")?;
        Ok(to.flush()?)
    }

    /// Waits until it has accepted the whole batch.
    pub(crate) fn wait_for_batch(&mut self) -> Result<()> {
        self.expect("batch")
    }

    /// Waits until the whole batch is closed.
    pub(crate) fn wait_until_ready(&mut self) -> Result<()> {
        self.expect("ready")
    }

    fn expect(&mut self, text: &str) -> Result<()> {
        match self.read_line()? {
            said if said == text => Ok(()),
            said => bail!("the other process printed {said} instead of {text}"),
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // The process ends when its standard input is closed.
        drop(self.to.take());
        let _ = self.child.wait();
    }
}
