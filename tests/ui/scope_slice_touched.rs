use onepool::device::Context;

fn touch(context: &Context, mut data: Vec<f32>) {
    context.scope(|scope| {
        let buffer = scope.import_mut(&mut data[..]).unwrap();
        data[0] = 1.0;
        println!("{}", buffer.bytes());
    });
}

fn main() {}
