//! Plain hyper over TLS: what a program of the field would use.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, mpsc},
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Either, Full};
use hyper::{
    body::{Body, Frame, Incoming},
    client::conn::http2::{self, SendRequest},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    pki_types::{PrivateKeyDer, ServerName},
    version::TLS13,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::{BULK, Row, Subject, WINDOWS, runtime};

const NAME: &str = "localhost";

#[derive(Clone)]
pub(crate) struct Hyper(SendRequest<Either<Full<Bytes>, Repeat>>);

impl Hyper {
    async fn ask(&self, path: &str, body: Either<Full<Bytes>, Repeat>) -> Bytes {
        let request = Request::post(format!("https://{NAME}{path}"));
        let mut send = self.0.clone();
        send.ready().await.unwrap();
        let answer = send.send_request(request.body(body).unwrap()).await;
        let answer = answer.unwrap().into_body().collect().await;
        answer.unwrap().to_bytes()
    }
}

impl Subject for Hyper {
    async fn echo(&self, body: Bytes) -> usize {
        self.ask("/echo", Either::Left(Full::new(body))).await.len()
    }

    async fn bulk(&self, chunk: Bytes) -> u64 {
        let left = BULK / chunk.len();
        let body = Either::Right(Repeat { chunk, left });
        u64::from_be_bytes(self.ask("/bulk", body).await[..].try_into().unwrap())
    }
}

/// A body of one chunk many times over.
pub(crate) struct Repeat {
    chunk: Bytes,
    left: usize,
}

impl Body for Repeat {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.left.checked_sub(1).map(|left| {
            self.left = left;
            Ok(Frame::data(self.chunk.clone()))
        }))
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    if request.uri().path() == "/echo" {
        let body = request.into_body().collect().await?.to_bytes();
        return Ok(Response::new(Full::new(body)));
    }
    let (mut body, mut total) = (request.into_body(), 0_u64);
    while let Some(frame) = body.frame().await {
        total += frame?.data_ref().map_or(0, Bytes::len) as u64;
    }
    let total = Bytes::copy_from_slice(&total.to_be_bytes());
    Ok(Response::new(Full::new(total)))
}

pub(crate) fn hyper() -> Row<Hyper> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let mut server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    server.alpn_protocols = vec![b"h2".to_vec()];
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.alpn_protocols = vec![b"h2".to_vec()];

    let (bound, address) = mpsc::channel();
    std::thread::spawn(move || {
        runtime().block_on(async {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
            bound.send(listener.local_addr().unwrap()).unwrap();
            let (io, _) = listener.accept().await.unwrap();
            io.set_nodelay(true).unwrap();
            let tls = TlsAcceptor::from(Arc::new(server)).accept(io).await;
            hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .initial_stream_window_size(WINDOWS.0)
                .initial_connection_window_size(WINDOWS.1)
                .max_concurrent_streams(1024)
                .serve_connection(TokioIo::new(tls.unwrap()), service_fn(answer))
                .await
                .unwrap();
        });
    });
    let (runtime, address) = (runtime(), address.recv().unwrap());
    let send = runtime.block_on(async {
        let io = TcpStream::connect(address).await.unwrap();
        io.set_nodelay(true).unwrap();
        let name = ServerName::try_from(NAME).unwrap();
        let tls = TlsConnector::from(Arc::new(client)).connect(name, io).await;
        let (send, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(WINDOWS.0)
            .initial_connection_window_size(WINDOWS.1)
            .handshake(TokioIo::new(tls.unwrap()))
            .await
            .unwrap();
        tokio::spawn(connection);
        send
    });
    ("hyper", runtime, Hyper(send))
}
