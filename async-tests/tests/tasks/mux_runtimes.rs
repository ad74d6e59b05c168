//! Muxes whose runtime ends.

use std::io::ErrorKind;

use test_harness::{Outcome, cases};
use trespass::mux::{Mux, MuxConfig};

use super::fixture::{Fixture, LONG};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: calls_fail_when_the_runtime_of_the_mux_ends);
}

fn calls_fail_when_the_runtime_of_the_mux_ends(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        // One runtime never runs its tasks.
        let runtimes = [
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap(),
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
        ];
        for other in runtimes {
            let (client, server) = fixture.streams().await;
            let server = Mux::over(server, &MuxConfig::new()).unwrap();
            let client = {
                let _other = other.enter();
                Mux::over(client, &MuxConfig::new()).unwrap()
            };
            let waiting = tokio::spawn({
                let client = client.clone();
                async move { client.next_request().await }
            });
            tokio::task::yield_now().await;
            other.shutdown_background();
            let ended = tokio::time::timeout(LONG, waiting).await;
            let error = ended.expect("the call ends").unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
            let error = client.request(b"?").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
            drop(server);
        }
    });
    Ok(())
}
