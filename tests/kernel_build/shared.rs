//! What shaders give to Rust: enumerations, numbers and groups of parameters.

use super::{Project, shader};

const DST: &str = "layout(set = 0, binding = 0, std430) writeonly buffer Dst { uint dst[]; };";

/// Builds one file with `head` before its code and `members` in its parameters.
fn project(head: &str, members: &str, body: &str) -> Project {
    let params = format!("layout(push_constant) uniform Params {{ {members} }} p;");
    let window = "#include \"window.glsl\"";
    Project::new(&[("copy/k.comp", &shader(&format!("{window}\n{DST}\n{params}\n{head}"), body))])
}

fn error(head: &str) -> String {
    project(head, "uint n;", "dst[0] = p.n;").error()
}

#[test]
fn enumerations_become_rust() {
    let head =
        "// enum: FillKind\n#define FILL_KIND_ZERO 0u  // a zero\n#define FILL_KIND_TWO_ONES 2u // ones.\n";
    let project = project(head, "uint n;", "dst[0] = p.n == FILL_KIND_TWO_ONES ? 1u : 0u;");
    project.build().unwrap();
    let table = project.output("kernels.rs");
    let module = table.split("pub mod codes {").nth(1).unwrap();
    let lines: Vec<&str> = module.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let at = lines.iter().position(|line| *line == "pub enum FillKind {").unwrap();
    assert_eq!(lines[at - 1], "#[repr(u32)]");
    assert_eq!(lines[at + 1..at + 6], ["/// A zero.", "Zero = 0,", "/// Ones.", "TwoOnes = 2,", "}"]);
    assert!(lines.contains(&"pub mod k {"), "{module}");
}

#[test]
fn numbers_become_rust() {
    let head = "const uint TILE = 32u;  // rust: rows\n#define SIDE 4 // rust SIDES: of a tile\n\
                const float HALF = 0.5;  // rust: a half\n#define MASK 0xD2511F53u  // rust: a mask\n";
    let project = project(head, "uint n;", "dst[0] = TILE + p.n;");
    project.build().unwrap();
    let table = project.output("kernels.rs");
    for line in [
        "/// Rows.",
        "pub const TILE: usize = 32;",
        "pub const SIDES: usize = 4;",
        "pub const HALF: f32 = 0.5;",
        "pub const MASK: u32 = 0xd2511f53;",
    ] {
        assert!(table.contains(line), "{line} is not in\n{table}");
    }
}

#[test]
fn what_is_no_definition_is_refused() {
    for (head, expected) in [
        ("// enum: Kind\n", "needs lines `#define KIND_NAME 0u` of different numbers"),
        (
            "// enum: Kind\n#define KIND_A 1u  // a\n#define KIND_B 1u  // b\n",
            "needs lines `#define KIND_NAME 0u` of different numbers",
        ),
        ("// enum: Kind\n#define KIND_A 1u\n", "is not `#define KIND_NAME 0u  // what it is`"),
        ("#define TILE (4u + 1u)  // rust: rows\n", "a number for Rust is"),
        (
            "#define TILE 4u  // rust: rows\n#define OTHER 5u  // rust TILE: rows\n",
            "TILE is given to Rust twice",
        ),
    ] {
        let message = error(head);
        assert!(message.starts_with("shaders/copy/k.comp:") && message.contains(expected), "{message}");
    }
}

#[test]
fn files_of_one_name_cannot_both_give_numbers() {
    let text = "#define TILE 4u  // rust: rows\n";
    let comp = shader(&format!("{DST}\n{text}"), "dst[0] = TILE;");
    let error = Project::new(&[("copy/k.comp", &comp), ("copy/k.glsl", text)]).error();
    assert!(error.contains("another file of that name shares something with Rust too"), "{error}");
}

#[test]
fn a_group_of_parameters_is_a_member_of_its_own() {
    let project = project("", "uint n; WINDOW_2D(uint) float last;", "dst[0] = p.kh + uint(p.pw);");
    project.build().unwrap();
    let table = project.output("kernels.rs");
    let members = table.split("pub struct K {").nth(1).unwrap().split('}').next().unwrap();
    let members: Vec<&str> = members.lines().map(str::trim).filter(|line| line.starts_with("pub ")).collect();
    assert_eq!(members, ["pub n: u32,", "pub window: Window2d,", "pub last: f32,"]);
    for line in [
        "pub taps: [u32; 2],",
        "pub begins: [i32; 2],",
        "assert!(core::mem::offset_of!(K, window) == 4);",
        "assert!(core::mem::offset_of!(K, last) == 44);",
        "assert!(size_of::<K>() == 48);",
    ] {
        assert!(table.contains(line), "{line} is not in\n{table}");
    }
}

#[test]
fn a_group_must_be_declared_whole_and_found() {
    let head = "// group: Pair pair  first second\n#define PAIR \\\n    int a; \\\n    int b;\n";
    let text = shader(
        &format!("{DST}\nlayout(push_constant) uniform Params {{ PAIR_ uint n; }} p;"),
        "dst[0] = p.n;",
    );
    let found = Project::new(&[
        ("include/pair.glsl", head),
        ("copy/k.comp", &text.replace("#version 450", "#version 450\n#define PAIR_ float a, b;\n// PAIR")),
    ]);
    found.build().unwrap();
    let spelled =
        Project::new(&[("include/pair.glsl", head), ("copy/k.comp", &text.replace("PAIR_", "float PAIR;"))]);
    let error = spelled.error();
    assert_eq!(error, "shaders/copy/k.comp: PAIR is spelled, but its members are not in Params");
    let broken = Project::new(&[
        ("include/pair.glsl", &head.replace("first second", "first")),
        ("copy/k.comp", &shader(DST, "dst[0] = 1u;")),
    ]);
    let error = broken.error();
    assert!(error.starts_with("shaders/include/pair.glsl:1: a group is"), "{error}");
}

#[test]
fn what_an_included_file_declares_is_under_its_name() {
    let both = format!(
        "#ifndef BOTH\n#define BOTH\nSPEC(3, uint, WIDE, 0u);\n\
         layout(push_constant) uniform Params {{ uint n; }} p;\n{DST}\n#endif\n"
    );
    let with = |own: &str| shader(&format!("#include \"both.glsl\"\n{own}"), "dst[0] = p.n + WIDE;");
    let project = Project::new(&[
        ("copy/both.glsl", &both),
        ("copy/one.comp", &with("SPEC(4, uint, OWN, 0u);")),
        ("copy/two.comp", &with("")),
    ]);
    project.build().unwrap();
    let table = project.output("kernels.rs");
    assert!(table.contains("pub struct Both {") && !table.contains("pub struct One {"), "{table}");
    let constants = |file: &str| {
        let module = table.split("pub mod spec {").nth(1).unwrap();
        let module = module.split(&format!("pub mod {file} {{")).nth(1).unwrap().split('}').next().unwrap();
        module.lines().filter_map(|line| line.trim().strip_prefix("pub const ")).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(constants("both"), "WIDE: u32 = 3;");
    assert_eq!(constants("one"), "WIDE: u32 = 3; OWN: u32 = 4;");
    assert_eq!(constants("two"), "WIDE: u32 = 3;");
}
