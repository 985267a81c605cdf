//! A proxy that forwards one connection to the API and cuts it at a planned place.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// The point at which the next connection is cut, counted in frames that carry an event.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cut {
    /// Whole frames that pass.
    pub frames: usize,
    /// Bytes of the next frame that pass.
    pub bytes: usize,
    /// Ends with a reset instead of a clean close.
    pub reset: bool,
}

/// The proxy of one reader.
pub struct Proxy {
    pub address: SocketAddr,
    plan: Arc<Mutex<(Cut, SocketAddr)>>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy without a target.
    pub async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let plan = Arc::new(Mutex::new((Cut::default(), address)));
        let task = tokio::spawn({
            let plan = plan.clone();
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    let (cut, upstream) = *plan.lock().expect("no planner panics");
                    // An API that is down looks like a lost connection.
                    let _ = forward(client, upstream, cut).await;
                }
            }
        });
        Ok(Self { address, plan, task })
    }

    /// Sets cut and target of the next connection.
    pub fn plan(&self, cut: Cut, upstream: SocketAddr) {
        *self.plan.lock().expect("no planner panics") = (cut, upstream);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(client: TcpStream, upstream: SocketAddr, cut: Cut) -> std::io::Result<()> {
    let upstream = TcpStream::connect(upstream).await?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_api, mut to_api) = upstream.into_split();
    let up = async { copy(&mut from_client, &mut to_api).await.map(drop) };
    let down = async {
        let mut scan = Scan::new(cut);
        let mut buffer = [0; 4 << 10];
        loop {
            let length = from_api.read(&mut buffer).await?;
            let (passed, ends) = scan.take(&buffer[..length]);
            to_client.write_all(&buffer[..passed]).await?;
            if ends || length == 0 {
                return Ok(());
            }
        }
    };
    let done: std::io::Result<()> = tokio::select! { done = up => done, done = down => done };
    if cut.reset {
        let client = from_client.reunite(to_client).map_err(std::io::Error::other)?;
        client.set_zero_linger()?;
    }
    done
}

/// Finds the place of the cut in the forwarded bytes.
struct Scan {
    cut: Cut,
    frames: usize,
    /// Bytes of the current frame, starting at its `id:`; none between frames.
    inside: Option<usize>,
    last: [u8; 4],
}

impl Scan {
    fn new(cut: Cut) -> Self {
        Self { cut, frames: 0, inside: None, last: [0; 4] }
    }

    /// Number of these bytes that pass, and whether the connection is cut after them.
    fn take(&mut self, bytes: &[u8]) -> (usize, bool) {
        for (at, byte) in bytes.iter().enumerate() {
            self.last.rotate_left(1);
            self.last[3] = *byte;
            match &mut self.inside {
                None if &self.last == b"\nid:" || &self.last[1..] == b"id:" && self.frames > 0 => {
                    self.inside = Some(3);
                }
                None => {}
                Some(seen) => {
                    *seen += 1;
                    if self.last.ends_with(b"\n\n") {
                        self.frames += 1;
                        self.inside = None;
                    }
                }
            }
            let is_at_boundary = self.inside.is_none() && self.cut.bytes == 0 && self.frames > 0;
            let is_inside = self.inside.is_some_and(|seen| self.cut.bytes > 0 && seen >= self.cut.bytes);
            if self.frames >= self.cut.frames && (is_at_boundary || is_inside) {
                return (at + 1, true);
            }
        }
        (bytes.len(), false)
    }
}
