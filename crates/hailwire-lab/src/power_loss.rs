//! A disk that forgets, when its power is cut, whatever was not synced.
//!
//! It is a real ext4 in a file of its own, mounted over a loop device. Its power is cut by the call with which the kernel's own
//! tests of file systems do it (`EXT4_IOC_SHUTDOWN` without a flush of the journal): from then on nothing reaches the file, what waits in the
//! kernel's memory is dropped, and the next mount finds what a machine finds that lost power, and recovers from its journal.
//!
//! Before that, pages which nobody had synced may be written back in an order that a seed draws, as a kernel does when it likes:
//! so a log comes back torn as well as short.
//!
//! With [`SyncPromise::Broken`] programs see the disk through an overlay that ignores syncs (overlayfs `volatile`): a disk that lies. Whoever
//! claims to lose nothing must lose something there, or the claim is not tested.
//!
//! Needs root, and `losetup`'s loop devices, `mkfs.ext4` and `perl`, which are on every Debian. The mounts are those of the calling
//! process's mount namespace: [`in_mount_namespace`] gives it one of its own, which the kernel clears away with it.

use std::{
    fs::{self, File},
    io,
    num::NonZeroU64,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use rustix::fs::Advice;

/// Set in a process that [`in_mount_namespace`] has started.
const INSIDE_MOUNT_NAMESPACE: &str = "HAIL_LAB_MOUNT_NAMESPACE";

/// `EXT4_IOC_SHUTDOWN` with `EXT4_GOING_FLAGS_NOLOGFLUSH`. Programs of this project have no `unsafe` for a call of the kernel's that no safe
/// crate names.
const SHUTDOWN: &str = r#"open(my $disk, "<", $ARGV[0]) or die "$!\n"; my $how = pack("L", 2); ioctl($disk, 0x8004587d, $how) or die "$!\n""#;

/// How long a mount may be in use by a program that is ending.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(60);

const PAGE: u64 = 4096;

/// What becomes of a sync on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncPromise {
    /// It returns once everything before it survives a loss of power.
    Kept,
    /// It returns at once and does nothing.
    Broken,
}

/// A disk whose power can be cut. Dropping it unmounts it; what was on it is gone with its folder.
#[derive(Debug)]
pub struct PowerLossDisk {
    folder: PathBuf,
    promise: SyncPromise,
}

impl PowerLossDisk {
    /// Makes one of `bytes` in `folder`, which is made as well, and mounts it.
    ///
    /// # Errors
    ///
    /// The system does not let this process, or a program is missing.
    pub fn new(folder: &Path, bytes: u64, promise: SyncPromise) -> io::Result<Self> {
        let disk = Self {
            folder: folder.to_owned(),
            promise,
        };
        for part in ["medium", "nothing", "overlay"] {
            fs::create_dir_all(folder.join(part))?;
        }
        File::create(disk.image())?.set_len(bytes)?;
        // Tables are written now, so that no thread of the kernel's does it meanwhile.
        let lazy = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        let mut make = Command::new("mkfs.ext4");
        run(make.args(["-q", "-F", "-E", lazy]).arg(disk.image()))?;
        disk.mount()?;
        Ok(disk)
    }

