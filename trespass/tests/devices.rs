//! One process with several devices: each carries its connections, whose memory is registered with
//! that device.

use std::io::{Read, Write};
use std::sync::Once;
use std::thread;
use std::time::Duration;

use sideway::soft;
use trespass::{Block, Builder, Policy, Stream, Transport};

/// A limit far above the duration of any working call.
const LONG: Duration = Duration::from_secs(60);

/// A builder that requires RDMA over this device.
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
    let listener = server.bind("127.0.0.1:0").unwrap();
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

/// Short messages, and one that the peer fetches by RDMA READ.
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
    alone!(each_device_carries_its_connections);
    for (here, there) in [("soft0", "soft0"), ("soft1", "soft1"), ("soft0", "soft1"), ("soft1", "soft0")] {
        let (mut client, mut server) = connected(over(here), over(there));
        assert_eq!((client.device(), server.device()), (Some(here), Some(there)));
        assert_eq!(client.pool() == server.pool(), here == there, "a pool is one device's");
        say(&mut client, &mut server);
        say(&mut server, &mut client);
    }
}

/// Fills a block; returns it with the number of bytes to send.
fn filled(mut block: Block, len: usize) -> (Block, usize) {
    block.bytes_mut()[..len].copy_from_slice(&bytes(len));
    (block, len)
}

/// The block's keys belong to another device, so its bytes are copied, and the block itself returns
/// to the caller.
#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn a_block_of_another_device_goes_by_a_copy() {
    alone!(a_block_of_another_device_goes_by_a_copy);
    let (mut client, mut server) = connected(over("soft0"), over("soft0"));
    let (elsewhere, _other_end) = connected(over("soft1"), over("soft1"));
    let (own, foreign) = (client.pool().clone(), elsewhere.pool().clone());
    assert!(foreign.take(100_000).unwrap().rkey().is_some(), "it is registered there");
    for len in [100, 5000, 60_000, 300_000] {
        let lists = [
            vec![filled(foreign.take(len).unwrap(), len)],
            vec![filled(foreign.adopt(vec![0; len]), len)],
            vec![
                filled(own.take(len).unwrap(), len),
                filled(foreign.take(len).unwrap(), len),
                filled(own.take(len).unwrap(), len),
            ],
        ];
        for mut list in lists {
            let lent: Vec<_> = list.iter().map(|(block, _)| block.as_ptr().addr()).collect();
            let mut got = vec![0; len * list.len()];
            thread::scope(|scope| {
                scope.spawn(|| server.read_exact(&mut got).unwrap());
                client.send_blocks(&mut list).unwrap();
                let mut back = Vec::new();
                while let Some(completion) = client.next_completion().unwrap() {
                    assert!(completion.sent);
                    back.push(completion.block.as_ptr().addr());
                }
                back.sort_by_key(|addr| lent.iter().position(|lent| lent == addr));
                assert_eq!(back, lent);
            });
            assert!(got.chunks(len).all(|part| part == bytes(len)), "{len} bytes");
        }
    }
    assert_eq!(foreign.stats().adopted.made, 0, "it need not be registered to be copied");
}
