//! The demo and its report, help and completions.

use super::*;

#[test]
fn without_arguments_the_demo_runs() {
    let dir = TempDir::new().unwrap();
    let assert = vmlab().current_dir(&dir).assert().success();
    let stdout = stdout_of(&assert);
    for word in TRACES.iter().chain(&INDEXES).chain(&["67181", "12.5 PiB", "ns/op", "report: "]) {
        assert!(stdout.contains(word), "{word}\n{stdout}");
    }
    assert!(!stdout.contains('\u{1b}'), "no colours where no terminal is");
    assert_eq!(stderr_of(&assert), "", "no progress where no terminal is");
    let html = std::fs::read_to_string(dir.path().join("vmlab-report.html")).unwrap();
    assert_eq!(html.matches("<section>").count(), TRACES.len());
}

#[test]
fn the_report_is_one_file_that_loads_nothing() {
    let html = &all().html;
    for never in ["http:", "https:", "<script", "<link", "<iframe", "@import", "url(", "file:", "src=\"/"] {
        assert!(!html.contains(never), "{never}");
    }
    assert_eq!(html.matches("src=\"").count(), html.matches("src=\"data:image/png;base64,").count());
    assert!(html.starts_with("<!doctype html>") && html.trim_end().ends_with("</html>"));
}

#[test]
fn the_report_has_every_figure_with_title_axes_and_a_sentence() {
    let html = &all().html;
    for tag in ["section", "figure", "figcaption", "svg", "table", "div", "span", "p", "tr", "td", "th"] {
        let opened = html.matches(&format!("<{tag}>")).count() + html.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, html.matches(&format!("</{tag}>")).count(), "{tag}");
    }
    // Five figures a trace: the space, and four charts, each titled.
    assert_eq!(html.matches("<figure>").count(), 5 * TRACES.len());
    assert_eq!(html.matches("<figcaption>").count(), 5 * TRACES.len());
    let titles = ["Pages in use", "Holes", "Lost from the largest hole", "Time of a call"];
    for title in titles {
        assert_eq!(html.matches(&format!("<title>{title}</title>")).count(), TRACES.len(), "{title}");
    }
    for axis in ["events since the trace began", "pages of 4 KiB", "holes in the whole space", "ns a call"] {
        assert!(html.matches(axis).count() >= TRACES.len(), "{axis}");
    }
    for (trace, equal) in [("boot-smp1", ">103<"), ("test_vmalloc-mask127-smp1", ">67,181<")] {
        assert!(html.contains(&format!(">{trace}</h2>")) && html.contains(equal), "{trace}");
    }
    assert!(!html.contains("NaN") && !html.contains("inf,"));
}

#[test]
fn the_help_of_every_command_has_examples() {
    let commands: [&[&str]; 7] =
        [&[], &["demo"], &["replay"], &["map"], &["bench"], &["bench", "index"], &["completions"]];
    for command in commands {
        vmlab().args(command).arg("--help").assert().success().stdout(contains("Example"));
    }
}

#[test]
fn completions_know_the_commands_and_the_indexes() {
    for shell in ["bash", "zsh", "fish"] {
        let assert = vmlab().args(["completions", shell]).assert().success();
        let script = stdout_of(&assert);
        for word in ["vmlab", "replay", "completions", "rb-linux", "vmallocinfo"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    vmlab().args(["completions", "tcsh"]).assert().failure();
}
