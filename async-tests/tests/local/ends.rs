//! Ends: of peers, of runtimes, and of calls that cannot succeed.

use std::io::{ErrorKind, Read};
use std::net::Shutdown;
use std::panic;
use std::thread;
use std::time::Duration;

use test_harness::{Outcome, cases};
use trespass::local::{Listener, Stream, sleep, spawn_local, timeout};

use super::fixture::{Fixture, LONG, anywhere};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: a_dropped_stream_sends_what_was_written, a_connect_fails, a_connect_is_dropped,
        a_listener_is_dropped_with_clients, a_runtime_is_dropped_with_its_tasks,
        connections_of_a_dropped_runtime_fail, calls_in_another_runtime_do_not_wait, a_runtime_goes_on_after_a_call, no_runtime_runs_within_another,
        a_cancelled_task_is_dropped, a_panic_of_a_task_is_the_callers);
}

fn a_dropped_stream_sends_what_was_written(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (mut client, mut server) = fixture.streams().await;
        client.write_all(&[7; 100_000]).await.unwrap();
        drop(client);
        let mut received = vec![0; 100_000];
        server.read_exact(&mut received).await.unwrap();
        assert!(received.iter().all(|byte| *byte == 7));
        assert_eq!(server.read(&mut [0]).await.unwrap(), 0, "the end");
        let mut more = [0; 2];
        assert_eq!(server.read_exact(&mut more).await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
    });
    Ok(())
}

fn a_connect_fails(fixture: &Fixture) -> Outcome {
    let nobody = std::net::TcpListener::bind(anywhere()).unwrap().local_addr().unwrap();
    fixture.run(async {
        let error = Stream::connect(nobody).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
        // The runtime goes on.
        drop(fixture.streams().await);
    });
    Ok(())
}

fn a_connect_is_dropped(fixture: &Fixture) -> Outcome {
    let silent = std::net::TcpListener::bind(anywhere()).unwrap();
    let addr = silent.local_addr().unwrap();
    fixture.run(async {
        let connecting = timeout(Duration::from_millis(20), Stream::connect(addr)).await;
        // By rdma_cm nobody listens there.
        assert!(!matches!(connecting, Ok(Ok(_))));
        drop(fixture.streams().await);
    });
    Ok(())
}

fn a_listener_is_dropped_with_clients(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let listener = Listener::bind(anywhere()).unwrap();
        let addr = listener.local_addr().unwrap();
        let mut client = Stream::connect(addr).await.unwrap();
        client.write_all(b"hello").await.unwrap();
        sleep(Duration::from_millis(5)).await;
        drop(listener);
        let end = timeout(LONG, client.read(&mut [0])).await.expect("an unaccepted client is closed");
        assert!(!matches!(end, Ok(1..)), "{end:?}");
    });
    Ok(())
}

fn a_runtime_is_dropped_with_its_tasks(fixture: &Fixture) -> Outcome {
    let listener = fixture.builder().bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        all
    });
    let runtime = fixture.runtime();
    runtime
        .block_on(async {
            let mut stream = Stream::connect(addr).await.unwrap();
            drop(spawn_local(async move {
                stream.write_all(b"last words").await.unwrap();
                std::future::pending::<()>().await;
                drop(stream);
            }));
            sleep(Duration::from_millis(10)).await;
        })
        .unwrap();
    drop(runtime);
    assert_eq!(server.join().unwrap(), b"last words");
    Ok(())
}

fn connections_of_a_dropped_runtime_fail(fixture: &Fixture) -> Outcome {
    let runtime = fixture.runtime();
    let (mut client, server) = runtime.block_on(fixture.streams()).unwrap();
    drop(runtime);
    assert_eq!(client.peer_addr().unwrap_err().kind(), ErrorKind::NotConnected);
    assert_eq!(client.shutdown(Shutdown::Both).unwrap_err().kind(), ErrorKind::NotConnected);
    fixture.run(async {
        let error = client.write(b"x").await.unwrap_err();
        assert!(error.to_string().contains("the runtime of this connection was dropped"), "{error}");
    });
    drop((client, server));
    Ok(())
}

fn calls_in_another_runtime_do_not_wait(fixture: &Fixture) -> Outcome {
    let runtime = fixture.runtime();
    let (mut client, mut server) = runtime.block_on(fixture.streams()).unwrap();
    let mut listener = runtime.block_on(async { Listener::bind(anywhere()).unwrap() }).unwrap();
    let refused = fixture.run(async {
        let read = timeout(LONG, client.read(&mut [0])).await.expect("the call does not wait");
        let accepted = timeout(LONG, listener.accept()).await.expect("the call does not wait");
        [read.unwrap_err(), accepted.unwrap_err()]
    });
    for error in refused {
        assert!(error.to_string().contains("does not run here"), "{error}");
    }
    // In the runtime of the connection, the same call waits.
    runtime
        .block_on(async {
            let reading = spawn_local(async move { client.read(&mut [0]).await.unwrap() });
            sleep(Duration::from_millis(1)).await;
            server.write_all(b"x").await.unwrap();
            assert_eq!(reading.await, 1);
        })
        .unwrap();
    Ok(())
}

fn a_runtime_goes_on_after_a_call(fixture: &Fixture) -> Outcome {
    let runtime = fixture.runtime();
    let counting = runtime.spawn_local(async {
        for _ in 0..10 {
            sleep(Duration::from_millis(1)).await;
        }
        10
    });
    let (mut client, mut server) = runtime.block_on(fixture.streams()).unwrap();
    runtime.block_on(async { client.write_all(b"hello").await.unwrap() }).unwrap();
    let mut read = [0; 5];
    runtime.block_on(async { server.read_exact(&mut read).await.unwrap() }).unwrap();
    assert_eq!(&read, b"hello");
    assert_eq!(runtime.block_on(counting).unwrap(), 10);
    Ok(())
}

fn no_runtime_runs_within_another(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let inner = fixture.runtime();
        let error = inner.block_on(async {}).unwrap_err();
        assert!(error.to_string().contains("runs on this thread already"), "{error}");
    });
    let outside = panic::catch_unwind(|| drop(spawn_local(async {}))).unwrap_err();
    let text = outside.downcast_ref::<&str>().unwrap();
    assert!(text.contains("call this within `Runtime::block_on`"), "{text}");
    Ok(())
}

fn a_cancelled_task_is_dropped(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (client, mut server) = fixture.streams().await;
        let waiting = spawn_local(async move {
            let mut client = client;
            client.read(&mut [0]).await.map(drop)
        });
        sleep(Duration::from_millis(1)).await;
        assert!(waiting.cancel().await.is_none());
        assert_eq!(server.read(&mut [0]).await.unwrap(), 0, "its stream is closed");
    });
    Ok(())
}

fn a_panic_of_a_task_is_the_callers(fixture: &Fixture) -> Outcome {
    let runtime = fixture.runtime();
    let (mut client, server) = runtime.block_on(fixture.streams()).unwrap();
    let caught = panic::catch_unwind(panic::AssertUnwindSafe(|| {
        runtime.block_on(async move {
            spawn_local(async move {
                let _server = server;
                panic!("a task's own");
            })
            .await
        })
    }));
    assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"a task's own"));
    // Its stream was dropped, and the runtime still works.
    assert_eq!(runtime.block_on(async { client.read(&mut [0]).await.unwrap() }).unwrap(), 0);
    Ok(())
}
