//! Every setting with its unit, default and effect, for documents and for `hail config`.

/// One setting, for documents and for `hail config`.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Where it stands, for example `limits.grace`.
    pub path: &'static str,
    /// Type and unit.
    pub value: &'static str,
    /// The default as written in the file.
    pub default: &'static str,
    /// What it does.
    pub about: &'static str,
}

/// Every setting.
pub const SETTINGS: [Setting; 7] = [
    Setting {
        path: "node.name",
        value: "name: 1 to 64 of a-z 0-9 . _ -",
        default: "none",
        about: "name that the node offers to peers and hubs",
    },
    Setting {
        path: "listen.udp",
        value: "socket addresses, at most 8; port 0 lets the system choose",
        default: "\"0.0.0.0:0\" \"[::]:0\"",
        about: "where the node listens",
    },
    Setting {
        path: "hub",
        value: "URL; repeatable, at most 8; https, or http on loopback",
        default: "none",
        about: "hub to register at, in addition to those joined by ticket",
    },
    Setting {
        path: "limits.max-tunnels",
        value: "number, at least 1",
        default: "1024",
        about: "most tunnels at once; a further one is refused",
    },
    Setting {
        path: "limits.grace",
        value: "duration, for example \"250ms\", \"10s\" or \"1h30m\"",
        default: "\"10s\"",
        about: "time that calls in flight may take to finish when the node stops",
    },
    Setting {
        path: "limits.spin",
        value: "duration, for example \"100us\"; \"0s\" for none",
        default: "\"100us\"",
        about: "time that the node looks for more traffic after some before it sleeps",
    },
    Setting {
        path: "log.level",
        value: "error, warn, info, debug or trace",
        default: "\"info\"",
        about: "least important event that is written to stderr",
    },
];
