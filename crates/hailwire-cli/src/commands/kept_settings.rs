//! Keeps what the flags of `hail up` chose: writes it into `hail.kdl`, so that the next start needs no flags.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
};

use hailwire::config::{Config, ConfigError};

use super::CommandContext;

/// Writes the settings that flags chose into the file, and returns which changed. Where that fails the node runs with them
/// all the same, so this is only a warning.
pub(super) fn keep(run: &CommandContext, config: &Config) -> Vec<String> {
    let path = run.data.config();
    match write(&path, config) {
        Ok(changed) => changed.into_iter().map(String::from).collect(),
        Err(error) => {
            tracing::warn!(
                path = %path.display(),
                "the settings of this start are not kept for the next one: {error}"
            );
            Vec::new()
        }
    }
}

fn write(path: &Path, config: &Config) -> io::Result<Vec<&'static str>> {
    let text = match hailwire_kdl::read(path) {
        Err(ConfigError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            String::new()
        }
        read => read.map_err(io::Error::other)?,
    };
    let written = config
        .write_flags(&text)
        .map_err(|mistake| io::Error::other(mistake.in_file(&text, path)))?;
    let Some(written) = written else {
        return Ok(Vec::new());
    };
    replace(path, &written.text)?;
    Ok(written.changed)
}

/// Replaces the file's text at once, so that a crash leaves the old one or the new one. A link stays a link; mode stays.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let path = match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
        found => found?,
    };
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut draft = tempfile::NamedTempFile::new_in(folder)?;
    draft.write_all(text.as_bytes())?;
    if let Ok(old) = fs::metadata(&path) {
        let mode = fs::Permissions::from_mode(old.mode() & 0o7777);
        draft.as_file().set_permissions(mode)?;
    }
    draft.as_file().sync_all()?;
    draft.persist(&path).map_err(|error| error.error)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use hailwire::config::ValueOrigin;

    use super::*;

    fn named(name: &str) -> Config {
        let mut config = Config::default();
        config.node.name = Some(name.parse().unwrap());
        config.origins.note("node.name", ValueOrigin::Flag);
        config
    }

    #[test]
    fn a_file_is_made_and_a_link_and_a_mode_stay() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (
            folder.path().join("real.kdl"),
            folder.path().join("hail.kdl"),
        );
        assert_eq!(write(&file, &named("a")).unwrap(), ["node.name"]);
        assert_eq!(write(&file, &named("a")).unwrap(), [""; 0]);

        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(write(&link, &named("b")).unwrap(), ["node.name"]);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o640);
        let read = Config::load(&link).unwrap();
        assert_eq!(read.node.name.unwrap().as_str(), "b");
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            2,
            "a draft is left"
        );
    }

    #[test]
    fn a_file_with_a_mistake_is_left_alone_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hail.kdl");
        fs::write(&file, "nod {}").unwrap();
        let error = write(&file, &named("a")).unwrap_err();
        assert!(error.to_string().contains("hail.kdl:1:1"), "{error}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "nod {}");
    }
}
