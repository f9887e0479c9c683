//! Finds the file of a program before it is run: as `execvp(3)` does, but with a reason for people.

use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    path::{Path, PathBuf},
};

use thiserror::Error;

/// Why a program cannot be run.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(crate) enum MissingProgram {
    /// No folder of `PATH` has it.
    #[error("there is no program `{0}` in PATH")]
    Unknown(String),
    /// Its path leads to nothing.
    #[error("there is no program {}", .0.display())]
    NotThere(PathBuf),
    /// It is there, but not an executable file.
    #[error("{} is not an executable file", .0.display())]
    NotExecutable(PathBuf),
}

impl MissingProgram {
    /// What to try.
    pub(crate) fn hint(&self) -> String {
        match self {
            Self::Unknown(_) => {
                "check its name, or write its whole path, as `command -v` prints it".to_owned()
            }
            Self::NotThere(_) => "check its path".to_owned(),
            Self::NotExecutable(path) => format!(
                "make it executable with `chmod +x {0}`, or name the program that runs it, for example `-- sh {0}`",
                path.display()
            ),
        }
    }
}

/// The file of `program`: a path if it has a slash, taken from `folder`; else the first executable file of that name in the
/// folders of `path`.
///
/// # Errors
///
/// [`MissingProgram`].
pub(crate) fn find_program(
    program: &OsStr,
    folder: &Path,
    path: Option<&OsStr>,
) -> Result<PathBuf, MissingProgram> {
    if program.as_bytes().contains(&b'/') {
        let file = folder.join(program);
        return match fs::metadata(&file) {
            Err(_) => Err(MissingProgram::NotThere(file)),
            Ok(_) if is_executable(&file) => Ok(file),
            Ok(_) => Err(MissingProgram::NotExecutable(file)),
        };
    }
    let path = path.map_or_else(|| OsString::from("/usr/bin:/bin"), OsStr::to_owned);
    let mut unusable = None;
    for place in std::env::split_paths(&path) {
        let file = folder.join(place).join(program);
        if is_executable(&file) {
            return Ok(file);
        }
        if file.is_file() {
            unusable.get_or_insert(file);
        }
    }
    Err(unusable.map_or_else(
        || MissingProgram::Unknown(program.to_string_lossy().into_owned()),
        MissingProgram::NotExecutable,
    ))
}

fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_as_a_shell_finds_it_and_said_to_be_missing_otherwise() {
        let temp = tempfile::tempdir().unwrap();
        let file = |name: &str, mode| {
            let file = temp.path().join(name);
            fs::write(&file, "").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            file
        };
        fs::create_dir(temp.path().join("folder")).unwrap();
        let (good, text) = (file("good", 0o755), file("text", 0o644));
        let path = temp.path().as_os_str();
        let found = |program: &str| find_program(program.as_ref(), temp.path(), Some(path));
        assert_eq!(found("good"), Ok(good.clone()));
        assert_eq!(found("./good").map(|file| file.exists()), Ok(true));
        assert_eq!(found(good.to_str().unwrap()), Ok(good));
        assert_eq!(found("text"), Err(MissingProgram::NotExecutable(text)));
        let missing = MissingProgram::Unknown("none".to_owned());
        assert_eq!(found("none"), Err(missing));
        let missing = MissingProgram::NotThere(temp.path().join("./none"));
        assert_eq!(found("./none"), Err(missing));
        let folder = MissingProgram::Unknown("folder".to_owned());
        assert_eq!(found("folder"), Err(folder));
        assert!(find_program("sh".as_ref(), Path::new("/"), None).is_ok());
    }
}
