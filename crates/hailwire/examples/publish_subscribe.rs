//! A program subscribes to topics, another one publishes, and neither knows of the other.
//!
//! ```text
//! cargo run -p hailwire --example publish_subscribe
//! ```
//!
//! One node is enough to see it. With two that trust each other it is the same: a node asks its peers for what its programs
//! are subscribed to.

use std::{error::Error, time::Duration};

use hailwire::{Client, Config, DataDir, Node, Status, TopicEvent};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let data = DataDir::new(folder.path());
    let mut config = Config::default();
    config.listen.udp = vec![([127, 0, 0, 1], 0).into()];
    let builder = Node::builder().data_dir(data.clone()).config(config);
    let node = builder.start().await?;

    // What is published before is not seen: subscribe first.
    let watcher = Client::attach(&data).await?;
    let mut builds = watcher.subscribe(["build.*.done"]).await?;
    tell(&node.client()).await?;
    for _ in 0..2 {
        match builds.next().await? {
            Some(TopicEvent::Message(message)) => {
                let text = String::from_utf8_lossy(&message.body);
                println!("{}: {text}", message.topic);
            }
            // Only who reads too slowly sees this.
            Some(TopicEvent::Missed(lost)) => println!("{lost} messages were lost"),
            // The rest is of what nodes keep.
            Some(_) => {}
            None => break,
        }
    }
    drop(builds);
    node.shutdown(Duration::from_secs(1)).await;
    Ok(())
}

async fn tell(client: &Client) -> Result<(), Status> {
    let receipt = client
        .publish("build.web.done")
        .body("tests pass")
        .send()
        .await?;
    println!("{} subscriptions got it", receipt.programs);

    // Many, without waiting for each.
    let mut publisher = client.publisher();
    publisher.publish(client.publish("build.begun")).await?;
    let done = client.publish("build.api.done").body("tests fail");
    publisher.publish(done).await?;
    publisher.finish().await?;
    Ok(())
}
