//! Operations on a hub's data folder, whether the hub runs or not.
//!
//! Several processes can use the database, so `hail hub invite` needs no connection to the running hub: it stores the
//! invitation in the database, where the hub finds it.

use std::{path::Path, time::Duration};

use hailwire_wire::{
    HubUrl, NodeId,
    directory::{HubMember, MemberTrust},
    ticket::{HubTicket, Invitation, Ticket, TicketError, TicketSecret},
};
use thiserror::Error;

use crate::{
    config::{AgentVisibility, system_clock},
    directory::{Directory, DirectoryError, DirectoryPolicy},
};

/// The database's name in the data folder.
pub(crate) const DATABASE: &str = "hub.db";

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
    let trust = match trust.as_deref() {
        Some(MEMBERS) => MemberTrust::Members,
        _ => MemberTrust::Nobody,
    };
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
    /// The directory refused or failed.
    #[error("the invitation cannot be stored")]
    Directory(#[source] DirectoryError),
    /// The ticket would exceed a bound.
    #[error("the ticket cannot be encoded")]
    Ticket(#[source] TicketError),
    /// The hub is shutting down.
    #[error("the hub is shutting down")]
    ShuttingDown,
}
