//! The checks of a page in a browser.

mod pictures;
mod tabs;
mod zoom;

use super::pipe::Browser;
use anyhow::{Context, Result, bail};
use base64::Engine;
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

/// The least number of pixels that change where a picture moves. A tenth of a row of the film has some hundred.
const PIXELS_MIN: usize = 60;

/// The height of the window, in CSS pixels.
const SCREEN: f64 = 1000.0;
/// The widths of pictures: a desktop's and a telephone's.
const WIDTHS: [u32; 2] = [1400, 420];

/// A rectangle of the page, in CSS pixels of the window.
#[derive(Clone, Copy)]
struct Place {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

impl Place {
    fn middle(self) -> (f64, f64) {
        (self.x + self.width / 2.0, self.y + self.height / 2.0)
    }
}

/// Opens a page and tries all of its controls. Returns a description of the results. `folds` is true if a film of it
/// has rows to fold.
///
/// # Errors
/// The first check that fails.
pub(super) fn page(browser: &mut Browser, file: &Path, folds: bool) -> Result<String> {
    open(browser, file)?;
    quiet(browser)?;
    if folds {
        zoom::folds(browser)?;
    }
    if number(browser, "document.querySelectorAll('.film').length")? < 1.0 {
        bail!("there is no film on the page");
    }
    if number(browser, "document.querySelectorAll('.film:not(.alive)').length")? > 0.0 {
        bail!("a film is not alive: its script did not run");
    }
    let film = "document.querySelector('.film:has(input)')";
    let by_tabs = tabs::check(browser, film)?;
    run(browser, &format!("{film}.scrollIntoView({{block: 'center'}})"))?;
    let value = format!("Number({film}.querySelector('input').value)");
    let last = number(browser, &format!("Number({film}.querySelector('input').max)"))?;
    let canvas = place(browser, &format!("{film}.querySelector('canvas')"))?;
    let slider = place(browser, &format!("{film}.querySelector('input')"))?;
    // A film opens at the moment of the most lazy pages.
    let lazy =
        format!("JSON.parse({film}.querySelector('script').textContent).moments.map(moment => moment[3])");
    let opens = number(browser, &value)?;
    let most = number(browser, &format!("(lazy => lazy.lastIndexOf(Math.max(...lazy)))({lazy})"))?;
    if opens != most {
        bail!("the film opens at moment {opens}, and the most is lazy at {most}");
    }
    click(browser, canvas.x + canvas.width / 2.0, canvas.y + 8.0)?;
    // The keys of the picture, once it has the focus. One that it does not take would scroll the page, and clicks then hit
    // something else.
    press(browser, "Home", 36)?;
    let home = number(browser, &value)?;
    press(browser, "End", 35)?;
    let at_end = number(browser, &value)?;
    if home != 0.0 || at_end != last {
        bail!("the keys Home and End on the picture go to {home} and {at_end} of {last}");
    }
    let end = picture(browser, canvas)?;

    // A caller that is clicked lights up, and all do again. The legend may be outside of the window.
    let button = format!("{film}.querySelector('.key button')");
    let mut seen = Vec::new();
    for _ in 0..2 {
        run(browser, &format!("{button}.scrollIntoView({{block: 'center'}})"))?;
        click_on(browser, &button)?;
        let names = number(browser, &format!("{film}.querySelectorAll('.key .lit, .who .lit').length"))?;
        run(browser, &format!("{film}.scrollIntoView({{block: 'center'}})"))?;
        seen.push((names, differing(&end, &picture(browser, canvas)?)?));
    }
    if seen[0].0 != 2.0 || seen[0].1 < PIXELS_MIN || seen[1] != (0.0, 0) {
        bail!("a caller that is clicked twice lights and changes, in names and pixels, {seen:?}");
    }

    // The slider, by the mouse: to the left third.
    click(browser, slider.x + slider.width * 0.3, slider.y + slider.height / 2.0)?;
    let after_click = number(browser, &value)?;
    let by_mouse = picture(browser, canvas)?;
    let moved = differing(&end, &by_mouse)?;
    if moved < PIXELS_MIN || after_click >= last * 0.5 {
        bail!("the slider moves to {after_click} of {last} and changes {moved} pixels of the picture");
    }

    // The slider, by keys.
    for _ in 0..12 {
        press(browser, "ArrowLeft", 37)?;
    }
    let after_keys = number(browser, &value)?;
    let by_keys = differing(&by_mouse, &picture(browser, canvas)?)?;
    if after_keys != after_click - 12.0 || by_keys == 0 {
        bail!(
            "twelve arrow keys move the slider from {after_click} to {after_keys} and change {by_keys} pixels"
        );
    }

    click(browser, canvas.x + canvas.width / 2.0, canvas.y + 8.0)?;
    press(browser, "End", 35)?;
    if differing(&end, &picture(browser, canvas)?)? > 0 {
        bail!("the last moment does not look as it did before, so that steps do not add up");
    }

    let zoomed = zoom::check(browser, film, canvas)?;

    // The page shows the details under the pointer.
    let probe = format!("{film}.querySelector('.probe').textContent");
    let mut shown = Vec::new();
    for share in [0.3, 0.5, 0.7] {
        let at = (canvas.x + canvas.width * share, canvas.y + canvas.height * share);
        mouse(browser, "mouseMoved", at)?;
        shown.push(text(browser, &probe)?);
    }
    if !shown.iter().all(|text| text.starts_with("0x")) || shown[0] == shown[2] {
        bail!("the pointer shows {shown:?}");
    }

    area(browser, film, canvas)?;

    // The button plays, and stops.
    let button = format!("{film}.querySelector('.play')");
    click_on(browser, &button)?;
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut playing = 0.0;
    while playing < 3.0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
        playing = number(browser, &value)?;
    }
    click_on(browser, &button)?;
    let stopped = number(browser, &value)?;
    std::thread::sleep(Duration::from_millis(300));
    if !(3.0..last).contains(&playing) || number(browser, &value)? != stopped {
        bail!("the button plays to {playing} of {last}, and stops at {stopped} or does not");
    }

