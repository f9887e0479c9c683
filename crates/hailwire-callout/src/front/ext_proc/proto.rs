//! What is generated from `proto/envoy`, in the modules that it expects.

#![expect(
    clippy::all,
    unreachable_pub,
    reason = "generated, and as Envoy names it"
)]

pub mod config {
    pub mod core {
        pub mod v3 {
            tonic::include_proto!("envoy.config.core.v3");
        }
    }
}

pub mod extensions {
    pub mod filters {
        pub mod http {
            pub mod ext_proc {
                pub mod v3 {
                    tonic::include_proto!("envoy.extensions.filters.http.ext_proc.v3");
                }
            }
        }
    }
}

pub mod service {
    pub mod ext_proc {
        pub mod v3 {
            tonic::include_proto!("envoy.service.ext_proc.v3");
        }
    }
}

pub mod r#type {
    pub mod v3 {
        tonic::include_proto!("envoy.r#type.v3");
    }
}
