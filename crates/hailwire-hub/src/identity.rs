//! The identity of a hub: an Ed25519 key in its data folder, and the certificate that it signs with it.
//!
//! The key is created at the first start and kept in `hub.key` (mode 0600, the seed as one line of
//! hex). The certificate is created at each start: nodes pin the key, so nothing else in it
//! matters. With an operator's own certificate, the key still identifies the hub in its answers.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use hailwire_wire::{NodeId, signed::KeyPair};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject as _},
};
use thiserror::Error;

use crate::config::TlsMode;

/// The bytes before the seed in the PKCS #8 form of an Ed25519 key (RFC 8410, section 7).
const ED25519_PKCS8: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// A hub's key. Never printed.
pub(crate) struct HubIdentity {
    id: NodeId,
    seed: [u8; 32],
}

impl HubIdentity {
    /// Reads the key of a data folder, or creates it.
    pub(crate) fn load_or_create(data_dir: &Path) -> Result<Self, IdentityError> {
        let path = data_dir.join("hub.key");
        let at = |source| IdentityError::Key {
            path: path.clone(),
            source,
        };
        match File::open(&path) {
            Ok(file) => {
                let mode = file.metadata().map_err(at)?.permissions().mode();
                if mode & 0o077 != 0 {
                    return Err(IdentityError::Exposed(path));
                }
                let text = io::read_to_string(file).map_err(at)?;
                let seed = HEXLOWER_PERMISSIVE.decode(text.trim().as_bytes()).ok();
                let seed = seed.and_then(|seed| seed.try_into().ok());
                seed.map(Self::from_seed)
                    .ok_or(IdentityError::Damaged(path))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut seed = [0; 32];
                getrandom::fill(&mut seed).map_err(|error| at(io::Error::other(error)))?;
                write_whole(&path, format!("{}\n", HEXLOWER.encode(&seed)).as_bytes())
                    .map_err(at)?;
                Ok(Self::from_seed(seed))
            }
            Err(error) => Err(at(error)),
        }
    }

    fn from_seed(seed: [u8; 32]) -> Self {
        Self {
            id: KeyPair::from_seed(&seed).id(),
            seed,
        }
    }

    /// The public half.
    pub(crate) fn id(&self) -> NodeId {
        self.id
    }

    /// The TLS configuration of a server; the hub's own certificate unless `tls` names another.
    pub(crate) fn server_config(&self, tls: &TlsMode) -> Result<ServerConfig, IdentityError> {
        let (chain, key) = match tls {
            TlsMode::OwnKey | TlsMode::Plain => self.own_certificate()?,
            TlsMode::Files { certificate, key } => (read_chain(certificate)?, read_key(key)?),
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
            .map_err(IdentityError::Unusable)
    }

    fn own_certificate(&self) -> Result<CertificateAndKey, IdentityError> {
        let pkcs8 = PrivatePkcs8KeyDer::from([ED25519_PKCS8.as_slice(), &self.seed].concat());
        let key = rcgen::KeyPair::from_pkcs8_der_and_sign_algo(&pkcs8, &rcgen::PKCS_ED25519)
            .map_err(IdentityError::Certificate)?;
        let certificate = rcgen::CertificateParams::new(["hub.hailwire.invalid".to_owned()])
            .and_then(|params| params.self_signed(&key))
            .map_err(IdentityError::Certificate)?;
        Ok((vec![certificate.der().clone()], pkcs8.into()))
    }
}

type CertificateAndKey = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let chain =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    chain.map_err(|error| IdentityError::Pem {
        path: path.into(),
        source: error.into(),
    })
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, IdentityError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| IdentityError::Pem {
        path: path.into(),
        source: error.into(),
    })
}

/// Makes a database and its companion files readable by this user only. The file is created with that mode before SQLite
/// opens it, which gives its companions the same mode; the mode is corrected where an earlier version left it open.
///
/// # Errors
///
/// The file cannot be created, or a mode cannot be changed.
pub(crate) fn private_database(path: &Path) -> io::Result<()> {
    fs::OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)?;
    for suffix in ["", "-wal", "-shm", "-journal"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        let file = Path::new(&name);
        match fs::symlink_metadata(file) {
            Ok(meta) if meta.is_file() && meta.permissions().mode() & 0o077 != 0 => {
                fs::set_permissions(file, fs::Permissions::from_mode(0o600))?;
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}

/// Writes a file of mode 0600 atomically.
fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let draft = path.with_extension("draft");
    // A process that was killed may leave a draft behind; the folder's lock excludes other writers.
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// Why a hub's identity cannot be loaded or created.
#[derive(Debug, Error)]
pub enum IdentityError {
    /// The key file can neither be read nor created.
    #[error("the hub's key {} cannot be read or created", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Other users may read the key file.
    #[error("the hub's key {} can be read by other users; run chmod 600 on it", .0.display())]
    Exposed(PathBuf),
    /// The key file contains no key.
    #[error("the hub's key {} is not a line of 64 hex digits", .0.display())]
    Damaged(PathBuf),
    /// A PEM file cannot be read.
    #[error("{} is not a valid PEM file", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The hub's own certificate cannot be created.
    #[error("the hub's certificate cannot be created")]
    Certificate(#[source] rcgen::Error),
    /// The certificate and the key cannot be used together.
    #[error("the certificate and the key cannot be used for TLS 1.3")]
    Unusable(#[source] rustls::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_created_once_and_only_its_owner_can_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let first = HubIdentity::load_or_create(folder.path()).unwrap();
        let again = HubIdentity::load_or_create(folder.path()).unwrap();
        assert_eq!(first.id(), again.id());
        let mode = fs::metadata(folder.path().join("hub.key"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        HubIdentity::load_or_create(folder.path()).unwrap();
        let path = folder.path().join("hub.key");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = HubIdentity::load_or_create(folder.path()).err();
        assert!(matches!(error, Some(IdentityError::Exposed(_))));
    }

    #[test]
    fn a_damaged_key_is_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        write_whole(&folder.path().join("hub.key"), b"zz\n").unwrap();
        let error = HubIdentity::load_or_create(folder.path()).err();
        assert!(matches!(error, Some(IdentityError::Damaged(_))));
    }

    #[test]
    fn the_certificate_holds_the_hubs_key() {
        let folder = tempfile::tempdir().unwrap();
        let identity = HubIdentity::load_or_create(folder.path()).unwrap();
        let (chain, _) = identity.own_certificate().unwrap();
        let key = identity.id();
        assert!(chain[0].windows(32).any(|window| window == key.as_bytes()));
        assert!(identity.server_config(&TlsMode::OwnKey).is_ok());
    }
}
