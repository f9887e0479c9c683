//! Compiles `proto/` without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = [
        "proto/agent_v2.proto",
        "proto/envoy/service/ext_proc/v3/external_processor.proto",
    ];
    let files = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".zentinel")
        .bytes(".envoy")
        .btree_map(".zentinel")
        .compile_fds(files)?;
    Ok(())
}
