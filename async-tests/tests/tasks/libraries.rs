//! Libraries over tokio's traits: HTTP by hyper, frames by tokio-util, and the traits of futures-io.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::{AsyncReadExt as _, AsyncWriteExt as _, SinkExt, StreamExt, stream};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo};
use test_harness::{Outcome, bytes, cases};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio_util::codec::{Framed, LengthDelimitedCodec};
use trespass::Config;
use trespass::tokio::Stream;

use super::fixture::Fixture;

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: hyper_serves_http, hyper_ends_a_long_answer_before_it_shuts_down,
        the_pooled_client_of_hyper_reuses_connections, frames_of_a_codec, the_traits_of_futures_io);
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

/// Frames of a long answer, which no buffers of a connection hold together.
const FRAMES: usize = 128;
const FRAME: usize = 64 << 10;

fn hyper_ends_a_long_answer_before_it_shuts_down(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (client, server) = fixture.streams().await;
        let (stop, stopped) = oneshot::channel();
        let (shutting_down, is_shutting_down) = oneshot::channel();
        let serving = tokio::spawn(async move {
            let frames = |_| async {
                let frame = |index| Ok::<_, Infallible>(Frame::data(Bytes::from(bytes(index as u64, FRAME))));
                let body = StreamBody::new(stream::iter((0..FRAMES).map(frame)));
                Ok::<_, Infallible>(Response::new(body))
            };
            let mut connection = pin!(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(server), service_fn(frames))
            );
            tokio::select! {
                ended = &mut connection => panic!("the server has not begun to shut down: {ended:?}"),
                result = stopped => result.unwrap(),
            }
            connection.as_mut().graceful_shutdown();
            shutting_down.send(()).unwrap();
            connection.await.unwrap();
        });
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(client)).await.unwrap();
        let connection = tokio::spawn(connection);
        let request = Request::builder().header("host", "localhost").body(Full::<Bytes>::default()).unwrap();
        let answer = sender.send_request(request).await.unwrap();
        stop.send(()).unwrap();
        is_shutting_down.await.unwrap();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body.len(), FRAMES * FRAME);
        for (index, frame) in body.chunks(FRAME).enumerate() {
            assert!(frame == bytes(index as u64, FRAME), "frame {index}");
        }
        // The sender still exists, so that the server ends the connection.
        connection.await.unwrap().unwrap();
        assert!(sender.is_closed());
        serving.await.unwrap();
    });
    Ok(())
}

/// A stream for the pooled client, whose trait a program implements for its own types alone.
struct PooledStream(Stream);

impl Connection for PooledStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for PooledStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for PooledStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// Connects the pooled client, and counts the connects.
#[derive(Clone)]
struct Connector {
    config: Config,
    connects: Arc<AtomicUsize>,
}

impl tower_service::Service<Uri> for Connector {
    type Response = TokioIo<PooledStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        self.connects.fetch_add(1, Ordering::Relaxed);
        let config = self.config.clone();
        Box::pin(async move {
            let server = uri.authority().ok_or_else(|| io::Error::other("the URI has no authority"))?;
            let stream = Stream::connect_with(&config, server.as_str()).await?;
            Ok(TokioIo::new(PooledStream(stream)))
        })
    }
}

fn the_pooled_client_of_hyper_reuses_connections(fixture: &Fixture) -> Outcome {
    fixture.run(async {
        let (listener, addr) = fixture.listener().await;
        let accepting = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let serving = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service_fn(answer));
                tokio::spawn(serving);
            }
        });
        let connects = Arc::new(AtomicUsize::new(0));
        let connector = Connector { config: fixture.config(), connects: connects.clone() };
        let client = Client::builder(TokioExecutor::new()).build::<_, Full<Bytes>>(connector);
        // The client connects again if its connection is not idle yet.
        loop {
            let before = connects.load(Ordering::Relaxed);
            let answer = client.get(format!("http://{addr}/path").parse().unwrap()).await.unwrap();
            assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "/path: ");
            if connects.load(Ordering::Relaxed) == before {
                break;
            }
        }
        accepting.abort();
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
    ) -> io::Result<()> {
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
