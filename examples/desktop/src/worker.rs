//! The thread that prepares filters and runs them, so that the window never waits for either.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::devices::{Devices, Sharing};
use crate::pipeline::{Pipeline, Renderer, Shown};
use crate::settings::Settings;
use crate::state::Event;

/// Frames follow each other no faster than displays show them.
const PACE: Duration = Duration::from_micros(16_666);

/// The settings to run next, with their number.
pub(crate) type Order = (u64, Settings);

/// Starts the thread. It ends when the sender of orders is dropped.
///
/// # Errors
/// The system starts no thread.
pub(crate) fn spawn(
    sharing: Sharing,
    renderer: Renderer,
    tell: impl Fn(Event<Shown>) + Send + 'static,
) -> std::io::Result<(Sender<Order>, JoinHandle<()>)> {
    let (sender, orders) = channel();
    let work = move || {
        Worker { devices: Devices::new(sharing), renderer, tell, orders, listed: false }.work();
    };
    Ok((sender, std::thread::Builder::new().name("filter".to_owned()).spawn(work)?))
}

struct Worker<T> {
    devices: Devices,
    renderer: Renderer,
    tell: T,
    orders: Receiver<Order>,
    listed: bool,
}

impl<T: Fn(Event<Shown>)> Worker<T> {
    /// Works off orders until no one gives any.
    fn work(mut self) {
        let mut order = self.orders.recv().ok();
        while let Some((number, settings)) = order {
            order = match Pipeline::prepare(&settings, &mut self.devices, &self.renderer) {
                Ok((pipeline, ready)) => {
                    (self.tell)(Event::Ready(number, ready));
                    self.run(pipeline, (number, settings))
                }
                Err(why) => self.failed(number, why),
            };
        }
    }

    /// Tells of a failure, and waits for other orders.
    fn failed(&mut self, number: u64, why: String) -> Option<Order> {
        (self.tell)(Event::Failed(number, why));
        self.list();
        self.orders.recv().ok()
    }

    /// Runs frame after frame. Returns the order that needs another pipeline.
    fn run(&mut self, mut pipeline: Pipeline, (mut number, mut settings): Order) -> Option<Order> {
        loop {
            let began = Instant::now();
            match pipeline.next(&self.renderer, settings.noise) {
                Ok(stages) => (self.tell)(Event::Frame(number, stages)),
                Err(why) => {
                    self.devices.forget(&settings.device);
                    return self.failed(number, why);
                }
            }
            self.list();
            std::thread::sleep(PACE.saturating_sub(began.elapsed()));
            while let Some(order) = self.newest(settings.runs)? {
                if !order.1.prepares_as(&settings) {
                    return Some(order);
                }
                (number, settings) = order;
            }
        }
    }

    /// The newest order that was given since. Waits for one where nothing `runs`. `None` at the end.
    #[expect(clippy::option_option, reason = "the end, or no order")]
    fn newest(&self, runs: bool) -> Option<Option<Order>> {
        let mut newest = if runs { None } else { Some(self.orders.recv().ok()?) };
        loop {
            match self.orders.try_recv() {
                Ok(order) => newest = Some(order),
                Err(TryRecvError::Empty) => return Some(newest),
                Err(TryRecvError::Disconnected) => return None,
            }
        }
    }

    /// Lists the devices, once: it takes longer than the first frame.
    fn list(&mut self) {
        if !std::mem::replace(&mut self.listed, true) {
            (self.tell)(Event::Devices(self.devices.list()));
        }
    }
}
