//! A network of namespaces, from its making to its end.

use std::{
    fmt::Write as _,
    fs::File,
    io,
    net::{IpAddr, Ipv4Addr},
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::Command,
    time::Duration,
};

use thiserror::Error;
use tun_rs::{DeviceBuilder, SyncDevice};

use super::{
    enclosure::{EnclosureHandle, ProcessEnclosure},
    namespace::NetworkNamespace,
    router::PacketRouter,
};
use crate::{
    fabric::{Fabric, NatProvider, PacketCounters, SiteChange},
    link,
    nat::{EndpointDependence, NatKind, PortAllocation, UnaskedPackets},
    topology::{IpFamilies, Site, Topology},
};

/// Packets that a device holds for the router; a buffer of many counts once.
const DEVICE_QUEUE: u32 = 8192;

/// Set for the copy of a program that [`in_user_namespace`] starts.
const INSIDE_USER_NAMESPACE: &str = "HAILWIRE_LAB_INSIDE";

/// A running network. Dropping it stops the router and closes the namespaces; they vanish when the
/// programs inside have ended.
#[derive(Debug)]
pub struct NamespaceNetwork {
    topology: Topology,
    // First, so that it stops before the namespaces are closed.
    router: PacketRouter,
    hosts: Vec<(String, NetworkNamespace)>,
    /// Those with nftables, by their sites.
    nats: Vec<(String, NetworkNamespace)>,
}

/// Why there is no network.
#[derive(Debug, Error)]
pub enum LabError {
    /// The machine or the user's rights do not allow it.
    #[error("networks cannot be made here: {0}")]
    Unavailable(String),
    /// A step failed.
    #[error("{what}")]
    Failed {
        /// What was being done.
        what: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// There is no such host.
    #[error("the topology `{topology}` has no host `{host}`")]
    NoHost {
        /// Its name.
        topology: String,
        /// What was asked for.
        host: String,
    },
}

fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> LabError {
    let what = what.into();
    move |source| LabError::Failed { what, source }
}

impl NamespaceNetwork {
    /// Makes the network; chance comes from a fixed seed. It takes some tens of milliseconds.
    ///
    /// # Errors
    ///
    /// [`LabError::Unavailable`] with the reason, and [`LabError::Failed`] for a step of the making.
    pub fn up(topology: &Topology) -> Result<Self, LabError> {
        Self::seeded(topology, 1)
    }

    /// As [`NamespaceNetwork::up`], with chance from this seed.
    ///
    /// # Errors
    ///
    /// As [`NamespaceNetwork::up`].
    pub fn seeded(topology: &Topology, seed: u64) -> Result<Self, LabError> {
        available().map_err(LabError::Unavailable)?;
        let nftables = topology.sites.iter().any(|site| rule_for(site).is_some()) && has_nftables();
        let rule = |site: &Site| rule_for(site).filter(|_| nftables);
        let notes = |nat: &NatKind| nat.unasked == UnaskedPackets::Noted;
        let impossible = |site: &&Site| site.nats.iter().any(notes) && rule(site).is_none();
        if let Some(site) = topology.sites.iter().find(impossible) {
            return Err(LabError::Unavailable(format!(
                "the router of `{}` notes what comes in unasked, which nftables alone does: with one NAT of a kind that it can \
                 be, and IPv4 alone",
                site.name
            )));
        }
        let nat_by = |site: &Site| match rule(site) {
            Some(_) => NatProvider::Other,
            None => NatProvider::Model,
        };
        let fabric = Fabric::new(topology, seed, nat_by);
        let (mut hosts, mut nats, mut devices) = (Vec::new(), Vec::new(), Vec::new());
        for (number, site) in topology.sites.iter().enumerate() {
            if let Some(rule) = rule(site) {
                let nat = NftablesRouter::make(topology, number, site, &rule).map_err(failed(
                    format!("the router of `{}` cannot be made", site.name),
                ))?;
                devices.push(nat.device);
                nats.push((site.name.clone(), nat.own));
                hosts.extend(nat.hosts);
                continue;
            }
            for host in &site.hosts {
                let (own, device) = lone(&topology.all_addresses(&host.name), site)
                    .map_err(failed(format!("the host `{}` cannot be made", host.name)))?;
                devices.push(device);
                hosts.push((host.name.clone(), own));
            }
        }
        let router =
            PacketRouter::start(fabric, devices).map_err(failed("the router cannot be started"))?;
        Ok(Self {
            topology: topology.clone(),
            router,
            hosts,
            nats,
        })
    }

