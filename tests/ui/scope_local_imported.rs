use onepool::device::Context;

fn local(context: &Context) {
    context.scope(|scope| {
        let mut local = vec![0.0f32; 1024];
        let buffer = scope.import_mut(&mut local[..]).unwrap();
        println!("{}", buffer.bytes());
    });
}

fn main() {}