    // The same is available as text, for readers who cannot see it.
    let label = text(browser, &format!("{film}.querySelector('input').getAttribute('aria-valuetext')"))?;
    if !label.contains("event ") || !label.contains(" busy") {
        bail!("the slider's value is shown as {label:?}");
    }

    // A dark page is another picture; a printed page has the chosen moments and no slider.
    let light = picture(browser, canvas)?;
    media(browser, "screen", "dark")?;
    if differing(&light, &picture(browser, canvas)?)? < PIXELS_MIN {
        bail!("the picture is the same on a dark page");
    }
    media(browser, "print", "light")?;
    let hidden = format!("getComputedStyle({film}.querySelector('.filmbar')).display === 'none'");
    let strip = format!("{film}.querySelector('.strip img').getBoundingClientRect().width");
    let (hidden, strip) = (run(browser, &hidden)?, number(browser, &strip)?);
    if hidden != json!(true) || strip < 100.0 {
        bail!("on paper the slider is there, or the chosen moments are {strip} pixels wide");
    }
    media(browser, "screen", "light")?;
    quiet(browser)?;
    Ok(format!(
        "{by_tabs}; {} moments; the slider changes {moved} pixels, twelve keys {by_keys}; {zoomed}; no request, no complaint",
        last + 1.0
    ))
}

/// Checks that an area that is clicked lights up its caller, and that a second click lights up all.
fn area(browser: &mut Browser, film: &str, canvas: Place) -> Result<()> {
    let caller = format!(
        "(found => found && [...{film}.querySelectorAll('.key button')].some(one => one.textContent === found[1]))(/busy, (.*)/.exec({film}.querySelector('.probe').textContent))"
    );
    for row in 0..20 {
        let at = (canvas.x + canvas.width * 0.3, canvas.y + canvas.height * (f64::from(row) + 0.5) / 20.0);
        mouse(browser, "mouseMoved", at)?;
        if run(browser, &caller)? != json!(true) {
            continue;
        }
        let lit = format!("{film}.querySelectorAll('.key .lit').length");
        click(browser, at.0, at.1)?;
        let once = number(browser, &lit)?;
        click(browser, at.0, at.1)?;
        let twice = number(browser, &lit)?;
        if (once, twice) != (1.0, 0.0) {
            bail!("an area that is clicked twice lights up {once} and then {twice} callers");
        }
        return Ok(());
    }
    bail!("no area of a caller with a colour is at the pointer")
}

