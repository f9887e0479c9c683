//! A whole node on loopback, which is started anew now and then: handshakes that are under way take places
//! for seconds, and a fuzzer fills them within one.

use std::net::SocketAddr;

use hailwire::{Config, DataDir, Node};
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{SignalKind, signal},
};

/// Inputs that one node takes.
const INPUTS: u32 = 400;

/// The node, and the runtime that it has for itself.
#[derive(Debug)]
pub struct House {
    pub runtime: Runtime,
    pub node: Node,
    inputs: u32,
    _folder: tempfile::TempDir,
}

impl House {
    /// Starts one.
    pub fn new() -> Self {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = Config::default();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        config.listen.udp = vec![any];
        config.listen.tcp = vec![any];
        let data = DataDir::new(folder.path());
        let node = Node::builder().data_dir(data).config(config);
        let node = runtime.block_on(async {
            // A Rust program ignores SIGPIPE from its main function, which libFuzzer has in its place.
            let _noticed = signal(SignalKind::pipe());
            Box::pin(node.start()).await
        });
        Self {
            node: node.expect("a node"),
            runtime,
            inputs: 0,
            _folder: folder,
        }
    }

    /// Whether it has taken as many inputs as it is to take, this one included.
    pub fn worn(&mut self) -> bool {
        self.inputs += 1;
        self.inputs > INPUTS
    }

    /// Ends it without a word to anybody.
    pub fn end(self) {
        drop(self.node);
        self.runtime.shutdown_background();
    }
}
