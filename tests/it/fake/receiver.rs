//! A receiver of webhooks on loopback that replies from a script and records all requests.

use std::{
    collections::VecDeque,
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use futures::{StreamExt, stream};
use http_body_util::{BodyExt, Empty, StreamBody, combinators::BoxBody};
use hyper::{
    HeaderMap, Request, Response,
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::{JoinHandle, JoinSet},
};
use url::Url;

const RECEIVED_MAX: usize = 1_024;

/// Reply of the receiver, after it has read the whole request.
#[derive(Clone, Debug)]
pub enum Reply {
    Status(u16),
    /// A status with a Retry-After header.
    RetryAfter(u16, &'static str),
    /// 307 to another URL.
    Redirect(Url),
    /// Never answers; keeps the connection open.
    Hang,
    /// Closes the connection without an answer.
    Drop,
    /// Sends 200 and closes the connection in the middle of the body.
    Cut,
    /// Sends 200 with a body that does not end.
    Endless,
}

/// One received request.
#[derive(Clone, Debug)]
pub struct Received {
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// How it is answered.
    pub reply: Reply,
}

impl Received {
    /// Whether the sender is told that it was delivered: by the status, whatever becomes of the body.
    pub fn is_accepted(&self) -> bool {
        matches!(self.reply, Reply::Status(200..300) | Reply::Cut | Reply::Endless)
    }

    /// Value of a header; empty when it is absent.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("printable ASCII"))
    }
}

/// The receiver; stops on drop.
pub struct Receiver {
    address: SocketAddr,
    received: mpsc::Receiver<Received>,
    connections: Arc<AtomicUsize>,
    task: Option<JoinHandle<()>>,
}

/// Chooses the reply to a request by its headers.
type Choose = Box<dyn FnMut(&HeaderMap) -> Reply + Send>;

struct Endpoint {
    choose: Mutex<Choose>,
    received: mpsc::Sender<Received>,
}

type Answer = Response<BoxBody<Bytes, io::Error>>;

impl Receiver {
    /// Starts a receiver that replies by the script, and with 200 after its end.
    pub async fn start(script: impl IntoIterator<Item = Reply>) -> Self {
        let mut script: VecDeque<_> = script.into_iter().collect();
        Self::choosing(move |_| script.pop_front().unwrap_or(Reply::Status(200))).await
    }

    /// Starts a receiver that chooses each reply by the headers of the request.
    pub async fn choosing(choose: impl FnMut(&HeaderMap) -> Reply + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound listener");
        let (sender, received) = mpsc::channel(RECEIVED_MAX);
        let endpoint = Endpoint { choose: Mutex::new(Box::new(choose)), received: sender };
        let connections = Arc::new(AtomicUsize::new(0));
        let task = tokio::spawn(accept(listener, Arc::new(endpoint), Arc::clone(&connections)));
        Self { address, received, connections, task: Some(task) }
    }

    /// URL of the receiver.
    pub fn url(&self) -> Url {
        Url::parse(&format!("http://{}/hook", self.address)).expect("a URL")
    }

    /// Port of the receiver.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Waits for the next request.
    pub async fn next(&mut self) -> Received {
        self.received.recv().await.expect("the receiver runs until it is dropped")
    }

    /// Number of connections accepted so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Stops it, and waits until its port refuses connections.
    pub async fn stop(mut self) {
        let task = self.task.take().expect("only `stop` takes it");
        task.abort();
        assert!(task.await.is_err(), "it ends only by being stopped");
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

async fn accept(listener: TcpListener, endpoint: Arc<Endpoint>, connections: Arc<AtomicUsize>) {
    // Dropped with this task, and all connections with it.
    let mut open = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.fetch_add(1, Ordering::SeqCst);
        open.spawn(serve(stream, Arc::clone(&endpoint)));
    }
}

async fn serve(stream: TcpStream, endpoint: Arc<Endpoint>) {
    let service = service_fn(|request| answer(request, Arc::clone(&endpoint)));
    // Most scripts end a connection with an error, which is expected here.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(request: Request<Incoming>, endpoint: Arc<Endpoint>) -> io::Result<Answer> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let reply = (endpoint.choose.lock().expect("no holder panics"))(&head.headers);
    let path = head.uri.path().to_owned();
    let received = Received { path, headers: head.headers, body, reply: reply.clone() };
    endpoint.received.send(received).await.map_err(io::Error::other)?;
    let respond = |status: u16| Response::builder().status(status);
    let response = match reply {
        Reply::Status(status) => respond(status).body(empty()),
        Reply::RetryAfter(status, value) => respond(status).header("retry-after", value).body(empty()),
        Reply::Redirect(url) => respond(307).header("location", url.as_str()).body(empty()),
        Reply::Hang => std::future::pending().await,
        Reply::Drop => return Err(io::Error::other("told to drop the connection")),
        Reply::Cut => respond(200).header("content-length", "100").body(chunks(2, true)),
        Reply::Endless => respond(200).body(chunks(usize::MAX, false)),
    };
    response.map_err(io::Error::other)
}

fn empty() -> BoxBody<Bytes, io::Error> {
    Empty::new().map_err(|never: Infallible| match never {}).boxed()
}

fn chunks(count: usize, then_break: bool) -> BoxBody<Bytes, io::Error> {
    let chunks = std::iter::repeat_n(b"0123456789".as_slice(), count);
    let whole = stream::iter(chunks.map(|chunk| Ok(Frame::data(Bytes::from_static(chunk)))));
    let broken = stream::iter(then_break.then_some(())).then(async |()| {
        // The bytes sent so far are flushed only when the body has to wait.
        tokio::task::yield_now().await;
        Err(io::Error::other("told to cut the connection"))
    });
    BodyExt::boxed(StreamBody::new(whole.chain(broken)))
}
