use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::testing::within_seconds;
use super::*;

fn key(text: &str) -> Digest {
    Digest::of(text.as_bytes())
}

fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn what_was_kept_is_found_for_its_key_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep/caches");
    let cache = CacheFolder::new(&path);
    assert!(cache.try_load("a", key("1")).unwrap().is_none());
    assert!(!path.exists());
    cache.try_save("a", key("1"), b"one").unwrap();
    cache.try_save("b", key("2"), b"").unwrap();
    cache.try_save("a", key("1"), b"another").unwrap();
    assert_eq!(cache.try_load("a", key("1")).unwrap().unwrap(), b"another");
    assert_eq!(cache.try_load("b", key("2")).unwrap().unwrap(), b"");
    assert!(cache.try_load("c", key("1")).unwrap().is_none());
    assert!(matches!(cache.try_load("a", key("2")), Err(CacheError::Damaged { .. })));
    // Under the name of another one.
    fs::copy(path.join("a.onepool"), path.join("b.onepool")).unwrap();
    let e = cache.try_load("b", key("2")).unwrap_err();
    assert!(e.to_string().contains("b.onepool: damaged, or made by another version"), "{e}");
    assert_eq!(cache.load("b", key("2")), None);
    assert_eq!(names(&path), ["a.onepool", "b.onepool"]);
    // For this user alone, also the folders on the way.
    assert_eq!(
        [mode(&dir.path().join("deep")), mode(&path), mode(&path.join("a.onepool"))],
        [0o700, 0o700, 0o600]
    );
}

#[test]
fn a_folder_that_others_may_write_to_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("caches");
    let cache = CacheFolder::new(&path);
    cache.try_save("a", key("1"), b"one").unwrap();
    for bad in [0o777, 0o770, 0o702] {
        set_mode(&path, bad);
        for e in [
            cache.try_load("a", key("1")).map(|_| ()).unwrap_err(),
            cache.try_save("a", key("1"), b"two").unwrap_err(),
            cache.check().unwrap_err(),
        ] {
            let text = e.to_string();
            let says = format!("{}: others may write to it (mode {bad:03o})", path.display());
            assert!(text.starts_with(&says) && text.contains("chmod go-w"), "{text}");
        }
    }
    // Nothing is asked of a folder again that was refused once.
    let seen = CacheFolder::new(&path);
    assert_eq!(seen.load("a", key("1")), None);
    set_mode(&path, 0o755);
    assert_eq!(seen.load("a", key("1")), None);
    assert_eq!(cache.load("a", key("1")).unwrap(), b"one");
    set_mode(&path.join("a.onepool"), 0o606);
    assert!(matches!(cache.try_load("a", key("1")), Err(CacheError::Writable { mode: 0o606, .. })));
}

#[test]
fn a_folder_of_another_user_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let user = rustix::process::geteuid().as_raw();
    let path = if user == 0 {
        std::os::unix::fs::chown(dir.path(), Some(65_534), None).unwrap();
        dir.path().to_owned()
    } else {
        PathBuf::from("/usr")
    };
    let owner = fs::metadata(&path).unwrap().uid();
    let cache = CacheFolder::new(&path);
    let text = cache.try_save("a", key("1"), b"one").unwrap_err().to_string();
    let says = format!("{}: user {owner} owns it, this process runs as user {user}", path.display());
    assert!(text.starts_with(&says) && text.contains("name a folder of your own"), "{text}");
    assert!(matches!(cache.try_load("a", key("1")), Err(CacheError::Foreign { .. })));
    if user == 0 {
        // A file of someone else's in a folder of ours.
        std::os::unix::fs::chown(dir.path(), Some(0), None).unwrap();
        cache.try_save("a", key("1"), b"one").unwrap();
        std::os::unix::fs::chown(dir.path().join("a.onepool"), Some(65_534), None).unwrap();
        assert!(matches!(cache.try_load("a", key("1")), Err(CacheError::Foreign { owner: 65_534, .. })));
    }
}

#[test]
fn what_is_no_folder_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let e = CacheFolder::new(file.path()).check().unwrap_err();
    assert!(e.to_string().contains("this is no folder"), "{e}");
    let below = CacheFolder::new(&file.path().join("below"));
    assert!(matches!(below.check(), Err(CacheError::NoFolder { .. })));
    assert!(matches!(below.try_save("a", key("1"), b""), Err(CacheError::NoFolder { .. })));
}

#[test]
fn pipes_links_devices_and_huge_files_are_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_owned();
    within_seconds(20, move || {
        let cache = CacheFolder::new(&root);
        let file = root.join("a.onepool");
        let gone = || {
            let _ = fs::remove_file(&file).or_else(|_| fs::remove_dir(&file));
        };
        let refused = |says: &str| {
            let e = cache.try_load("a", key("1")).unwrap_err().to_string();
            assert!(e.starts_with(&file.display().to_string()) && e.contains(says), "{e}");
            assert_eq!(cache.load("a", key("1")), None);
        };
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
        refused("a pipe, not a regular file; remove it");
        // A pipe is replaced by what is kept.
        cache.try_save("a", key("1"), b"one").unwrap();
        assert_eq!(cache.load("a", key("1")).unwrap(), b"one");
        gone();
        symlink("/dev/zero", &file).unwrap();
        refused("a link, not a regular file");
        gone();
        let _socket = std::os::unix::net::UnixListener::bind(&file).unwrap();
        refused("a socket");
        gone();
        fs::create_dir(&file).unwrap();
        refused("a folder, not a regular file");
        assert!(matches!(cache.try_save("a", key("1"), b"one"), Err(CacheError::Io { .. })));
        assert_eq!(names(&root), ["a.onepool"]);
        gone();
        // A sparse file: large, and nothing on disk. Some file systems have no such size.
        let sparse = fs::File::create(&file).unwrap();
        set_mode(&file, 0o600);
        let bytes = [1u64 << 40, 1 << 34].into_iter().find(|bytes| sparse.set_len(*bytes).is_ok()).unwrap();
        refused(&format!("{bytes} bytes, and no file here has more than 268435456; remove it"));
        sparse.set_len(1 << 24).unwrap();
        refused("damaged");
        sparse.set_len(0).unwrap();
        refused("damaged");
    });
}

