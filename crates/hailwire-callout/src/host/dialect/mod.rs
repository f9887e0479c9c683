//! The dialects that call themselves version 2 over a Unix socket, told apart.
mod answer;
pub(crate) mod documented;
mod v1;

pub(crate) async fn tmp1<
    I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
>(
    io: I,
    o: &crate::host::ConnectOptions,
) {
    let _ = v1::connect(io, o).await;
}
pub(crate) async fn tmp2<
    I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
>(
    io: I,
    o: &crate::host::ConnectOptions,
) {
    let _ = documented::connect(io, o).await;
}
