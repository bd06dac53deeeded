//! Messages of Protocol Buffers, written field by field.

/// A message being written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Message {
    bytes: Vec<u8>,
}

impl Message {
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    /// A field of type `int64` or an enum.
    pub(crate) fn int(&mut self, field: u32, value: i64) {
        self.varint(u64::from(field) << 3);
        self.varint(value.cast_unsigned());
    }

    pub(crate) fn float(&mut self, field: u32, value: f32) {
        self.varint(u64::from(field) << 3 | 5);
        self.bytes.extend(value.to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, field: u32, value: &[u8]) {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(value.len() as u64);
        self.bytes.extend(value);
    }

    pub(crate) fn text(&mut self, field: u32, value: &str) {
        self.bytes(field, value.as_bytes());
    }

    pub(crate) fn message(&mut self, field: u32, value: &Message) {
        self.bytes(field, &value.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_written_as_the_format_says() {
        let mut inner = Message::default();
        inner.int(1, -1);
        let mut m = Message::default();
        m.int(1, 300);
        m.float(2, 1.0);
        m.text(20, "ab");
        m.message(3, &inner);
        let mut expected =
            vec![0x08, 0xac, 0x02, 0x15, 0, 0, 0x80, 0x3f, 0xa2, 0x01, 2, b'a', b'b', 0x1a, 11, 0x08];
        expected.extend([0xff; 9]);
        expected.push(1);
        assert_eq!(m.into_bytes(), expected);
    }
}
