//! A plain TCP relay proxy: how an HTTP/2 server behind NAT is reached without a punched path.
//!
//! The server connects to the proxy and waits; a client that connects is spliced with one that waits. The first
//! byte of a connection says which it is: `S` from a server, anything else is a client's (TLS begins
//! with 0x16). One byte tells the server that its client has connected.

use std::{net::SocketAddr, sync::Arc};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::{Mutex, mpsc},
};

use super::{ReadyAddress, SubjectSetup};
use crate::BenchError;

const SERVER: u8 = b'S';
/// The most connections of servers that wait for clients.
const PENDING_QUEUE: usize = 64;

/// Runs the proxy until the process ends.
pub(crate) async fn serve(options: &SubjectSetup) -> Result<ReadyAddress, BenchError> {
    let listener = TcpListener::bind((options.listen, 0))
        .await
        .map_err(BenchError::io("binding"))?;
    let address = listener.local_addr().map_err(BenchError::io("binding"))?;
    let (waiting, servers) = mpsc::channel::<TcpStream>(PENDING_QUEUE);
    let servers = Arc::new(Mutex::new(servers));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (waiting, servers) = (waiting.clone(), servers.clone());
            tokio::spawn(async move {
                let _ = stream.set_nodelay(true);
                let mut first = [0];
                if !matches!(stream.peek(&mut first).await, Ok(1)) {
                    return;
                }
                if first == [SERVER] {
                    // Full: this server is refused and connects again.
                    let _ = waiting.try_send(stream);
                } else if let Some(server) = servers.lock().await.recv().await {
                    let _ = join(stream, server).await;
                }
            });
        }
    });
    Ok(ReadyAddress {
        address: address.to_string(),
        ..ReadyAddress::default()
    })
}

async fn join(mut client: TcpStream, mut server: TcpStream) -> std::io::Result<()> {
    server.read_u8().await?;
    server.write_u8(SERVER).await?;
    copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}

/// Keeps some connections waiting at a proxy, and serves those that get a client.
pub(crate) async fn behind<F>(
    proxy: SocketAddr,
    serve: impl Fn(TcpStream) -> F + Clone + Send + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let seats = Arc::new(tokio::sync::Semaphore::new(8));
    while let Ok(pending) = seats.clone().acquire_owned().await {
        let serve = serve.clone();
        tokio::spawn(async move {
            if let Ok(stream) = waited(proxy).await {
                // The next may wait while this one is served.
                drop(pending);
                serve(stream).await;
            } else {
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        });
    }
}

async fn waited(proxy: SocketAddr) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(proxy).await?;
    let _ = stream.set_nodelay(true);
    stream.write_u8(SERVER).await?;
    stream.read_u8().await?;
    Ok(stream)
}
