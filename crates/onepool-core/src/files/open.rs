//! Opens regular files, by path or inside a folder.

use std::fs::{File, Metadata};
use std::io;
use std::path::{Component, Path, PathBuf};

/// Why a file of a folder is not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The system refused.
    #[error("{}: {cause}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// The name is absolute, empty, or goes up.
    #[error("the path must be relative and stay inside the model's folder")]
    NotRelative,
    /// It leads elsewhere.
    #[error("a link leads out of the model's folder")]
    LeadsOut,
    /// A folder, pipe, socket or device.
    #[error("it is no regular file")]
    NotRegular,
    /// A hard link to a file of another user.
    #[error(
        "it is one of {names} names of a file of user {owner}, who does not own the model's folder; copy the file"
    )]
    #[cfg_attr(not(unix), expect(dead_code, reason = "owners and modes are those of Unix systems"))]
    ForeignLink {
        /// How many names it has.
        names: u64,
        /// Who owns it.
        owner: u32,
    },
}

/// Opens the file `path` for reading, following links; what is no regular file is never waited for.
///
/// # Errors
/// The system's, and [`io::ErrorKind::InvalidInput`] for what is no regular file.
pub fn regular(path: &Path) -> io::Result<(File, Metadata)> {
    let no_file = || io::Error::new(io::ErrorKind::InvalidInput, OpenError::NotRegular);
    // Asked before it is opened, because to open a device may do something, and again of what was opened.
    if !std::fs::metadata(path)?.is_file() {
        return Err(no_file());
    }
    let file = plain(path)?;
    let found = file.metadata()?;
    if found.is_file() { Ok((file, found)) } else { Err(no_file()) }
}

/// Opens the regular file `name` of the folder `roots[0]`. Links on the way may lead to any of `roots` and
/// nowhere else, and whoever changes a link meanwhile gains nothing (on Linux from 5.6; elsewhere the way is
/// looked at before it is gone).
///
/// # Errors
/// [`OpenError`].
pub fn beneath(roots: &[PathBuf], name: &Path) -> Result<(File, Metadata), OpenError> {
    let plain = |c: Component<'_>| matches!(c, Component::Normal(_) | Component::CurDir);
    let base = roots.first().filter(|_| !name.as_os_str().is_empty() && name.components().all(plain));
    let Some(base) = base else { return Err(OpenError::NotRelative) };
    let path = base.join(name);
    let io = |cause| OpenError::Io { path: path.clone(), cause };
    let real = path.canonicalize().map_err(io)?;
    let inside = roots.iter().filter_map(|root| {
        let root = root.canonicalize().ok()?;
        let rest = real.strip_prefix(&root).ok()?.to_owned();
        Some((root, rest))
    });
    let Some((root, rest)) = inside.into_iter().next() else { return Err(OpenError::LeadsOut) };
    if !real.metadata().map_err(io)?.is_file() {
        return Err(OpenError::NotRegular);
    }
    // What was no link may be one now.
    let file = way(&root, &rest).map_err(|e| if is_link(&e) { OpenError::LeadsOut } else { io(e) })?;
    let found = file.metadata().map_err(io)?;
    if !found.is_file() {
        return Err(OpenError::NotRegular);
    }
    foreign_link(&root, &found)?;
    Ok((file, found))
}

