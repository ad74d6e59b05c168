//! One end of the tunnel, and a program that uses trespass itself at the other.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};

use trespass::{Builder, Config, Policy};

use crate::fixture::{
    LONG, PATIENCE, Program, TestTransport, accept, connect, end, free_addr, is_reset, over_each_transport,
    own_fabric, read_all,
};

over_each_transport!(
    a_program_of_trespass_reaches_a_target,
    a_program_of_trespass_is_reset_without_a_target,
    a_tcp_client_reaches_a_program_of_trespass,
    an_end_of_another_version_is_refused,
);

fn config(transport: TestTransport, user_data: &[u8]) -> Config {
    let policy = if transport == TestTransport::Tcp { Policy::TcpOnly } else { Policy::RequireRdma };
    let builder = Builder::new().policy(policy).user_data(user_data);
    builder.handshake_deadline(LONG).probe_timeout(PATIENCE).build().expect("valid parameters")
}

/// An end of the tunnel that this process reaches.
fn own_end(transport: TestTransport, role: &str, listen: SocketAddr, to: SocketAddr) -> Program {
    end(transport, &own_fabric(), [role, &listen.to_string(), &to.to_string()], &[])
}

fn a_program_of_trespass_reaches_a_target(transport: TestTransport) {
    let target = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
    let listen = transport.free_addr();
    let _serve = own_end(transport, "serve", listen, target.local_addr().expect("an address"));
    let mut stream = config(transport, b"").connect(listen).expect("a connection");
    let mut accepted = accept(&target);
    stream.write_all(b"question").expect("a connection");
    stream.shutdown(Shutdown::Write).expect("a connection");
    assert_eq!(read_all(&mut accepted).expect("an end"), b"question");
    accepted.write_all(b"answer").expect("a connection");
    drop(accepted);
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an end");
    assert_eq!(answer, b"answer");
}

fn a_program_of_trespass_is_reset_without_a_target(transport: TestTransport) {
    let (listen, nobody) = (transport.free_addr(), free_addr());
    let serve = own_end(transport, "serve", listen, nobody);
    let mut stream = config(transport, b"").connect(listen).expect("a connection");
    let error = stream.read(&mut [0; 1]).expect_err("a reset, not an end");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    serve.wait_for_log(&["WARN", "cannot connect to the target", &nobody.to_string()]);
}

fn a_tcp_client_reaches_a_program_of_trespass(transport: TestTransport) {
    let at = SocketAddr::new(transport.free_addr().ip(), 0);
    let listener = config(transport, b"").bind(at).expect("a listener");
    let listen = free_addr();
    let _connecting = own_end(transport, "connect", listen, listener.local_addr().expect("an address"));
    let mut client = connect(listen);
    client.write_all(b"question").expect("a connection");
    client.shutdown(Shutdown::Write).expect("a connection");
    listener.set_accept_timeout(Some(LONG)).expect("a listener");
    let (mut stream, _) = listener.accept().expect("a connection");
    let mut question = String::new();
    stream.read_to_string(&mut question).expect("an end");
    assert_eq!(question, "question");
    stream.write_all(b"answer").expect("a connection");
    drop(stream);
    assert_eq!(read_all(&mut client).expect("an end"), b"answer");
}

fn an_end_of_another_version_is_refused(transport: TestTransport) {
    let at = SocketAddr::new(transport.free_addr().ip(), 0);
    let listener = config(transport, b"trespass-tunnel/2").bind(at).expect("a listener");
    let listen = free_addr();
    let connecting = own_end(transport, "connect", listen, listener.local_addr().expect("an address"));
    is_reset(&mut connect(listen));
    connecting.wait_for_log(&["WARN", "version", "use one release on both sides"]);
}
