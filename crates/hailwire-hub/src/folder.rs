//! Operations on a hub's data folder, whether the hub runs or not.
//!
//! Several processes can use the database, so `hail hub invite` needs no connection to the running hub: it stores the
//! invitation in the database, where the hub finds it.

use std::{
    fs::{File, TryLockError},
    io::{self, Read as _},
    path::Path,
    time::Duration,
};

use hailwire_wire::{
    HubUrl, NodeId,
    address::NodeRef,
    directory::{HubMember, MemberTrust},
    ticket::{HubTicket, Invitation, Ticket, TicketError, TicketSecret},
};
use thiserror::Error;

use crate::{
    config::{AgentVisibility, system_clock},
    directory::{Directory, DirectoryError, DirectoryPolicy, HubCounts, OpenTicket},
    held::{self, HeldCounts},
};

/// The database's name in the data folder.
pub(crate) const DATABASE: &str = "hub.db";

/// The file that a running hub holds locked.
pub(crate) const LOCK: &str = "hub.lock";

/// Most bytes of the number of a process.
const MAX_PROCESS_ID: u64 = 16;

const URL: &str = "url";
const PINNED_KEY: &str = "key";
const TRUST: &str = "trust";

/// The value of [`TRUST`] if members trust each other.
const MEMBERS: &str = "members";

/// Creates a ticket for membership of the hub with this data folder: a secret.
///
/// `uses` nodes may join with it until `lifetime` has passed.
///
/// # Errors
///
/// [`InviteError`]; [`InviteError::NeverStarted`] until the hub has run once.
pub fn invite(data_dir: &Path, uses: u32, lifetime: Duration) -> Result<String, InviteError> {
    issue(&mut open(data_dir)?, uses, lifetime, system_clock())
}

/// Lists the members of the hub with this data folder, in the order of their keys.
///
/// # Errors
///
/// [`InviteError::NeverStarted`] and [`InviteError::Directory`].
pub fn members(data_dir: &Path) -> Result<Vec<HubMember>, InviteError> {
    all_members(&open(data_dir)?, system_clock()).map_err(InviteError::Directory)
}

/// Ends the membership of a node, by its key or by the name that it holds: its records go, and its next request, or its next
/// connection to the relay, is refused. It can join again with another ticket.
///
/// # Errors
///
/// As [`members`]; [`InviteError::NoSuchMember`].
pub fn remove_member(data_dir: &Path, who: &NodeRef) -> Result<HubMember, InviteError> {
    let mut directory = open(data_dir)?;
    let members = all_members(&directory, system_clock()).map_err(InviteError::Directory)?;
    let is_meant = |member: &HubMember| match who {
        NodeRef::Id(id) => member.id == *id,
        NodeRef::Name(name) => member.name.as_ref() == Some(name),
    };
    let missing = || InviteError::NoSuchMember(who.clone());
    let member = members.into_iter().find(is_meant).ok_or_else(missing)?;
    match directory
        .remove(member.id)
        .map_err(InviteError::Directory)?
    {
        true => {
            held::forget_in(data_dir, member.id).map_err(InviteError::Directory)?;
            Ok(member)
        }
        // Another process was faster.
        false => Err(missing()),
    }
}

/// Lists the tickets with which nodes can join the hub with this data folder.
///
/// # Errors
///
/// As [`members`].
pub fn tickets(data_dir: &Path) -> Result<Vec<OpenTicket>, InviteError> {
    let mut directory = open(data_dir)?;
    let open = directory.open_tickets(system_clock());
    open.map_err(InviteError::Directory)
}

/// Ends a ticket, by its [`OpenTicket::id`]: nobody can join with it any more.
///
/// # Errors
///
/// As [`members`]; [`InviteError::NoSuchTicket`].
pub fn revoke(data_dir: &Path, id: &str) -> Result<OpenTicket, InviteError> {
    let revoked = open(data_dir)?.revoke(id, system_clock());
    let revoked = revoked.map_err(InviteError::Directory)?;
    revoked.ok_or_else(|| InviteError::NoSuchTicket(id.to_owned()))
}

/// What a hub's data folder says of the hub.
#[derive(Clone, Debug)]
pub struct HubFolderStatus {
    /// Whether a hub runs on the folder now.
    pub running: bool,
    /// Its process; none where no hub runs.
    pub process: Option<u32>,
    /// Where nodes reach it, as tickets say.
    pub url: String,
    /// Its key, where tickets carry one.
    pub key: Option<NodeId>,
    /// Whom members trust because of their membership.
    pub trust: MemberTrust,
    /// How many members, records and names it has.
    pub counts: HubCounts,
    /// What it holds for members that are away.
    pub held: HeldCounts,
    /// Tickets with which nodes can join.
    pub tickets: usize,
}

/// Tells how the hub with this data folder is, whether it runs or not.
///
/// # Errors
///
/// As [`members`].
pub fn status(data_dir: &Path) -> Result<HubFolderStatus, InviteError> {
    let mut directory = open(data_dir)?;
    let now = system_clock();
    let mut read = || -> Result<_, DirectoryError> {
        let tickets = directory.open_tickets(now)?.len();
        let setting = |key| Ok::<_, DirectoryError>(directory.setting(key)?.unwrap_or_default());
        let (url, key, trust) = (setting(URL)?, setting(PINNED_KEY)?, setting(TRUST)?);
        Ok((url, key, trust, directory.counts(now)?, tickets))
    };
    let (url, key, trust, counts, tickets) = read().map_err(InviteError::Directory)?;
    Ok(HubFolderStatus {
        running: is_locked(data_dir),
        process: process(data_dir),
        url,
        key: key.parse().ok(),
        trust: trust_of(&trust),
        counts,
        held: held::counts_in(data_dir).map_err(InviteError::Directory)?,
        tickets,
    })
}

