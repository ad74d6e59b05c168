//! Muxes whose runtime ends, or does not run.

use std::future::{Future, poll_fn};
use std::io::ErrorKind;
use std::pin::pin;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use test_harness::{Outcome, cases};
use trespass::local::{Runtime, Stream, sleep, spawn_local};
use trespass::mux::{Mux, MuxConfig, MuxError, MuxPool};

use super::fixture::{Fixture, LONG};
use super::runtime::{accept, pool};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: calls_fail_when_the_runtime_of_the_mux_ends, calls_in_another_runtime_do_not_wait,
        a_mux_is_made_where_its_runtime_runs, a_pool_leaves_the_muxes_of_another_runtime,
        the_end_of_a_runtime_is_that_of_its_muxes);
}

async fn muxes(fixture: &Fixture) -> (Mux<Stream>, Mux<Stream>) {
    let (client, server) = fixture.streams().await;
    let config = MuxConfig::new();
    (Mux::over(client, &config).unwrap(), Mux::over(server, &config).unwrap())
}

/// Runs a future to its end in an existing runtime.
fn run<T>(runtime: &Runtime, future: impl Future<Output = T>) -> T {
    let limited = async { trespass::local::timeout(LONG, future).await };
    runtime.block_on(limited).unwrap().expect("a case ends in time")
}

fn calls_fail_when_the_runtime_of_the_mux_ends(fixture: &Fixture) -> Outcome {
    let runtime = fixture.runtime();
    let (client, server) = run(&runtime, async {
        let (client, server) = muxes(fixture).await;
        let waiting = server.clone();
        drop(spawn_local(async move { waiting.next_request().await }));
        let pending = client.request(b"nobody answers").await.unwrap();
        drop(spawn_local(pending.wait()));
        sleep(Duration::from_millis(1)).await;
        (client, server)
    });
    drop(runtime);
    fixture.run(async {
        for mux in [client, server] {
            let error = mux.request_within(b"?", LONG).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
            let error = mux.next_request().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
            assert!(mux.drain().await.is_err());
        }
    });
    Ok(())
}

/// Nothing would wake the task there.
fn calls_in_another_runtime_do_not_wait(fixture: &Fixture) -> Outcome {
    let runtime = fixture.runtime();
    let (client, server) = run(&runtime, async {
        let (client, server) = muxes(fixture).await;
        // Until the peers know each other, requests wait.
        let pending = client.request(b"?").await.unwrap();
        server.next_request().await.unwrap().unwrap().answer(b"!").unwrap();
        assert_eq!(pending.wait().await.unwrap(), b"!");
        (client, server)
    });
    fixture.run(async {
        let pending = client.request_within(b"in another runtime", LONG).await.unwrap();
        let error = pending.wait().await.unwrap_err();
        assert!(matches!(error, MuxError::Connection { .. }), "{error}");
        assert!(error.to_string().contains("does not run here"), "{error}");
        let error = server.next_request().await.unwrap_err();
        assert!(error.to_string().contains("does not run here"), "{error}");
        client.send_one_way(b"sent later").await.unwrap();
        let error = client.drain().await.unwrap_err();
        assert!(error.to_string().contains("does not run here"), "{error}");
    });
    // Outside of any runtime, too.
    {
        let mut waiting = pin!(client.request_within(b"outside", LONG));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let Poll::Ready(pending) = waiting.as_mut().poll(&mut context) else { panic!("it has room") };
        let mut waiting = pin!(pending.unwrap().wait());
        let Poll::Ready(error) = waiting.as_mut().poll(&mut context) else { panic!("it waits") };
        assert!(matches!(error.unwrap_err(), MuxError::Connection { .. }));
    }
    // The mux goes on in its runtime.
    run(&runtime, async {
        let pending = client.request(b"here").await.unwrap();
        let mut request = loop {
            let mut request = server.next_request().await.unwrap().unwrap();
            match request.bytes().await {
                Ok(bytes) if bytes == b"here" => break request,
                // Those of the calls that have failed are cancelled.
                other => assert!(matches!(other, Ok(_) | Err(MuxError::Cancelled)), "{other:?}"),
            }
        };
        assert_eq!(request.bytes().await.unwrap(), b"", "a second call has no bytes");
        request.answer(b"!").unwrap();
        assert_eq!(pending.wait().await.unwrap(), b"!");
    });
    Ok(())
}

