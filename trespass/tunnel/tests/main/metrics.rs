//! The page for Prometheus.

use std::collections::HashMap;
use std::io::Write;
use std::net::SocketAddr;

use crate::fixture::{
    Pair, Program, TestTransport, accept, connect, free_addr, over_each_transport, pass, read_all, tunnel,
    wait_until,
};

over_each_transport!(the_page_counts_connections_bytes_and_ends);

/// Sends a request, and returns the head and the body of the answer.
fn ask(addr: SocketAddr, request: &str) -> (String, String) {
    let mut client = connect(addr);
    client.write_all(format!("{request} HTTP/1.1\r\nHost: here\r\n\r\n").as_bytes()).expect("a connection");
    let answer = String::from_utf8(read_all(&mut client).expect("an answer")).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

/// The samples of the page, by name and labels.
fn samples(addr: SocketAddr) -> HashMap<String, f64> {
    let (head, body) = ask(addr, "GET /metrics");
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("application/openmetrics-text"), "{head}");
    assert_eq!(body.lines().last(), Some("# EOF"));
    let samples = body.lines().filter(|line| !line.starts_with('#'));
    let parse = |line: &str| {
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        (name.to_owned(), value.parse().expect("a number"))
    };
    samples.map(parse).collect()
}

fn the_page_counts_connections_bytes_and_ends(transport: TestTransport) {
    let pair = Pair::start(transport);
    // A second connecting end, with a page.
    let (listen, page) = (free_addr(), free_addr());
    let mut command = tunnel(transport, &pair.fabric);
    command.args(["connect", "--listen", &listen.to_string(), "--to", &pair.serve_addr.to_string()]);
    command.args(["--metrics", &page.to_string()]);
    let _connecting = Program::listening(command, listen);
    let named = |name: &str, label: &str| {
        format!("trespass_tunnel_{name}{{role=\"connect\",listen=\"{listen}\"{label}}}")
    };

    assert!(samples(page).is_empty());
    let (mut client, mut target) = (connect(listen), accept(&pair.target));
    pass(&mut client, &mut target, b"12345");
    pass(&mut target, &mut client, b"123");
    let open = samples(page);
    assert_eq!(open[&named("open_connections", "")], 1.0);
    let transport =
        if transport == TestTransport::Tcp { ",transport=\"tcp\"" } else { ",transport=\"rdma\"" };
    assert_eq!(open[&named("connections_total", transport)], 1.0);
    assert_eq!(open[&named("bytes_total", ",direction=\"out\"")], 5.0);
    drop((client, target));
    let closed = named("ended_connections_total", ",end=\"closed\"");
    wait_until("it is counted", || samples(page).get(&closed) == Some(&1.0));
    let ended = samples(page);
    assert_eq!(ended[&named("open_connections", "")], 0.0);
    assert_eq!(ended[&named("bytes_total", ",direction=\"in\"")], 3.0);

    assert!(ask(page, "GET /").0.starts_with("HTTP/1.1 404"));
    let (head, _) = ask(page, "POST /metrics");
    assert!(head.starts_with("HTTP/1.1 405") && head.to_lowercase().contains("allow: get"), "{head}");
}
