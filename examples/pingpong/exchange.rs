//! The exchange of addresses over TCP.
//!
//! | client | server |
//! | --- | --- |
//! | connects, and sends its address | |
//! | | connects its queue pair to the client's, and sends its own address |
//! | sends `done`, and connects its queue pair | |

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::slice;
use std::time::Duration;

use sideway::ibverbs::connect::Endpoint;

use super::wire::{self, XrcAddress};
use crate::devices::{HostAlone, connect_any};
use crate::program::Failure;

/// The time limit for a step of the other side, which on the server includes the resolution of a
/// route.
const STEP_LIMIT: Duration = Duration::from_secs(20);

/// The client's part: sends its address and returns the server's.
///
/// # Errors
///
/// No server listens, or it does not follow the protocol.
pub fn call(host: &str, port: u16, local: &Endpoint) -> Result<Endpoint, Failure> {
    call_all(host, port, slice::from_ref(local)).map(|mut all| all.remove(0))
}

/// Like [`call`], with a list of addresses of the same length on both sides.
///
/// # Errors
///
/// As [`call`].
pub fn call_all(host: &str, port: u16, local: &[Endpoint]) -> Result<Vec<Endpoint>, Failure> {
    let mut stream = connect(host, port)?;
    send_all(&mut stream, local)?;
    let remote = receive_all(&mut stream, local)?;
    send(&mut stream, wire::DONE)?;
    Ok(remote)
}

/// The server's part: waits for a client and calls `connect_to` with its address, after which the
/// client may send. Returns the address as well.
///
/// # Errors
///
/// The port is taken, the client does not follow the protocol, or `connect_to` fails.
pub fn answer(
    port: u16,
    local: &Endpoint,
    connect_to: impl FnOnce(&Endpoint) -> Result<(), Failure>,
) -> Result<Endpoint, Failure> {
    answer_all(port, slice::from_ref(local), |all| connect_to(&all[0])).map(|mut all| all.remove(0))
}

/// Like [`answer`], with a list of addresses of the same length on both sides.
///
/// # Errors
///
/// As [`answer`].
pub fn answer_all(
    port: u16,
    local: &[Endpoint],
    connect_to: impl FnOnce(&[Endpoint]) -> Result<(), Failure>,
) -> Result<Vec<Endpoint>, Failure> {
    answer_on(&listen(port)?, local, connect_to)
}