/// The process of the hub that runs on a data folder; none where none does.
#[must_use]
pub fn process(data_dir: &Path) -> Option<u32> {
    let mut written = String::new();
    let lock = File::open(data_dir.join(LOCK)).ok()?;
    lock.take(MAX_PROCESS_ID)
        .read_to_string(&mut written)
        .ok()?;
    is_locked(data_dir).then(|| written.parse().ok())?
}

/// Waits until no hub runs on a data folder.
///
/// # Errors
///
/// The lock cannot be waited for.
pub fn wait_until_stopped(data_dir: &Path) -> io::Result<()> {
    match File::open(data_dir.join(LOCK)) {
        Ok(lock) => lock.lock_shared(),
        // A hub that was never started does not run.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether a hub runs on a data folder.
fn is_locked(data_dir: &Path) -> bool {
    let lock = File::open(data_dir.join(LOCK));
    lock.is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

fn trust_of(setting: &str) -> MemberTrust {
    match setting {
        MEMBERS => MemberTrust::Members,
        _ => MemberTrust::Nobody,
    }
}

fn open(data_dir: &Path) -> Result<Directory, InviteError> {
    let path = data_dir.join(DATABASE);
    if !path.exists() {
        return Err(InviteError::NeverStarted);
    }
    // The policy of the running hub does not matter for these operations.
    let policy = DirectoryPolicy {
        max_members: 0,
        name_hold_s: 0,
        listing: AgentVisibility::Trusted,
    };
    Directory::open(&path, policy).map_err(InviteError::Directory)
}

pub(crate) fn all_members(
    directory: &Directory,
    now: u64,
) -> Result<Vec<HubMember>, DirectoryError> {
    let mut all = Vec::new();
    let mut after = None;
    loop {
        let page = directory.member_page(after, now)?;
        all.extend(page.members);
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(all),
        }
    }
}

/// Stores what tickets contain about the hub. `pinned` is its key, unless it uses a public
/// certificate.
pub(crate) fn remember(
    directory: &mut Directory,
    url: &HubUrl,
    pinned: Option<NodeId>,
    trust: MemberTrust,
) -> Result<(), DirectoryError> {
    directory.set(URL, &url.to_string())?;
    let members = trust == MemberTrust::Members;
    directory.set(TRUST, if members { MEMBERS } else { "" })?;
    directory.set(
        PINNED_KEY,
        &pinned.map(|key| key.to_string()).unwrap_or_default(),
    )
}

pub(crate) fn issue(
    directory: &mut Directory,
    uses: u32,
    lifetime: Duration,
    now: u64,
) -> Result<String, InviteError> {
    if uses == 0 {
        return Err(InviteError::NoUses);
    }
    let url = directory.setting(URL).map_err(InviteError::Directory)?;
    let url = url
        .and_then(|url| url.parse().ok())
        .ok_or(InviteError::NeverStarted)?;
    let key = directory
        .setting(PINNED_KEY)
        .map_err(InviteError::Directory)?;
    let trust = directory.setting(TRUST).map_err(InviteError::Directory)?;
    let trust = trust_of(&trust.unwrap_or_default());
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|_| InviteError::NoRandomness)?;
    let secret = TicketSecret::from_random(random);
    let expires = directory.latest(now).saturating_add(lifetime.as_secs());
    let invitation = Invitation {
        digest: secret.digest(),
        uses_left: uses,
        expires,
        allow: Vec::new(),
        offer: Vec::new(),
    };
    directory
        .invite(&invitation, now)
        .map_err(InviteError::Directory)?;
    let key = key.and_then(|key| key.parse().ok());
    Ticket::Hub(HubTicket {
        url,
        key,
        secret,
        expires,
        trust,
    })
    .to_text()
    .map_err(InviteError::Ticket)
}

/// Why a ticket cannot be created.
#[derive(Debug, Error)]
pub enum InviteError {
    /// There is no hub in this folder, or it has never run.
    #[error("no hub has ever been started with this data folder")]
    NeverStarted,
    /// The ticket would have no uses.
    #[error("a ticket needs at least one use")]
    NoUses,
    /// The system provided no random bytes.
    #[error("the system provides no random bytes")]
    NoRandomness,
    /// No member has this key or name.
    #[error("no member of the hub is called `{0}`")]
    NoSuchMember(NodeRef),
    /// No ticket that is open has this id.
    #[error("no open ticket has the id `{0}`")]
    NoSuchTicket(String),
    /// The directory refused or failed.
    #[error("the hub's directory refused")]
    Directory(#[source] DirectoryError),
    /// The ticket would exceed a bound.
    #[error("the ticket cannot be encoded")]
    Ticket(#[source] TicketError),
    /// The hub is shutting down.
    #[error("the hub is shutting down")]
    ShuttingDown,
}