#[test]
fn the_oldest_go_where_there_are_too_many() {
    let dir = tempfile::tempdir().unwrap();
    let mut cache = CacheFolder::new(dir.path());
    cache.bounds = Bounds { bytes: 1 << 20, files: 8 };
    fs::write(dir.path().join("of another program"), vec![0; 2 << 20]).unwrap();
    let age = |name: &str, hours: u64| {
        let file = fs::File::options().write(true).open(dir.path().join(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(hours * 3600)).unwrap();
    };
    fs::write(dir.path().join("1-0.onepool-draft"), "left behind").unwrap();
    age("1-0.onepool-draft", 2);
    fs::write(dir.path().join("1-1.onepool-draft"), "being written").unwrap();
    for i in 0..8u64 {
        cache.try_save(&format!("f{i}"), key("1"), &[0; 1000]).unwrap();
        age(&format!("f{i}.onepool"), 20 - i);
    }
    let kept = |from: usize, to: usize| {
        let mut all: Vec<_> = (from..=to).map(|i| format!("f{i}.onepool")).collect();
        all.insert(0, "1-1.onepool-draft".to_owned());
        all.push("of another program".to_owned());
        all
    };
    assert_eq!(names(dir.path()), kept(0, 7));
    cache.try_save("f8", key("1"), &[0; 1000]).unwrap();
    assert_eq!(names(dir.path()), kept(2, 8));
    // By bytes.
    cache.try_save("f9", key("1"), &vec![0; 915_000]).unwrap();
    assert_eq!(names(dir.path()), kept(2, 9));
    cache.try_save("f9", key("1"), &vec![0; (1 << 20) - 200]).unwrap();
    assert_eq!(names(dir.path()), kept(9, 9));
    let e = cache.try_save("g", key("1"), &vec![0; 1 << 20]).unwrap_err();
    assert!(matches!(e, CacheError::TooLarge { limit: 1_048_576, .. }), "{e}");
    // One that begins with what others have left knows of it at its first file.
    let mut small = CacheFolder::new(dir.path());
    small.bounds = Bounds { bytes: 1000, files: 8 };
    small.try_save("h", key("1"), &[0; 10]).unwrap();
    assert_eq!(names(dir.path()), ["1-1.onepool-draft", "h.onepool", "of another program"]);
}

#[test]
fn writers_at_once_leave_whole_files() {
    let dir = tempfile::tempdir().unwrap();
    let (path, whole) =
        (dir.path(), |data: &[u8]| data.len() == 50_000 && data.iter().all(|b| *b == data[0]));
    std::thread::scope(|scope| {
        for writer in 0..4u8 {
            scope.spawn(move || {
                let cache = CacheFolder::new(path);
                for i in 0..50 {
                    cache.try_save("a", key("1"), &vec![writer * 50 + i; 50_000]).unwrap();
                    let found = cache.try_load("a", key("1")).unwrap().unwrap();
                    assert!(whole(&found));
                }
            });
        }
    });
    assert_eq!(names(dir.path()), ["a.onepool"]);
}

#[test]
fn a_lock_is_waited_for_and_not_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Arc::new(CacheFolder::new(dir.path()));
    let held = cache.lock("a").unwrap();
    assert!(cache.lock("b").is_some());
    let began = Instant::now();
    assert!(cache.lock("a").is_none());
    assert!((MAX_WAIT..MAX_WAIT * 20).contains(&began.elapsed()));
    let other = Arc::clone(&cache);
    let waits = std::thread::spawn(move || other.lock("a").is_some());
    drop(held);
    assert!(waits.join().unwrap());
    // A pipe in its place.
    fs::remove_file(dir.path().join("a.onepool-lock")).unwrap();
    let pipe = dir.path().join("a.onepool-lock");
    assert!(std::process::Command::new("mkfifo").arg(pipe).status().unwrap().success());
    within_seconds(20, move || drop(cache.lock("a")));
}

proptest! {
    #[test]
    fn a_damaged_file_is_refused(
        data in prop::collection::vec(any::<u8>(), 0..200),
        at in any::<prop::sample::Index>(),
        flip in 1u8..,
        cut in any::<prop::sample::Index>(),
    ) {
        let sealed = seal(&data, key("1"));
        prop_assert_eq!(unseal(&sealed, key("1")), Some(&data[..]));
        prop_assert!(unseal(&sealed, key("2")).is_none());
        let mut damaged = sealed.clone();
        damaged[at.index(sealed.len())] ^= flip;
        prop_assert!(unseal(&damaged, key("1")).is_none());
        prop_assert!(unseal(&sealed[..cut.index(sealed.len())], key("1")).is_none());
    }
}
