//! One end of the tunnel, and a program that uses trespass itself at the other.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;

use trespass::{Builder, Config, Policy};

use crate::fixture::{
    Program, TestTransport, accept, connect, free_addr, is_reset, new_fabric, read_all, tunnel,
};

fn config(user_data: &[u8]) -> Config {
    Builder::new().policy(Policy::TcpOnly).user_data(user_data).build().expect("valid parameters")
}

#[test]
fn a_program_of_trespass_reaches_a_target() {
    let target = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
    let listen = free_addr();
    let mut command = tunnel(TestTransport::Tcp, &new_fabric());
    let to = target.local_addr().expect("an address").to_string();
    command.args(["serve", "--listen", &listen.to_string(), "--to", &to]);
    let _serve = Program::listening(command, listen);
    let mut stream = config(b"").connect(listen).expect("a connection");
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

#[test]
fn a_program_of_trespass_is_reset_without_a_target() {
    let (listen, nobody) = (free_addr(), free_addr());
    let mut command = tunnel(TestTransport::Tcp, &new_fabric());
    command.args(["serve", "--listen", &listen.to_string(), "--to", &nobody.to_string()]);
    let serve = Program::listening(command, listen);
    let mut stream = config(b"").connect(listen).expect("a connection");
    let error = stream.read(&mut [0; 1]).expect_err("a reset, not an end");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    serve.wait_for_log(&["WARN", "cannot connect to the target", &nobody.to_string()]);
}

#[test]
fn a_tcp_client_reaches_a_program_of_trespass() {
    let listener = config(b"").bind("127.0.0.1:0").expect("a listener");
    let listen = free_addr();
    let mut command = tunnel(TestTransport::Tcp, &new_fabric());
    let to = listener.local_addr().expect("an address").to_string();
    command.args(["connect", "--listen", &listen.to_string(), "--to", &to]);
    let _connecting = Program::listening(command, listen);
    let mut client = connect(listen);
    client.write_all(b"question").expect("a connection");
    client.shutdown(Shutdown::Write).expect("a connection");
    listener.set_accept_timeout(Some(crate::fixture::LONG)).expect("a listener");
    let (mut stream, _) = listener.accept().expect("a connection");
    let mut question = String::new();
    stream.read_to_string(&mut question).expect("an end");
    assert_eq!(question, "question");
    stream.write_all(b"answer").expect("a connection");
    drop(stream);
    assert_eq!(read_all(&mut client).expect("an end"), b"answer");
}

#[test]
fn an_end_of_another_version_is_refused() {
    let listener = config(b"trespass-tunnel/2").bind("127.0.0.1:0").expect("a listener");
    let listen = free_addr();
    let mut command = tunnel(TestTransport::Tcp, &new_fabric());
    let to = listener.local_addr().expect("an address").to_string();
    command.args(["connect", "--listen", &listen.to_string(), "--to", &to]);
    let connecting = Program::listening(command, listen);
    is_reset(&mut connect(listen));
    connecting.wait_for_log(&["WARN", "version", "use one release on both sides"]);
}