/// Listens for clients.
///
/// # Errors
///
/// The port is taken.
pub fn listen(port: u16) -> Result<TcpListener, Failure> {
    // A socket for IPv6 also accepts IPv4, unless the system's configuration prevents it.
    let any: [SocketAddr; 2] = [(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()];
    TcpListener::bind(&any[..]).map_err(|error| {
        Failure::setup(format_args!("cannot listen on TCP port {port}: {error}; choose another with -p"))
    })
}

/// The client's part for extended reliable connections. The TCP connection is needed again at the
/// end.
///
/// # Errors
///
/// No server listens, or it does not follow the protocol.
pub fn call_xrc(host: &str, port: u16, local: &XrcAddress) -> Result<(TcpStream, XrcAddress), Failure> {
    let mut stream = connect(host, port)?;
    send(&mut stream, wire::encode_xrc(local).as_bytes())?;
    let remote = wire::decode_xrc(&receive(&mut stream)?, local)?;
    Ok((stream, remote))
}

/// The server's part for extended reliable connections: `connect_to` gets the next client's
/// address, after which the client may send.
///
/// # Errors
///
/// The client does not follow the protocol, or `connect_to` fails.
pub fn answer_xrc(
    listener: &TcpListener,
    local: &XrcAddress,
    connect_to: impl FnOnce(&XrcAddress) -> Result<(), Failure>,
) -> Result<TcpStream, Failure> {
    let (mut stream, _) = listener.accept()?;
    limit(&stream)?;
    let remote = wire::decode_xrc(&receive(&mut stream)?, local)?;
    connect_to(&remote)?;
    send(&mut stream, wire::encode_xrc(local).as_bytes())?;
    Ok(stream)
}

/// Keeps both sides alive until the other has received everything; the client confirms first.
///
/// # Errors
///
/// The other side is gone, or does not follow the protocol.
pub fn finish(peers: &mut [TcpStream], is_client: bool) -> Result<(), Failure> {
    let say = |peers: &mut [TcpStream]| peers.iter_mut().try_for_each(|peer| send(peer, wire::END));
    if is_client {
        say(peers)?;
    }
    for peer in &mut *peers {
        let end: [u8; wire::END.len()] = receive(peer)?;
        if &end != wire::END {
            let said = end.escape_ascii();
            return Err(Failure::setup(format_args!("the peer sent \"{said}\" where `END` belongs")));
        }
    }
    if is_client { Ok(()) } else { say(peers) }
}

fn answer_on(
    listener: &TcpListener,
    local: &[Endpoint],
    connect_to: impl FnOnce(&[Endpoint]) -> Result<(), Failure>,
) -> Result<Vec<Endpoint>, Failure> {
    let (mut stream, _) = listener.accept()?;
    limit(&stream)?;
    let remote = receive_all(&mut stream, local)?;
    connect_to(&remote)?;
    send_all(&mut stream, local)?;
    match receive(&mut stream)? {
        done if &done == wire::DONE => Ok(remote),
        other => Err(Failure::setup(format_args!(
            "the client sent \"{}\" where `done` belongs",
            other.escape_ascii()
        ))),
    }
}

fn connect(host: &str, port: u16) -> Result<TcpStream, Failure> {
    let failed = |reason: &dyn std::fmt::Display| {
        Failure::setup(format_args!("cannot connect to {host}, TCP port {port}: {reason}"))
    };
    let addresses = (host, port)
        .to_socket_addrs()
        .map_err(|error| failed(&format_args!("{error}{}", HostAlone(host))))?;
    let stream = connect_any(addresses, STEP_LIMIT).map_err(|reason| failed(&reason))?;
    limit(&stream)?;
    Ok(stream)
}

fn limit(stream: &TcpStream) -> Result<(), Failure> {
    stream.set_read_timeout(Some(STEP_LIMIT))?;
    Ok(stream.set_write_timeout(Some(STEP_LIMIT))?)
}

/// Sends each address with a separate write.
fn send_all(stream: &mut TcpStream, endpoints: &[Endpoint]) -> Result<(), Failure> {
    endpoints.iter().try_for_each(|endpoint| send(stream, wire::encode(endpoint).as_bytes()))
}

/// Receives one address of the peer for each local one.
fn receive_all(stream: &mut TcpStream, local: &[Endpoint]) -> Result<Vec<Endpoint>, Failure> {
    local.iter().map(|local| Ok(wire::decode(&receive(stream)?, local)?)).collect()
}

/// One write, because the C program expects the text in one read.
fn send(stream: &mut TcpStream, text: &[u8]) -> Result<(), Failure> {
    stream.write_all(text).map_err(|error| gone(&error))
}

fn receive<const LENGTH: usize>(stream: &mut TcpStream) -> Result<[u8; LENGTH], Failure> {
    let mut text = [0; LENGTH];
    stream.read_exact(&mut text).map_err(|error| gone(&error))?;
    Ok(text)
}

fn gone(error: &std::io::Error) -> Failure {
    let reason = match error.kind() {
        std::io::ErrorKind::WouldBlock => format!("nothing happened for {} s", STEP_LIMIT.as_secs()),
        std::io::ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
        _ => error.to_string(),
    };
    Failure::setup(format_args!("the peer broke off the exchange of addresses: {reason}"))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn endpoint(qp_number: u32) -> Endpoint {
        Endpoint { qp_number, packet_seq_num: 1, lid: 0, gid: None, mtu: 1024, ethernet: true }
    }

    fn listener() -> (TcpListener, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, port)
    }

    fn reason<T>(result: Result<T, Failure>) -> String {
        match result.err() {
            Some(Failure::Setup(reason)) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn both_sides_learn_of_one_another() {
        let (listener, port) = listener();
        let server = thread::spawn(move || {
            let mut heard = None;
            let remote = answer_on(&listener, &[endpoint(1)], |remote| {
                heard = Some(remote[0].qp_number);
                Ok(())
            });
            (remote.unwrap()[0].qp_number, heard)
        });
        assert_eq!(call("127.0.0.1", port, &endpoint(2)).unwrap().qp_number, 1);
        assert_eq!(server.join().unwrap(), (2, Some(2)));
    }

    /// The server's error for a client that sends these bytes and nothing else.
    fn answer_to(sent: &[u8]) -> String {
        let (listener, port) = listener();
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        client.write_all(sent).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        reason(answer_on(&listener, &[endpoint(1)], |_| Ok(())))
    }

    #[test]
    fn a_strange_client_is_an_error() {
        assert_eq!(
            answer_to(b"GET /"),
            "the peer broke off the exchange of addresses: it closed the connection"
        );
        assert!(answer_to(&[b'x'; wire::LENGTH]).contains("instead of an address"));
        let good = wire::encode(&endpoint(2));
        assert!(answer_to(good.as_bytes()).contains("it closed the connection"));
        assert_eq!(
            answer_to(format!("{good}do\u{7}e\n").as_bytes()),
            "the client sent \"do\\x07e\\n\" where `done` belongs"
        );
    }

    #[test]
    fn a_server_that_is_not_there_is_an_error() {
        let (listener, port) = listener();
        drop(listener);
        let reason = reason(call("127.0.0.1", port, &endpoint(1)));
        assert!(reason.starts_with(&format!("cannot connect to 127.0.0.1, TCP port {port}: ")), "{reason}");
    }

    #[test]
    fn a_port_that_is_taken_is_an_error() {
        let any = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = any.local_addr().unwrap().port();
        let reason = reason(answer(port, &endpoint(1), |_| Ok(())));
        assert!(reason.starts_with(&format!("cannot listen on TCP port {port}: ")), "{reason}");
    }
}
