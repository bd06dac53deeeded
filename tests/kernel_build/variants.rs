//! The choice of variants by types and flags in the generated table.

use super::{Project, shader};

/// A file of variants with these lines.
fn file(variants: &[&str]) -> String {
    let head: String = variants.iter().map(|line| format!("// variant: {line}\n")).collect();
    format!("{head}{}", shader("layout(set = 0, binding = 0) buffer Dst { T dst[]; };", "dst[0] = T(1);"))
}

fn table(variants: &[&str]) -> String {
    let project = Project::new(&[("copy/k.comp", &file(variants))]);
    project.build().unwrap();
    project.output("kernels.rs")
}

fn error(variants: &[&str]) -> String {
    Project::new(&[("copy/k.comp", &file(variants))]).error()
}

/// The members of the struct of file `k`, and its arms.
fn choice(table: &str) -> (Vec<&str>, Vec<&str>) {
    let module = table.split("pub mod variants {").nth(1).unwrap();
    let (members, rest) = module.split("pub struct K {").nth(1).unwrap().split_once('}').unwrap();
    let lines = |text: &'static str| move |line: &&str| line.starts_with(text);
    (
        members.lines().map(str::trim).filter(lines("pub ")).collect(),
        rest.lines().map(str::trim).filter(lines("Self {")).collect(),
    )
}

#[test]
fn types_numbers_and_flags_choose() {
    let table = table(&[
        "f32        T=f32 ROWS=4 SLOW",
        "f32_big    T=f32 ROWS=4 BIG SLOW",
        "u32_big    T=u32 ROWS=1 BIG EXT_INT64",
    ]);
    let (members, arms) = choice(&table);
    assert_eq!(members, ["pub t: DType,", "pub rows: u32,", "pub big: bool,"], "SLOW follows from the type");
    assert_eq!(
        arms,
        [
            "Self { t: DType::F32, rows: 4, big: false } => Ok(id::K_F32),",
            "Self { t: DType::F32, rows: 4, big: true } => Ok(id::K_F32_BIG),",
            "Self { t: DType::U32, rows: 1, big: true } => Ok(id::K_U32_BIG),",
        ]
    );
    assert!(table.contains("_ => Err(NoKernel::new(\"k\", &[&self.t], &[(\"BIG\", self.big)])),"), "{table}");
}

#[test]
fn a_type_may_be_held_as_another_and_be_bytes_alone() {
    let table = table(&["f16  T=f16:uint", "b32  T=b32"]);
    let (members, arms) = choice(&table);
    assert_eq!(members, ["pub t: Unit,"]);
    assert_eq!(
        arms,
        [
            "Self { t: Unit::Of(DType::F16) } => Ok(id::K_F16),",
            "Self { t: Unit::Bytes(4) } => Ok(id::K_B32),",
        ]
    );
}

#[test]
fn variants_without_types_have_no_choice() {
    let table = table(&["a  T=uint FAST", "b  T=uint"]);
    assert!(!table.contains("pub struct K {"), "{table}");
}

#[test]
fn variants_that_nothing_tells_apart_are_refused() {
    let same = error(&["a  T=u32 ADD=one", "b  T=u32 ADD=two"]);
    assert_eq!(same, "shaders/copy/k.comp: kernels k_a and k_b have the same types, numbers and flags");
    let partly = error(&["a  T=u32", "b  T=uint"]);
    assert_eq!(partly, "shaders/copy/k.comp: kernel k_b does not say T");
    let unknown = error(&["a  T=f99:uint"]);
    assert_eq!(unknown, "shaders/copy/k.comp:1: f99 is no type of elements");
}
