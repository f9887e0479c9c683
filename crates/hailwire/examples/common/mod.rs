//! Two nodes that trust each other; `embedded_call.rs` tells how they come to be.

use std::{error::Error, net::SocketAddr, path::Path, time::Duration};

use hailwire::{
    Config, DataDir, Node,
    admin::{InviteAnswer, InviteRequest, JoinAnswer, JoinRequest, method},
};

/// The nodes `laptop` and `desk`, and the folder that they keep their things in.
pub(crate) struct Nodes {
    pub(crate) laptop: Node,
    pub(crate) desk: Node,
    _folder: tempfile::TempDir,
}

impl Nodes {
    /// Stops both.
    pub(crate) async fn shutdown(self) {
        self.desk.shutdown(Duration::ZERO).await;
        self.laptop.shutdown(Duration::ZERO).await;
    }
}

/// Starts both on loopback and makes them trust each other.
pub(crate) async fn two_nodes() -> Result<Nodes, Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let laptop = start(folder.path(), "laptop").await?;
    let desk = start(folder.path(), "desk").await?;
    let invite = InviteRequest {
        uses: 1,
        expires_s: 60,
        allow: Vec::new(),
        offer: Vec::new(),
    };
    let InviteAnswer { ticket, .. } = laptop.client().admin(method::INVITE, &invite).await?;
    let join = JoinRequest {
        ticket,
        ..JoinRequest::default()
    };
    let _: JoinAnswer = desk.client().admin(method::JOIN, &join).await?;
    Ok(Nodes {
        laptop,
        desk,
        _folder: folder,
    })
}

async fn start(folder: &Path, name: &str) -> Result<Node, Box<dyn Error>> {
    let mut config = Config::default();
    config.node.name = Some(name.parse()?);
    config.listen.udp = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    let data = DataDir::new(folder.join(name));
    Ok(Node::builder()
        .data_dir(data)
        .config(config)
        .start()
        .await?)
}