/// Writes pictures of a page: each of its tabs, at [`WIDTHS`], light and dark, and the page as a PDF. Returns the
/// height of each tab in screens, by width.
///
/// # Errors
/// If it cannot be opened or they cannot be written.
pub(super) fn shots(browser: &mut Browser, file: &Path, dir: &Path) -> Result<Vec<String>> {
    open(browser, file)?;
    let mut heights = Vec::new();
    for width in WIDTHS {
        size(browser, width)?;
        let tabs = number(browser, "document.querySelectorAll('[role=tab]').length")? as usize;
        for tab in 0..tabs.max(1) {
            if tabs > 0 {
                run(browser, &format!("document.querySelectorAll('[role=tab]')[{tab}].click()"))?;
            }
            let height = number(browser, "document.documentElement.scrollHeight")?;
            heights.push(format!("{width} pixels, tab {tab}: {:.1} screens", height / SCREEN));
            let whole = Place { x: 0.0, y: 0.0, width: f64::from(width), height: height.min(6000.0) };
            for scheme in ["light", "dark"] {
                media(browser, "screen", scheme)?;
                let png = picture_from_top(browser, whole)?;
                std::fs::write(dir.join(format!("{width}-{scheme}-{tab}.png")), png)?;
            }
        }
    }
    media(browser, "", "light")?;
    let pdf = browser.ask("Page.printToPDF", json!({"preferCSSPageSize": true, "printBackground": false}))?;
    std::fs::write(dir.join("page.pdf"), bytes(&pdf)?)?;
    Ok(heights)
}

fn open(browser: &mut Browser, file: &Path) -> Result<()> {
    browser.new_page()?;
    for domain in ["Page", "Runtime", "Log", "Network"] {
        browser.ask(&format!("{domain}.enable"), json!({}))?;
    }
    size(browser, 1120)?;
    media(browser, "screen", "light")?;
    browser.ask("Page.navigate", json!({"url": format!("file://{}", file.display())}))?;
    browser.wait_for("Page.loadEventFired")?;
    // Effects of loading a page appear in the following frames.
    let frames = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50))))";
    run(browser, frames)?;
    Ok(())
}

/// Sets the width of the window.
fn size(browser: &mut Browser, width: u32) -> Result<()> {
    let size = json!({"width": width, "height": SCREEN, "deviceScaleFactor": 1, "mobile": false});
    browser.ask("Emulation.setDeviceMetricsOverride", size)?;
    settle(browser)
}

/// Waits for two frames.
fn settle(browser: &mut Browser) -> Result<()> {
    let frames = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))";
    run(browser, frames).map(drop)
}