    /// What it was made from.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// A command that runs `program` inside a host. It is `nsenter`, which becomes the program, so
    /// that process id, signals, streams and exit code are the program's own.
    ///
    /// # Errors
    ///
    /// [`LabError::NoHost`].
    pub fn command(
        &self,
        host: &str,
        program: impl AsRef<std::ffi::OsStr>,
    ) -> Result<Command, LabError> {
        Ok(inside(self.namespace(host)?, program))
    }

    /// A command that runs `program` on the router of a site, whose interface to the internet is `eth0` and those to its hosts `lan0`,
    /// `lan1`, …; the router must be one that nftables does.
    ///
    /// # Errors
    ///
    /// [`LabError::NoHost`].
    pub fn router_command(
        &self,
        site: &str,
        program: impl AsRef<std::ffi::OsStr>,
    ) -> Result<Command, LabError> {
        let router = self.nats.iter().find(|(name, _)| name == site);
        let (_, router) = router.ok_or_else(|| self.no_host(site))?;
        Ok(inside(router, program))
    }

    /// Where other programs of this user can open the namespace of a host, with `nsenter --net=PATH`,
    /// while this process lives.
    ///
    /// # Errors
    ///
    /// [`LabError::NoHost`].
    pub fn namespace_path(&self, host: &str) -> Result<PathBuf, LabError> {
        Ok(self.namespace(host)?.path())
    }

    /// As [`NamespaceNetwork::command`], and in there `/etc/hosts` names the network's hosts as
    /// [`Topology::hosts_file`] says. It needs `unshare` and may mount; where it may not, the program sees
    /// the machine's own file.
    ///
    /// # Errors
    ///
    /// [`LabError::NoHost`].
    pub fn command_with_names(
        &self,
        host: &str,
        program: impl AsRef<std::ffi::OsStr>,
    ) -> Result<Command, LabError> {
        // The file lies in memory, in mounts that nobody else sees.
        const NAMED: &str = r#"{ mount -t tmpfs tmpfs /mnt && printf %s "$0" > /mnt/hosts &&
            mount --bind /mnt/hosts /etc/hosts; umount /mnt; } 2>/dev/null
            exec "$@""#;
        let mut command = self.command(host, "unshare")?;
        command.args(["--mount", "--", "sh", "-c", NAMED]);
        command.arg(self.topology.hosts_file(host)).arg(program);
        Ok(command)
    }

    /// The address that a host itself has: behind a NAT, a private one; of IPv6 only where it has none
    /// of IPv4.
    ///
    /// # Errors
    ///
    /// [`LabError::NoHost`].
    pub fn address(&self, host: &str) -> Result<IpAddr, LabError> {
        let addresses = self.topology.all_addresses(host);
        let first = addresses.first().copied();
        first.ok_or_else(|| self.no_host(host))
    }

    /// Changes a site while programs run. A router that nftables does ([`crate::topology`]) is not
    /// changed by [`SiteChange::Rebind`].
    ///
    /// # Errors
    ///
    /// [`LabError::NoHost`] where no site has this name, [`LabError::Failed`] where the router has
    /// stopped.
    pub fn change(&self, site: &str, change: SiteChange) -> Result<(), LabError> {
        let mut sites = self.topology.sites.iter();
        let number = sites.position(|own| own.name == site);
        let number = number.ok_or_else(|| self.no_host(site))?;
        self.router
            .change(number, change)
            .map_err(failed(format!("the site `{site}` cannot be changed")))
    }

