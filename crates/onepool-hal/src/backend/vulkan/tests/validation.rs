//! The checks that the other tests rely on do find what they are there to find.

use super::queues::unfinished;
use super::*;

fn hazards(fixture: &Fixture) -> usize {
    fixture.take_messages().iter().filter(|message| message.contains("SYNC-HAZARD")).count()
}

fn chain(fixture: &Fixture, between: Option<Command>) -> Recording {
    let (a, b, c) = (
        fixture.upload(&[1.0f32; 64]),
        fixture.buffer(256, Placement::Device),
        fixture.buffer(256, Placement::Device),
    );
    let kernel = fixture.kernel(id::AXPB_F32);
    let mut commands = vec![axpb(kernel, all(fixture, a), all(fixture, b), 64, 1.0, 0.0)];
    commands.extend(between);
    commands.push(axpb(kernel, all(fixture, b), all(fixture, c), 64, 1.0, 0.0));
    recording(commands)
}

#[test]
#[cfg_attr(windows, ignore = "Wine shows no layers")]
fn a_missing_barrier_is_reported() {
    for synchronization2 in [false, true] {
        let without = Without { synchronization2, ..Default::default() };
        let fixture = Fixture::with(&ContextDesc::default(), without);
        fixture.run(&fixture.queue(), &chain(&fixture, None));
        assert!(hazards(&fixture) > 0);
        fixture.run(&fixture.queue(), &chain(&fixture, Some(barrier(WRITE, READ))));
        assert_eq!(fixture.take_messages(), [""; 0]);
    }
}

#[test]
#[cfg_attr(windows, ignore = "Wine shows no layers")]
fn a_barrier_for_other_accesses_is_reported() {
    let fixture = Fixture::new();
    let wrong = barrier(Access::TRANSFER_WRITE, Access::TRANSFER_READ);
    fixture.run(&fixture.queue(), &chain(&fixture, Some(wrong)));
    assert!(hazards(&fixture) > 0);
}

#[test]
#[cfg_attr(windows, ignore = "Wine shows no layers")]
fn a_missing_barrier_between_submissions_is_reported() {
    let fixture = Fixture::new();
    let queue = fixture.queue();
    let whole = chain(&fixture, None);
    // Where the first one is seen to have finished before the second one is submitted, there is no hazard.
    let point = unfinished(&fixture, |work| {
        let mut first = work.clone();
        first.commands.push(whole.commands[0].clone());
        let first = queue.submit(&first).unwrap();
        let second = queue.submit(&recording(vec![whole.commands[1].clone()])).unwrap();
        (queue.completed().unwrap() < first).then_some(second)
    });
    queue.wait(point, None).unwrap();
    assert!(hazards(&fixture) > 0, "VK_LAYER_ENABLES is not set as .cargo/config.toml sets it");
}

#[test]
#[cfg_attr(windows, ignore = "Wine shows no layers")]
fn waiting_orders_submissions_without_a_barrier() {
    for (timeline, wait) in [
        (false, WaitPolicy::Block),
        (false, WaitPolicy::Spin),
        (true, WaitPolicy::Block),
        (true, WaitPolicy::Spin),
    ] {
        let without = Without { timeline, ..Default::default() };
        let fixture = Fixture::with(&ContextDesc { wait, ..Default::default() }, without);
        let queue = fixture.queue();
        let whole = chain(&fixture, None);
        for command in whole.commands {
            fixture.run(&queue, &recording(vec![command]));
        }
        assert_eq!(fixture.take_messages(), [""; 0]);
    }
}
