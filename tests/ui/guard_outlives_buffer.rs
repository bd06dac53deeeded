use onepool::device::Buffer;

fn outlive(buffer: Buffer) -> Vec<u8> {
    let guard = buffer.map_read().unwrap();
    drop(buffer);
    guard.to_vec()
}

fn main() {}
