use onepool::device::Context;

fn escape(context: &Context, slice: &mut [f32]) {
    let buffer = context.scope(|scope| scope.import_mut(slice).unwrap());
    println!("{}", buffer.bytes());
}

fn main() {}
