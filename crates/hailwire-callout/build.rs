//! Compiles `proto/` without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["proto/agent_v2.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".zentinel")
        .btree_map(".zentinel")
        .compile_fds(files)?;
    Ok(())
}