    /// Does something inside a host, on a thread of its own. Sockets that are made there belong to
    /// the host for good, wherever they are used later.
    ///
    /// # Errors
    ///
    /// [`LabError::NoHost`], and [`LabError::Failed`] where the thread cannot enter or panics.
    pub fn within<T: Send>(
        &self,
        host: &str,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, LabError> {
        let namespace = self.namespace(host)?;
        namespace
            .within(work)
            .map_err(failed(format!("the host `{host}` cannot be entered")))
    }

    /// Does `work` on a thread whose child processes end with this process, even where that is killed,
    /// together with everything that they have started themselves.
    ///
    /// The thread is in no host before [`EnclosureHandle::enter`], and may start processes but no threads. It
    /// sees another `/proc` than this process.
    ///
    /// # Errors
    ///
    /// [`LabError::Failed`] where the enclosure cannot be made, or `work` panics.
    pub fn enclosed<T: Send>(
        &self,
        work: impl FnOnce(&EnclosureHandle<'_>) -> T + Send,
    ) -> Result<(ProcessEnclosure, T), LabError> {
        let hosts = self.hosts.iter();
        let hosts = hosts.map(|(name, own)| (name.as_str(), own)).collect();
        ProcessEnclosure::start(hosts, work).map_err(failed("programs cannot be enclosed"))
    }

    /// What became of the packets so far.
    #[must_use]
    pub fn counters(&self) -> PacketCounters {
        self.router.counters()
    }

    fn namespace(&self, host: &str) -> Result<&NetworkNamespace, LabError> {
        let found = self.hosts.iter().find(|(name, _)| name == host);
        found
            .map(|(_, namespace)| namespace)
            .ok_or_else(|| self.no_host(host))
    }

    fn no_host(&self, host: &str) -> LabError {
        LabError::NoHost {
            topology: self.topology.name.clone(),
            host: host.to_owned(),
        }
    }
}

fn inside(namespace: &NetworkNamespace, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("nsenter");
    let mut net = std::ffi::OsString::from("--net=");
    net.push(namespace.path());
    command.arg(net).arg("--").arg(program);
    command
}

/// Whether networks can be made here, else the reason in words that follow "skipped: ".
///
/// # Errors
///
/// The reason.
pub fn available() -> Result<(), String> {
    for (program, package) in [("ip", "iproute2"), ("nsenter", "util-linux")] {
        if !has(program) {
            return Err(format!(
                "`{program}` is not installed (Debian's package {package})"
            ));
        }
    }
    let need = "network namespaces need root, or a user namespace (unshare --user --map-root-user)";
    let own = NetworkNamespace::new().map_err(|error| format!("{need}: {error}"))?;
    let device = own.within(tun).map_err(|error| error.to_string())?;
    device
        .map(drop)
        .map_err(|error| format!("no TUN device can be made (/dev/net/tun): {error}"))
}

/// Replaces this process by itself in a user namespace of its own, where it is root and may make
/// networks. Comes back only with the reason why that is not possible.
pub fn in_user_namespace() -> io::Error {
    if std::env::var_os(INSIDE_USER_NAMESPACE).is_some() {
        return io::Error::other("this is a user namespace already");
    }
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return error,
    };
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net", "--"]);
        command
    };
    match unshare().arg("true").output() {
        Ok(tried) if tried.status.success() => {}
        Ok(tried) => {
            let said = String::from_utf8_lossy(&tried.stderr);
            let mut reason = format!("user namespaces are not allowed here: {}", said.trim());
            for setting in forbidding() {
                reason += &format!("; {setting}");
            }
            return io::Error::other(reason);
        }
        Err(error) => return io::Error::new(error.kind(), format!("`unshare`: {error}")),
    }
    unshare()
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(INSIDE_USER_NAMESPACE, "1")
        .exec()
}

