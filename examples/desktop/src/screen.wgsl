// Shows planes of red, green and blue in a rectangle, between pixels as between their neighbours.

struct Frame {
    size: vec2<u32>,
}

@group(0) @binding(0) var<uniform> frame: Frame;
@group(0) @binding(1) var<storage, read> planes: array<f32>;

struct Corner {
    @builtin(position) position: vec4<f32>,
    @location(0) at: vec2<f32>,
}

@vertex
fn corners(@builtin(vertex_index) index: u32) -> Corner {
    // One triangle that covers the rectangle.
    let at = vec2<f32>(f32(index & 1u) * 2.0, f32(index >> 1u) * 2.0);
    return Corner(vec4<f32>(at.x * 2.0 - 1.0, 1.0 - at.y * 2.0, 0.0, 1.0), at);
}

fn pixel(at: vec2<i32>) -> vec3<f32> {
    let inside = vec2<u32>(clamp(at, vec2<i32>(0), vec2<i32>(frame.size) - 1));
    let plane = frame.size.x * frame.size.y;
    let first = inside.y * frame.size.x + inside.x;
    return vec3<f32>(planes[first], planes[first + plane], planes[first + 2u * plane]);
}

@fragment
fn colour(corner: Corner) -> @location(0) vec4<f32> {
    let at = corner.at * vec2<f32>(frame.size) - 0.5;
    let first = vec2<i32>(floor(at));
    let part = fract(at);
    let above = mix(pixel(first), pixel(first + vec2<i32>(1, 0)), part.x);
    let below = mix(pixel(first + vec2<i32>(0, 1)), pixel(first + vec2<i32>(1, 1)), part.x);
    return vec4<f32>(clamp(mix(above, below, part.y), vec3<f32>(0.0), vec3<f32>(1.0)), 1.0);
}