/// Checks that the page made no network request and reported no error.
fn quiet(browser: &Browser) -> Result<()> {
    for event in browser.events() {
        let params = &event["params"];
        match event["method"].as_str().unwrap_or("") {
            "Network.requestWillBeSent" => {
                let url = params["request"]["url"].as_str().unwrap_or("");
                if !url.starts_with("file://") && !url.starts_with("data:") {
                    bail!("the page requests {url}");
                }
            }
            "Runtime.consoleAPICalled" => {
                bail!("the page prints to the console: {}", params["args"][0]["value"]);
            }
            "Runtime.exceptionThrown" => {
                let details = &params["exceptionDetails"];
                bail!("the script fails: {}", details["exception"]["description"]);
            }
            "Log.entryAdded" if params["entry"]["level"] == "error" => {
                bail!("the browser complains: {}", params["entry"]["text"]);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Runs a script on the page and returns its value.
fn run(browser: &mut Browser, script: &str) -> Result<Value> {
    let params = json!({"expression": script, "returnByValue": true, "awaitPromise": true});
    let answer = browser.ask("Runtime.evaluate", params)?;
    if answer.get("exceptionDetails").is_some() {
        bail!("{script}: {}", answer["exceptionDetails"]["exception"]["description"]);
    }
    Ok(answer["result"]["value"].clone())
}

fn number(browser: &mut Browser, script: &str) -> Result<f64> {
    run(browser, script)?.as_f64().with_context(|| format!("{script} is no number"))
}

fn text(browser: &mut Browser, script: &str) -> Result<String> {
    Ok(run(browser, script)?.as_str().with_context(|| format!("{script} is no text"))?.to_string())
}

fn place(browser: &mut Browser, element: &str) -> Result<Place> {
    let script =
        format!("(({{x, y, width, height}}) => [x, y, width, height])({element}.getBoundingClientRect())");
    let sides = run(browser, &script)?;
    let side = |at: usize| sides[at].as_f64().with_context(|| format!("{element} has no place"));
    Ok(Place { x: side(0)?, y: side(1)?, width: side(2)?, height: side(3)? })
}

fn media(browser: &mut Browser, medium: &str, scheme: &str) -> Result<()> {
    let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
    browser.ask("Emulation.setEmulatedMedia", json!({"media": medium, "features": features}))?;
    settle(browser)
}

fn mouse(browser: &mut Browser, kind: &str, (x, y): (f64, f64)) -> Result<()> {
    let button = if kind == "mouseMoved" { "none" } else { "left" };
    let params = json!({"type": kind, "x": x, "y": y, "button": button, "clickCount": 1});
    browser.ask("Input.dispatchMouseEvent", params)?;
    Ok(())
}

/// Presses the button at a place, moves to another and releases it.
fn drag(browser: &mut Browser, from: (f64, f64), to: (f64, f64)) -> Result<()> {
    mouse(browser, "mouseMoved", from)?;
    mouse(browser, "mousePressed", from)?;
    for share in [0.3, 0.6, 1.0] {
        let (x, y) = (from.0 + (to.0 - from.0) * share, from.1 + (to.1 - from.1) * share);
        let params = json!({"type": "mouseMoved", "x": x, "y": y, "button": "left", "buttons": 1});
        browser.ask("Input.dispatchMouseEvent", params)?;
    }
    mouse(browser, "mouseReleased", to)
}

/// Turns the wheel by a step upwards, with Ctrl.
fn wheel(browser: &mut Browser, (x, y): (f64, f64)) -> Result<()> {
    let params = json!({"type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": -100, "modifiers": 2});
    browser.ask("Input.dispatchMouseEvent", params)?;
    Ok(())
}

fn click(browser: &mut Browser, x: f64, y: f64) -> Result<()> {
    for kind in ["mouseMoved", "mousePressed", "mouseReleased"] {
        mouse(browser, kind, (x, y))?;
    }
    Ok(())
}

/// Clicks on the middle of an element.
fn click_on(browser: &mut Browser, element: &str) -> Result<()> {
    let (x, y) = place(browser, element)?.middle();
    click(browser, x, y)
}

fn press(browser: &mut Browser, key: &str, code: u32) -> Result<()> {
    for kind in ["rawKeyDown", "keyUp"] {
        let params = json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code});
        browser.ask("Input.dispatchKeyEvent", params)?;
    }
    Ok(())
}

/// Takes a picture of a section of the window, as a PNG.
fn picture(browser: &mut Browser, place: Place) -> Result<Vec<u8>> {
    let (x, y) = (number(browser, "scrollX")?, number(browser, "scrollY")?);
    picture_from_top(browser, Place { x: place.x + x, y: place.y + y, ..place })
}

/// Does the same for a rectangle of the whole page.
fn picture_from_top(browser: &mut Browser, place: Place) -> Result<Vec<u8>> {
    let Place { x, y, width, height } = place;
    let clip = json!({"x": x, "y": y, "width": width, "height": height, "scale": 1});
    let params = json!({"format": "png", "clip": clip, "captureBeyondViewport": true});
    bytes(&browser.ask("Page.captureScreenshot", params)?)
}

fn bytes(answer: &Value) -> Result<Vec<u8>> {
    let text = answer["data"].as_str().context("the browser sends no data")?;
    Ok(base64::engine::general_purpose::STANDARD.decode(text)?)
}

/// Returns how many pixels differ between two pictures of one size.
fn differing(one: &[u8], other: &[u8]) -> Result<usize> {
    let (one, other) = (pixels(one)?, pixels(other)?);
    if one.0 != other.0 || one.1.len() != other.1.len() {
        bail!("two pictures of one place have different sizes");
    }
    let (deep, one, other) = (one.0, one.1, other.1);
    Ok(one.chunks(deep).zip(other.chunks(deep)).filter(|(one, other)| one != other).count())
}

/// Returns the bytes per pixel, and all pixels, of a PNG.
fn pixels(data: &[u8]) -> Result<(usize, Vec<u8>)> {
    let mut reader = png::Decoder::new(std::io::Cursor::new(data)).read_info()?;
    let mut buffer = vec![0; reader.output_buffer_size().context("the picture is too large")?];
    let frame = reader.next_frame(&mut buffer)?;
    buffer.truncate(frame.buffer_size());
    Ok((frame.color_type.samples(), buffer))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn png_of(colours: &[[u8; 3]]) -> Vec<u8> {
        let mut data = Vec::new();
        let mut encoder = png::Encoder::new(&mut data, colours.len() as u32, 1);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(&colours.concat()).unwrap();
        writer.finish().unwrap();
        data
    }

    #[test]
    fn pixels_that_differ_are_counted() {
        let one = png_of(&[[1, 2, 3], [4, 5, 6], [7, 8, 9]]);
        let other = png_of(&[[1, 2, 3], [4, 5, 7], [8, 8, 9]]);
        assert_eq!((differing(&one, &one).unwrap(), differing(&one, &other).unwrap()), (0, 2));
        assert!(differing(&one, &png_of(&[[1, 2, 3]])).is_err() && differing(&one, b"x").is_err());
    }
}
