//! One process with several devices: each carries its connections, with memory that is registered with it.

use std::io::{Read, Write};
use std::sync::Once;
use std::thread;
use std::time::Duration;

use sideway::soft;
use trespass::{Builder, Policy, Stream, Transport};

/// Longer than anything takes that works.
const LONG: Duration = Duration::from_secs(60);

/// Over this device, or not at all.
fn over(device: &str) -> Builder {
    static DEVICES: Once = Once::new();
    DEVICES.call_once(|| {
        let mut config = soft::Config::from_env().unwrap();
        config.fabric = format!("trespass-{}", std::process::id());
        (config.time_scale, config.devices) = (0.01, 3);
        sideway::set_default_provider(soft::provider_with(config).unwrap());
    });
    let patient = Builder::new().rnr_retry(0).handshake_deadline(LONG).probe_timeout(LONG / 3);
    patient.device(device).policy(Policy::RequireRdma)
}

fn connected(client: Builder, server: Builder) -> (Stream, Stream) {
    let mut listener = server.bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let accepting = thread::spawn(move || listener.accept().unwrap().0);
    let client = client.connect(addr).unwrap();
    let server = accepting.join().unwrap();
    for stream in [&client, &server] {
        assert_eq!(stream.transport(), Transport::Rdma);
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_write_timeout(Some(LONG)).unwrap();
    }
    (client, server)
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// Short ones, and what the other end READs.
fn say(from: &mut Stream, to: &mut Stream) {
    for len in [1, 5000, 300_000] {
        let mut got = vec![0; len];
        thread::scope(|scope| {
            scope.spawn(|| from.write_all(&bytes(len)).unwrap());
            to.read_exact(&mut got).unwrap();
        });
        assert!(got == bytes(len), "{len} bytes");
    }
}

#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn each_device_carries_its_connections() {
    for (here, there) in [("soft0", "soft0"), ("soft1", "soft1"), ("soft0", "soft1"), ("soft1", "soft0")] {
        let (mut client, mut server) = connected(over(here), over(there));
        assert_eq!((client.device(), server.device()), (Some(here), Some(there)));
        assert_eq!(client.pool() == server.pool(), here == there, "a pool is one device's");
        say(&mut client, &mut server);
        say(&mut server, &mut client);
    }
}