fn a_mux_is_made_where_its_runtime_runs(fixture: &Fixture) -> Outcome {
    let runtime = fixture.runtime();
    let [one, two, three] = run(&runtime, async {
        let ((one, two), (three, _)) = (fixture.streams().await, fixture.streams().await);
        [one, two, three]
    });
    fixture.run(async {
        let error = Mux::over(one, &MuxConfig::new()).unwrap_err();
        assert!(error.to_string().contains("does not run here"), "{error}");
    });
    let error = Mux::over(two, &MuxConfig::new()).unwrap_err();
    assert!(error.to_string().contains("does not run here"), "{error}");
    drop(runtime);
    fixture.run(async {
        let error = Mux::over(three, &MuxConfig::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotConnected, "{error}");
    });
    Ok(())
}

fn a_pool_leaves_the_muxes_of_another_runtime(fixture: &Fixture) -> Outcome {
    let listener = fixture.builder().bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let serving = thread::spawn(move || {
        let serving = [(); 2].map(|()| {
            let mux = Mux::over(listener.accept().unwrap().0, &MuxConfig::new()).unwrap();
            thread::spawn(move || {
                while let Ok(Some(request)) = mux.next_request_within(LONG) {
                    request.answer(b"!").unwrap();
                }
            })
        });
        serving.into_iter().for_each(|serving| serving.join().unwrap());
    });
    let runtime = fixture.runtime();
    let ask = async |muxes: &MuxPool<Stream>| {
        let mux = muxes.get().await.unwrap();
        assert_eq!(mux.request(b"?").await.unwrap().wait().await.unwrap(), b"!");
        mux
    };
    let muxes = MuxPool::new(pool(fixture, addr, 2), MuxConfig::new(), 4);
    let first = run(&runtime, async {
        ask(&muxes).await;
        ask(&muxes).await
    });
    assert_eq!(muxes.connections().stats().made, 1);
    fixture.run(async {
        ask(&muxes).await;
        let failure = first.failure().expect("it has left the pool");
        assert!(failure.to_string().contains("does not run here"), "{failure}");
        assert_eq!((muxes.connections().stats().made, muxes.loads()), (2, vec![0]));
    });
    assert!(run(&runtime, first.request(b"?")).is_err());
    drop((muxes, first, runtime));
    serving.join().unwrap();
    Ok(())
}

/// The peers learn it, and dropped tasks with handles do no harm.
fn the_end_of_a_runtime_is_that_of_its_muxes(fixture: &Fixture) -> Outcome {
    const CLIENTS: usize = 4;
    let config = fixture.builder().build().unwrap();
    let runtime = fixture.runtime();
    let asking = run(&runtime, async {
        let (mut listener, addr) = fixture.listener().await;
        let asking = [(); CLIENTS].map(|()| {
            let config = config.clone();
            thread::spawn(move || {
                let client = Mux::over(config.connect(addr).unwrap(), &MuxConfig::new()).unwrap();
                let first = client.request_within(b"first", LONG).unwrap();
                assert_eq!(first.wait().unwrap(), b"!");
                let second = client.request_within(b"second", LONG).unwrap();
                second.wait().unwrap_err()
            })
        });
        for _ in 0..CLIENTS {
            let mux = Mux::over(accept(&mut listener).await, &MuxConfig::new()).unwrap();
            mux.next_request().await.unwrap().unwrap().answer(b"!").unwrap();
            let second = mux.next_request().await.unwrap().unwrap();
            // Tasks that hold a request, a wait and the mux.
            let waiting = mux.clone();
            drop(spawn_local(async move { waiting.next_request().await }));
            drop(spawn_local(async move {
                let _held = (mux, second);
                poll_fn(|_| Poll::<()>::Pending).await;
            }));
        }
        sleep(Duration::from_millis(1)).await;
        asking
    });
    drop(runtime);
    for asking in asking {
        let error = asking.join().unwrap();
        let has_ended =
            matches!(error, MuxError::Closed | MuxError::Connection { .. } | MuxError::Unanswered);
        assert!(has_ended, "{error}");
    }
    Ok(())
}
