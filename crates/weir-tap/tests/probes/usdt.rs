//! USDT probes of a program that this test compiles: their hits, arguments and counter.

use std::path::Path;
use std::process::Command;

use weir_model::{ProbeType, Value};
use weir_tap::probe::ProbeStream;
use weir_tap::probe::list::list;
use weir_testing::{Scratch, run, skip};

use super::{all, int, of_fields, watch};

/// Two sites of one probe, which differ in where their arguments are, as `sys/sdt.h` declares them.
/// The program prints how often its counter let it through: only while it is probed.
pub const SOURCE: &str = r#"
#include <stdio.h>
#include <stdlib.h>

volatile unsigned short weir_test_step_semaphore __attribute__((section(".probes")));

#define STEP(types, a, b, c)                                                   \
	asm volatile("990: nop\n"                                              \
		     ".pushsection .note.stapsdt,\"\",\"note\"\n"              \
		     ".balign 4\n"                                             \
		     ".4byte 992f-991f, 994f-993f, 3\n"                        \
		     "991: .asciz \"stapsdt\"\n"                               \
		     "992: .balign 4\n"                                        \
		     "993: .8byte 990b\n"                                      \
		     ".8byte _.stapsdt.base\n"                                 \
		     ".8byte weir_test_step_semaphore\n"                       \
		     ".asciz \"weir_test\"\n"                                  \
		     ".asciz \"step\"\n"                                       \
		     ".asciz \"" types "\"\n"                                  \
		     "994: .balign 4\n"                                        \
		     ".popsection\n"                                           \
		     ".ifndef _.stapsdt.base\n"                                \
		     ".pushsection .stapsdt.base,\"aG\",\"progbits\","         \
		     ".stapsdt.base,comdat\n"                                  \
		     ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n"          \
		     "_.stapsdt.base: .space 1\n.size _.stapsdt.base,1\n"      \
		     ".popsection\n.endif\n" ::a, b, c)

int main(int argc, char **argv)
{
	int i, steps = atoi(argv[1]);
	volatile char read;
	long hits = 0;

	/* Waits for the end of its input. */
	getchar();
	for (i = 0; i < steps; i++) {
		long wide = (long)i << 33;
		const char *text = i % 2 ? "odd" : "even";

		if (!weir_test_step_semaphore)
			continue;
		/* A program does not read memory that the process has not touched. */
		read = *text;
		hits += 2;
		STEP("-4@%0 8@%1 8@%2", "r"(-i), "r"(wide), "r"(text));
		STEP("-4@%0 8@%1 8@%2", "i"(-7), "m"(wide), "m"(text));
	}
	printf("%ld\n", hits);
	return argc != 2 || read == 0;
}
"#;

#[test]
fn hits_of_a_usdt_probe_equal_those_of_the_program() {
    const STEPS: i64 = 100;
    let scratch = Scratch::new();
    let source = scratch.path().join("steps.c");
    let program = scratch.path().join("steps");
    std::fs::write(&source, SOURCE).expect("a temporary file");
    let (source, file) = (source.display().to_string(), program.display().to_string());
    let arguments = ["-O1", "-fno-omit-frame-pointer", "-o", &file, &source];
    if let Err(why) = run("gcc", &arguments) {
        return skip("usdt", why).unwrap_or_default();
    }
    let listed = list(&format!("usdt:{file}")).expect("an ELF file");
    assert_eq!(listed[0].probe, format!("usdt:{file}:weir_test:step"));
    let types: Vec<&str> = listed[0].fields.iter().map(|f| &*f.ty).collect();
    assert_eq!(types, ["s32", "u64", "u64"]);
    assert_eq!(
        steps(&program, STEPS),
        0,
        "nothing is enabled without a probe"
    );
    let fields = [
        ("arg0", "step", None),
        ("arg1", "wide", None),
        ("arg2", "name", ProbeType::named("text")),
    ];
    let definition = of_fields(&listed[0].probe, &fields);
    let Some(watched) = watch("usdt", &definition, all) else {
        return;
    };
    let at = ["step", "wide", "name"].map(|column| watched.at(column));
    let hits = steps(&program, STEPS);
    let seen = watched.seen();
    assert_eq!((hits, seen.rows[0].len() as i64), (2 * STEPS, 2 * STEPS));
    for (number, row) in seen.rows[0].iter().enumerate() {
        let step = number as i64 / 2;
        let first = if number % 2 == 0 { -step } else { -7 };
        let name = if step % 2 == 0 { "even" } else { "odd" };
        assert_eq!(
            (int(&row[at[0]]), int(&row[at[1]])),
            (first, step << 33),
            "{number}"
        );
        assert_eq!(row[at[2]], Value::text(name), "{number}");
    }
    assert_eq!(steps(&program, STEPS), 0, "the counter is restored");
}

/// Kernels since 6.18 replace a NOP of 5 bytes with a call, which writes into the red zone.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_site_that_the_kernel_would_corrupt_is_refused() {
    let scratch = Scratch::new();
    let source = scratch.path().join("steps.c");
    let file = scratch.path().join("steps").display().to_string();
    let code = SOURCE.replace("990: nop", "990: .byte 0x0f, 0x1f, 0x44, 0, 0");
    assert_ne!(code, SOURCE);
    std::fs::write(&source, code).expect("a temporary file");
    if let Err(why) = run("gcc", &["-O1", "-o", &file, &source.display().to_string()]) {
        return skip("usdt", why).unwrap_or_default();
    }
    let release = run("uname", &["-r"]).expect("coreutils");
    let numbers: Vec<u32> = release
        .split(|c: char| !c.is_ascii_digit())
        .map_while(|n| n.parse().ok())
        .collect();
    let definition = of_fields(&format!("usdt:{file}:weir_test:step"), &[]);
    let is_replaced = (numbers[0], numbers[1]) >= (6, 18);
    match ProbeStream::new(&definition) {
        Ok(_) => assert!(!is_replaced, "{release}"),
        Err(error) => {
            assert!(is_replaced, "{release}: {}", error.message);
            assert!(
                error.message.contains("a NOP of 5 bytes"),
                "{}",
                error.message
            );
            assert!(error.help.is_some());
        }
    }
}

/// Runs the program; the number of hits that it counts.
fn steps(program: &Path, steps: i64) -> i64 {
    let output = Command::new(program)
        .arg(steps.to_string())
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().expect("a number")
}