/// Opens `rest` in `root`, where nothing on the way is a link.
#[cfg(target_os = "linux")]
fn way(root: &Path, rest: &Path) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};
    use rustix::io::Errno;
    let folder = open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    match openat2(&folder, rest, READ, Mode::empty(), resolve) {
        Ok(fd) => Ok(File::from(fd)),
        // Kernels before 5.6, and filters of system calls that do not know it.
        Err(Errno::NOSYS | Errno::PERM) => plain(&root.join(rest)),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn way(root: &Path, rest: &Path) -> io::Result<File> {
    plain(&root.join(rest))
}

/// Whether a way was refused for a link in it.
#[cfg(target_os = "linux")]
fn is_link(error: &io::Error) -> bool {
    use rustix::io::Errno;
    Errno::from_io_error(error).is_some_and(|errno| errno == Errno::LOOP || errno == Errno::XDEV)
}

#[cfg(not(target_os = "linux"))]
fn is_link(_: &io::Error) -> bool {
    false
}

/// For reading; a pipe is not waited for.
#[cfg(unix)]
const READ: rustix::fs::OFlags = rustix::fs::OFlags::RDONLY
    .union(rustix::fs::OFlags::NONBLOCK)
    .union(rustix::fs::OFlags::NOCTTY)
    .union(rustix::fs::OFlags::CLOEXEC);

#[cfg(unix)]
fn plain(path: &Path) -> io::Result<File> {
    Ok(File::from(rustix::fs::open(path, READ, rustix::fs::Mode::empty())?))
}

#[cfg(not(unix))]
fn plain(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// A second name of someone else's file may be a name of anything.
#[cfg(unix)]
fn foreign_link(root: &Path, found: &Metadata) -> Result<(), OpenError> {
    use std::os::unix::fs::MetadataExt;
    let folder = root.metadata().map_err(|cause| OpenError::Io { path: root.to_owned(), cause })?;
    let users = [folder.uid(), rustix::process::geteuid().as_raw()];
    may_be_link(found.nlink(), found.uid(), users)
}

#[cfg(unix)]
fn may_be_link(names: u64, owner: u32, users: [u32; 2]) -> Result<(), OpenError> {
    if names > 1 && !users.contains(&owner) {
        return Err(OpenError::ForeignLink { names, owner });
    }
    Ok(())
}

#[cfg(not(unix))]
fn foreign_link(_: &Path, _: &Metadata) -> Result<(), OpenError> {
    Ok(())
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::super::cache::testing::within_seconds;
    use super::*;

    fn read(roots: &[PathBuf], name: &str) -> Result<String, OpenError> {
        let (mut file, found) = beneath(roots, Path::new(name))?;
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(found.len(), text.len() as u64);
        Ok(text)
    }

    #[test]
    fn links_may_lead_to_the_roots_and_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let (model, store) = (dir.path().join("model"), dir.path().join("store"));
        std::fs::create_dir_all(model.join("sub")).unwrap();
        std::fs::create_dir(&store).unwrap();
        std::fs::write(model.join("sub/w"), "inside").unwrap();
        std::fs::write(store.join("w"), "stored").unwrap();
        std::fs::write(dir.path().join("secret"), "secret").unwrap();
        symlink("sub/w", model.join("link")).unwrap();
        symlink(model.join("sub"), model.join("absolute")).unwrap();
        symlink("../store/w", model.join("stored")).unwrap();
        symlink("../secret", model.join("out")).unwrap();
        symlink("..", model.join("up")).unwrap();
        symlink("/proc/self/root", model.join("magic")).unwrap();
        symlink("loop", model.join("loop")).unwrap();
        let one = [model.clone()];
        for name in ["sub/w", "./sub/w", "link", "absolute/w"] {
            assert_eq!(read(&one, name).unwrap(), "inside", "{name}");
        }
        let secret = format!("magic{}", dir.path().join("secret").display());
        for name in ["out", "up/secret", "stored", secret.as_str()] {
            assert!(matches!(read(&one, name), Err(OpenError::LeadsOut)), "{name}");
        }
        assert_eq!(read(&[model.clone(), store], "stored").unwrap(), "stored");
        for name in ["", "/etc/passwd", "../secret", "sub/../../secret", ".."] {
            assert!(matches!(read(&one, name), Err(OpenError::NotRelative)), "{name}");
        }
        for name in [".", "sub"] {
            assert!(matches!(read(&one, name), Err(OpenError::NotRegular)), "{name}");
        }
        for name in ["none", "loop"] {
            assert!(matches!(read(&one, name), Err(OpenError::Io { .. })), "{name}");
        }
        assert!(matches!(read(&[], "w"), Err(OpenError::NotRelative)));
    }

    /// A link that is put in the way between look and open.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_way_that_changes_meanwhile_is_not_gone() {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("model");
        std::fs::create_dir_all(model.join("sub")).unwrap();
        std::fs::write(model.join("sub/w"), "inside").unwrap();
        std::fs::write(dir.path().join("w"), "secret").unwrap();
        assert!(way(&model, Path::new("sub/w")).is_ok());
        std::fs::rename(model.join("sub"), model.join("was")).unwrap();
        symlink("..", model.join("sub")).unwrap();
        assert!(is_link(&way(&model, Path::new("sub/w")).unwrap_err()));
        assert!(matches!(read(&[model], "sub/w"), Err(OpenError::LeadsOut)));
    }

    #[test]
    fn pipes_and_devices_are_no_files_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let made = std::process::Command::new("mkfifo").arg(dir.path().join("pipe")).status().unwrap();
        assert!(made.success());
        symlink("/dev/zero", dir.path().join("zero")).unwrap();
        let root = dir.path().to_owned();
        within_seconds(10, move || {
            let roots = [root.clone(), PathBuf::from("/dev")];
            for name in ["pipe", "zero"] {
                assert!(matches!(beneath(&roots, Path::new(name)), Err(OpenError::NotRegular)), "{name}");
                let e = regular(&root.join(name)).unwrap_err();
                assert_eq!(e.kind(), io::ErrorKind::InvalidInput);
            }
            // The open itself, had someone put a pipe there after the look.
            plain(&root.join("pipe")).unwrap();
        });
    }

    #[test]
    fn hard_links_are_taken_from_those_who_own_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("w"), "mine").unwrap();
        std::fs::hard_link(dir.path().join("w"), dir.path().join("second")).unwrap();
        assert_eq!(read(&[dir.path().to_owned()], "second").unwrap(), "mine");
        assert!(may_be_link(1, 7, [1, 2]).is_ok());
        assert!(may_be_link(2, 2, [1, 2]).is_ok());
        let refused = may_be_link(2, 7, [1, 2]).unwrap_err();
        assert!(refused.to_string().contains("2 names of a file of user 7"), "{refused}");
    }

    #[test]
    fn what_may_not_be_read_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("w");
        std::fs::write(&file, "mine").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o000)).unwrap();
        // The superuser may read everything.
        match read(&[dir.path().to_owned()], "w") {
            Ok(text) => assert!(rustix::process::geteuid().is_root() && text == "mine"),
            Err(e) => assert!(e.to_string().contains("w: Permission denied"), "{e}"),
        }
    }
}
