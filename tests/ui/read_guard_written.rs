use onepool::device::Buffer;

fn write(buffer: &Buffer) {
    buffer.map_read().unwrap()[0] = 1;
}

fn main() {}