/// The kernel's settings that keep ordinary users from making user namespaces.
fn forbidding() -> impl Iterator<Item = String> {
    let settings = [
        ("kernel/unprivileged_userns_clone", "0"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1"),
        ("user/max_user_namespaces", "0"),
    ];
    settings.into_iter().filter_map(|(name, forbids)| {
        let value = std::fs::read_to_string(format!("/proc/sys/{name}")).ok()?;
        let forbids = value.trim() == forbids;
        forbids.then(|| format!("{} is {}", name.replace('/', "."), value.trim()))
    })
}

fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // A user's own PATH often leaves out where these live.
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(Into::into))
        .any(|folder| folder.join(program).is_file())
}

/// The rules of a router that nftables can be.
fn rule_for(site: &Site) -> Option<String> {
    match &site.nats[..] {
        [nat] if !site.ip.has_ipv6() => Some(nat_rules(masquerade(nat)?, nat.unasked)),
        _ => None,
    }
}

/// Whether nftables is installed and the kernel can do NAT with it. Where not, the model does every
/// NAT itself.
fn has_nftables() -> bool {
    let tried = || {
        let rules = nat_rules("masquerade fully-random", UnaskedPackets::Dropped);
        NetworkNamespace::new()?.feed("nft", &["-f", "-"], &rules)
    };
    let works = has("nft") && tried().is_ok();
    if !works {
        tracing::info!("nftables cannot be used here: the lab's model does the NATs");
    }
    works
}

/// Inside out by one rule, and in only what answers. Dropped is what nobody asked for before the
/// kernel notes it: a noted packet to the router itself takes the port from the host that is about to
/// send from it.
fn nat_rules(rule: &str, unasked: UnaskedPackets) -> String {
    let policy = match unasked {
        UnaskedPackets::Dropped => "drop",
        UnaskedPackets::Noted => "accept",
    };
    format!(
        "table ip lab {{
            chain out {{
                type nat hook postrouting priority srcnat;
                oifname eth0 {rule}
            }}
            chain own {{
                type filter hook input priority filter; policy {policy};
                iifname \"lan*\" accept
                ct state established,related accept
            }}
            chain through {{
                type filter hook forward priority filter; policy drop;
                iifname \"lan*\" accept
                ct state established,related accept
                ct status dnat accept
            }}
        }}\n"
    )
}

/// What nftables says for a NAT, where it can be one: its own port or a random one for each flow.
fn masquerade(kind: &NatKind) -> Option<&'static str> {
    let NatKind {
        mapping,
        filtering,
        hairpin,
        ports,
        ..
    } = kind;
    let strict = EndpointDependence::AddressAndPortDependent;
    match (mapping, filtering, hairpin, ports) {
        (EndpointDependence::EndpointIndependent, filtering, false, PortAllocation::Preserve)
            if *filtering == strict =>
        {
            Some("masquerade")
        }
        (mapping, filtering, false, PortAllocation::Random)
            if *mapping == strict && *filtering == strict =>
        {
            Some("masquerade fully-random")
        }
        _ => None,
    }
}

/// A TUN device in the namespace of the calling thread.
fn tun() -> io::Result<SyncDevice> {
    File::options()
        .read(true)
        .write(true)
        .open("/dev/net/tun")?;
    DeviceBuilder::new()
        .name("eth0")
        .offload(true)
        .inherit_enable_state()
        .build_sync()
}

/// Settings that every namespace has.
fn settle(own: &NetworkNamespace, ip: IpFamilies) -> io::Result<()> {
    // What one connection learnt of a path is not carried over to the next, so that repeats of a
    // measurement are repeats.
    own.set("ipv4/tcp_no_metrics_save", "1")?;
    own.set("ipv4/ip_unprivileged_port_start", "0")?;
    own.set("ipv4/ping_group_range", "0 0")?;
    for which in ["all", "default"] {
        let set = |name: &str, value| own.set(&format!("ipv6/conf/{which}/{name}"), value);
        if ip.has_ipv6() {
            set("disable_ipv6", "0")?;
            // No addresses but those of the topology.
            set("addr_gen_mode", "1")?;
        } else {
            // Not there where the kernel has no IPv6.
            let _ = set("disable_ipv6", "1");
        }
    }
    Ok(())
}

