//! Counters of all ends, and the page where Prometheus reads them.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

/// How long a client may take to ask and to read.
const PATIENCE: Duration = Duration::from_secs(10);
const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Labels = Vec<(&'static str, String)>;

/// All counters of the program.
pub(crate) struct Metrics {
    registry: Registry,
    open: Family<Labels, Gauge>,
    connections: Family<Labels, Counter>,
    ended: Family<Labels, Counter>,
    bytes: Family<Labels, Counter>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("trespass_tunnel");
        let [connections, ended, bytes] = [(); 3].map(|()| Family::<Labels, Counter>::default());
        let open = Family::<Labels, Gauge>::default();
        registry.register(
            "open_connections",
            "Connections that were accepted and have not ended",
            open.clone(),
        );
        registry.register(
            "connections",
            "Connections that reached the other end, by transport",
            connections.clone(),
        );
        registry.register(
            "ended_connections",
            "Connections that have ended, by the way they ended",
            ended.clone(),
        );
        registry.register("bytes", "Payload bytes, out to the other end and in from it", bytes.clone());
        Self { registry, open, connections, ended, bytes }
    }

    /// The counters of one end.
    pub(crate) fn route(self: &Arc<Self>, role: &'static str, listen: String) -> RouteMetrics {
        RouteMetrics { all: self.clone(), labels: vec![("role", role.into()), ("listen", listen)] }
    }

    fn page(&self) -> String {
        let mut page = String::new();
        text::encode(&mut page, &self.registry).expect("writing to a string does not fail");
        page
    }
}

/// The counters of one end.
pub(crate) struct RouteMetrics {
    all: Arc<Metrics>,
    labels: Labels,
}

impl RouteMetrics {
    fn with(&self, name: &'static str, value: &str) -> Labels {
        self.labels.iter().cloned().chain([(name, value.to_owned())]).collect()
    }

    pub(crate) fn open(&self) -> Gauge {
        self.all.open.get_or_create(&self.labels).clone()
    }

    pub(crate) fn count_connection(&self, transport: &str) {
        self.all.connections.get_or_create(&self.with("transport", transport)).inc();
    }

    pub(crate) fn count_end(&self, end: &str) {
        self.all.ended.get_or_create(&self.with("end", end)).inc();
    }

    pub(crate) fn bytes(&self, direction: &str) -> Counter {
        self.all.bytes.get_or_create(&self.with("direction", direction)).clone()
    }
}

/// Binds the address of the page.
pub(crate) async fn bind(addr: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(addr).await;
    listener.with_context(|| format!("cannot serve metrics at {addr}: choose another address or port"))
}

/// Serves the page for ever.
pub(crate) async fn serve(listener: TcpListener, metrics: Arc<Metrics>) {
    loop {
        match listener.accept().await {
            Ok((client, _)) => drop(tokio::spawn(answer(client, metrics.clone()))),
            Err(error) => pause_after(&error).await,
        }
    }
}

/// Logs why nothing was accepted. Another attempt at once would fail in the same way.
pub(crate) async fn pause_after(error: &io::Error) {
    tracing::warn!(%error, "cannot accept a connection now");
    sleep(Duration::from_millis(100)).await;
}

async fn answer(client: TcpStream, metrics: Arc<Metrics>) {
    let service = service_fn(|request| {
        let response = respond(&request, &metrics);
        async { Ok::<_, Infallible>(response) }
    });
    let mut http = http1::Builder::new();
    let connection = http.keep_alive(false).serve_connection(TokioIo::new(client), service);
    match timeout(PATIENCE, connection).await {
        Ok(Ok(())) => (),
        Ok(Err(error)) => tracing::debug!(%error, "a client of the metrics page failed"),
        Err(_) => tracing::debug!("a client of the metrics page took too long"),
    }
}

fn respond(request: &Request<Incoming>, metrics: &Metrics) -> Response<Full<Bytes>> {
    let response = Response::builder();
    let response = match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => response.header(CONTENT_TYPE, FORMAT).body(metrics.page().into()),
        (_, "/metrics") => {
            response.status(StatusCode::METHOD_NOT_ALLOWED).header(ALLOW, "GET").body(Full::default())
        }
        _ => response.status(StatusCode::NOT_FOUND).body("the page is /metrics\n".into()),
    };
    response.expect("the headers are valid")
}
