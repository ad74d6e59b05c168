//! Handshakes that begin with rdma_cm, step by step in one thread.

use mio::Registry;

use super::*;
use crate::config::Bootstrap;
use crate::session::acceptor::{Acceptor, IncomingClient};
use crate::session::pending::PendingHandshake;
use crate::session::refusal::Refusals;

const CLIENT: Token = Token(0);
const SERVER: Token = Token(1);

/// Both sides of a handshake.
struct Sides {
    config: Config,
    pool: Pool,
    acceptor: Acceptor,
    registry: Registry,
    client: PendingHandshake,
}

impl Sides {
    fn new(set: &Set) -> Self {
        let config = config().bootstrap(Bootstrap::RdmaCm).build().expect("a configuration");
        let acceptor = config.listen(("127.0.0.1", 0)).expect("a listener");
        let address = acceptor.local_addr().expect("an address");
        let mut client =
            PendingHandshake::connecting(address, Kind::Stream, &config, None).expect("an attempt");
        let registry = set.registry().try_clone().expect("a registry");
        client.register(&registry, CLIENT).expect("a descriptor");
        Self { config, pool: pool(), acceptor, registry, client }
    }

    fn step(&self, handshake: &mut PendingHandshake, token: Token) -> Poll<std::io::Result<()>> {
        handshake.progress(&self.config, &self.pool, Instant::now(), &self.registry, token)
    }

    fn step_client(&mut self) -> Poll<std::io::Result<()>> {
        let Self { config, pool, registry, client, .. } = self;
        client.progress(config, pool, Instant::now(), registry, CLIENT)
    }

    /// Continues the client until its request has arrived.
    fn request(&mut self) -> IncomingClient {
        let end = Instant::now() + TIMEOUT;
        loop {
            let outcome = self.step_client();
            assert!(outcome.is_pending() && Instant::now() < end, "it sends no request: {outcome:?}");
            match self.acceptor.accept() {
                Ok(request) => return request,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn accept(&mut self) -> PendingHandshake {
        let request = self.request();
        let mut server =
            PendingHandshake::accepted(request, Some(Kind::Stream), &self.config, &self.pool, None)
                .expect("a handshake");
        server.register(&self.registry, SERVER).expect("a descriptor");
        server
    }
}

/// The listener has answered when it takes the place away. The client finds the answer and the
/// rejection, and connects again.
#[test]
#[cfg_attr(miri, ignore = "uses a device")]
fn a_client_that_loses_its_place_by_rdma_cm_connects_again() {
    let _serial = serialize();
    let set = Set::new().expect("a set");
    let mut sides = Sides::new(&set);
    let mut server = sides.accept();
    assert!(sides.step(&mut server, SERVER).is_pending(), "it waits for HELLO");
    server.deregister(&sides.registry).expect("its descriptors are in the set");
    server.evict(&Refusals::default());
    let mut server = sides.accept();
    let end = Instant::now() + TIMEOUT;
    let (mut client_is_done, mut server_is_done) = (false, false);
    while !(client_is_done && server_is_done) {
        assert!(Instant::now() < end, "client: {client_is_done}, server: {server_is_done}");
        if !server_is_done && let Poll::Ready(result) = sides.step(&mut server, SERVER) {
            result.expect("the server's side");
            server_is_done = true;
        }
        if !client_is_done && let Poll::Ready(result) = sides.step_client() {
            result.expect("the client's side");
            client_is_done = true;
        }
    }
}
