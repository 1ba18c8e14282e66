//! Servers with a bound on the number of open connections, and on idle time.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use axum_server::Server;

use axum_server::accept::Accept;
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The API server keeps up to 25 idle connections for each host; ten of them, and as many again under way, are a few hundred.
/// Each costs some 25 KB.
const MOST: usize = 1024;

/// A new connection must have sent its first request by then.
const FIRST_REQUEST: Duration = Duration::from_secs(10);
/// hyper counts idle time between requests into this. The API server keeps connections idle for 90 s and does not repeat a
/// call on one that was closed under it, so ours must be longer.
const BETWEEN_REQUESTS: Duration = Duration::from_secs(120);
/// Every port has the same bounds. `field` is where the address was written.
pub fn http_server<A>(field: &str, address: SocketAddr, acceptor: A) -> anyhow::Result<Server<SocketAddr, Bounded<A>>> {
    let listener = TcpListener::bind(address).with_context(|| format!("{field}: cannot listen on {address}"))?;
    listener.set_nonblocking(true)?;
    let mut server = axum_server::from_tcp(listener)?.acceptor(Bounded::new(acceptor)).first_request_timeout(FIRST_REQUEST);
    server.http_builder().http1().header_read_timeout(BETWEEN_REQUESTS);
    Ok(server)
}

/// Accepts connections as `inner` does, up to [`MOST`] at a time; further ones are closed at once.
#[derive(Clone)]
pub struct Bounded<A> {
    inner: A,
    places: Arc<Semaphore>,
}

impl<A> Bounded<A> {
    pub fn new(inner: A) -> Self {
        Self { inner, places: Arc::new(Semaphore::new(MOST)) }
    }
}

impl<A, I, S> Accept<I, S> for Bounded<A>
where
    A: Accept<I, S>,
    A::Future: Send + 'static,
    A::Stream: Send + 'static,
    A::Service: Send + 'static,
{
    type Stream = Placed<A::Stream>;
    type Service = A::Service;
    type Future = BoxFuture<'static, io::Result<(Self::Stream, Self::Service)>>;

    fn accept(&self, stream: I, service: S) -> Self::Future {
        let place = self.places.clone().try_acquire_owned();
        // Dropped without being polled where there is no place: the connection goes with it.
        let accepted = self.inner.accept(stream, service);
        Box::pin(async move {
            let place = place.map_err(|_| io::Error::other("too many connections"))?;
            let (stream, service) = accepted.await?;
            Ok((Placed { stream, _place: place }, service))
        })
    }
}

/// A connection, and its place.
pub struct Placed<T> {
    stream: T,
    _place: OwnedSemaphorePermit,
}

impl<T: AsyncRead + Unpin> AsyncRead for Placed<T> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Placed<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, context: &mut Context<'_>, slices: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
