use onepool::device::{Buffer, Context};

fn pointers(context: &Context, slice: &mut [&'static u8]) {
    context.scope(|scope| {
        let _ = scope.import_mut(slice);
    });
}

fn references(buffer: &Buffer) {
    let guard = buffer.map_read().unwrap();
    let _ = guard.as_slice_of::<&u8>();
}

fn main() {}
