//! Runtimes and other threads.

use std::io::{Read, Write};
use std::sync::mpsc as std_mpsc;
use std::thread;
use std::time::{Duration, Instant};

use test_harness::{Outcome, cases, skip};
use tokio::sync::{mpsc, oneshot};
use trespass::local::{Listener, SeqPacket, Stream, sleep, spawn_local};

use super::fixture::{Fixture, LONG, anywhere};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: a_channel_of_another_thread_wakes_a_task, wakers_outlive_their_tasks_elsewhere,
        blocking_peers_on_other_threads, the_runtimes_of_several_threads_share_a_port);
}

fn a_channel_of_another_thread_wakes_a_task(fixture: &Fixture) -> Outcome {
    const WORDS: u32 = 500;
    let (requests, mut received) = mpsc::channel::<(u32, oneshot::Sender<u32>)>(4);
    let other = thread::spawn(move || {
        for word in 0..WORDS {
            // The runtime sleeps now and then.
            if word % 100 == 0 {
                thread::sleep(Duration::from_millis(5));
            }
            let (answer, answered) = oneshot::channel();
            requests.blocking_send((word, answer)).unwrap();
            assert_eq!(answered.blocking_recv().unwrap(), word + 1);
        }
    });
    fixture.run(async {
        while let Some((word, answer)) = received.recv().await {
            answer.send(word + 1).unwrap();
        }
    });
    other.join().unwrap();
    Ok(())
}

/// A waker that another thread drops last, or wakes after the task and its runtime have gone.
fn wakers_outlive_their_tasks_elsewhere(fixture: &Fixture) -> Outcome {
    let (give, take) = std_mpsc::channel::<std::task::Waker>();
    let (told, tells) = std_mpsc::channel();
    let other = thread::spawn(move || {
        let wakers: Vec<_> = take.iter().collect();
        // The runtime is gone.
        tells.recv_timeout(LONG).unwrap();
        wakers.iter().for_each(std::task::Waker::wake_by_ref);
        wakers.len()
    });
    let runtime = fixture.runtime();
    runtime
        .block_on(async {
            for _ in 0..10 {
                let give = give.clone();
                spawn_local(async move {
                    let mut is_first = true;
                    std::future::poll_fn(|context| {
                        give.send(context.waker().clone()).unwrap();
                        if std::mem::take(&mut is_first) {
                            context.waker().wake_by_ref();
                            return std::task::Poll::Pending;
                        }
                        std::task::Poll::Ready(())
                    })
                    .await;
                })
                .await;
            }
            let (give, local) = (give, std::rc::Rc::new(7));
            drop(spawn_local(std::future::poll_fn(move |context| {
                give.send(context.waker().clone()).unwrap();
                assert_eq!(*local, 7);
                std::task::Poll::<()>::Pending
            })));
            sleep(Duration::from_millis(1)).await;
        })
        .unwrap();
    drop(runtime);
    told.send(()).unwrap();
    assert_eq!(other.join().unwrap(), 21);
    Ok(())
}

fn blocking_peers_on_other_threads(fixture: &Fixture) -> Outcome {
    let config = fixture.builder().build().unwrap();
    fixture.run(async {
        let mut listener = Listener::bind(anywhere()).unwrap();
        let addr = listener.local_addr().unwrap();
        let client = thread::spawn(move || {
            let mut stream = config.connect(addr).unwrap();
            let mut answer = [0; 4];
            for round in 0..500_u32 {
                stream.write_all(&round.to_le_bytes()).unwrap();
                stream.read_exact(&mut answer).unwrap();
                assert_eq!(u32::from_le_bytes(answer), round);
            }
        });
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut word = [0; 4];
        while stream.read_exact(&mut word).await.is_ok() {
            stream.write_all(&word).await.unwrap();
        }
        client.join().unwrap();
    });

    let listener = fixture.builder().bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let (mut packets, _) = listener.accept_seq_packet().unwrap();
        let mut message = [0; 64];
        while let Ok(len) = packets.recv(&mut message) {
            packets.send(&message[..len]).unwrap();
        }
    });
    fixture.run(async {
        let mut packets = SeqPacket::connect(addr).await.unwrap();
        packets.send(b"message").await.unwrap();
        let mut answer = [0; 64];
        assert_eq!(packets.recv(&mut answer).await.unwrap(), 7);
    });
    server.join().unwrap();
    Ok(())
}

fn the_runtimes_of_several_threads_share_a_port(fixture: &Fixture) -> Outcome {
    const THREADS: usize = 3;
    const CLIENTS: usize = 60;
    if fixture.is_by_cm() {
        skip!("rdma_cm has one listener for a port");
    }
    let config = fixture.builder().reuse_port(true).build().unwrap();
    // The first one chooses the port.
    let reserved = std::net::TcpListener::bind(anywhere()).unwrap().local_addr().unwrap();
    let (ready, is_ready) = std_mpsc::channel();
    let servers: Vec<_> = (0..THREADS)
        .map(|_| {
            let (config, ready) = (config.clone(), ready.clone());
            let (stop, mut stopped) = oneshot::channel::<()>();
            let thread = thread::spawn(move || {
                let runtime = trespass::local::Runtime::new(&config).unwrap();
                runtime
                    .block_on(async {
                        let mut listener = Listener::bind(reserved).unwrap();
                        ready.send(()).unwrap();
                        let mut served = 0;
                        loop {
                            tokio::select! {
                                client = listener.accept() => {
                                    let (mut stream, _) = client.unwrap();
                                    served += 1;
                                    drop(spawn_local(async move {
                                        let mut byte = [0];
                                        stream.read_exact(&mut byte).await.unwrap();
                                        stream.write_all(&byte).await.unwrap();
                                        let _ = stream.read(&mut byte).await;
                                    }));
                                }
                                _ = &mut stopped => return served,
                            }
                        }
                    })
                    .unwrap()
            });
            (stop, thread)
        })
        .collect();
    (0..THREADS).for_each(|_| is_ready.recv_timeout(LONG).unwrap());
    let client = fixture.builder().build().unwrap();
    let begin = Instant::now();
    for number in 0..CLIENTS {
        let mut stream = client.connect(reserved).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(&[number as u8]).unwrap();
        let mut answer = [0];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(usize::from(answer[0]), number);
    }
    assert!(begin.elapsed() < LONG);
    let served: Vec<usize> = servers
        .into_iter()
        .map(|(stop, thread)| {
            stop.send(()).unwrap();
            thread.join().unwrap()
        })
        .collect();
    assert_eq!(served.iter().sum::<usize>(), CLIENTS, "{served:?}");
    assert!(served.iter().all(|served| *served > 0), "the system spreads the clients: {served:?}");
    Ok(())
}

#[expect(dead_code, reason = "connections stay on their thread")]
fn connections_are_not_sent(stream: Stream) -> Stream {
    stream
}
