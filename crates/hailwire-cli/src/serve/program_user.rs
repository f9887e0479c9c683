//! The user that an agent's program runs as, from `/etc/passwd` (`passwd(5)`).

use std::{fs::File, io, io::Read as _};

/// Most bytes of `/etc/passwd` that are read.
const MAX_PASSWD: u64 = 1024 * 1024;

/// A user of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProgramUser {
    pub(crate) uid: u32,
    /// The user's own group, the only one that the program belongs to.
    pub(crate) gid: u32,
    pub(crate) name: String,
    pub(crate) home: String,
}

/// Finds a user by name.
///
/// # Errors
///
/// In words: this process may not run programs as another user, or there is no such user.
pub(crate) fn find_user(name: &str) -> Result<ProgramUser, String> {
    if !rustix::process::geteuid().is_root() {
        return Err(format!(
            "only root may run a program as another user, here `{name}`"
        ));
    }
    let passwd = read().map_err(|error| format!("cannot read /etc/passwd: {error}"))?;
    in_passwd(&passwd, name).ok_or_else(|| format!("there is no user `{name}` in /etc/passwd"))
}

fn read() -> io::Result<String> {
    let mut text = Vec::new();
    File::open("/etc/passwd")?
        .take(MAX_PASSWD)
        .read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// `name:password:uid:gid:comment:home:shell`.
fn in_passwd(passwd: &str, name: &str) -> Option<ProgramUser> {
    passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [own, _, uid, gid, _, home, ..] = fields[..] else {
            return None;
        };
        (own == name).then_some(())?;
        Some(ProgramUser {
            uid: uid.parse().ok()?,
            gid: gid.parse().ok()?,
            name: own.to_owned(),
            home: home.to_owned(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_the_whole_name() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nbroken\nwww:x:a:1::/:\nweb:x:33:34:Web:/var/www:/bin/false\n";
        let web = in_passwd(passwd, "web").unwrap();
        assert_eq!((web.uid, web.gid, web.home.as_str()), (33, 34, "/var/www"));
        for none in ["we", "www", "broken", ""] {
            assert_eq!(in_passwd(passwd, none), None, "{none}");
        }
    }
}
