//! A display without a screen, and the program in a window on it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use x11rb::connection::Connection as _;
use x11rb::protocol::xproto::{
    BUTTON_PRESS_EVENT, BUTTON_RELEASE_EVENT, ConnectionExt as _, ImageFormat, MOTION_NOTIFY_EVENT,
};
use x11rb::protocol::xtest::ConnectionExt as _;
use x11rb::rust_connection::RustConnection;

/// For how long something on the screen is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Pixels that were drawn.
pub struct Drawn {
    pub size: (u32, u32),
    pixels: Vec<[u8; 3]>,
}

impl Drawn {
    /// The pixels of a file.
    pub fn open(path: &Path) -> Drawn {
        let picture = image::open(path).unwrap().to_rgb8();
        Drawn { size: picture.dimensions(), pixels: picture.pixels().map(|pixel| pixel.0).collect() }
    }

    pub fn pixel(&self, x: f32, y: f32) -> [u8; 3] {
        self.pixels[y as usize * self.size.0 as usize + x as usize]
    }
}

/// A display that ends with the test.
pub struct Display {
    server: Child,
    name: String,
    connection: RustConnection,
    root: u32,
}

/// A program that has ended.
pub struct Ran {
    pub status: ExitStatus,
    pub printed: Vec<Value>,
    /// What the validation layer wrote.
    pub messages: Vec<String>,
    pub stderr: String,
}

/// A program that runs.
pub struct Running {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Display {
    pub fn open() -> Display {
        let mut server = Command::new("Xvfb")
            .args(["-displayfd", "1", "-screen", "0", "1280x800x24", "-nolisten", "tcp"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("Xvfb is installed");
        let mut number = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut number).unwrap();
        let name = format!(":{}", number.trim());
        let (connection, screen) = x11rb::connect(Some(&name)).unwrap();
        let root = connection.setup().roots[screen].root;
        Display { server, name, connection, root }
    }

    /// Starts the program in a window as large as the screen, with a script.
    pub fn start(&self, args: &[&str], script: &str) -> Running {
        self.start_with("0", args, script)
    }

    fn start_with(&self, validation: &str, args: &[&str], script: &str) -> Running {
        let mut child = Command::new(env!("CARGO_BIN_EXE_desktop"))
            .args(["--script", "-", "--window", "1280x800"])
            .args(args)
            .env("DISPLAY", &self.name)
            .env_remove("WAYLAND_DISPLAY")
            .env("WGPU_VALIDATION", validation)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Running { child, out }
    }

    /// Runs the program to the end of its script.
    pub fn run(&self, args: &[&str], script: &str) -> Ran {
        let ran = self.run_with("0", args, script);
        assert_eq!(ran.messages, [""; 0]);
        ran
    }

    /// As [`Display::run`], with the validation layer.
    pub fn run_validated(&self, args: &[&str], script: &str) -> Ran {
        self.run_with("1", args, script)
    }

    fn run_with(&self, validation: &str, args: &[&str], script: &str) -> Ran {
        let mut running = self.start_with(validation, args, script);
        let mut errors = running.child.stderr.take().unwrap();
        let stderr = std::thread::spawn(move || {
            let mut text = String::new();
            errors.read_to_string(&mut text).unwrap();
            text
        });
        let lines: Vec<String> = running.out.by_ref().lines().map(|line| line.unwrap()).collect();
        let (printed, messages) = lines.into_iter().partition::<Vec<_>, _>(|line| line.starts_with('{'));
        let printed = printed.iter().map(|line| json(line)).collect();
        let status = running.child.wait().unwrap();
        Ran { status, printed, messages, stderr: stderr.join().unwrap() }
    }

    /// What is on the screen now.
    pub fn screen(&self) -> Drawn {
        let geometry = self.connection.get_geometry(self.root).unwrap().reply().unwrap();
        let (width, height) = (geometry.width, geometry.height);
        let image =
            self.connection.get_image(ImageFormat::Z_PIXMAP, self.root, 0, 0, width, height, u32::MAX);
        let data = image.unwrap().reply().unwrap().data;
        // Four bytes a pixel: blue, green, red and none.
        let pixels = data.chunks_exact(4).map(|pixel| [pixel[2], pixel[1], pixel[0]]).collect();
        Drawn { size: (width.into(), height.into()), pixels }
    }

    /// Waits until the screen shows what is looked for.
    pub fn until(&self, seen: impl Fn(&Drawn) -> bool) -> bool {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if seen(&self.screen()) {
                return true;
            }
            sleep(Duration::from_millis(50));
        }
        false
    }

    /// Moves the pointer and clicks; after each of both it waits until `seen`. A frame may take seconds: a button that is held
    /// from one to the next is held for too long, and a frame that gets a click and what comes after it takes it for none.
    pub fn click(&self, x: f32, y: f32, mut seen: impl FnMut()) {
        for events in [&[(MOTION_NOTIFY_EVENT, 0)][..], &[(BUTTON_PRESS_EVENT, 1), (BUTTON_RELEASE_EVENT, 1)]]
        {
            for (kind, detail) in events {
                self.connection
                    .xtest_fake_input(*kind, *detail, 0, self.root, x as i16, y as i16, 0)
                    .unwrap();
            }
            self.connection.flush().unwrap();
            seen();
        }
        // Out of the way, so that nothing is lit because the mouse is over it.
        self.connection.xtest_fake_input(MOTION_NOTIFY_EVENT, 0, 0, self.root, 700, 300, 0).unwrap();
        self.connection.flush().unwrap();
    }
}

fn json(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))
}

impl Drop for Display {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Running {
    /// The next line of `print`.
    pub fn printed(&mut self) -> Value {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        json(&line)
    }

    pub fn stop(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
