//! The zoom of a film, and of a drawing.

use super::{PIXELS_MIN, Place, click_on, differing, drag, number, picture, press, run, text, wheel};
use crate::browser::pipe::Browser;
use anyhow::{Result, bail};
use serde_json::json;

/// The least free rows that a page folds, if it has any.
const FREE_ROWS: f64 = 10.0;

/// Checks the zoom of a film, whose picture is at `canvas` and has the focus. Returns a description of the results.
pub(super) fn check(browser: &mut Browser, film: &str, canvas: Place) -> Result<String> {
    let middle = canvas.middle();
    let label = format!("{film}.querySelector('.zoombar output').textContent");
    let before = picture(browser, canvas)?;
    let whole = text(browser, &label)?;
    let mut changed = Vec::new();
    for way in ["the key +", "the wheel", "the button", "two clicks"] {
        match way {
            "the key +" => press(browser, "+", 187)?,
            "the wheel" => wheel(browser, middle)?,
            "the button" => click_on(browser, &format!("{film}.querySelector('.zoombar button')"))?,
            _ => run(
                browser,
                &format!(
                    "{film}.querySelector('canvas').dispatchEvent(new MouseEvent('dblclick', {{clientX: {}, clientY: {}}}))",
                    middle.0, middle.1
                ),
            )
            .map(drop)?,
        }
        let (now, shown) = (picture(browser, canvas)?, text(browser, &label)?);
        changed.push(differing(&before, &now)?);
        if changed.last() < Some(&PIXELS_MIN) || !shown.starts_with("1.6x, ") {
            bail!("zoom by {way} changes {} pixels, and shows {shown:?}", changed[changed.len() - 1]);
        }
        let moved = dragged(browser, canvas, &now)?;
        if moved < PIXELS_MIN {
            bail!("a drag changes {moved} pixels of a picture that is zoomed by {way}");
        }
        run(browser, &format!("{film}.querySelector('canvas').focus()"))?;
        press(browser, "0", 48)?;
        if differing(&before, &picture(browser, canvas)?)? > 0 || text(browser, &label)? != whole {
            bail!("reset does not show what was there before the zoom by {way}");
        }
    }
    // Without Ctrl the wheel is the page's, and a drag of the whole picture is none.
    let wheel = "new WheelEvent('wheel', {deltaY: -100, cancelable: true})";
    let left = run(browser, &format!("{film}.querySelector('canvas').dispatchEvent({wheel})"))?;
    if left != json!(true) || text(browser, &label)? != whole {
        bail!("the wheel zooms without Ctrl");
    }
    if dragged(browser, canvas, &before)? > 0 {
        bail!("a drag moves the whole picture");
    }
    let drawn = drawing(browser)?;
    Ok(format!("zoom changes {} to {} pixels{drawn}", least(&changed), most(&changed)))
}

fn least(all: &[usize]) -> usize {
    all.iter().copied().min().unwrap_or(0)
}

fn most(all: &[usize]) -> usize {
    all.iter().copied().max().unwrap_or(0)
}

/// Drags the picture by a third of its height, and returns the pixels that change.
fn dragged(browser: &mut Browser, canvas: Place, before: &[u8]) -> Result<usize> {
    let (x, y) = (canvas.x + canvas.width / 2.0, canvas.y + canvas.height * 0.7);
    drag(browser, (x, y), (x - 40.0, y - canvas.height / 3.0))?;
    differing(before, &picture(browser, canvas)?)
}

/// Checks the zoom of the first drawing that has one, if there is any: the part that is shown becomes smaller.
fn drawing(browser: &mut Browser) -> Result<&'static str> {
    if number(browser, "document.querySelectorAll('[data-zoom]').length")? == 0.0 {
        return Ok("");
    }
    let shown = "document.querySelector('[data-zoom] svg').viewBox.baseVal.width";
    let press =
        |nth: usize| format!("document.querySelectorAll('[data-zoom] .zoombar button')[{nth}].click()");
    let whole = number(browser, shown)?;
    run(browser, &press(0))?;
    let zoomed = number(browser, shown)?;
    run(browser, &press(2))?;
    if zoomed >= whole || number(browser, shown)? != whole {
        bail!("a drawing of {whole} shows {zoomed} after a zoom, and does not go back");
    }
    Ok(", and a drawing zooms")
}

/// Checks that the films of a page fold rows that are free at every moment.
pub(in crate::browser) fn folds(browser: &mut Browser) -> Result<()> {
    let rows = "[...document.querySelectorAll('.zoombar output')].map(one => /([0-9,]+) free rows folded/.exec(one.textContent))";
    let folded =
        format!("{rows}.reduce((sum, found) => sum + (found ? Number(found[1].replaceAll(',', '')) : 0), 0)");
    if number(browser, &folded)? < FREE_ROWS {
        bail!("the films do not fold their free rows");
    }
    Ok(())
}