/// A host that hangs on the router itself.
fn lone(addresses: &[IpAddr], site: &Site) -> io::Result<(NetworkNamespace, SyncDevice)> {
    let own = NetworkNamespace::new()?;
    settle(&own, site.ip)?;
    let device = own.within(tun)??;
    // A link that carries less stands behind the host's own network.
    let mtu = site.up.mtu.max(link::MTU);
    let mut batch =
        format!("link set lo up\nlink set eth0 mtu {mtu} txqueuelen {DEVICE_QUEUE} up\n");
    for address in addresses {
        let _ = match address {
            IpAddr::V4(address) => writeln!(batch, "address add {address}/32 dev eth0"),
            IpAddr::V6(address) => writeln!(batch, "address add {address}/128 dev eth0 nodad"),
        };
    }
    for (default, is_family) in [
        ("0.0.0.0/0", IpAddr::is_ipv4 as fn(&IpAddr) -> bool),
        ("::/0", IpAddr::is_ipv6),
    ] {
        if let Some(source) = addresses.iter().find(|address| is_family(address)) {
            let _ = writeln!(batch, "route add {default} dev eth0 src {source}");
        }
    }
    own.feed("ip", &["-batch", "-"], &batch)?;
    Ok((own, device))
}

/// A router with nftables and the hosts behind it.
struct NftablesRouter {
    own: NetworkNamespace,
    device: SyncDevice,
    hosts: Vec<(String, NetworkNamespace)>,
}

impl NftablesRouter {
    fn make(topology: &Topology, number: usize, site: &Site, rules: &str) -> io::Result<Self> {
        let (own, device) = lone(&[topology.public(number).into()], site)?;
        own.set("ipv4/ip_forward", "1")?;
        let timeout = site.nats.first().map_or(Duration::ZERO, |nat| nat.timeout);
        own.feed("nft", &["-f", "-"], rules)?;
        for which in ["udp_timeout", "udp_timeout_stream"] {
            own.set(
                &format!("netfilter/nf_conntrack_{which}"),
                &timeout.as_secs().max(1).to_string(),
            )?;
        }
        let mut hosts = Vec::new();
        for (index, host) in site.hosts.iter().enumerate() {
            let addresses = topology.addresses(&host.name);
            let inside = behind(&own, number, index, &addresses)?;
            hosts.push((host.name.clone(), inside));
        }
        Ok(Self { own, device, hosts })
    }
}

/// A host behind a router, on a veth pair.
fn behind(
    router: &NetworkNamespace,
    site: usize,
    index: usize,
    addresses: &[Ipv4Addr],
) -> io::Result<NetworkNamespace> {
    let own = NetworkNamespace::new()?;
    settle(&own, IpFamilies::Ipv4)?;
    let gateway = Ipv4Addr::new(192, 168, u8::try_from(site).unwrap_or(u8::MAX), 1);
    let lan = format!("lan{index}");
    let mut batch = format!(
        "link add {lan} type veth peer name eth0 netns {}\naddress add {gateway}/32 dev {lan}\nlink set {lan} up\n",
        own.path().display()
    );
    for address in addresses {
        let _ = writeln!(batch, "route add {address}/32 dev {lan}");
    }
    router.feed("ip", &["-batch", "-"], &batch)?;
    let mut batch = String::from("link set lo up\nlink set eth0 up\n");
    for address in addresses {
        let _ = writeln!(batch, "address add {address}/32 dev eth0");
    }
    let _ = writeln!(batch, "route add {gateway}/32 dev eth0 scope link");
    let source = addresses.first().copied().unwrap_or(Ipv4Addr::UNSPECIFIED);
    let _ = writeln!(batch, "route add default via {gateway} src {source}");
    own.feed("ip", &["-batch", "-"], &batch)?;
    Ok(own)
}