    /// The folder that programs use.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        match self.promise {
            SyncPromise::Kept => self.medium(),
            SyncPromise::Broken => self.folder.join("overlay"),
        }
    }

    /// Makes all that is on it survive, whatever it promises otherwise.
    ///
    /// # Errors
    ///
    /// The disk has failed.
    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(File::open(self.medium())?)?)
    }

    /// Lets the kernel write back pages of the files in `folder` of the disk, those that `draw` says with an odd number, synced or not.
    ///
    /// # Errors
    ///
    /// The folder cannot be read.
    pub fn write_back_some(&self, folder: &str, draw: &mut impl FnMut() -> u64) -> io::Result<()> {
        for entry in fs::read_dir(self.root().join(folder))? {
            let entry = entry?;
            if !entry.file_type()?.is_file() {
                continue;
            }
            let file = File::open(entry.path())?;
            let pages = file.metadata()?.len().div_ceil(PAGE);
            for page in 0..pages {
                if draw() % 2 == 1 {
                    // Begins to write the page if it is dirty.
                    rustix::fs::fadvise(
                        &file,
                        page * PAGE,
                        NonZeroU64::new(PAGE),
                        Advice::DontNeed,
                    )?;
                }
            }
        }
        Ok(())
    }

    /// Cuts the power: from now on nothing gets onto the disk, and every write to it fails.
    ///
    /// # Errors
    ///
    /// The kernel or `perl` refuses.
    pub fn cut_power(&self) -> io::Result<()> {
        run(Command::new("perl")
            .args(["-e", SHUTDOWN])
            .arg(self.medium()))
    }

    /// Mounts it again after its power was cut. No program may use it any more.
    ///
    /// # Errors
    ///
    /// A program does, or what is on it cannot be mounted.
    pub fn power_on(&self) -> io::Result<()> {
        self.unmount()?;
        self.mount()
    }

    fn image(&self) -> PathBuf {
        self.folder.join("image")
    }

    fn medium(&self) -> PathBuf {
        self.folder.join("medium")
    }

    fn mount(&self) -> io::Result<()> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "ext4", "-o", "loop"]);
        run(mount.arg(self.image()).arg(self.medium()))?;
        if self.promise == SyncPromise::Kept {
            return Ok(());
        }
        let (upper, work) = (self.medium().join("upper"), self.medium().join("work"));
        fs::create_dir_all(&upper)?;
        // An overlay that lost power leaves a mark here, and is not mounted again while it is there.
        if work.exists() {
            fs::remove_dir_all(&work)?;
        }
        fs::create_dir(&work)?;
        let options = format!(
            "volatile,lowerdir={},upperdir={},workdir={}",
            self.folder.join("nothing").display(),
            upper.display(),
            work.display()
        );
        let mut overlay = Command::new("mount");
        overlay.args(["-t", "overlay", "-o", &options, "overlay"]);
        run(overlay.arg(self.root()))
    }

    fn unmount(&self) -> io::Result<()> {
        if self.promise == SyncPromise::Broken {
            unmount(&self.root())?;
        }
        unmount(&self.medium())
    }
}

impl Drop for PowerLossDisk {
    fn drop(&mut self) {
        // The mount namespace takes what is left with it.
        let _ = self.unmount();
    }
}

fn unmount(path: &Path) -> io::Result<()> {
    let until = Instant::now() + UNMOUNT_PATIENCE;
    loop {
        let tried = run(Command::new("umount").arg(path));
        match tried {
            Err(_) if Instant::now() < until => thread::sleep(Duration::from_millis(10)),
            tried => return tried,
        }
    }
}

fn run(command: &mut Command) -> io::Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |what: &dyn std::fmt::Display| io::Error::other(format!("`{program}`: {what}"));
    let out = command.output().map_err(|error| failed(&error))?;
    match out.status.success() {
        true => Ok(()),
        false => Err(failed(&String::from_utf8_lossy(&out.stderr).trim())),
    }
}

/// Whether a process of this user can have such a disk.
///
/// # Errors
///
/// The reason.
pub fn available() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("a disk whose power can be cut needs root".to_owned());
    }
    let need = "test -e /dev/loop-control && command -v perl mkfs.ext4 mount umount";
    let inside = ["--mount", "--propagation", "private", "sh", "-c", need];
    run(Command::new("unshare").args(inside)).map_err(|error| {
        format!("loop devices, mount namespaces, perl and mkfs.ext4 are needed: {error}")
    })
}

/// Replaces this process by itself in a mount namespace of its own, so that no mount outlives it; does nothing where it is in one.
///
/// # Errors
///
/// `unshare` cannot be run. It says on standard error where the system refuses.
pub fn in_mount_namespace() -> io::Result<()> {
    if std::env::var_os(INSIDE_MOUNT_NAMESPACE).is_some() {
        return Ok(());
    }
    let program = std::env::current_exe()?;
    Err(Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--"])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(INSIDE_MOUNT_NAMESPACE, "1")
        .exec())
}
