//! Leader by lease: of two programs on two nodes one does the work, and the other takes over when it ends.
//!
//! ```text
//! cargo run -p hailwire-hub --example leader
//! ```
//!
//! The hub keeps the lease in its database, and each lease has a higher fencing token than the one before. Here the hub and both nodes are in one
//! process; elsewhere a hub is `hail hub`.

use std::{error::Error, time::Duration};

use hailwire::{
    Config, DataDir, Node,
    admin::{JoinAnswer, JoinRequest, method},
    coordination::{Tenure, lead},
};
use hailwire_hub::{Hub, HubConfig};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let mut config = HubConfig::new(folder.path().join("hub"));
    config.listen = ([127, 0, 0, 1], 0).into();
    let hub = Hub::start(config).await?;
    let mut nodes = Vec::new();
    for name in ["desk", "laptop"] {
        let mut config = Config::default();
        config.node.name = Some(name.parse()?);
        config.listen.udp = vec![([127, 0, 0, 1], 0).into()];
        let builder = Node::builder()
            .data_dir(DataDir::new(folder.path().join(name)))
            .config(config);
        let node = builder.start().await?;
        let join = JoinRequest {
            ticket: hub.invite(1, Duration::from_secs(60)).await?,
            ..JoinRequest::default()
        };
        let _: JoinAnswer = node.client().admin(method::JOIN, &join).await?;
        nodes.push(node);
    }

    // Both want to lead: one does until its work ends, the other after it.
    let work = async |tenure: Tenure| tenure.token;
    let clients = [nodes[0].client(), nodes[1].client()];
    let (desk, laptop) = tokio::join!(
        lead(&clients[0], "nightly-report").run(work),
        lead(&clients[1], "nightly-report").run(work)
    );
    let (desk, laptop) = (desk?, laptop?);
    println!("both led, one after the other");
    println!("the tokens differ: {}", desk != laptop);

    for node in nodes {
        node.shutdown(Duration::from_secs(1)).await;
    }
    hub.shutdown().await;
    Ok(())
}
