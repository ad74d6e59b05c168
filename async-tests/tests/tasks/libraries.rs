//! Libraries over tokio's traits: HTTP by hyper, frames by tokio-util, and the traits of futures-io.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::{AsyncReadExt as _, AsyncWriteExt as _, SinkExt, StreamExt};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use test_harness::{Outcome, bytes, cases};
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use super::fixture::Fixture;

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: hyper_serves_http, frames_of_a_codec, the_traits_of_futures_io);
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.expect("a whole body").to_bytes();
    Ok(Response::new(Full::from([path.as_bytes(), b": ", &body].concat())))
}

fn hyper_serves_http(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (client, server) = fixture.streams().await;
        let serving = tokio::spawn(
            hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(server), service_fn(answer)),
        );
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(client)).await.unwrap();
        let connection = tokio::spawn(connection);
        for round in 0..100 {
            let body = bytes(round, round as usize * 3000);
            let request = Request::builder()
                .uri(format!("/{round}"))
                .header("host", "localhost")
                .body(Full::<Bytes>::from(body.clone()))
                .unwrap();
            sender.ready().await.unwrap();
            let response = sender.send_request(request).await.unwrap();
            assert_eq!(response.status(), 200);
            let answer = response.into_body().collect().await.unwrap().to_bytes();
            assert!(answer == [format!("/{round}: ").as_bytes(), &body].concat());
        }
        drop(sender);
        connection.await.unwrap().unwrap();
        serving.await.unwrap().unwrap();
    });
    Ok(())
}

fn frames_of_a_codec(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (client, server) = fixture.streams().await;
        let mut client = Framed::new(client, LengthDelimitedCodec::new());
        let mut server = Framed::new(server, LengthDelimitedCodec::new());
        let sending = tokio::spawn(async move {
            for length in 0..300 {
                client.send(Bytes::from(bytes(1, length * 41))).await.unwrap();
            }
            SinkExt::<Bytes>::close(&mut client).await.unwrap();
        });
        for length in 0..300 {
            assert!(server.next().await.unwrap().unwrap() == bytes(1, length * 41));
        }
        assert!(server.next().await.is_none());
        sending.await.unwrap();
    });
    Ok(())
}

fn the_traits_of_futures_io(fixture: &Fixture) -> Outcome {
    async fn shout(
        mut stream: impl futures_util::AsyncRead + futures_util::AsyncWrite + Unpin,
    ) -> std::io::Result<()> {
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        stream.write_all(text.to_uppercase().as_bytes()).await?;
        stream.close().await
    }
    fixture.run(async {
        let (mut client, server) = fixture.streams().await;
        let server = tokio::spawn(shout(server));
        futures_util::AsyncWriteExt::write_all(&mut client, b"hello").await.unwrap();
        futures_util::AsyncWriteExt::flush(&mut client).await.unwrap();
        futures_util::AsyncWriteExt::close(&mut client).await.unwrap();
        let mut answer = String::new();
        futures_util::AsyncReadExt::read_to_string(&mut client, &mut answer).await.unwrap();
        assert_eq!(answer, "HELLO");
        server.await.unwrap().unwrap();
    });
    Ok(())
}
