//! The time of each step of a connection by the connection manager. Both ends are in this process,
//! on one channel. The queue pair's number is made up, because no data is transferred.

use std::error::Error;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use sideway::rdmacm::communication_manager::{ConnectionParameter, EventChannel, EventType, PortSpace};

const TIMEOUT: Duration = Duration::from_secs(2);
const QP_NUMBER: u32 = 1000;

pub(crate) fn run(address: SocketAddr) -> Result<String, Box<dyn Error>> {
    let channel = EventChannel::new()?;
    let listener = channel.create_id(PortSpace::Tcp)?;
    listener.bind_addr(address)?;
    listener.listen(1)?;
    let client = channel.create_id(PortSpace::Tcp)?;
    let mut param = ConnectionParameter::default();
    param.setup_qp_number(QP_NUMBER);
    let (mut accepted, mut established, mut steps) = (None, 0, Vec::new());
    let mut start = Instant::now();
    client.resolve_addr(None, address, TIMEOUT)?;
    // Both ends become established.
    while established < 2 {
        let event = channel.get_cm_event()?;
        let id = event.cm_id().ok_or("an event without an identifier")?;
        let step = event.event_type();
        steps.push(format!("{step:?} {:?}", start.elapsed()));
        start = Instant::now();
        match step {
            EventType::AddressResolved => id.resolve_route(TIMEOUT)?,
            EventType::RouteResolved => id.connect(param)?,
            EventType::ConnectRequest => {
                id.accept(param)?;
                accepted = Some(id);
            }
            EventType::ConnectResponse => {
                id.establish()?;
                established += 1;
            }
            EventType::Established => established += 1,
            _ => return Err(format!("{step:?} with status {}", event.status()).into()),
        }
        event.ack()?;
    }
    client.disconnect()?;
    drop((accepted, client, listener));
    Ok(steps.join("\n"))
}
