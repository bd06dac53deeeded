//! Connections: how many there may be, and how long they may be silent at first.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Sleep, sleep};
use tonic::transport::server::Connected;

use crate::metrics::Metrics;

/// Longest time until the first byte of a connection.
const SILENCE: Duration = Duration::from_secs(20);
/// The pause after an accept that failed: most likely there are no file descriptors left.
const PAUSE: Duration = Duration::from_millis(20);
/// Connections above the limit that are told so; further ones are closed.
const TOLD: usize = 64;

/// An open connection.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    /// Set until the first byte.
    silence: Option<Pin<Box<Sleep>>>,
    peer: Peer,
    _open: Open,
}

/// What requests know of their connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// It is above the limit.
    pub(crate) refused: bool,
}

/// Counts a connection while it lives.
#[derive(Debug)]
struct Open {
    count: Arc<AtomicUsize>,
    metrics: Arc<Metrics>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::AcqRel);
        self.metrics.connections.dec();
    }
}

/// Accepts connections until the server closes, and hands them to `to`.
pub(crate) async fn accept(
    listener: TcpListener,
    most: usize,
    metrics: Arc<Metrics>,
    to: mpsc::Sender<io::Result<Connection>>,
    mut closing: watch::Receiver<bool>,
) {
    let count = Arc::new(AtomicUsize::new(0));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = async { drop(closing.wait_for(|closing| *closing).await) } => {
                drop(listener);
                // Without further connections the transport would end before the health tells of the shutdown.
                to.closed().await;
                return;
            }
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted");
                sleep(PAUSE).await;
                continue;
            }
        };
        let others = count.fetch_add(1, Ordering::AcqRel);
        metrics.connections.inc();
        let open = Open { count: Arc::clone(&count), metrics: Arc::clone(&metrics) };
        let refused = others >= most;
        if refused {
            metrics.refused_connections.inc();
            if others >= most.saturating_add(TOLD) {
                continue;
            }
        }
        // Answers are small and wait for no further bytes.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "set_nodelay");
        }
        let silence = Some(Box::pin(sleep(SILENCE)));
        let connection = Connection { stream, silence, peer: Peer { refused }, _open: open };
        if to.send(Ok(connection)).await.is_err() {
            return;
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        match (&mut self.silence, &read) {
            (Some(silence), Poll::Pending) => {
                ready!(silence.as_mut().poll(cx));
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
            _ => {
                self.silence = None;
                read
            }
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
