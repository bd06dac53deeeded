use onepool::device::Context;

fn keep(context: &Context, slice: &[f32]) {
    let mut kept = None;
    context.scope(|scope| kept = Some(scope.import(slice).unwrap()));
    println!("{}", kept.unwrap().bytes());
}

fn main() {}
